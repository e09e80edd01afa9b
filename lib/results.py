"""The result record: what a run leaves, checked on write and on read.

A run is complete when its record exists; it is written last and atomically. Each record is one JSON file
`results/runs/<profile>/<backbone>/<task>/<method>[-<variant>]/seed-<n>.json`, with the predictions of the run
beside it (`seed-<n>.parquet`: idx, label, one column a logit, then the teacher's logits) so that any two runs can be
compared row by row, and a student with its own teacher.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from lib.errors import InputError, listed, shorten
from lib.paths import component, results_dir, write_atomic


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Data(_Part):
    """Where the rows came from. `sha256` is over the rows as canonical JSON, so it is equal for every file format."""

    source: str
    sha256: dict[str, str]  # split -> hash
    rows: dict[str, int]  # split -> number of rows used


class Teacher(_Part):
    """The teacher of a student: its score on the same rows, and which artefact or folder it was."""

    score: float  # percent
    metrics: dict[str, float]
    artefact: str | None  # key of a teacher built here; None where the user brought their own
    source: str
    seconds: float  # training time of the teacher, 0 where it was brought
    tokens: int


class Artefact(_Part):
    """Something shared by several runs and built once: its kind, key and what it cost."""

    kind: str
    key: str
    seconds: float
    tokens: int


class Loyalty(_Part):
    """How far the student answers as the teacher does, in percent. None for regression."""

    label: float  # share of rows with the same predicted class
    probability: float  # 100 * mean(1 - Jensen-Shannon distance, base 2)


class Selection(_Part):
    """How hyper-parameters and the checkpoint were chosen; never on the scored rows."""

    rows: str  # which rows decided, in words
    grid: dict[str, list[float]] = {}
    scores: list[dict[str, float]] = []  # one entry a grid point: its values and "score"
    chosen: dict[str, float] = {}
    tuning_seed: int | None = None
    tuning_tokens: int = 0
    step: int  # optimiser step of the state that was kept
    held_out_score: float | None  # percent; of the kept state


class Environment(_Part):
    git_commit: str | None
    git_dirty: bool | None
    versions: dict[str, str]
    platform: str
    processor: str
    threads: int
    precision: Literal["bf16", "fp32"]


class Record(_Part):
    """One run: one method on one task with one seed under one profile. Scores are in percent, times in seconds."""

    schema_version: Literal[1] = 1
    created: str
    command: str  # makes this record again
    profile: str
    backbone: str
    task: str
    method: str
    variant: str = ""
    seed: int = Field(ge=0)
    paper: str | None  # key of the paper in reported.csv
    scale: str  # "paper", or "scaled down: ..." in words
    split: str
    rows: int = Field(gt=0)
    metrics: dict[str, float]  # by name, as fractions (correlations in [-1, 1])
    headline: str  # which metric or mean of metrics `score` is
    score: float  # percent
    majority: float  # percent; always answering the commonest training class (mean, for regression)
    best_on_scored_split: float | None  # percent; the papers' way of selecting, optimistic
    teacher: Teacher | None
    retention: float | None  # percent
    retention_above_majority: float | None  # percent
    loyalty: Loyalty | None
    parameters: int
    parameters_without_embeddings: int
    layers: int
    hyperparameters: dict
    selection: Selection
    steps: int = Field(ge=0)
    tokens: int = Field(ge=0)  # real (not padding) tokens trained on, all epochs
    wall_seconds: float = Field(ge=0)  # training only
    tokens_per_second: float = Field(ge=0)
    padding_share: float = Field(ge=0, le=1)
    peak_memory_mb: float | None = None  # resident set of the process at the end of training
    curve: dict[str, list[list[float]]]  # name -> [[step, value], ...]; "loss", "held_out", "scored", method's own
    initial_checkpoint: str
    data: Data
    artefacts: list[Artefact]
    environment: Environment
    notes: list[str] = []
    study: dict | None = None  # a paper's own table made from this run, e.g. Theseus Table 5
    config_hash: str
    code_hash: str

    @model_validator(mode="after")
    def _consistent(self) -> Record:
        for name in ("profile", "backbone", "task", "method"):
            component(name, getattr(self, name))
        if self.variant:
            component("variant", self.variant)
        return self

    @property
    def label(self) -> str:
        return run_label(self.method, self.variant)


def run_label(method: str, variant: str) -> str:
    """What tables and claims call a run: the method, and its variant where it has one."""
    return method + (f"-{variant}" if variant else "")


def record_path(profile: str, backbone: str, task: str, method: str, variant: str, seed: int) -> Path:
    """Path of a record below `results/runs`; raises `InputError` for a name that could leave it."""
    names = {"profile": profile, "backbone": backbone, "task": task, "method": method}
    parts = [component(k, v) for k, v in names.items()]
    if variant:
        parts[-1] += "-" + component("variant", variant)
    return results_dir().joinpath("runs", *parts, f"seed-{int(seed)}.json")


def path_of(record: Record) -> Path:
    r = record
    return record_path(r.profile, r.backbone, r.task, r.method, r.variant, r.seed)


def write(record: Record, predictions: pd.DataFrame) -> Path:
    """Write predictions, then the record. The record comes last: where it exists the run is whole."""
    checked = Record.model_validate(record.model_dump())
    path = path_of(checked)
    buffer = io.BytesIO()
    predictions.to_parquet(buffer, index=False, compression="zstd")
    write_atomic(path.with_suffix(".parquet"), buffer.getvalue())
    write_atomic(path, (json.dumps(checked.model_dump(), indent=1, sort_keys=True) + "\n").encode())
    return path


def read(path: Path) -> Record:
    """One record. Raises `InputError` naming the file where it is no valid record or lies at another's place."""
    try:
        record = Record.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(map(str, first["loc"])) or "record"
        raise InputError(f"{path}: not a result record: {where}: {first['msg']} ({e.error_count()} problems)") from e
    except (OSError, ValueError, RecursionError) as e:  # ValueError: no UTF-8, no JSON, a number of 5000 digits
        raise InputError(f"{path}: not a readable JSON file ({shorten(str(e), 200)})") from e
    expected = path_of(record)
    if path.resolve() != expected:  # a copy elsewhere would be counted twice
        raise InputError(f"{path}: holds the record of {expected.relative_to(results_dir() / 'runs')}; "
                         "a record must lie at its own place")
    return record


def load_all() -> tuple[list[Record], list[str]]:
    """All records below `results/runs`, sorted by path, and one sentence for each file that was skipped."""
    records, skipped = [], []
    for path in sorted((results_dir() / "runs").rglob("*.json")):
        try:
            records.append(read(path))
        except InputError as e:
            skipped.append(str(e))
    return records, skipped


def predictions(record: Record, classes: int) -> pd.DataFrame:
    """The predictions beside a record, as written: idx, label and `classes` columns of logits, one row a scored row.

    As many columns of the teacher's logits follow where a student's record was written with them; the first records
    were not. `logits` takes either.

    Raises `InputError` naming the record where the file is missing, is no parquet, has other columns or rows, or holds
    anything but finite numbers (of several classes: labels that are numbers of classes).
    """
    path = path_of(record)
    place = path.relative_to(results_dir() / "runs")
    try:
        frame = pd.read_parquet(path.with_suffix(".parquet"))
    except Exception as e:  # noqa: BLE001 - of pyarrow's errors some are OSErrors, some ValueErrors, some KeyErrors
        raise InputError(f"{place}: its predictions cannot be read ({shorten(' '.join(str(e).split()), 160)})") from e
    wanted = ["idx", "label", *(f"logit_{i}" for i in range(classes))]
    if record.teacher and len(frame.columns) > len(wanted):
        wanted += [f"teacher_logit_{i}" for i in range(classes)]
    if list(frame.columns) != wanted or len(frame) != record.rows:
        raise InputError(f"{place}: predictions have columns {listed(frame.columns)} and {len(frame)} rows; wanted "
                         f"{wanted} and {record.rows} rows")
    for column in wanted:
        kinds = "iu" if column == "idx" else "iuf"
        if frame[column].dtype.kind not in kinds or not np.isfinite(frame[column]).all():
            raise InputError(f"{place}: predictions hold in {column} what is no finite number, or no row's number")
    if frame["idx"].duplicated().any():
        raise InputError(f"{place}: predictions hold an idx twice; every idx stands there once")
    if classes > 1 and not frame["label"].isin(range(classes)).all():
        raise InputError(f"{place}: predictions hold a label that is none of the {classes} classes")
    return frame


def logits(predictions: pd.DataFrame, of: Literal["student", "teacher"] = "student") -> np.ndarray | None:
    """(rows, classes) in the order of `predictions`; None where the teacher's were not written."""
    own = predictions.filter(regex=r"^logit_" if of == "student" else r"^teacher_logit_")
    return own.to_numpy() if own.shape[1] else None


def with_teacher(student: pd.DataFrame, teacher: pd.DataFrame) -> pd.DataFrame:
    """The student's predictions with those of its teacher for the same rows in the same order beside them."""
    if not student["idx"].equals(teacher["idx"]):
        raise RuntimeError("the teacher's answers are not to the rows that the student was scored on")
    return student.assign(**{f"teacher_{c}": teacher[c] for c in teacher.columns if c.startswith("logit_")})


def is_stale(record: Record) -> bool:
    """Whether the lib code that made the record differs from the code here. Stale records are shown, and said so.

    Code that is shown to make the same numbers (`lib.reproduce`) is no other code.
    """
    from lib import reproduce
    from lib.provenance import code_hash

    now = code_hash(record.method)
    return record.code_hash != now and not reproduce.same_numbers(record.method, record.code_hash, now)
