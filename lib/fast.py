"""Cheaper dropout and attention for training on a CPU, with the same mathematics.

torch's `bernoulli_` draws one number an element on one thread; on a CPU that is a fifth of a training step. Here 64
random bits are drawn at a time and cut into four. And a classifier that looks at the first token alone needs no other
token of its last layer. `install` puts these into any transformers model; nothing is added to its state, so what is
saved is the ordinary model.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

ATTENTION = "study"


def keep_mask(shape: torch.Size, p: float) -> torch.Tensor:
    """Boolean mask, each entry True with probability exactly 1 - p. Uses torch's global CPU generator.

    16 bits an entry are compared with p * 65536; where that is no whole number the threshold itself is drawn, once a
    call, between its two neighbours, so that the probability of an entry is p and not p rounded.
    """
    n = shape.numel()
    bits = torch.empty((n + 3) // 4, dtype=torch.int64).random_(-(2**63), None).view(torch.int16)[:n].view(shape)
    threshold = p * 65536
    whole = int(threshold)
    whole += int(torch.rand(()) < threshold - whole)
    return bits >= whole - 32768 if whole < 65536 else torch.zeros(shape, dtype=torch.bool)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, p):
        keep = keep_mask(x.shape, p)
        ctx.save_for_backward(keep)
        ctx.scale = 1 / (1 - p)
        return (x * keep).mul_(ctx.scale)

    @staticmethod
    def backward(ctx, gradient):
        (keep,) = ctx.saved_tensors
        return (gradient * keep).mul_(ctx.scale), None


def dropout(x: torch.Tensor, p: float, training: bool) -> torch.Tensor:
    """Inverted dropout: zero with probability p, the rest times 1 / (1 - p)."""
    if not training or p == 0.0:
        return x
    if x.device.type != "cpu" or p >= 1.0:
        return F.dropout(x, p)
    return _Dropout.apply(x, p)


class Dropout(nn.Dropout):
    """`nn.Dropout` that draws its mask by `keep_mask`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102
        return dropout(x, self.p, self.training)


_captured: list[torch.Tensor] | None = None


@contextlib.contextmanager
def capture_scores():
    """Collect the scaled attention scores before softmax, (B, heads, T, T) a layer, unmasked, in call order."""
    global _captured
    before, _captured = _captured, []
    try:
        yield _captured
    finally:
        _captured = before


def attention(module, query, key, value, attention_mask, scaling=None, dropout: float = 0.0, position_bias=None,
              **_):
    """Softmax attention in the form of transformers' attention interface.

    query, key, value: (B, heads, T, d); `attention_mask`: None or boolean (B, 1, T, T), True where a key is seen;
    `position_bias`: None, or a float added to the scaled scores, broadcast to (B, heads, T, T).
    Returns ((B, T, heads, d), None). Fused where neither dropout nor the scores are needed.
    """
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    p = dropout if module.training else 0.0
    if _captured is None and position_bias is None and (p == 0.0 or query.device.type != "cpu"):
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, dropout_p=p, scale=scaling)
        return out.transpose(1, 2).contiguous(), None
    scores = (query * scaling) @ key.transpose(-1, -2)  # (B, heads, T, T)
    if position_bias is not None:
        scores = scores + position_bias
    if _captured is not None:
        _captured.append(scores)
    if attention_mask is not None:
        if attention_mask.dtype != torch.bool:
            raise TypeError("attention: the mask must be boolean; is the model's mask function the study's?")
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    weights = globals()["dropout"](scores.softmax(-1), p, True)
    return (weights @ value).transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


# Classifiers that look at nothing but the first token of the last layer, and whose layers are built as BERT's.
FIRST_TOKEN_CLASSIFIERS = ("BertForSequenceClassification", "RobertaForSequenceClassification",
                           "XLMRobertaForSequenceClassification", "ElectraForSequenceClassification")
_first_only: set[int] = set()  # ids of the layers that now compute the first token alone


class _FirstToken:
    """Mixed into a BERT layer: where only the first token of its output is looked at, the rest is not computed.

    Keys and values still come from all tokens, so the first token's output is the same.
    """

    def forward(self, hidden_states, attention_mask=None, *args, **kwargs):
        """hidden_states: (B, T, H) -> (B, T, H), or (B, 1, H) while in `first_token`."""
        if id(self) not in _first_only:
            return super().forward(hidden_states, attention_mask, *args, **kwargs)
        inner, first = self.attention.self, hidden_states[:, :1]

        def heads(x):  # (B, t, H) -> (B, heads, t, d)
            return x.view(*x.shape[:2], inner.num_attention_heads, inner.attention_head_size).transpose(1, 2)

        mask = None if attention_mask is None else attention_mask[:, :, :1]
        context, _ = attention(inner, heads(inner.query(first)), heads(inner.key(hidden_states)),
                               heads(inner.value(hidden_states)), mask, inner.scaling, inner.dropout.p)
        return self.feed_forward_chunk(self.attention.output(context.flatten(2), first))


@functools.cache
def _with_first_token(cls: type) -> type:
    return type(cls.__name__, (_FirstToken, cls), {"__module__": cls.__module__})


@contextlib.contextmanager
def first_token(layers):
    """Within, each of `layers` computes its first token alone, where it can. For losses that see logits only."""
    added = {id(x) for x in layers if isinstance(x, _FirstToken)} - _first_only
    _first_only.update(added)
    try:
        yield
    finally:
        _first_only.difference_update(added)


def install(model: nn.Module) -> nn.Module:
    """Make a transformers model fast, in place: `Dropout` for every `nn.Dropout`, first-token layers for BERT's kin.

    Attention is chosen when the model is loaded.
    """
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, Dropout(child.p).train(child.training))
    if type(model).__name__ in FIRST_TOKEN_CLASSIFIERS and model.config._attn_implementation == ATTENTION:
        for module in model.modules():
            known = not isinstance(module, _FirstToken)  # a model may come here twice
            if known and type(module).__name__ in ("BertLayer", "RobertaLayer", "XLMRobertaLayer", "ElectraLayer"):
                module.__class__ = _with_first_token(type(module))
    return model


def keep_memory() -> None:
    """Tell glibc to keep freed memory: a fresh 47 MB embedding gradient a step costs page faults otherwise."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-3, 2**30)  # M_MMAP_THRESHOLD
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
