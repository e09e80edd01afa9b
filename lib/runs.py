"""One run: the glue between a notebook's parameters, data, teacher, a method's `compress` and the record.

    p = parameters.read(theseus.Config, globals())
    run = runs.start("theseus", p)
    student, history = run.compress(theseus.compress)
    record = run.finish(student, history)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from torch import nn

from lib import (
    artefacts,
    batches,
    data,
    distributed,
    evaluation,
    models,
    record,
    results,
    spans,
    text,
    training,
    tuning,
)
from lib.backbones import label
from lib.checkpoint import Checkpoints
from lib.errors import InputError
from lib.parameters import Parameters
from lib.paths import ROOT, as_path, build_dir, check_space, component, results_dir
from lib.provenance import code_hash, digest
from lib.tasks import own_label
from lib.training import History, Settings

# Not part of what is computed: where it goes, what it is called, and what else its page measures.
NAMES = {"split", "output", "profile", "task", "text_column", "text_column_2", "label_column", "kind", "teacher",
         "backbone", "study", "gain_steps", "comparison_tokens", "control_tokens", "timing_blocks", "timing_tokens"}
TEACHER_LOCAL = {"lr": "teacher_lr", "epochs": "teacher_epochs", "max_tokens": "teacher_tokens",
                 "lr_grid": "teacher_lr_grid"}

SPAN_METHODS = ("bert", "truncated", "theseus", "layerdrop")  # those whose losses a span task fits as it is

Compress = Callable[["Run", nn.Module], tuple[nn.Module, History]]


@dataclass
class Teacher:
    """The teacher's model with its scores on the rows that the student is scored on."""

    model: nn.Module
    artefact: artefacts.Artefact | None
    source: str
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass
class Run:
    """A method on a task with a seed under a profile. Build it by `start`."""

    method: str
    p: Parameters
    data: data.TaskData
    tokenizer: object
    sets: dict[str, batches.Encoded]  # "train", "held_out", "scored", and further labelled splits
    trial: bool = False
    notes: list[str] = field(default_factory=list)
    artefacts: list[artefacts.Artefact] = field(default_factory=list)
    selection: dict = field(default_factory=dict)
    study: dict | None = None
    _teacher: Teacher | None = None

    @property
    def task(self):
        return self.data.task

    @property
    def train(self) -> batches.Encoded:
        return self.sets["train"]

    @property
    def task_label(self) -> str:
        if self.task.source == "own":
            return own_label(self.task.name)
        return self.task.name + (f"-{self.p.split}" if self.p.split else "")

    @property
    def hyperparameters(self) -> dict:
        """The parameters that can decide what is computed."""
        return self.p.model_dump(exclude=NAMES if self.task.span else NAMES | {"stride"})

    @functools.cached_property
    def identity(self) -> dict:
        """Everything that decides what this run computes: its hash is the record's `config_hash`."""
        # The teacher's own settings matter to a student only; the method `bert` has none
        settings = {k: v for k, v in self.hyperparameters.items()
                    if not (self.method == "bert" and k.startswith("teacher_"))}
        # A text of the user's own counts by what it holds; the declared ones never change
        for k in {"text", "transfer"} & settings.keys():
            if settings[k] != "task" and (own := text.own_hash(settings[k])):
                settings[k] = own
        return {"method": self.method, "data": self.data.key, "backbone": models.backbone_hash(self.p.backbone),
                "teacher": models.content_hash(models.resolve(self.p.teacher, "teacher")) if self.p.teacher else "",
                **settings}

    @property
    def record_path(self) -> Path:
        p = self.p
        return results.record_path(p.profile, label(p.backbone), self.task_label, self.method, p.variant, p.seed)

    @property
    def folder(self) -> Path:
        """Scratch folder of the run below `build/`: its checkpoints and its student."""
        parts = self.record_path.relative_to(results_dir() / "runs").with_suffix("").parts
        return build_dir().joinpath("runs", *parts, *(("trial-" + digest(self.identity),) if self.trial else ()))

    @property
    def output(self) -> Path:
        return as_path(self.p.output, "output") if self.p.output else self.folder / "student"

    def settings(self, **changes) -> Settings:
        """Settings of the training loop from the parameters, with changes."""
        p = self.p
        shared = {k: getattr(p, k) for k in Settings.__dataclass_fields__ if hasattr(p, k)}
        return Settings(**{**shared, "name": f"{self.method} {self.task.name} seed {p.seed}", **changes})

    def checkpoints(self, stage: str = "main") -> Checkpoints:
        """Checkpoints of one stage of this run, tied to its configuration and code: other code begins anew."""
        return Checkpoints(self.folder / "checkpoints" / component("stage", stage),
                           digest([self.identity, stage, code_hash(self.method)]))

    def clear(self) -> None:
        """Delete the run's checkpoints, when what they led to is safely written."""
        for stage in (self.folder / "checkpoints").glob("*"):
            Checkpoints(stage, "").clear()

    def scores(self, model: nn.Module) -> dict[str, float]:
        """Selection score ("held_out") in percent with its standard error as "tolerance"; with `score_curve` also that
        of the scored split, only watched."""
        names = ["held_out"] + (["scored"] if self.p.score_curve and not self.trial else [])
        scores = {n: evaluation.headline(self.task, self.metrics(model, n, training.precision(self.p.precision)))
                  for n in names}
        return scores | {"tolerance": self.tolerance(scores["held_out"])}

    def tolerance(self, score: float) -> float:
        """One standard error of a score on the held-out rows, in points."""
        return evaluation.standard_error(self.task, score, len(self.data.held_out))

    def metrics(self, model: nn.Module, part: str, precision: str = "fp32") -> dict[str, float]:
        """Metrics as fractions on one part of the data; several processes share its rows."""
        return self.answers(model, part, precision, distributed.predict)[0]

    def answers(self, model: nn.Module, part: str, precision: str = "fp32",
                predict=evaluation.predict) -> tuple[dict[str, float], pd.DataFrame]:
        """(metrics as fractions, one line a row) on one part of the data.

        The lines hold idx, label and logit_0...; of a span task idx, answer, given, its score, that of no answer, em
        and f1. Where questions may have no answer, the threshold for giving none is the held-out rows' best.
        """
        data = self.sets[part]
        if not self.task.span:
            logits = predict(model, data, precision=precision)
            frame = pd.DataFrame({"idx": data.index, "label": data.labels}
                                 | {f"logit_{i}": logits[:, i] for i in range(logits.shape[1])})
            return evaluation.metrics(self.task, logits, data.labels), frame
        found, threshold = spans.predict(model, data, precision=precision), None
        if any(not a for a in data.rows["answers"]):
            held_out = self.sets["held_out"]
            own = found if part == "held_out" else spans.predict(model, held_out, precision=precision)
            threshold = spans.best_threshold(own, held_out.rows)
        found = spans.marked(found, data.rows, threshold)
        return {"em": float(found["em"].mean(skipna=False)), "f1": float(found["f1"].mean(skipna=False))}, found

    def backbone(self) -> nn.Module:
        """A fresh copy of the pre-trained backbone with a new head drawn from the seed."""
        return models.load_backbone(self.p.backbone, self.task, self.p.seed)

    def teacher(self) -> Teacher:
        """The teacher: the user's own checkpoint, or the backbone fine-tuned here, kept and shared as an artefact."""
        if self._teacher is None:
            if self.p.teacher:
                self._teacher = Teacher(models.load_classifier(self.p.teacher, self.task), None, self.p.teacher)
            else:
                from lib.methods import bert

                fine_tuned = self.as_teacher()
                artefact = bert.teacher(fine_tuned)
                fine_tuned.clear()
                self.artefacts.append(artefact)
                model = models.load_classifier(str(artefact.folder / "model"), self.task)
                self._teacher = Teacher(model, artefact, "fine-tuned here")
            self._teacher.model.to(training.device()).eval()
        return self._teacher

    def with_parameters(self, method: str | None = None, *, trial: bool | None = None, **changes) -> Run:
        """A sibling run on the same data with other parameters."""
        p = type(self.p).model_validate({**self.p.model_dump(), **changes})
        return Run(method or self.method, p, self.data, self.tokenizer, self.sets,
                   self.trial if trial is None else trial)

    def as_teacher(self) -> Run:
        """The run that fine-tunes this run's teacher; of the method `bert` it is the run itself."""
        if self.method == "bert":
            return self
        changes = {own: getattr(self.p, theirs) for own, theirs in TEACHER_LOCAL.items()}
        p = Parameters.model_validate({k: v for k, v in {**self.p.model_dump(), **changes, "variant": ""}.items()
                                       if k in Parameters.model_fields})
        return Run("bert", p, self.data, self.tokenizer, self.sets, self.trial)

    def compress(self, method: Compress) -> tuple[nn.Module, History]:
        """Choose the learning rate on the held-out rows if a grid is given, then train the student."""
        chosen = self.tuned(method)
        if chosen is not self:
            self.p, self.selection = chosen.p, chosen.selection
            self.__dict__.pop("identity", None)
        return method(self, self.teacher().model)

    def tuned(self, method: Compress) -> Run:
        """This run with the learning rate that its grid chose (`lib.tuning`)."""
        return tuning.tuned(self, method)

    def finish(self, student: nn.Module, history: History) -> results.Record:
        """Score once on the scored split, leave the student, write the record last. Prints where both lie.

        Of several processes (`lib.distributed`) the main one does it.
        """
        if (n := distributed.processes()) > 1:
            self.notes.append(f"trained by {n} processes: torchrun --nproc-per-node and lib.run in papermill's place")
        return distributed.from_main(lambda: self._finish(student, history))

    def _finish(self, student: nn.Module, history: History) -> results.Record:
        for a in self.artefacts:
            if why := a.meta.get("mlm", {}).get("diverged"):
                raise RuntimeError(f"{self.method} on {self.task.name}: the stage before the task diverged ({why}), so "
                                   "there is no record; lower general_lr")
        values, frame = self.answers(student, "scored")
        if not all(map(math.isfinite, values.values())):
            raise RuntimeError(f"{self.method} on {self.task.name}: the student's outputs are not finite, so there is "
                               "no record; lower lr or set precision=fp32")
        models.save_student(student, self.tokenizer, self.output)
        for split in self.data.also:
            values |= {f"{split}_{k}": v for k, v in self.answers(student, split)[0].items()}
        made, frame = record.of(self, student, history, frame, values)
        path = results.write(made, frame)
        self.clear()
        print(f"record: {_show(path)}\nstudent: {_show(self.output)}")
        return made

def _show(path: Path) -> str:
    path = path.resolve()
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def start(method: str, p: Parameters) -> Run:
    """Load data and tokenizer of a run and check what can be checked before training. Prints a summary.

    Raises `InputError` for everything that is wrong with the parameters, the data or the folders.
    """
    component("profile", p.profile)
    if p.variant:
        component("variant", p.variant)
    training.precision(p.precision)
    models.resolve(p.backbone)
    if p.teacher:
        models.resolve(p.teacher, "teacher")
    rows = data.load(p.task, max_rows=p.max_rows, text_column=p.text_column, text_column_2=p.text_column_2,
                     label_column=p.label_column, kind=p.kind, split=p.split)
    tokenizer = models.load_tokenizer(p.teacher or p.backbone, "teacher" if p.teacher else "backbone")
    parts = {"train": rows.train, "held_out": rows.held_out, "scored": rows.scored, **rows.also}
    if rows.task.span and method not in SPAN_METHODS:
        raise InputError(f"task {p.task}: {method} does not answer with spans; allowed: {', '.join(SPAN_METHODS)}")
    sets = {k: spans.encode(v, tokenizer, p.max_length, p.stride) if rows.task.span else
            batches.encode(v, tokenizer, p.max_length) for k, v in parts.items()}
    run = Run(method, p, rows, tokenizer, sets)
    if p.teacher:
        if p.backbone != p.teacher and models.load_tokenizer(p.backbone).get_vocab() != tokenizer.get_vocab():
            raise InputError(f"teacher {p.teacher}: its vocabulary is not that of backbone {p.backbone}; "
                             "leave backbone empty to cut students out of the teacher")
        run.teacher()  # classes that do not fit the task must show now
    path = run.record_path
    models.check_output(run.output)
    for place in (path.parent, build_dir()):
        check_space(place)
    if p.max_length > tokenizer.model_max_length:
        print(f"max_length: the model takes {tokenizer.model_max_length} tokens at most; rows are cut there")
    if getattr(p, "reads_text", False):
        text.check_length(p.text_length, tokenizer)
    models.check_tokens(p.backbone, len(tokenizer), sets.values())
    counts = ", ".join(f"{k} {v}" for k, v in rows.rows.items())
    print(f"{method} on {rows.task.name} ({rows.source}): {counts} rows, "
          f"{sets['train'].lengths.mean():.0f} tokens a row")
    if path.exists():
        print(f"a record exists at {_show(path)}; it is replaced when this run is whole{record.other_rows(path, rows)}")
    return run
