"""Parameters and operations of a model, counted on a skeleton without weights. Knows no architecture.

FLOPs are torch's own count: matrix products only (linear layers and attention), a multiplication and the addition after
it as *two* operations. Softmax, LayerNorm, activations and look-ups count nothing. MACs are half of that.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModel, AutoModelForPreTraining

from lib.errors import InputError


@dataclass(frozen=True)
class Counts:
    """Parameters of an encoder by part, and its size by arithmetic. A tied weight counts once."""

    parameters: int  # with pooler, where it has one
    embeddings: int  # tables of words, positions and token types; what follows them (a projection, LayerNorm) is not
    pooler: int
    pretraining: int | None  # encoder with the heads of its pre-training; None where transformers has no such model
    bytes_int8: int  # tables and matrices of linear layers at one byte, everything else at four

    @property
    def without_pooler(self) -> int:
        return self.parameters - self.pooler

    @property
    def without_embeddings(self) -> int:
        return self.parameters - self.embeddings

    @property
    def file_mb(self) -> float:
        """Weights in float32, in MB (10**6 bytes); the header of a file comes on top (some tens of kB)."""
        return 4 * self.parameters / 1e6

    @property
    def file_int8_mb(self) -> float:
        """As `file_mb`, int8 for what dynamic quantisation takes: matrices and tables. Scales come on top."""
        return self.bytes_int8 / 1e6


def skeleton(config, build: Callable = AutoModel.from_config) -> nn.Module:
    """A model of a configuration on the meta device: all shapes, no memory. Attention is written out ("eager").

    `build`: `from_config` of an Auto class, or `_from_config` of a model class.
    """
    with torch.device("meta"):
        return build(copy.deepcopy(config), attn_implementation="eager").eval()


def counts(config) -> Counts:
    """Parameters of the encoder that transformers builds from a configuration."""
    model = skeleton(config)
    total = sum(p.numel() for p in model.parameters())
    tables = {id(m.weight): m.weight.numel() for m in model.modules() if isinstance(m, nn.Embedding)}
    pooler = sum(p.numel() for name, m in model.named_modules() if name.rpartition(".")[2] == "pooler"
                 for p in m.parameters())
    linear = {id(m.weight): m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear)}
    small = sum(linear.values()) + sum(tables.values())
    return Counts(total, sum(tables.values()), pooler, _pretraining(config), small + 4 * (total - small))


def _pretraining(config) -> int | None:
    from transformers import MODEL_FOR_PRETRAINING_MAPPING

    if type(config) not in MODEL_FOR_PRETRAINING_MAPPING:
        return None
    return sum(p.numel() for p in skeleton(config, AutoModelForPreTraining.from_config).parameters())


def flops_by_module(model: nn.Module, batch: int, length: int) -> dict[str, int]:
    """FLOPs of a forward pass over (batch, length) tokens by module, as torch names them ("Global" is everything).

    `model`: a `skeleton`. Raises `ValueError` for fused attention, of which torch's counter does not see every kind,
    and `InputError` where the model has no positions for `length`.
    """
    attention = getattr(model.config, "_attn_implementation", None)
    if attention != "eager" or next(model.parameters()).device.type != "meta":
        raise ValueError(f"FLOPs are counted on a skeleton (meta device, eager attention), not with {attention!r}")
    limit = getattr(model.config, "max_position_embeddings", None)
    if limit and length > limit:
        raise InputError(f"length: {length} is more than the model's {limit} positions")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=torch.zeros(batch, length, dtype=torch.long, device="meta"))
    return {name: sum(kinds.values()) for name, kinds in counter.get_flop_counts().items()}


def flops(config, batch: int = 1, length: int = 128) -> int:
    """FLOPs (a multiply-add is two) of the encoder of a configuration over (batch, length) tokens."""
    return flops_by_module(skeleton(config), batch, length)["Global"]
