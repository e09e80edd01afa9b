"""One run on several processes: `torchrun --nproc-per-node 2 -m lib.run ...`. Every process holds the whole model.

The micro-batches of an optimiser step (`accumulation` of them) are dealt out over the processes, and their gradients
are added up. Since all randomness is a function of (seed, step, micro-batch), N processes compute what one process
computes, but for the order of additions. All of them go through the same calls; what touches files is done by the
main process alone (`from_main`). In a single process every function here does nothing.

Several machines need one `BERT_BUILD` and one `BERT_RESULTS` that all of them see.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import pickle
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import distributed as dist
from torch import nn

from lib.batches import Encoded
from lib.errors import InputError

BUCKET = 1 << 25  # gradient elements that are added up in one go: 128 MB in fp32
PATIENCE = datetime.timedelta(days=7)  # the others wait while the main process waits for an artefact's lock
_alone = False  # inside `from_main`: what is called there must not wait for processes that are not in it


def processes() -> int:
    """Number of processes that share this run."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def active() -> bool:
    """Whether several processes share what is computed now."""
    return processes() > 1 and not _alone


def rank() -> int:
    """Number of this process, 0 for the one that writes."""
    return dist.get_rank() if active() else 0


def main() -> bool:
    """Whether this process writes checkpoints, artefacts and records, and shows progress."""
    return rank() == 0


def start() -> None:
    """Join the group that torchrun describes in the environment; nothing where there is none."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        gpu = torch.cuda.is_available()
        if gpu:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo", timeout=PATIENCE)


def stop() -> None:
    """Leave the group, if there is one."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def from_main(function: Callable):
    """What `function()` gives in the main process, in all of them; an exception there is raised in all of them."""
    global _alone
    if not active():
        return function()
    box: list = [None, None]
    if main():
        _alone = True
        try:
            box[0] = function()
        except Exception as e:  # noqa: BLE001 - whatever it is, the others must not wait for ever
            box[1] = _portable(e)
        finally:
            _alone = False
    dist.broadcast_object_list(box)
    if box[1] is not None:
        raise box[1]
    return box[0]


def wait() -> None:
    """Go on when every process has come here."""
    if active():
        dist.barrier()


def _portable(error: Exception) -> Exception:
    """The error, or one with the same words where it cannot travel between processes."""
    with contextlib.suppress(Exception):
        pickle.loads(pickle.dumps(error))
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")


def check(accumulation: int) -> None:
    """`InputError` where the micro-batches of a step cannot be dealt out evenly."""
    if active() and accumulation % processes():
        raise InputError(f"accumulation: {accumulation} is no multiple of the {processes()} processes, which share "
                         "the micro-batches of a step")


def share(micro: Iterable) -> list:
    """This process's part of a step's micro-batches, or of anything else that is dealt out one by one."""
    micro = list(micro)
    return micro[rank() :: processes()] if active() else micro


def gather(model: nn.Module, trained: bool, weights: float, sums: dict[str, float]) -> tuple[bool, float, dict]:
    """Add up gradients (in place), weights and sums of all processes; `trained` if any of them did.

    Processes may have met different parameters and logged different numbers: absent counts as zero, and a parameter
    that none has met keeps no gradient.
    """
    if not active():
        return trained, weights, sums
    everyone: list = [None] * processes()
    parameters = list(model.parameters())
    dist.all_gather_object(everyone, (trained, weights, sums, [p.grad is not None for p in parameters]))
    met = [p for i, p in enumerate(parameters) if any(other[3][i] for other in everyone)]
    for p in met:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    for bucket in _buckets(met):
        flat = torch.cat([p.grad.reshape(-1) for p in bucket])
        dist.all_reduce(flat)
        for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
            p.grad.copy_(part.view_as(p.grad))
    total: dict[str, float] = {}
    for _, _, numbers, _ in everyone:
        for name, number in numbers.items():
            total[name] = total.get(name, 0.0) + number
    return any(other[0] for other in everyone), sum(other[1] for other in everyone), total


def _buckets(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Parameters in groups of one type and about `BUCKET` elements: few large messages instead of many small ones."""
    groups: list[list[nn.Parameter]] = []
    size = 0
    for p in parameters:
        if not groups or size + p.numel() > BUCKET or p.grad.dtype != groups[-1][0].grad.dtype:
            groups.append([])
            size = 0
        groups[-1].append(p)
        size += p.numel()
    return groups


def predict(model: nn.Module, data: Encoded, batch_size: int = 64, precision: str = "fp32") -> np.ndarray:
    """`evaluation.predict`, its batches dealt out. Every row is predicted once, in the batch that it is always in."""
    from lib import evaluation

    if not active():
        return evaluation.predict(model, data, batch_size, precision=precision)
    order = np.argsort(-data.lengths, kind="stable")  # as `batches.in_order`
    mine = share(order[i : i + batch_size] for i in range(0, len(order), batch_size))
    found = None
    if mine:
        rows = np.concatenate(mine)
        part = Encoded({k: [v[i] for i in rows] for k, v in data.inputs.items()}, data.labels[rows],
                       data.lengths[rows], data.index[rows], data.pad)
        found = rows, evaluation.predict(model, part, batch_size, precision=precision)
    everyone: list = [None] * processes()
    dist.all_gather_object(everyone, found)
    parts = [f for f in everyone if f is not None]
    out = np.empty((len(data), parts[0][1].shape[-1]), dtype=np.float32)
    for rows, logits in parts:
        out[rows] = logits
    return out
