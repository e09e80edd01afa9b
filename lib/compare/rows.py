"""The numbers of a comparison: scores with intervals over the scored rows, sizes, times. No words, no HTML."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import AutoModelForSequenceClassification

from lib import evaluation, models, results, runs, stats, training
from lib.efficiency import timing
from lib.efficiency.timing import Size, Summary
from lib.provenance import environment
from lib.systems import title_of

BATCHES = (1, 32)
DRAWS = 1000  # resamples of the scored rows


@dataclass(frozen=True)
class Interval:
    """A value with its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """One model of a comparison. `record` is None for a teacher that the user brought."""

    method: str
    title: str
    folder: str
    needs: str  # what transformers needs to open the folder: "", "code" (its own modelling file)
    record: results.Record | None
    score: Interval  # percent
    draws: np.ndarray  # (DRAWS,) bootstrapped scores, the same resamples for every row
    difference: Interval | None  # points, from the teacher; None for the teacher itself
    size: Size
    layers: int
    times: dict[int, Summary]  # milliseconds by batch size
    speedups: dict[int, Summary]  # times faster than the teacher, inside the same rounds


@dataclass(frozen=True)
class Found:
    """A whole comparison; the teacher is the first row."""

    task: str
    source: str
    counts: dict[str, int]
    headline: str
    regression: bool
    split: str
    majority: float  # percent
    rows: list[Row]
    failed: dict[str, str]
    typical: int  # tokens of the median scored row
    length: int  # tokens at which the models were timed
    rounds: dict[int, int]
    machine: dict  # fields of results.Environment
    device: str
    lr: float
    seed: int
    selection: str

    @property
    def teacher(self) -> Row:
        return self.rows[0]

    @property
    def students(self) -> list[Row]:
        return self.rows[1:]

    @property
    def scored(self) -> int:
        return self.counts[self.split]

    @property
    def clear(self) -> bool:
        """Whether the teacher's interval lies above the majority: else retention says nothing."""
        return self.teacher.score.low > self.majority


def scorer(task, logits: np.ndarray, labels: np.ndarray):
    """Score in percent as a function of row numbers, the same numbers as `evaluation.metrics` gives."""
    answers = logits[:, 0] if task.regression else logits.argmax(-1)
    metrics = [evaluation.METRICS[name]() for name in task.headline]

    def score(rows: np.ndarray) -> float:
        # straight to scikit-learn and SciPy: thousands of resamples need not pass through Arrow files
        values = [next(iter(m._compute(answers[rows], labels[rows]).values())) for m in metrics]
        return 100 * float(np.mean(values))

    return score


def open_model(method: str, folder: str) -> nn.Module:
    """A model as its user will open it, in float32. Importing the method registers an architecture of its own."""
    models.quiet()
    importlib.import_module(f"lib.methods.{method}")
    return AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32, use_safetensors=True)


def timed(opened: dict[str, nn.Module], length: int, seconds: float) -> dict[int, dict[str, np.ndarray]]:
    """Seconds of each model by batch size and name, every batch size in interleaved rounds."""
    place = training.device()
    for model in opened.values():
        model.to(place)
    return {b: timing.latency(opened, b, length, rounds=60, warmup=3, seconds=seconds) for b in BATCHES}


def lengths(base: runs.Run, opened: dict[str, nn.Module]) -> tuple[int, int]:
    """(tokens of the median scored row, the length to time at: the next multiple of 8 that every model takes)."""
    typical = int(np.median(base.sets["scored"].lengths))
    limits = [getattr(m.config, "max_position_embeddings", None) or 10**9 for m in opened.values()]
    return typical, min(-(-typical // 8) * 8, *limits)


def collect(base: runs.Run, records: dict[str, results.Record], failed: dict[str, str], folders: dict[str, Path],
            seconds: float) -> Found:
    """Everything that the page shows. `base` is the teacher's run; `seconds` of timing for each batch size.

    Without a record of "bert" the teacher is the user's own, and its scored rows are predicted here.
    """
    task, scored = base.task, base.sets["scored"]
    answers = {m: results.logits(results.predictions(r, task.classes)) for m, r in records.items()}
    if "bert" not in records:
        answers["bert"] = evaluation.predict(base.teacher().model, scored)
    names = ["bert", *(m for m in records if m != "bert")]
    scores = {m: scorer(task, answers[m], scored.labels) for m in names}
    draws = stats.bootstrap(scores, len(scored), DRAWS, base.p.seed)
    where = {m: str(folders.get(m, base.p.teacher)) for m in names}
    opened = {m: open_model(m, models.resolve(where[m], "student")) for m in names}
    sizes = {m: timing.size(model) for m, model in opened.items()}
    typical, length = lengths(base, opened)
    times = timed(opened, length, seconds)
    everyone, rows = np.arange(len(scored)), []
    for m in names:
        value, ours = scores[m](everyone), draws[m]
        difference = None if m == "bert" else Interval(
            value - scores["bert"](everyone), *stats.percentile_interval(ours - draws["bert"]))
        rows.append(Row(
            method=m, title=title_of(m), folder=where[m], record=records.get(m), draws=ours, difference=difference,
            needs="" if type(opened[m]).__module__.startswith("transformers.") else "code",
            score=Interval(value, *stats.percentile_interval(ours)), size=sizes[m],
            layers=opened[m].config.num_hidden_layers,
            times={b: timing.summary(1000 * t[m]) for b, t in times.items()},
            speedups={b: timing.speedup(t["bert"], t[m]) for b, t in times.items()}))
    some = next(iter(records.values()), None)
    place = training.device()
    return Found(
        task=task.name, source=base.data.source, counts=base.data.rows, headline=task.headline_name,
        regression=task.regression, split=task.scored,
        majority=evaluation.majority(task, base.train.labels, scored.labels), rows=rows, failed=failed,
        typical=typical, length=length, rounds={b: len(t["bert"]) for b, t in times.items()},
        machine=environment(training.precision(base.p.precision), training.threads()),
        device=torch.cuda.get_device_name() if place.type == "cuda" else "CPU", lr=base.p.lr, seed=base.p.seed,
        selection=some.selection.rows if some else "")
