"""Whether runs that are set beside each other at one seed had one and the same teacher, and words for where not.

Runs of one group share the recipe, the rows and the seed of their teacher. It is another model nevertheless where it
was trained anew on a processor with other arithmetic (bf16 or fp32): such runs differ in their teacher as two seeds do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from lib.results import Record
from lib.systems import title_of

SAME = 1e-3  # points; a teacher scored twice on the same rows gives the same number


def score(record: Record) -> float | None:
    """Of the run's teacher, in percent; of the run itself where it is a teacher. None where there is none."""
    return record.score if record.method == "bert" else record.teacher.score if record.teacher else None


# Their training asks no fine-tuned teacher; what stands in their record is what their score is held against.
UNTAUGHT = ("truncated", "layerdrop", "trimbert", "mobilebert")


def taught(record: Record) -> bool:
    """Whether the score of a run depends on its fine-tuned teacher; a teacher's own does."""
    if record.method == "distilbert":  # its distillation comes before any task
        return bool(record.hyperparameters.get("task_distillation"))
    return record.method not in UNTAUGHT


def differing(records: Iterable[Record]) -> dict[str, list[str]]:
    """Task -> what differs there, in words; tasks where every seed has one teacher are not in it.

    The records are those of one group (profile, backbone). At each seed the teacher of most runs is the usual one,
    where two have as many, that of the `bert` run.
    """
    found: dict[str, dict[int, list[Record]]] = {}
    for r in records:
        if score(r) is not None:
            found.setdefault(r.task, {}).setdefault(r.seed, []).append(r)
    return {t: words for t, by_seed in found.items() if (words := _words(by_seed))}


def _words(by_seed: dict[int, list[Record]]) -> list[str]:
    others: dict[str, list[tuple[int, str, str]]] = {}
    for seed, runs in sorted(by_seed.items()):
        first = sorted(runs, key=lambda r: r.method != "bert")  # of equal counts the first counts
        usual = Counter(map(_key, first)).most_common(1)[0][0]
        own = next(r for r in runs if _key(r) == usual)
        for r in sorted(runs, key=lambda r: r.label):
            if _key(r) != usual:
                others.setdefault(r.label, []).append((seed, _one(r), _one(own)))
    alike: dict[tuple, list[str]] = {}
    for label, lines in others.items():
        alike.setdefault(tuple(lines), []).append(label)
    return [f"{', '.join(map(title_of, labels))}: " + "; ".join(
        f"seed {s} {ours} instead of {usual}" for s, ours, usual in lines) for lines, labels in alike.items()]


def _key(record: Record) -> int:
    return round(score(record) / SAME)


def _one(record: Record) -> str:
    return f"{score(record):.1f} ({record.environment.precision})"
