"""What is kept of a run that diverged: where it broke off, and at which rate. It is no record, for it has no score.

One JSON file `results/diverged/<profile>/<backbone>/<task>/<method>[-<variant>]/seed-<n>.json`, outside of `runs/`, so
that nothing averages over it. A study goes on with its other variants and shows it as a row of its own.
"""

from __future__ import annotations

import datetime
import json
import math
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lib import results
from lib.backbones import label
from lib.errors import InputError, shorten
from lib.paths import results_dir, write_atomic
from lib.provenance import code_hash, digest, environment

POINTS = 200  # of the curve that are kept


class Diverged(BaseModel):
    """A run without a score. `step` is the optimiser step at which training broke off, `lr` the highest rate."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    schema_version: Literal[1] = 1
    created: str
    profile: str
    backbone: str
    task: str
    method: str
    variant: str
    seed: int = Field(ge=0)
    scale: str
    stage: Literal["language modelling", "fine-tuning"]
    step: int = Field(ge=1)
    lr: float = Field(gt=0)
    message: str  # of the training loop
    curve: list[list[float]]  # [[step, finite loss], ...], thinned to `POINTS`, the last one kept
    hyperparameters: dict
    environment: results.Environment
    config_hash: str
    code_hash: str

    @property
    def label(self) -> str:
        return results.run_label(self.method, self.variant)

    @property
    def words(self) -> str:
        """What stands in the place of a score."""
        return f"diverged at step {self.step:,}, lr {self.lr:g}"

    @property
    def stale(self) -> bool:
        """Whether the lib code that ran differs from the code here."""
        return self.code_hash != code_hash(self.method)


def path_of(record_path: Path) -> Path:
    """Where the divergence of a run lies whose record would lie at `record_path`."""
    return results_dir() / "diverged" / record_path.relative_to(results_dir() / "runs")


def keep(run, stage: str, step: int, lr: float, message: str, curve: list[list[float]]) -> Diverged:
    """Write what a `lib.runs.Run` leaves that diverged, from the run that happened; main process alone."""
    from lib import distributed, record, training  # here, because the report reads this file's JSON without torch

    p = run.p
    points = [[int(s), float(v)] for s, v in curve if math.isfinite(v)]
    points = points[:: max(1, math.ceil(len(points) / POINTS))] + points[-1:]
    found = Diverged(
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), profile=p.profile,
        backbone=label(p.backbone), task=run.task_label, method=run.method, variant=p.variant, seed=p.seed,
        scale=record.scale(run), stage=stage, step=step, lr=lr, message=message, curve=points,
        hyperparameters=run.hyperparameters,
        environment=results.Environment(**environment(training.precision(p.precision), training.threads())),
        config_hash=digest(run.identity), code_hash=code_hash(run.method))
    if distributed.main():
        path = path_of(run.record_path)
        write_atomic(path, (json.dumps(found.model_dump(), indent=1, sort_keys=True) + "\n").encode())
        print(f"{found.label}: {found.words} ({stage}); kept at {path}, no record")
        if run.record_path.exists():
            print(f"{found.label}: an older record stays at {run.record_path}")
    return found


def forget(run) -> None:
    """Delete what an earlier attempt left, when the run has a record after all."""
    from lib import distributed

    if distributed.main():
        path_of(run.record_path).unlink(missing_ok=True)


def load_all() -> list[Diverged]:
    """All that diverged, by path. Raises `InputError` naming a file that is none, or lies at another's place."""
    out = []
    for path in sorted((results_dir() / "diverged").rglob("*.json")):
        try:
            d = Diverged.model_validate(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, ValidationError, RecursionError) as e:
            raise InputError(f"{path}: says of no run that it diverged ({shorten(str(e), 200)})") from e
        own = path_of(results.record_path(d.profile, d.backbone, d.task, d.method, d.variant, d.seed))
        if path.resolve() != own.resolve():
            raise InputError(f"{path}: belongs to {own.relative_to(results_dir())}")
        out.append(d)
    return out
