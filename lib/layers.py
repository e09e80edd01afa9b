"""Surgery on an encoder: find, cut and replace its layers. Any model whose layers stand in one list."""

from __future__ import annotations

import contextlib
import copy

import torch
from torch import nn

from lib import fast
from lib.errors import InputError

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def classify(model: nn.Module, batch: dict) -> torch.Tensor:
    """Logits (B, classes) of a batch, computing no more of the last layer than the head looks at."""
    last = []
    with contextlib.suppress(InputError):
        layer = encoder_layers(model)[-1]
        last = layer.last_layers() if hasattr(layer, "last_layers") else [layer]
    with fast.first_token(last):
        return model(**{k: batch[k] for k in INPUTS if k in batch}).logits


def output_layer(model: nn.Module) -> nn.Linear:
    """The last linear layer of the classification head (num_labels outputs)."""
    found = [m for m in model.modules() if isinstance(m, nn.Linear) and m.out_features == model.config.num_labels]
    if not found:
        raise InputError(f"{type(model).__name__}: no linear output layer with {model.config.num_labels} outputs")
    return found[-1]


def encoder_layers(model: nn.Module) -> nn.ModuleList:
    """The list of encoder layers. `InputError` where they do not stand in one list of the configured length."""
    depth = getattr(model.config, "num_hidden_layers", None)
    found = [m for m in model.base_model.modules() if isinstance(m, nn.ModuleList) and len(m) == depth and depth]
    found = [m for m in found if len({type(x) for x in m}) == 1]
    if not found:
        raise InputError(f"{type(model).__name__}: its layers do not stand in one list of num_hidden_layers={depth}; "
                         "methods that cut or replace layers cannot take it")
    return found[0]


def fresh_head(model: nn.Module) -> None:
    """Draw the output layer anew from torch's generator: normal with the configured deviation, bias 0."""
    head = output_layer(model)
    nn.init.normal_(head.weight, std=getattr(model.config, "initializer_range", 0.02))
    if head.bias is not None:
        nn.init.zeros_(head.bias)


def set_layers(model: nn.Module, layers: list[nn.Module], kept: list[int]) -> nn.Module:
    """Put `layers` in the place of the encoder's list, in place; `kept` says which old layer each stands for."""
    old = encoder_layers(model)
    parent = next(m for m in model.modules() for c in m.children() if c is old)
    attribute = next(n for n, c in parent.named_children() if c is old)
    setattr(parent, attribute, nn.ModuleList(layers))
    config = model.config
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[i] for i in kept]
    config.num_hidden_layers = len(layers)
    if hasattr(parent, "n_layers"):
        parent.n_layers = len(layers)
    for i, layer in enumerate(layers):
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = i
    return model


def cut(model: nn.Module, keep: list[int]) -> nn.Module:
    """A copy of `model` that has only the encoder layers `keep` (zero-based). Everything else is copied whole."""
    depth = len(encoder_layers(model))
    if not keep or any(not 0 <= i < depth for i in keep):
        raise InputError(f"layers {keep}: must be between 0 and {depth - 1}, at least one")
    student = copy.deepcopy(model)
    return set_layers(student, [copy.deepcopy(encoder_layers(model)[i]) for i in keep], keep)


def lowest(depth: int, count: int) -> list[int]:
    """Zero-based numbers of the `count` lowest of `depth` layers."""
    return list(range(min(count, depth)))


def halved(depth: int, layers: int, what: str = "layers") -> int:
    """Depth of the student: `layers`, or half of the backbone's where `layers` is 0. `InputError` if not smaller."""
    count = layers or max(1, depth // 2)
    if not 0 < count < depth:
        raise InputError(f"{what}: {count} is not between 1 and {depth - 1} (the backbone has {depth} layers)")
    return count
