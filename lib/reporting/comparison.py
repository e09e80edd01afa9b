"""Reported beside ours: which numbers may stand in one cell, and what is said where they may not.

Absolute numbers are compared only when backbone, task, split and metric are the paper's. Otherwise retention
(student / teacher) stands beside retention, and beside it the same above the majority class, because a majority guess
alone already retains most of some scores. Both are withheld, with the reason, where the teacher is no better than that
guess.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from lib.reporting import reported as printed_numbers
from lib.reporting.reported import Reported
from lib.results import Record
from lib.stats import Spread, spread, wilson
from lib.systems import BY_NAME, Printed, order_of
from lib.tasks import TASKS

LOCAL = ("demo", "ci")  # profiles whose records are made on each machine and never committed
BASE = ("bert-base", "bert-base-uncased")  # the papers' backbone

HEADLINES = {  # our headline -> the metric's name in reported.csv
    "matthews": "matthews",
    "accuracy": "accuracy",
    "f1": "f1",
    "mean of f1 and accuracy": "f1_acc_mean",
    "mean of pearson and spearman": "pearson_spearman_mean",
}
# Names of one task in the papers, ours first. Theseus' "mnli" is the mean of both halves, which no run of ours scores.
NAMES = {"mnli": ("mnli-m", "mnli")}


def task_title(task: str) -> str:
    return TASKS[task].title if task in TASKS else task


def groups(records: Iterable[Record]) -> dict[tuple[str, str], list[Record]]:
    """Records by (profile, backbone): only runs of one group share teacher, budget and scale."""
    out: dict[tuple[str, str], list[Record]] = {}
    for r in records:
        out.setdefault((r.profile, r.backbone), []).append(r)
    return dict(sorted(out.items()))


def main_group(records: Iterable[Record]) -> tuple[str, str, list[Record]] | None:
    """Profile, backbone and runs of the group with most runs: what the overview speaks of. None without a run."""
    found = groups(records)
    if not found:
        return None
    (profile, backbone), runs = max(found.items(), key=lambda kv: len(kv[1]))
    return profile, backbone, runs


def tasks_of(records: Iterable[Record]) -> list[str]:
    """Tasks that occur, in the order of their declaration, a user's own tasks last."""
    order = {name: i for i, name in enumerate(TASKS)}
    return sorted({r.task for r in records}, key=lambda t: (order.get(t, len(order)), t))


def labels_of(records: Iterable[Record]) -> list[str]:
    """All methods of the study in their fixed order, whether they were run or not, and every variant that was."""
    return sorted({r.label for r in records} | set(BY_NAME), key=order_of)


@dataclass(frozen=True)
class Teacher:
    """The teachers of one task in one group: their scores, the majority class and whether they clear it."""

    scores: Spread
    majority: float
    reason: str  # why retention is withheld; empty where it is shown

    @property
    def clears(self) -> bool:
        return not self.reason


def teacher_of(records: list[Record], task: str) -> Teacher | None:
    """Teacher of `task` among the records of one group; None where no run knows one.

    They are the teachers that the students had (a brought checkpoint is no `bert` run); without students, the `bert`
    runs. The interval is Student's over the distinct teachers. One teacher alone has none; for an accuracy the interval
    over the scored rows takes its place, for other metrics retention is withheld.
    """
    runs = [r for r in records if r.task == task]
    own = [r for r in runs if r.label == "bert"]
    students = {(r.teacher.artefact or r.teacher.source): r.teacher.score for r in runs if r.teacher}
    values = list(students.values()) or [r.score for r in own]
    scores = spread(values)
    if scores is None:
        return None
    majority = max(r.majority for r in runs)
    low = scores.low
    if low is None and runs[0].headline == "accuracy":
        low = wilson(scores.mean, runs[0].rows)[0]
    if low is None:
        reason = "one teacher only: no interval"
    elif low <= majority:
        reason = f"teacher's 95% interval (from {low:.1f}) does not clear the majority class ({majority:.1f})"
    else:
        reason = ""
    return Teacher(scores, majority, reason)


def find(rows: list[Reported], printed: Printed, task: str, metric: str) -> Reported | None:
    """The printed score of a system on a task: of our metric where there is one, else the first one printed."""
    names = NAMES.get(task, (task,))
    table = printed_numbers.select(rows, printed.paper, printed.where, printed.system)
    found = [r for name in names for r in table if r.task == name and r.number is not None]
    return next((r for r in found if r.metric == metric), found[0] if found else None)


@dataclass(frozen=True)
class Against:
    """A printed number and what of ours stands against it: `what` is "score" or "retention"."""

    what: str
    reported: float
    ours: Spread

    @property
    def difference(self) -> float:
        return self.ours.mean - self.reported


@dataclass(frozen=True)
class Cell:
    """One method on one task in one group."""

    label: str
    task: str
    metric: str  # our headline, by its name in reported.csv
    runs: tuple[Record, ...]
    reported: Reported | None
    reported_teacher: Reported | None
    teacher: Teacher | None
    comparable: bool  # absolute numbers may be set against each other
    why_not: str  # else the reason, in words

    @property
    def ours(self) -> Spread | None:
        return spread(r.score for r in self.runs)

    @property
    def best(self) -> Spread | None:
        """Best checkpoint on the scored rows: the papers' selection, optimistic."""
        return spread(r.best_on_scored_split for r in self.runs if r.best_on_scored_split is not None)

    @property
    def is_student(self) -> bool:
        return not self.label.startswith("bert")

    @property
    def withheld(self) -> str:
        """Why our retention is not shown; empty where it is."""
        if not self.runs:
            return "not run"
        if self.teacher is None or any(r.teacher is None for r in self.runs):
            return "no teacher"
        return self.teacher.reason

    @property
    def retention(self) -> Spread | None:
        return None if self.withheld else spread(r.retention for r in self.runs if r.retention is not None)

    @property
    def above(self) -> Spread | None:
        """(student - majority) / (teacher - majority) in percent."""
        values = [r.retention_above_majority for r in self.runs if r.retention_above_majority is not None]
        return None if self.withheld else spread(values)

    @property
    def reported_retention(self) -> float | None:
        s, t = self.reported, self.reported_teacher
        return 100 * s.number / t.number if s and t else None

    @property
    def foreign_base(self) -> str:
        """Which other paper prints the base that the reported retention divides by; empty where it is the same."""
        s, t = self.reported, self.reported_teacher
        if not (s and t) or s.paper == t.paper:
            return ""
        return f"divided by {t.system} of another paper: {printed_numbers.paper_title(t.paper)}, {t.where}"

    @property
    def reported_above(self) -> float | None:
        """The same of the printed scores; our majority serves where metric and split are the paper's."""
        s, t = self.reported, self.reported_teacher
        if not (s and t and self.teacher) or not same_score(self.runs, s):
            return None
        gap = t.number - self.teacher.majority
        return 100 * (s.number - self.teacher.majority) / gap if gap > 0 else None

    @property
    def against(self) -> Against | None:
        """What may be set against the printed number: the score where it is comparable, else the retention."""
        if self.comparable and self.reported and self.ours:
            return Against("score", self.reported.number, self.ours)
        if self.is_student and self.reported_retention is not None and self.retention:
            return Against("retention", self.reported_retention, self.retention)
        return None

    @property
    def excluded(self) -> str:
        """"above" or "below" where the 95% interval of ours excludes the printed number; else empty.

        Empty, too, where seeds share a teacher: the interval is too narrow to say it.
        """
        a = self.against
        if a is None or a.ours.half is None or self.shared_teacher:
            return ""
        return "above" if a.ours.low > a.reported else "below" if a.ours.high < a.reported else ""

    @property
    def shared_teacher(self) -> bool:
        """Whether several seeds share one teacher, which makes the interval too narrow."""
        keys = [r.teacher.artefact or r.teacher.source for r in self.runs if r.teacher]
        return len(set(keys)) < len(keys)


SAME_TOKENS = 0.02  # budgets end at whole batches; a difference of up to 2% counts as equal


def token_budget(records: list[Record], task: str) -> float | None:
    """Tokens that a student is trained on in this group and task: truncated fine-tuning's, else the median of all."""
    students = [r for r in records if r.task == task and r.method != "bert"]
    base = [r.tokens for r in students if r.label == "truncated"] or [r.tokens for r in students]
    return median(base) if base else None


def same_tokens(c: Cell, budget: float | None) -> bool:
    """Whether every run of the cell was trained on that many tokens of the task, give or take `SAME_TOKENS`."""
    return bool(c.runs and budget) and all(abs(r.tokens / budget - 1) <= SAME_TOKENS for r in c.runs)


def paired(c: Cell, base: Cell) -> Spread | None:
    """Scores of `c` minus those of `base`, seed by seed, over the seeds that both have; None where there is none."""
    scores = {r.seed: r.score for r in base.runs}
    return spread(r.score - scores[r.seed] for r in c.runs if r.seed in scores)


def protocol(runs: Iterable[Record]) -> str:
    """What must be known of runs that do not follow their paper's protocol; empty for others."""
    if "backbone" not in {(r.study or {}).get("origin") for r in runs}:
        return ""
    return "cut out of the pre-trained backbone, not trained from scratch as in the paper"


def same_score(runs: Iterable[Record], r: Reported) -> bool:
    """Whether metric and split of the runs are those of the printed number."""
    runs = list(runs)
    split = {"validation": "dev", "validation_matched": "dev", "test": "test"}
    return bool(runs) and all(
        HEADLINES.get(x.headline) == r.metric and split.get(x.split) == r.split and r.task != "mnli" for x in runs
    )


def cell(rows: list[Reported], records: list[Record], label: str, task: str) -> Cell:
    """The cell of `label` and `task` from the records of one group."""
    runs = tuple(sorted((r for r in records if r.task == task and r.label == label), key=lambda r: r.seed))
    every = [r for r in records if r.task == task]
    headline = runs[0].headline if runs else (every[0].headline if every else _declared(task))
    metric = HEADLINES.get(headline, headline)
    # A variant is another method than the printed row; its own table on the paper's page compares it.
    system = BY_NAME.get(label)
    number = find(rows, system.printed, task, metric) if system else None
    divisor = None
    if system and system.teacher and number:
        divisor = find(rows, system.teacher, task, number.metric)
        if divisor and (divisor.metric, divisor.split, divisor.task) != (number.metric, number.split, number.task):
            divisor = None
    why = _why_not(runs, number)
    return Cell(label, task, metric, runs, number, divisor, teacher_of(records, task), not why, why)


def _declared(task: str) -> str:
    return TASKS[task].headline_name if task in TASKS else ""


def _why_not(runs: tuple[Record, ...], number: Reported | None) -> str:
    """Why the absolute numbers must not be compared; empty where they may."""
    if not runs:
        return "not run"
    scaled = sorted({r.backbone for r in runs if r.backbone not in BASE})
    if scaled:
        return "scaled down, " + ", ".join(scaled)
    if any(r.scale != "paper" for r in runs):
        return next(r.scale for r in runs if r.scale != "paper")
    if number is None:
        return "no printed number"
    if not same_score(runs, number):
        return f"other metric or split: {printed_numbers.metric_title(number.metric)}, {number.split}"
    return ""


@dataclass(frozen=True)
class Overall:
    """Retention over several tasks: ratio of the means, as the papers' ratio of macro averages, over the same tasks."""

    tasks: tuple[str, ...]
    ours: float
    reported: float | None
    above: float
    reported_above: float | None


def overall(cells: Iterable[Cell]) -> Overall | None:
    """Over the tasks of `cells` (one method) where retention is shown; None where there is none.

    The reported figures are recomputed over those same tasks, and left out where one of them is not printed.
    """
    used = [c for c in cells if c.retention is not None]
    if not used:
        return None
    teacher = sum(_mean(r.teacher.score for r in c.runs) for c in used)
    majority = sum(c.teacher.majority for c in used)
    student = sum(c.ours.mean for c in used)
    printed = all(c.reported_retention is not None for c in used)
    above = all(c.reported_above is not None for c in used)
    s = sum(c.reported.number for c in used) if printed else 0.0
    t = sum(c.reported_teacher.number for c in used) if printed else 0.0
    return Overall(
        tuple(c.task for c in used),
        100 * student / teacher,
        100 * s / t if printed else None,
        100 * (student - majority) / (teacher - majority),
        100 * (s - majority) / (t - majority) if above else None,
    )


@dataclass(frozen=True)
class Over:
    """Methods of one group that share tasks: one mean over other tasks is no better or worse than another."""

    tasks: tuple[str, ...]
    cells: dict[str, list[Cell]]  # on these tasks, of the methods that have a retention on all of them
    left_out: tuple[str, ...]  # methods run, but not on all of them
    withheld: tuple[str, ...]  # tasks run whose retention is not shown


def shared(rows: list[Reported], records: list[Record]) -> Over | None:
    """The largest whole table of one group: tasks, and the methods that have a retention on all of them.

    Largest by its number of cells, then of tasks: with the task that has most methods alone, one method more would
    take all other tasks away. None where no method has a retention.
    """
    students = [n for n in BY_NAME if n != "bert"]
    tasks = tasks_of(records)
    cells = {m: [c for t in tasks if (c := cell(rows, records, m, t)).runs] for m in students}
    shown = {m: frozenset(c.task for c in own if c.retention is not None) for m, own in cells.items()}
    candidates: set[frozenset[str]] = set()
    for own in shown.values():  # the tasks of a largest table are those that some methods have in common
        candidates |= {own, *(own & c for c in candidates)}
    having = {c: [m for m, own in shown.items() if own >= c] for c in candidates if c}
    if not having:
        return None
    chosen = max(having, key=lambda c: (len(c) * len(having[c]), len(c), sorted(c)))
    over, most = tuple(t for t in tasks if t in chosen), having[chosen]
    withheld = {c.task for own in cells.values() for c in own if c.retention is None}
    return Over(over, {m: [c for c in cells[m] if c.task in over] for m in most},
                tuple(m for m, own in cells.items() if own and m not in most),
                tuple(t for t in tasks if t in withheld))


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return sum(values) / len(values)
