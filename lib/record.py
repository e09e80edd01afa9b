"""The record of a run: what was measured, with everything that is needed to trust it and to make it again."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from torch import nn

from lib import data, evaluation, models, results, scored_answers, squad, training
from lib.backbones import NOTES, label
from lib.command import command
from lib.errors import InputError
from lib.provenance import code_hash, digest, environment

if TYPE_CHECKING:
    from lib.runs import Run
    from lib.training import History

PAPERS = {
    "bert": "bert", "truncated": "theseus", "theseus": "theseus", "kd": "pkd", "pkd": "pkd", "pdbert": "pdbert",
    "distilbert": "distilbert", "tinybert": "tinybert", "layerdrop": "layerdrop", "trimbert": "trimbert",
    "mobilebert": "mobilebert", "efficientbert": "efficientbert",
}


def of(run: Run, student: nn.Module, history: History, frame: pd.DataFrame,
       values: dict) -> tuple[results.Record, pd.DataFrame]:
    """The record of a run that ended, and the predictions that go beside it: the student's, then its teacher's.

    frame: the student's answers on the scored split (`Run.answers`); values: metrics as fractions.
    """
    p, task, scored = run.p, run.task, run.data.scored
    score = evaluation.headline(task, values)
    majority = floor(run)
    teacher, relative, frame = _teacher_part(run, frame)
    if teacher:
        relative |= {"retention": evaluation.retention(score, teacher.score),
                     "retention_above_majority": evaluation.retention(score, teacher.score, majority)}
    total, bare = models.count_parameters(student)
    own = run.data.source.startswith("own") and "validation" in run.data.hashes
    rows = "a validation file of the user's" if own else "a tenth of train, by a hash of the text"
    rows += "; the last state within one standard error of the best is kept"
    notes = list(dict.fromkeys(filter(None, [*run.notes, task.seen_by(p.backbone)])))
    made = results.Record(
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), command=command(run.method, p),
        profile=p.profile, backbone=label(p.backbone), task=run.task_label, method=run.method,
        variant=p.variant, seed=p.seed, paper=PAPERS.get(run.method), scale=scale(run), split=task.scored,
        rows=len(scored), metrics=values, headline=task.headline_name, score=score, majority=majority,
        best_on_scored_split=history.best_scored, teacher=teacher, parameters=total,
        parameters_without_embeddings=bare, layers=student.config.num_hidden_layers,
        hyperparameters=run.hyperparameters,
        selection=results.Selection(rows=rows, step=history.kept_step, held_out_score=history.kept_score,
                                    **run.selection),
        steps=history.steps, tokens=history.tokens, wall_seconds=history.seconds,
        tokens_per_second=history.tokens / max(history.seconds, 1e-9), padding_share=history.padding_share,
        peak_memory_mb=history.peak_memory_mb, curve=history.curve,
        initial_checkpoint=f"{label(p.backbone)} ({models.backbone_hash(p.backbone)})",
        data=results.Data(source=run.data.source, sha256=run.data.hashes, rows=run.data.rows),
        artefacts=[results.Artefact(**a.record()) for a in {a.key: a for a in run.artefacts}.values()],
        environment=results.Environment(**environment(training.precision(p.precision), training.threads())),
        notes=notes, study=run.study, config_hash=digest(run.identity), code_hash=_code_hash(run),
        **relative)
    return made, frame


def _teacher_part(run: Run, frame: pd.DataFrame) -> tuple[results.Teacher | None, dict, pd.DataFrame]:
    if run.method == "bert":
        return None, {"retention": None, "retention_above_majority": None, "loyalty": None}, frame
    teacher = run.teacher()
    teacher.metrics, theirs = scored_answers.of(run, teacher.model)
    meta = teacher.artefact.meta if teacher.artefact else {}
    source = teacher.source if teacher.artefact else f"own checkpoint {Path(teacher.source).name}"
    loyal = None
    if not (run.task.regression or run.task.span):
        loyal = results.Loyalty(**evaluation.loyalty(*map(results.logits, (frame, theirs))))
    part = results.Teacher(score=evaluation.headline(run.task, teacher.metrics), metrics=teacher.metrics,
                           artefact=teacher.artefact.key if teacher.artefact else None,
                           source=source,
                           seconds=meta.get("seconds", 0.0), tokens=meta.get("tokens", 0))
    return part, {"loyalty": loyal}, frame if run.task.span else results.with_teacher(frame, theirs)


def floor(run: Run) -> float:
    """Score in percent of the commonest training class (the mean; no answer for a span)."""
    if run.task.span:
        return 100 * float(np.mean([squad.score("", a)[1] for a in run.data.scored["answers"]]))
    return evaluation.majority(run.task, run.train.labels, run.sets["scored"].labels)


def _code_hash(run: Run) -> str:
    """Of the code that trained the model: for the method `bert` that which built the artefact, however long ago."""
    own = [a.meta["code_hash"] for a in run.artefacts if a.kind == "teacher"] if run.method == "bert" else []
    return own[0] if own else code_hash(run.method)


def scale(run: Run) -> str:
    """What a reader must know of the run's size."""
    if run.p.backbone == "bert-base" and run.p.profile == "paper":
        return "paper"
    cap = f", at most {run.p.max_tokens:,} tokens" if run.p.max_tokens else ""
    note = f" ({NOTES[run.p.backbone]})" if run.p.backbone in NOTES else ""
    return f"scaled down: backbone {label(run.p.backbone)}{note}{cap}"


def other_rows(path: Path, rows: data.TaskData) -> str:
    """Words for the case that the record in the way is of another file of the same name."""
    try:
        if results.read(path).data.sha256 == rows.hashes:
            return ""
    except InputError:
        return " (it cannot be read)"
    return ". It was made from other rows: give another `profile` or rename your file to keep both"
