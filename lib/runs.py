"""One run: the glue between a notebook's parameters, data, teacher, a method's `compress` and the record.

    p = parameters.read(theseus.Config, globals())
    run = runs.start("theseus", p)
    student, history = run.compress(theseus.compress)
    record = run.finish(student, history)
"""

from __future__ import annotations

import datetime
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from torch import nn

from lib import artefacts, batches, data, distributed, evaluation, models, results, spans, squad, text, training
from lib.backbones import NOTES, label
from lib.checkpoint import Checkpoints
from lib.command import command
from lib.errors import InputError
from lib.parameters import Parameters
from lib.paths import ROOT, as_path, build_dir, check_space, component, results_dir
from lib.provenance import code_hash, digest, environment
from lib.tasks import own_label
from lib.training import History, Settings

PAPERS = {
    "bert": "bert", "truncated": "theseus", "theseus": "theseus", "kd": "pkd", "pkd": "pkd", "pdbert": "pdbert",
    "distilbert": "distilbert", "tinybert": "tinybert", "layerdrop": "layerdrop", "trimbert": "trimbert",
    "mobilebert": "mobilebert", "efficientbert": "efficientbert",
}
# Not part of what is computed: where it goes, what it is called, and what else its page measures.
NAMES = {"split", "output", "profile", "task", "text_column", "text_column_2", "label_column", "kind", "teacher",
         "backbone", "study", "gain_steps", "comparison_tokens", "control_tokens", "timing_blocks", "timing_tokens"}
TEACHER_LOCAL = {"lr": "teacher_lr", "epochs": "teacher_epochs", "max_tokens": "teacher_tokens",
                 "lr_grid": "teacher_lr_grid"}

SPAN_METHODS = ("bert", "truncated", "theseus", "layerdrop")  # those whose losses a span task fits as it is
DIVERGED = -1e9  # the score of a trial that has none

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
        return {"method": self.method, "data": self.data.key, "backbone": _backbone_hash(self.p.backbone),
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
        """Checkpoints of one stage of this run, tied to its configuration."""
        return Checkpoints(self.folder / "checkpoints" / component("stage", stage), digest([self.identity, stage]))

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
        """This run with the learning rate of its grid that scores best on the held-out rows, tuning seed; with `lr`
        itself where that is in the grid and not worse by more than one standard error.

        Each trial is an artefact (a score, kept) shared by all seeds. Its teacher is the one of the tuning seed.
        """
        p = self.p
        if self.trial or len(p.lr_grid) == 0:
            return self
        scores, tokens = [], 0
        if p.tuning_seed == p.seed:
            raise InputError(f"parameter tuning_seed: {p.tuning_seed} is also the run's seed; it must be another")
        for lr in p.lr_grid:
            cap = p.tuning_tokens or p.max_tokens
            teacher_cap = p.tuning_tokens or p.teacher_tokens
            t = self.with_parameters(trial=True, lr=lr, seed=p.tuning_seed, lr_grid=[], max_tokens=cap,
                                     teacher_tokens=teacher_cap, score_curve=False)
            if self.method != "bert" and not p.teacher and p.teacher_lr_grid:
                t = t.with_parameters(teacher_lr=self._teacher_lr(), teacher_lr_grid=[])
            meta = _trial(t, method)
            scores.append({"lr": lr, "score": meta["score"]})
            tokens += meta["tokens"]
        best = max(scores, key=lambda s: s["score"])
        # The default stays where the held-out rows cannot tell it from the best: a rate chosen by noise helps nobody
        default = next((s for s in scores if s["lr"] == p.lr), best)
        if best["score"] - default["score"] <= self.tolerance(best["score"]):
            best = default
        # max_tokens and lr_grid stay as given: they are part of the run's identity; only the rate is filled in
        run = self.with_parameters(lr=best["lr"])
        run.selection = {"grid": {"lr": list(p.lr_grid)}, "scores": scores, "chosen": {"lr": best["lr"]},
                         "tuning_seed": p.tuning_seed, "tuning_tokens": tokens}
        return run

    def _teacher_lr(self) -> float:
        """The rate that the teacher's own grid chose; a trial's teacher uses it at the tuning budget."""
        from lib.methods import bert

        return self.as_teacher().tuned(bert.compress).p.lr

    def finish(self, student: nn.Module, history: History) -> results.Record:
        """Score once on the scored split, leave the student, write the record last. Prints where both lie.

        Of several processes (`lib.distributed`) the main one does it.
        """
        if (n := distributed.processes()) > 1:
            self.notes.append(f"trained by {n} processes: torchrun --nproc-per-node and lib.run in papermill's place")
        return distributed.from_main(lambda: self._finish(student, history))

    def _finish(self, student: nn.Module, history: History) -> results.Record:
        values, frame = self.answers(student, "scored")
        if not all(map(math.isfinite, values.values())):
            raise RuntimeError(f"{self.method} on {self.task.name}: the student's outputs are not finite, so there is "
                               "no record; lower lr or set precision=fp32")
        models.save_student(student, self.tokenizer, self.output)
        for split in self.data.also:
            values |= {f"{split}_{k}": v for k, v in self.answers(student, split)[0].items()}
        record = self._record(student, history, frame, values)
        path = results.write(record, frame)
        self.clear()
        print(f"record: {_show(path)}\nstudent: {_show(self.output)}")
        return record

    def _teacher_part(self, frame: pd.DataFrame) -> tuple[results.Teacher | None, dict]:
        if self.method == "bert":
            return None, {"retention": None, "retention_above_majority": None, "loyalty": None}
        teacher = self.teacher()
        teacher.metrics, theirs = self.answers(teacher.model, "scored")
        meta = teacher.artefact.meta if teacher.artefact else {}
        source = teacher.source if teacher.artefact else f"own checkpoint {Path(teacher.source).name}"
        loyal = None
        if not (self.task.regression or self.task.span):
            logits = [f.filter(like="logit_").to_numpy() for f in (frame, theirs)]
            loyal = results.Loyalty(**evaluation.loyalty(*logits))
        part = results.Teacher(score=evaluation.headline(self.task, teacher.metrics), metrics=teacher.metrics,
                               artefact=teacher.artefact.key if teacher.artefact else None,
                               source=source,
                               seconds=meta.get("seconds", 0.0), tokens=meta.get("tokens", 0))
        return part, {"loyalty": loyal}

    def _record(self, student, history: History, frame: pd.DataFrame, values: dict) -> results.Record:
        p, task, scored = self.p, self.task, self.data.scored
        score = evaluation.headline(task, values)
        floor = self.floor()
        teacher, relative = self._teacher_part(frame)
        if teacher:
            relative |= {"retention": evaluation.retention(score, teacher.score),
                         "retention_above_majority": evaluation.retention(score, teacher.score, floor)}
        total, bare = models.count_parameters(student)
        own = self.data.source.startswith("own") and "validation" in self.data.hashes
        rows = "a validation file of the user's" if own else "a tenth of train, by a hash of the text"
        rows += "; the last state within one standard error of the best is kept"
        notes = list(dict.fromkeys(self.notes + ([task.related] if task.related and p.backbone == "minilm-l6" else [])))
        return results.Record(
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), command=command(self.method, p),
            profile=p.profile, backbone=label(p.backbone), task=self.task_label, method=self.method,
            variant=p.variant, seed=p.seed, paper=PAPERS.get(self.method), scale=self.scale(), split=task.scored,
            rows=len(scored), metrics=values, headline=task.headline_name, score=score, majority=floor,
            best_on_scored_split=history.best_scored, teacher=teacher, parameters=total,
            parameters_without_embeddings=bare, layers=student.config.num_hidden_layers,
            hyperparameters=self.hyperparameters,
            selection=results.Selection(rows=rows, step=history.kept_step, held_out_score=history.kept_score,
                                        **self.selection),
            steps=history.steps, tokens=history.tokens, wall_seconds=history.seconds,
            tokens_per_second=history.tokens / max(history.seconds, 1e-9), padding_share=history.padding_share,
            peak_memory_mb=history.peak_memory_mb, curve=history.curve,
            initial_checkpoint=f"{label(p.backbone)} ({_backbone_hash(p.backbone)})",
            data=results.Data(source=self.data.source, sha256=self.data.hashes, rows=self.data.rows),
            artefacts=[results.Artefact(**a.record()) for a in {a.key: a for a in self.artefacts}.values()],
            environment=results.Environment(**environment(training.precision(p.precision), training.threads())),
            notes=notes, study=self.study, config_hash=digest(self.identity), code_hash=self._code_hash(),
            **relative)

    def floor(self) -> float:
        """Score in percent of the commonest training class (the mean; no answer for a span)."""
        if self.task.span:
            return 100 * float(np.mean([squad.score("", a)[1] for a in self.data.scored["answers"]]))
        return evaluation.majority(self.task, self.train.labels, self.sets["scored"].labels)

    def _code_hash(self) -> str:
        """Of the code that trained the model: for the method `bert` that which built the artefact, however long ago."""
        own = [a.meta["code_hash"] for a in self.artefacts if a.kind == "teacher"] if self.method == "bert" else []
        return own[0] if own else code_hash(self.method)

    def scale(self) -> str:
        """What a reader must know of the run's size."""
        if self.p.backbone == "bert-base" and self.p.profile == "paper":
            return "paper"
        cap = f", at most {self.p.max_tokens:,} tokens" if self.p.max_tokens else ""
        note = f" ({NOTES[self.p.backbone]})" if self.p.backbone in NOTES else ""
        return f"scaled down: backbone {label(self.p.backbone)}{note}{cap}"


def _other_rows(path: Path, rows: data.TaskData) -> str:
    """Words for the case that the record in the way is of another file of the same name."""
    try:
        if results.read(path).data.sha256 == rows.hashes:
            return ""
    except InputError:
        return " (it cannot be read)"
    return ". It was made from other rows: give another `profile` or rename your file to keep both"


def _show(path: Path) -> str:
    path = path.resolve()
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


@functools.cache
def _backbone_hash(name: str) -> str:
    return models.content_hash(models.resolve(name))


def _trial(run: Run, method: Compress) -> dict:
    """Score and cost of one grid point, kept as an artefact. A teacher's trial is a teacher: students' use it."""
    from lib.methods import bert

    def make(folder: Path) -> dict:
        _, history = method(run, run.teacher().model)
        run.clear()
        return {"score": history.kept_score, "tokens": history.tokens, "seconds": history.seconds}

    try:
        if run.method == "bert":
            meta = bert.teacher(run).meta
            meta = {"score": meta["history"]["kept_score"], "tokens": meta["tokens"]}
        else:
            meta = artefacts.build("trial", run.identity, make).meta
    except RuntimeError as e:
        if "not finite" not in str(e):
            raise
        meta = {"score": None, "tokens": 0}
    # A trial that diverged has no score: it must lose, not stop the others
    return meta if meta["score"] is not None else {**meta, "score": DIVERGED}


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
        print(f"a record exists at {_show(path)}; it is replaced when this run is whole{_other_rows(path, rows)}")
    return run
