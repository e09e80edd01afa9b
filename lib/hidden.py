"""Hidden states of an encoder, taken by forward hooks: any model whose layers stand in one list."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import nn

from lib import layers


@contextlib.contextmanager
def capture_hidden(model: nn.Module, last: bool = True) -> Iterator[list[torch.Tensor]]:
    """Collect the hidden states of the latest forward pass of `model`: a list of tensors (B, T, H), with gradients.

    Entry 0 is the output of the embeddings, entry i that of encoder layer i (one-based, as the papers count). A new
    forward pass starts the list anew; after the `with` the list keeps what it holds.

    The last layer needs a plain forward, `model(**inputs)`: `layers.classify` computes its first token alone, and that
    is refused with a `RuntimeError`. With `last=False` the last layer is left out, and both ways are allowed. Raises
    `InputError` where the layers do not stand in one list.
    """

    def whole(hidden: torch.Tensor, states: list[torch.Tensor]) -> torch.Tensor:
        if states and hidden.shape[:2] != states[0].shape[:2]:
            raise RuntimeError(f"capture_hidden: layer {len(states)} gave {tuple(hidden.shape)} for "
                               f"{tuple(states[0].shape)}; call model(**inputs), not classify, or pass last=False")
        return hidden

    with _capture(model, whole, last) as states:
        yield states


@contextlib.contextmanager
def capture_first_token(model: nn.Module) -> Iterator[list[torch.Tensor]]:
    """The same for the first token alone: a list of tensors (B, H), the last layer's among them.

    Works with `layers.classify`, which is the cheap way to have logits and these states in one pass.
    """
    with _capture(model, lambda hidden, _: hidden[:, 0], True) as states:
        yield states


@contextlib.contextmanager
def _capture(model: nn.Module, take: Callable, last: bool) -> Iterator[list[torch.Tensor]]:
    stack = layers.encoder_layers(model)
    states: list[torch.Tensor] = []

    def before_first(module, args, kwargs):
        states.clear()
        states.append(take(args[0] if args else kwargs["hidden_states"], states))

    def after(module, args, kwargs, output):
        states.append(take(output[0] if isinstance(output, tuple) else output, states))

    handles = [stack[0].register_forward_pre_hook(before_first, with_kwargs=True)]
    handles += [layer.register_forward_hook(after, with_kwargs=True) for layer in (stack if last else stack[:-1])]
    try:
        yield states
    finally:
        for h in handles:
            h.remove()
