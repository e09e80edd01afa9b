"""Verdicts on the claims: computed from records, printed numbers and tables, never typed.

    python -m lib.claims.verdicts          (`make verdicts`; `make report` does it too)

writes `results/verdicts.csv`, one line a claim. The words, for a claim that runs answer:

* *holds*: the interval of the effect lies on the claimed side of the bound, on all declared tasks together;
* *holds in part*: so it does, but some declared tasks are missing, or one task alone goes clearly the other way;
* *does not hold*: the interval lies on the other side;
* *undecided*: the interval includes the bound, or there is one seed and no interval; how many seeds or rows it would
  take is said. A task with one seed counts as missing while another has more;
* *not tested here*: why, and what it would cost.

The interval is at 95%, corrected by Holm over the claims of the same paper that runs answered (`lib.claims.effects`).
A claim over printed numbers or counts has no interval: each of its comparisons is true or not. One over timings has the
range that the quartiles of their rounds leave (`claim_tables.timed_range`) and is undecided where the bound lies in it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from statistics import median

import pandas as pd

from lib.claims import Claim, claim_tables, effects, load
from lib.claims.claim_runs import Runs, name
from lib.claims.claim_tables import NotThere
from lib.claims.effects import Effect
from lib.claims.language import Test
from lib.errors import InputError, one_line
from lib.paths import results_dir, write_atomic
from lib.reporting import teachers
from lib.results import Record, is_stale, load_all

HOLDS, PART, NOT, UNDECIDED, UNTESTED = "holds", "holds in part", "does not hold", "undecided", "not tested here"
WORDS = (HOLDS, PART, NOT, UNDECIDED, UNTESTED)
SEEDS = 3  # of a run that is still to be made
COLUMNS = ("claim", "paper", "verdict", "effect", "low", "high", "bound", "n_seeds", "n_rows", "scale", "p", "p_holm",
           "level", "reported", "tasks", "seeds_needed", "rows_needed", "reason", "records")  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """One answer. Numbers are None where there are none; intervals are at `level`."""

    claim: Claim
    verdict: str
    reason: str = ""
    value: float | None = None
    bound: float | None = None
    effect: Effect | None = None  # of runs
    p: float | None = None
    p_holm: float | None = None
    level: float | None = None
    parts: tuple[bool, ...] = ()  # of several comparisons over numbers: which are true
    timed: tuple[float, float] | None = None  # of timings: the range that their quartiles leave
    by_task: dict[str, tuple[float, float | None, float | None]] = field(default_factory=dict)  # 95%, not corrected
    needed: effects.Needed | None = None
    scale: str = ""
    records: tuple[Record, ...] = ()

    @property
    def interval(self) -> tuple[float, float] | None:
        return self.effect.interval(self.level) if self.effect and self.level else None


def judge(claims: list[Claim], records: Iterable[Record], draws: int | None = None) -> list[Verdict]:
    """A verdict for each claim, in order. Records that cannot be used make a claim untested and are named in it."""
    runs = Runs(records, **({"draws": draws} if draws else {}))
    first = [_of_runs(c, runs) if c.kind == "runs" else _of_numbers(c) if c.kind else _untestable(c) for c in claims]
    out = []
    levels: dict[str, tuple[float, float]] = {}
    for paper in {c.paper for c in claims}:
        levels |= effects.holm({v.claim.id: v.p for v in first if v.claim.paper == paper and v.p is not None})
    for v in first:
        if v.p is not None:
            p_holm, level = levels[v.claim.id]
            v = _decide(replace(v, p_holm=p_holm, level=level))
        out.append(v)
    return out


def _untestable(c: Claim) -> Verdict:
    return Verdict(c, UNTESTED, f"{c.why}; cost: {c.cost}")


# ------------------------------------------------------------------ printed numbers and tables


def _of_numbers(c: Claim) -> Verdict:
    """Every comparison is true or not; holds where all are, in part where some are."""
    functions = {**c.functions(), **claim_tables.FUNCTIONS}
    scale = "printed numbers" if c.kind == "printed" else "the papers' own shapes"
    try:
        # Differences of printed decimals carry rounding noise of 1e-15, which would read as a number.
        values = [(t, *(round(float(e.value(functions, c.margin or 0)), 9) for e in (t.effect, t.bound)))
                  for t in c.tests]
    except NotThere as e:
        return Verdict(c, UNTESTED, f"{e}; cost: minutes (make efficiency)", scale=scale)
    except InputError as e:
        return Verdict(c, UNTESTED, str(e), scale=scale)
    true = [t.holds(effect, bound) for t, effect, bound in values]
    word = HOLDS if all(true) else PART if any(true) else NOT
    if len(values) == 1:
        (test, effect, bound), reason = values[0], ""
        timed = claim_tables.timed_range(test.effect, functions, c.margin or 0)
        if timed and _side(test, *timed, bound) == 0:
            word, reason = UNDECIDED, f"the quartiles of the timings leave {timed[0]:.3g} to {timed[1]:.3g}"
        return Verdict(c, word, reason, effect, bound, timed=timed, scale=scale)
    parts = (f"part {i}: {effect:.4g} {t.sign} {bound:.4g} is {str(ok).lower()}"
             for i, ((t, effect, bound), ok) in enumerate(zip(values, true, strict=True), 1))
    return Verdict(c, word, "; ".join(parts), parts=tuple(true), scale=scale)


# ------------------------------------------------------------------ runs


def _of_runs(c: Claim, runs: Runs) -> Verdict:
    """Effect, p-value and what it was taken from; the word comes later, when Holm's levels are known."""
    missing = {t: [x for x in c.labels if not runs.seeds(c, t, x)] for t in c.tasks}
    left_out = {t: runs.why_left_out(c, t) for t in c.tasks if not missing[t]}
    used = {t: runs.common(c, t) for t, why in left_out.items() if not why}
    used = {t: seeds for t, seeds in used.items() if seeds}
    # One seed has no interval, and would take it from the tasks that have one.
    most = max(map(len, used.values()), default=0)
    left_out |= {t: "one seed so far" for t, seeds in used.items() if len(seeds) == 1 < most}
    used = {t: seeds for t, seeds in used.items() if not left_out[t]}
    bound = c.tests[0].bound.value(c.functions(used), c.margin or 0.0)
    remarks = [f"{t} left out: {why}" for t, why in left_out.items() if why]
    unmeasured = {t: seeds for t in left_out if (seeds := runs.unmeasured(c, t))}
    remarks += [f"{t}: no seed of which every run exists" for t, why in left_out.items()
                if not why and t not in used and t not in unmeasured]
    remarks += [f"{t}: seed {', '.join(map(str, s))} not measured (no row in results/students.csv)"
                for t, s in unmeasured.items()]
    if lacking := {t: x for t, x in missing.items() if x}:
        remarks.append(_to_make(c, runs, lacking))
    if not used:
        return Verdict(c, UNTESTED, "; ".join(remarks), bound=bound)
    records = tuple(runs.record(c, t, x, s) for t, seeds in used.items() for x in c.labels for s in seeds)
    rows = {t: runs.record(c, t, c.labels[0], seeds[0]).rows if c.on_rows else 0 for t, seeds in used.items()}
    scale = "; ".join(sorted({r.scale for r in records}))
    for t, words in teachers.differing(filter(teachers.taught, records)).items():
        remarks.append(f"{t}: not one teacher, {'; '.join(words)}")
    if stale := sum(map(is_stale, records)):
        remarks.append(f"{stale} of {len(records)} records are stale (made by other lib code)")
    try:
        draws = {t: runs.effects(c, t, seeds) for t, seeds in used.items()}
    except InputError as e:
        return Verdict(c, UNTESTED, "; ".join([f"records cannot be used: {e}", *remarks]), bound=bound, scale=scale)
    effect = effects.estimate(draws, rows)
    alone = {t: effects.estimate({t: draws[t]}, rows) for t in used}
    by_task = {t: (e.value, *(e.interval() or (None, None))) for t, e in alone.items()}
    known = Verdict(c, UNDECIDED, "; ".join(remarks), effect.value, bound, effect, by_task=by_task, scale=scale,
                    records=records)
    if effect.se is None:
        return replace(known, reason="; ".join([_one_seed(effect), *remarks]))
    return replace(known, p=effect.p(bound))


def _one_seed(effect: Effect) -> str:
    tasks = ", ".join(t for t, n in effect.seeds.items() if n < 2)
    return f"one seed on {tasks}: no interval; it would take at least two seeds a task"


def _to_make(c: Claim, runs: Runs, lacking: dict[str, list[str]]) -> str:
    """The runs that are missing, and their cost by the median training time of this group's runs."""
    by_labels: dict[tuple[str, ...], list[str]] = {}
    for t, labels in lacking.items():
        by_labels.setdefault(tuple(labels), []).append(t)
    words = "; ".join(f"{', '.join(labels)} on {', '.join(tasks)}" for labels, tasks in by_labels.items())
    count = SEEDS * sum(map(len, lacking.values()))
    seconds = [r.wall_seconds for r in runs.group(c)]
    cost = (f"about {count * median(seconds) / 3600:.1f} hours at the median of {len(seconds)} runs here"
            if seconds else "cost not known: no run of this group yet")
    return f"not run: {words} ({count} runs of {SEEDS} seeds, {cost}, without tuning and general stages)"


def _decide(v: Verdict) -> Verdict:
    """The word, from the interval at Holm's level."""
    test = v.claim.tests[0]
    low, high = v.interval
    if _side(test, low, high, v.bound) == 1:
        remarks = [v.reason] if v.reason else []
        against = [t for t, (_, a, b) in v.by_task.items() if a is not None and _side(test, a, b, v.bound) == -1]
        if against:
            remarks.insert(0, f"goes clearly the other way on {', '.join(against)}")
        whole = set(v.by_task) == set(v.claim.tasks) and not against
        return replace(v, verdict=HOLDS if whole else PART, reason="; ".join(remarks))
    if _side(test, low, high, v.bound) == -1:
        return replace(v, verdict=NOT)
    need = effects.needed(v.effect, v.bound, v.level)
    words = f"the interval includes {v.bound:.4g}; were the effect as it looks now, it would take {need.words}"
    return replace(v, verdict=UNDECIDED, needed=need, reason="; ".join(filter(None, [words, v.reason])))


def _side(test: Test, low: float, high: float, bound: float) -> int:
    """1: the interval lies on the claimed side of the bound; -1: on the other; 0: it includes the bound."""
    if low <= bound <= high:
        return 0
    return 1 if (low > bound) == test.upward else -1


# ------------------------------------------------------------------ the table


def table(found: list[Verdict]) -> pd.DataFrame:
    """One line a claim, in file order; columns `COLUMNS`. `records` are paths below `results/runs`."""

    def line(v: Verdict) -> dict:
        low, high = v.interval or v.timed or (None, None)
        own = v.claim.reported_effect
        return {
            "claim": v.claim.id, "paper": v.claim.paper, "verdict": v.verdict, "effect": v.value, "low": low,
            "high": high, "bound": v.bound, "n_seeds": min(v.effect.seeds.values()) if v.effect else None,
            "n_rows": v.effect and (sum(v.effect.rows.values()) or None), "scale": v.scale, "p": v.p,
            "p_holm": v.p_holm, "level": v.level, "reported": own, "tasks": " ".join(v.by_task),
            "seeds_needed": v.needed.seeds if v.needed else None, "rows_needed": _rows_needed(v), "reason": v.reason,
            "records": " ".join(map(name, v.records)) or ("reported.csv" if v.claim.kind == "printed" else ""),
        }  # fmt: skip

    frame = pd.DataFrame([line(v) for v in found], columns=list(COLUMNS))
    return frame.astype({k: "Int64" for k in ("n_seeds", "n_rows", "seeds_needed", "rows_needed")})


def _rows_needed(v: Verdict) -> int | None:
    return sum(v.effect.rows.values()) * v.needed.rows if v.needed and v.needed.rows else None


def as_csv(found: list[Verdict]) -> bytes:
    """The table as it is written: numbers with six significant digits, so that rounding noise makes no new file."""
    return table(found).to_csv(index=False, float_format="%.6g", lineterminator="\n").encode()


def write(found: list[Verdict]) -> None:
    """Write `results/verdicts.csv`."""
    write_atomic(results_dir() / "verdicts.csv", as_csv(found))


@one_line("verdicts")
def main() -> int:
    records, skipped = load_all()
    for line in skipped:
        print(f"skipped: {line}", file=sys.stderr)
    found = judge(load(), records)
    write(found)
    counts = ", ".join(f"{sum(v.verdict == w for v in found)} {w}" for w in WORDS)
    print(f"verdicts: {len(found)} claims from {len(records)} records: {counts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
