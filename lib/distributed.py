"""One run on several processes: `torchrun --nproc-per-node 2 ...`. Every process holds the whole model.

The micro-batches of an optimiser step (`accumulation` of them) are dealt out over the processes, and their gradients
are added up. Since all randomness is a function of (seed, step, micro-batch), N processes compute what one process
computes, but for the order of additions. In a single process every function here does nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
from torch import distributed as dist
from torch import nn

from lib.errors import InputError


def active() -> bool:
    """Whether several processes share this run."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    """Number of this process, 0 for the one that writes."""
    return dist.get_rank() if active() else 0


def main() -> bool:
    """Whether this process writes checkpoints, artefacts and records, and shows progress."""
    return rank() == 0


def start() -> None:
    """Join the group that torchrun describes in the environment; nothing where there is none."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")


def check(accumulation: int) -> None:
    """`InputError` where the micro-batches of a step cannot be dealt out evenly."""
    if active() and accumulation % dist.get_world_size():
        raise InputError(f"accumulation: {accumulation} is no multiple of the {dist.get_world_size()} processes, which "
                         "share the micro-batches of a step")


def share(micro: Iterable) -> list:
    """This process's part of a step's micro-batches."""
    micro = list(micro)
    return micro[rank() :: dist.get_world_size()] if active() else micro


def gather(model: nn.Module, trained: bool, weights: float, sums: dict[str, float]) -> tuple[bool, float, dict]:
    """Add up gradients (in place), weights and sums of all processes; `trained` if any of them did.

    Processes may have met different parameters and logged different numbers: absent counts as zero, and a parameter
    that none has met keeps no gradient.
    """
    if not active():
        return trained, weights, sums
    everyone: list = [None] * dist.get_world_size()
    parameters = list(model.parameters())
    dist.all_gather_object(everyone, (trained, weights, sums, [p.grad is not None for p in parameters]))
    for i, p in enumerate(parameters):
        if any(other[3][i] for other in everyone):
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(p.grad)
    total: dict[str, float] = {}
    for _, _, numbers, _ in everyone:
        for name, number in numbers.items():
            total[name] = total.get(name, 0.0) + number
    return any(other[0] for other in everyone), sum(other[1] for other in everyone), total
