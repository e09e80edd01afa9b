"""What a method will cost on this machine and these rows: a few steps of each of its stages, and no more.

The method's own `compress` runs, with every call of `training.train` cut to a few steps. Its token cap is what is cut,
so that a schedule over the steps (a replacing rate, say) is seen from its beginning to its end. Artefacts that do not
exist yet (a general stage) are built as shortly, in a scratch folder that is deleted; one that exists costs nothing.
What a method does outside `training.train` and the prediction of rows is done in full, once.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import json
import os
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import nn

from lib import artefacts, batches, evaluation, training
from lib.batches import Encoded
from lib.errors import InputError
from lib.parameters import Parameters
from lib.paths import build_dir
from lib.provenance import digest
from lib.runs import Run, Teacher

SECONDS = 3.0  # of timed training a stage, between the fewest and the most steps
STEPS = (3, 12)
TRAIN_ROWS, HELD_OUT_ROWS = 2048, 128  # rows that the shortened runs see, at most


@dataclass(frozen=True)
class Cost:
    """Seconds that a method takes: `once`, for `each` training whatever its length, and for each token trained on."""

    once: float
    each: float
    per_token: float

    def seconds(self, budget: float, trainings: int = 1, budgets: float = 1.0) -> float:
        """Estimate for `trainings` trainings that take `budgets` times the budget (in tokens) together."""
        return self.once + trainings * self.each + self.per_token * budgets * budget


def module(method: str):
    """The method's module. `InputError` where it has no `Config` and `compress` to call."""
    found = importlib.import_module(f"lib.methods.{method}")
    if not (hasattr(found, "Config") and hasattr(found, "compress")):
        raise InputError(f"METHODS: {method!r} has no Config and compress in lib/methods/{method}.py to compare it by")
    return found


def part(data: Encoded, most: int) -> Encoded:
    """At most `most` rows of `data`, drawn with a fixed seed."""
    if len(data) <= most:
        return data
    rows = np.sort(np.random.default_rng(0).choice(len(data), most, replace=False))
    return Encoded({k: [v[i] for i in rows] for k, v in data.inputs.items()}, data.labels[rows], data.lengths[rows],
                   data.index[rows], data.pad)


class _Meter:
    """Stands in for `training.train`, `artefacts.build` and `evaluation.predict`, and adds up what they would cost."""

    def __init__(self, sets: dict[str, Encoded], full: dict[str, Encoded], budget: int, build: Path):
        # id of a shortened set -> how many times as many tokens the full one holds
        self.scale = {id(sets[k]): float(full[k].lengths.sum() / sets[k].lengths.sum()) for k in sets}
        self.rows, self.held_out = self.scale[id(sets["train"])], self.scale[id(sets["held_out"])]
        self.budget, self.build = budget, build
        self.originals = (training.train, artefacts.build, evaluation.predict)
        self.once, self.each, self.per_token = 0.0, 0.0, 0.0  # as in `Cost`; `once` are artefacts
        self.inside, self.built = 0.0, 0.0  # wall seconds of the shortened training; of building artefacts besides
        self.building, self.training = 0, False

    def train(self, model, loss_function, data, settings, *, evaluate=None, parameters=None, checkpoints=None):
        """A few steps of a stage; the same result as `training.train` gives."""
        began, scoring, s = time.perf_counter(), [0.0], settings
        plan = batches.plan(data.lengths, s.batch_size * s.accumulation, s.seed, s.epochs, s.max_tokens)

        def timed(model):
            start = time.perf_counter()
            scores = evaluate(model)
            scoring[0] += time.perf_counter() - start
            return scores

        def steps(count):
            """That many steps as one short training, or the whole of a stage that has no more."""
            return self.originals[0](
                model, loss_function, data,
                replace(s, epochs=1e6, max_tokens=int(count * data.lengths.mean() * s.batch_size * s.accumulation),
                        evaluations=1) if count < len(plan) else s,
                evaluate=timed if evaluate and count > 1 else None, parameters=chosen)

        chosen = None if parameters is None else list(parameters)
        self.training = True
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # no progress bar for a few steps
                first = steps(1)  # loads kernels and memory; not counted
                history = steps(int(np.clip(SECONDS / max(first.seconds, 1e-6), *STEPS)))
        finally:
            self.training = False
        whole = history.steps == len(plan)
        a_token = (history.seconds - scoring[0]) / history.tokens
        scored = scoring[0] * (1 if whole else s.evaluations)
        planned = sum(int(data.lengths[b].sum()) for b in plan)
        if self.building:
            self.once += scored + a_token * planned
        elif s.max_tokens:
            self.each += scored * self.held_out
            self.per_token += a_token * s.max_tokens / self.budget
        else:
            self.each += scored * self.held_out + a_token * planned * self.scale.get(id(data), 1)
        self.inside += time.perf_counter() - began
        return history

    def make(self, kind, configuration, make):
        """The artefact, the real one where it exists."""
        real = self.build / "artefacts" / kind / digest(configuration)
        if (real / "artefact.json").exists():
            return artefacts.Artefact(kind, real.name, real, json.loads((real / "artefact.json").read_text()))
        began, before = time.perf_counter(), self.inside
        self.building += 1
        try:
            return self.originals[1](kind, configuration, make)
        finally:
            self.building -= 1
            spent = time.perf_counter() - began - (self.inside - before)
            if kind == "teacher-answers":  # lib.teacher_cache: of one teacher, and of rows of which a part was seen
                self.each += spent * (self.rows - 1)
            elif not self.building:
                self.once, self.built = self.once + spent, self.built + spent

    def predict(self, model, data, *args, **kwargs):
        """Predictions; outside of training, rows that were left out are charged."""
        start = time.perf_counter()
        out = self.originals[2](model, data, *args, **kwargs)
        if not self.training:
            self.each += (time.perf_counter() - start) * (self.scale.get(id(data), 1) - 1)
        return out


@contextlib.contextmanager
def scratch():
    """Within, `$BERT_BUILD` and `$BERT_RESULTS` are a temporary folder; yields the build folder from outside."""
    outside, before = build_dir(), {k: os.environ.get(k) for k in ("BERT_BUILD", "BERT_RESULTS")}
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"BERT_BUILD": f"{folder}/build", "BERT_RESULTS": f"{folder}/results"}
        try:
            yield outside
        finally:
            for k, v in before.items():
                os.environ.pop(k) if v is None else os.environ.__setitem__(k, v)


def measure(base: Run, method: str, p: Parameters, startup: float, teacher: nn.Module | None) -> tuple[Cost, nn.Module]:
    """Cost of `method` with parameters `p` on the rows of `base`, and the hardly trained model that came out.

    `p.max_tokens` is the largest budget in question. `startup`: seconds to load libraries and rows, taken as they
    are. `teacher`: None for the teacher itself. Raises `InputError` where the method cannot take this backbone.
    """
    full = {k: v for k, v in base.sets.items() if k in ("train", "held_out")}
    sets = {"train": part(full["train"], TRAIN_ROWS), "held_out": part(full["held_out"], HELD_OUT_ROWS)}
    with scratch() as build:
        run = Run(method, p, base.data, base.tokenizer, {**base.sets, **sets})
        if teacher is not None:
            teacher = copy.deepcopy(teacher)
            run._teacher = Teacher(teacher, None, "for measuring")
        meter = _Meter(sets, full, p.max_tokens, build)
        began = time.perf_counter()
        training.train, artefacts.build, evaluation.predict = meter.train, meter.make, meter.predict
        try:
            student, _ = module(method).compress(run, teacher)
        finally:
            training.train, artefacts.build, evaluation.predict = meter.originals
        outside = time.perf_counter() - began - meter.inside - meter.built
        start = time.perf_counter()  # the last scoring, in fp32, of student and teacher; measured on held-out rows
        for model in (student, teacher):
            if model is not None:
                evaluation.predict(model, sets["held_out"])
        scoring = (time.perf_counter() - start) * base.sets["scored"].lengths.sum() / sets["held_out"].lengths.sum()
    return Cost(float(startup + scoring + meter.once), float(outside + meter.each), float(meter.per_token)), student
