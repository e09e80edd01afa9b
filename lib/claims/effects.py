"""An effect over tasks and seeds with its uncertainty: from the seeds and from the scored rows, together.

The numbers that come in were taken at the same seed on the same resamples of the same rows, so whatever two methods
share (the teacher, the easy rows) cancels. Tasks are fixed: the effect is that of the named tasks, not of tasks at
large.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

MOST = 1000  # seeds, or times as many rows, beyond which "how many would it take" is not counted out


@dataclass(frozen=True)
class Effect:
    """Mean effect over tasks. `se` is None where a task has one seed: nothing is known of how seeds differ then."""

    value: float
    se: float | None
    df: float  # degrees of freedom of Student's t
    seeds: dict[str, int]  # by task
    rows: dict[str, int]
    by_task: dict[str, float]
    seed_part: tuple[tuple[float, int], ...] = ()  # a task's share of the variance that more seeds shrink; its seeds
    row_part: float = 0.0  # variance that only more rows shrink

    def half(self, level: float = 0.95) -> float:
        """Half the width of the two-sided interval at `level`."""
        return _quantile(level, self.df) * self.se

    def interval(self, level: float = 0.95) -> tuple[float, float] | None:
        """Student's t interval; None where `se` is."""
        if self.se is None:
            return None
        return self.value - self.half(level), self.value + self.half(level)

    def p(self, bound: float) -> float:
        """Two-sided p-value of the hypothesis that the effect is `bound`. 1 where no interval exists."""
        gap = abs(self.value - bound)
        if self.se is None:
            return 1.0
        if self.se == 0:
            return 1.0 if gap == 0 else 0.0
        return float(2 * stdtr(self.df, -gap / self.se))


def _quantile(level: float, df: float) -> float:
    return float(stdtrit(df, 0.5 + level / 2))


def estimate(draws: Mapping[str, np.ndarray], rows: Mapping[str, int], seed: int = 0) -> Effect:
    """The effect from `draws`: task -> (seeds, 1 + resamples); column 0 is the effect on the rows as they are.

    The standard error is that of a bootstrap that draws rows and seeds together. A column of `draws` is one draw of
    rows; seeds are drawn with replacement for each task and column, their deviations stretched by sqrt(n / (n - 1)),
    without which n seeds would look less spread than they are. What seed and row do together is counted in both
    draws, so the interval is a little wide rather than narrow (Owen 2007, "The pigeonhole bootstrap").

    Degrees of freedom after Satterthwaite 1946: n - 1 for each task's part of the seeds, as many as rows for the part
    of the rows; so few seeds give Student's wide interval, and many rows do not hide it.
    """
    rng = np.random.default_rng(seed)
    tasks = list(draws)
    by_task = {t: float(draws[t][:, 0].mean()) for t in tasks}
    seeds = {t: len(draws[t]) for t in tasks}
    value = float(np.mean(list(by_task.values())))
    known = dict(seeds=seeds, rows={t: rows[t] for t in tasks}, by_task=by_task)
    if min(seeds.values()) < 2:
        return Effect(value, None, 0.0, **known)
    total = 0.0
    fixed = 0.0
    parts = []
    for t in tasks:
        d, n = draws[t][:, 1:], seeds[t]
        centre = d.mean(0)
        drawn = rng.integers(0, n, (n, d.shape[1]))
        spread = np.take_along_axis(d, drawn, 0).mean(0) - centre
        total = total + centre + math.sqrt(n / (n - 1)) * spread
        fixed = fixed + centre
        parts.append((float(draws[t][:, 0].var(ddof=1)) / n / len(tasks) ** 2, n))
    variance = float(np.var(total / len(tasks), ddof=1))
    of_rows = float(np.var(fixed / len(tasks), ddof=1))
    return Effect(value, math.sqrt(variance), _degrees(parts, of_rows, sum(rows[t] for t in tasks)), **known,
                  seed_part=tuple(parts), row_part=of_rows)


def _degrees(parts: Sequence[tuple[float, int]], of_rows: float, rows: int) -> float:
    whole = of_rows + sum(v for v, _ in parts)
    below = of_rows**2 / max(rows - 1, 1) + sum(v * v / (n - 1) for v, n in parts)
    return float(rows) if below == 0 else whole**2 / below


def holm(p: Mapping[str, float], level: float = 0.05) -> dict[str, tuple[float, float]]:
    """Holm 1979: for each claim its adjusted p-value and the level of its interval (0.95 and above).

    The k-th smallest of m p-values is held against level / (m - k + 1); after the first that fails, all fail, and its
    level serves the rest. So an interval excludes the bound exactly where the adjusted p-value is below `level`.
    """
    order = sorted(p, key=lambda k: (p[k], k))
    m, out, highest, failed = len(order), {}, 0.0, None
    for i, name in enumerate(order):
        highest = max(highest, min(1.0, (m - i) * p[name]))
        if failed is None and p[name] >= level / (m - i):
            failed = level / (m - i)
        out[name] = (highest, 1 - (failed or level / (m - i)))
    return out


@dataclass(frozen=True)
class Needed:
    """What it would take for the interval to leave the bound, were the effect what it looks like now.

    `seeds`: a task, with the rows as they are; `rows`: so many times the rows, with the seeds as they are; `both`: so
    many times of each. None where `MOST` is not enough.
    """

    seeds: int | None
    rows: int | None
    both: int | None

    @property
    def words(self) -> str:
        ways = [f"{self.seeds} seeds a task" if self.seeds else "", f"{self.rows} times the rows" if self.rows else ""]
        if any(ways):
            return " or ".join(w for w in ways if w)
        return f"{self.both} times the seeds and the rows" if self.both else f"over {MOST} times the seeds and rows"


def needed(effect: Effect, bound: float, level: float = 0.95) -> Needed:
    """See `Needed`. Raises `ValueError` for an effect without a standard error."""
    if effect.se is None:
        raise ValueError("needed: the effect has no standard error")
    gap = abs(effect.value - bound)
    rows = sum(effect.rows.values())
    whole = effect.row_part + sum(v for v, _ in effect.seed_part)
    wider = effect.se**2 / whole if whole else 1.0  # what seed and row do together, see `estimate`

    def enough(count, times: int) -> bool:
        parts = [(v * n / count(n), count(n)) for v, n in effect.seed_part]
        of_rows = effect.row_part / times
        variance = wider * (of_rows + sum(v for v, _ in parts))
        return _quantile(level, _degrees(parts, of_rows, rows * times)) * math.sqrt(variance) < gap

    def first(test) -> int | None:
        if gap == 0 or not test(MOST):
            return None
        low, high = 1, MOST  # the interval shrinks with both, so the first that is enough is found by halving
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if test(middle) else (middle + 1, high)
        return low

    return Needed(first(lambda n: n > 1 and enough(lambda _: n, 1)), first(lambda k: enough(lambda n: n, k)),
                  first(lambda k: enough(lambda n: n * k, k)))
