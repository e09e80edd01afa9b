"""What a model costs to keep and to run: parameters, file size, latency. Knows no architecture.

Times of several models are taken in interleaved rounds (A B C A B C ...), so that a slow minute of a shared machine
falls on all of them, and a speed-up is the median of the ratios inside the rounds.
"""

from __future__ import annotations

import datetime
import gc
import importlib.metadata
import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from lib.errors import InputError
from lib.models import count_parameters
from lib.provenance import processor

QUIET = 0.5  # a load this far above the threads of a timing is no sign of other programs


def versions() -> str:
    """torch, transformers, onnxruntime as installed."""
    found = []
    for package in ("torch", "transformers", "onnxruntime"):
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{package} missing")
    return ", ".join(found)


def stamp() -> dict[str, object]:
    """What every row of timings says of where and when it was taken.

    `load` is the one-minute average: other programs' share shows, on a quiet machine it is at most the threads used.
    """
    return {"threads": torch.get_num_threads(), "load": round(os.getloadavg()[0], 2), "processor": processor(),
            "date": datetime.date.today().isoformat(), "versions": versions()}


def busy(load: float, threads: int) -> str:
    """A few words where a timing's `load` shows other programs beside its `threads`; empty where it does not."""
    return "" if load <= threads + QUIET else (f"left out, load {load} at {threads} threads: other programs ran beside "
                                               "the timing; run this again on a quiet machine")


@dataclass(frozen=True)
class Size:
    """Parameters (all, and outside the embedding tables) and the weights' file in MB (10**6 bytes, fp32)."""

    parameters: int
    parameters_without_embeddings: int
    file_mb: float


@dataclass(frozen=True)
class Summary:
    """Median and quartiles of times in milliseconds, or of ratios."""

    median: float
    low: float  # first quartile
    high: float  # third quartile

    @property
    def iqr(self) -> float:
        return self.high - self.low


def summary(values: np.ndarray) -> Summary:
    """Median and quartiles of `values` (n,), linearly interpolated."""
    low, median, high = np.percentile(np.asarray(values, dtype=np.float64), [25, 50, 75])
    return Summary(float(median), float(low), float(high))


def size(model: nn.Module) -> Size:
    """Size of a transformers model. The file is written to a temporary folder and weighed; tied weights count once.

    Raises `ValueError` where a weight is not float32: the file would be another one.
    """
    other = {str(p.dtype) for p in model.parameters() if p.is_floating_point() and p.dtype != torch.float32}
    if other:
        raise ValueError(f"size: weights are {', '.join(sorted(other))}, not torch.float32")
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        written = sum(f.stat().st_size for f in Path(folder).glob("*.safetensors"))
    return Size(*count_parameters(model), written / 1e6)


def inputs(model: nn.Module, batch: int, length: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random token ids (batch, length) within the model's vocabulary, none of them padding, with a full mask.

    Raises `InputError` where the model has no positions for `length`.
    """
    limit = getattr(model.config, "max_position_embeddings", None)
    if limit and length > limit:
        raise InputError(f"length: {length} is more than the model's {limit} positions")
    padding = getattr(model.config, "pad_token_id", None)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, model.config.vocab_size, (batch, length), generator=generator)
    if padding is not None:  # some architectures count positions by it
        ids[ids == padding] = (padding + 1) % model.config.vocab_size
    place = next(model.parameters()).device
    return {"input_ids": ids.to(place), "attention_mask": torch.ones_like(ids).to(place)}


def interleaved(calls: Mapping[str, Callable[[], object]], *, rounds: int, warmup: int,
                seconds: float = math.inf, fewest: int = 5) -> dict[str, np.ndarray]:
    """Seconds of each call in interleaved rounds, (rounds,) by name, after `warmup` rounds that are not counted.

    Ends early, but not before `fewest` rounds, once `seconds` have passed. A call must wait for what it starts (a GPU
    has to be synchronised in it). Raises `ValueError` without a warm-up round or without a round to count.
    """
    if warmup < 1:
        raise ValueError(f"warmup: {warmup}; at least one round that is not counted is needed before timing")
    if rounds < 1 or not calls:
        raise ValueError(f"rounds: {rounds} of {len(calls)} calls; at least one of each is needed")
    for _ in range(warmup):
        for call in calls.values():
            call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    collecting, began = gc.isenabled(), time.perf_counter()
    gc.collect()
    gc.disable()  # a collection would fall on whoever is being timed
    try:
        for done in range(rounds):
            if done >= fewest and time.perf_counter() - began > seconds:
                break
            for name, call in calls.items():
                start = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - start)
    finally:
        if collecting:
            gc.enable()
    return {name: np.array(values) for name, values in times.items()}


def latency(models: Mapping[str, nn.Module], batch: int, length: int, *, rounds: int = 50, warmup: int = 3,
            seconds: float = math.inf) -> dict[str, np.ndarray]:
    """Seconds of a forward pass of each model over (batch, length) tokens, in interleaved rounds; see `interleaved`.

    Models are timed as they are given (device, precision, attention) and left in evaluation mode.
    """
    def call(model: nn.Module) -> Callable[[], None]:
        given, cuda = inputs(model.eval(), batch, length), next(model.parameters()).device.type == "cuda"

        def run() -> None:
            model(**given)
            if cuda:
                torch.cuda.synchronize()

        return run

    with torch.inference_mode():
        return interleaved({n: call(m) for n, m in models.items()}, rounds=rounds, warmup=warmup, seconds=seconds)


def speedup(base: np.ndarray, other: np.ndarray) -> Summary:
    """How many times faster `other` is than `base`: the ratio inside each round, then median and quartiles.

    Raises `ValueError` where the two were not timed in the same rounds.
    """
    if base.shape != other.shape or not len(base):
        raise ValueError(f"speedup: {len(base)} and {len(other)} rounds; both must come from the same rounds")
    return summary(base / other)
