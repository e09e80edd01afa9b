"""What the records say to a claim: its effect for each task and seed, on resamples of the scored rows.

All terms of an effect are taken at the same seed on the same draws of the same rows. Predictions that do not give the
score of their record, or runs that were scored on other rows, are refused: an effect over them would mean nothing.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable
from typing import Literal

import numpy as np

from lib import results
from lib.claims import TEACHER, Claim, claim_tables, resampling
from lib.errors import InputError
from lib.reporting import teachers
from lib.reporting.comparison import teacher_of
from lib.results import Record
from lib.stats import spread
from lib.tasks import TASKS

DRAWS = 1000


def name(record: Record) -> str:
    """Path of a record below `results/runs`, as messages name it."""
    r = record
    return f"{r.profile}/{r.backbone}/{r.task}/{r.label}/seed-{r.seed}.json"


class Runs:
    """All records, found by claim, with the resampled score of each worked out once."""

    def __init__(self, records: Iterable[Record], draws: int = DRAWS):
        self.draws = draws
        self.groups: dict[tuple[str, str], list[Record]] = {}
        self._found: dict[tuple, Record] = {}
        for r in records:
            self.groups.setdefault((r.profile, r.backbone), []).append(r)
            self._found[r.profile, r.backbone, r.task, r.label, r.seed] = r
        self._scores: dict[tuple[str, str], tuple[str, np.ndarray] | None] = {}
        self._weights: dict[tuple[str, int], np.ndarray] = {}

    def group(self, claim: Claim) -> list[Record]:
        return self.groups.get((claim.group.profile, claim.group.backbone), [])

    def seeds(self, claim: Claim, task: str, label: str) -> set[int]:
        """Seeds of which there is a run of `label` on `task`."""
        return {r.seed for r in self.group(claim) if r.task == task and r.label == label}

    def common(self, claim: Claim, task: str) -> list[int]:
        """Seeds of which there is a run of every label of the claim, measured with eight-bit weights if it asks that.

        In order.
        """
        found = set.intersection(*(self.seeds(claim, task, label) for label in claim.labels))
        return sorted(found - set(self.unmeasured(claim, task)))

    def unmeasured(self, claim: Claim, task: str) -> list[int]:
        """Seeds of a claim about eight-bit weights with a run that `results/students.csv` has no row of.

        Its student has to be at hand to be measured, which a record alone is not.
        """
        out = set()
        for label in [c.arguments[0] for test in claim.tests for c in test.effect.calls if c.name == "int8_drop"]:
            for seed in self.seeds(claim, task, label):
                try:
                    claim_tables.int8_drop(self.record(claim, task, label, seed))
                except claim_tables.NotThere:
                    out.add(seed)
        return sorted(out)

    def record(self, claim: Claim, task: str, label: str, seed: int) -> Record:
        return self._found[claim.group.profile, claim.group.backbone, task, label, seed]

    def why_left_out(self, claim: Claim, task: str) -> str:
        """Why a task does not count: its teacher, or none of several runs, clears the majority class. Else empty.

        With one teacher no interval exists, and the task stays: one seed decides nothing anyway. Where no run has a
        teacher (models trained from scratch) there is none to fail.
        """
        teacher = teacher_of(self.group(claim), task)
        if teacher is None or teacher.clears or (teacher.scores.n == 1 and teacher.scores.mean > teacher.majority):
            return self._at_the_floor(claim, task)
        return teacher.reason

    def _at_the_floor(self, claim: Claim, task: str) -> str:
        """Why a comparison of students says nothing on a task; empty where it does, or is none.

        Students that have learnt nothing differ by chance alone, whatever sets them apart.
        """
        students = [x for x in claim.labels if x != TEACHER]
        if not claim.on_rows or len(students) < 2:
            return ""
        runs = {x: [r for r in self.group(claim) if r.task == task and r.label == x] for x in students}
        majority = max(r.majority for found in runs.values() for r in found)
        for found in runs.values():
            scores = spread(r.score for r in found)
            if (scores.mean if scores.low is None else scores.low) > majority:
                return ""
        return f"none of {', '.join(students)} clears the majority class ({majority:.1f}, 95% interval)"

    def effects(self, claim: Claim, task: str, seeds: list[int]) -> np.ndarray:
        """The claim's effect on one task, (seeds, 1 + draws): first on the rows as they are, then resampled.

        Raises `InputError` where predictions do not belong to their record, rows differ, or the effect is not finite.
        """
        out = []
        rows: dict[str, str] = {}
        for seed in seeds:
            def score(label: str, seed=seed) -> np.ndarray:
                record = self.record(claim, task, label, seed)
                key, values = self.scores(record)
                rows.setdefault(key, name(record))
                return values

            def retention(label: str, seed=seed) -> np.ndarray:
                student, teacher = (self.record(claim, task, x, seed) for x in (label, TEACHER))
                own = self.scores(student, "teacher")
                if own is None and student.teacher and abs(student.teacher.score - teacher.score) > teachers.SAME:
                    raise InputError(f"{name(student)}: its teacher scored {student.teacher.score:.4f}, "
                                     f"{name(teacher)} {teacher.score:.4f}; they must be one model, or the teacher's "
                                     "answers stand beside the student's")
                return 100 * score(label, seed) / (score(TEACHER, seed) if own is None else own[1])

            def value(label: str, field: str, seed=seed) -> float:
                record = self.record(claim, task, label, seed)
                number = getattr(record, field)
                if number is None:
                    raise InputError(f"{name(record)}: has no {field}")
                return float(number)

            def int8_drop(label: str, seed=seed) -> float:
                return claim_tables.int8_drop(self.record(claim, task, label, seed))

            functions = {"score": score, "retention": retention, "value": value, "int8_drop": int8_drop,
                         **claim.functions()}
            with np.errstate(divide="ignore", invalid="ignore"):
                effect = claim.tests[0].effect.value(functions, claim.margin or 0.0)
            out.append(np.broadcast_to(effect, 1 + self.draws))
        if len(rows) > 1:
            raise InputError(f"{' and '.join(list(rows.values())[:2])} were scored on different rows of {task}")
        if not np.isfinite(out).all():
            raise InputError(f"{claim.id}: the effect on {task} is not finite on every resample of the rows")
        return np.array(out, dtype=np.float64)

    def scores(self, record: Record, of: Literal["student", "teacher"] = "student") -> tuple[str, np.ndarray] | None:
        """(hash of the scored rows, score in percent on them and on each resample) of one run.

        `of="teacher"`: of the teacher of that run; None where its answers were not written.
        """
        if (name(record), of) not in self._scores:
            self._scores[name(record), of] = self._resampled(record, of)
        return self._scores[name(record), of]

    def _resampled(self, record: Record, of: Literal["student", "teacher"]) -> tuple[str, np.ndarray] | None:
        task = TASKS[record.task]
        logits, labels, key = predictions(record, of)
        if logits is None:
            return None
        rows, written = len(labels), record.score if of == "student" else record.teacher.score
        if (task.name, rows) not in self._weights:
            self._weights[task.name, rows] = resampling.draw(rows, self.draws, seed=zlib.crc32(task.name.encode()))
        values = resampling.scores(task, logits, labels, self._weights[task.name, rows])
        if abs(values[0] - written) > 1e-3:
            whose = "its" if of == "student" else "its teacher's"
            raise InputError(f"{name(record)}: {whose} predictions give {values[0]:.4f}, the record says {written:.4f}")
        return key, values


def predictions(record: Record, of: Literal["student", "teacher"]) -> tuple[np.ndarray | None, np.ndarray, str]:
    """Logits (rows, classes), labels (rows,) in the order of `idx`, and a hash of idx and labels.

    The logits of a teacher are None where they were not written. Raises `InputError` as `results.predictions` does.
    """
    frame = results.predictions(record, TASKS[record.task].classes)
    frame = frame.sort_values("idx", kind="stable")
    labels = frame["label"].to_numpy()
    rows = hashlib.sha256(frame["idx"].to_numpy(np.int64).tobytes() + labels.astype(np.float32).tobytes())
    return results.logits(frame, of), labels, rows.hexdigest()
