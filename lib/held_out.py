"""The mean of a loss and of its parts on rows that are not trained: what a stage on text is judged by."""

from __future__ import annotations

import torch
from torch import nn

from lib import batches, training
from lib.batches import Encoded
from lib.training import LossFunction


@torch.inference_mode()
def mean_loss(model: nn.Module, loss: LossFunction, data: Encoded, precision: str = "fp32") -> dict[str, float]:
    """"loss" and the parts that it logs, dropout off; a batch counts by the weight of its `Loss`, rows by default.

    `loss` must return a `Loss` and is called without a step.
    """
    place, sums, total = training.device(), {}, 0.0
    model.to(place).eval()
    for rows, batch in batches.in_order(data, 32):
        with torch.autocast(place.type, torch.bfloat16, enabled=precision == "bf16"):
            out = loss(model, {k: v.to(place) for k, v in batch.items()}, None)
        weight = len(rows) if out.weight is None else out.weight
        total += weight
        for name, value in {"loss": float(out.value), **out.logs}.items():
            sums[name] = sums.get(name, 0.0) + value * weight
    return {name: value / total for name, value in sums.items()}
