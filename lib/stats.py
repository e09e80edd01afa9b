"""Mean, median and interval over seeds; intervals of a score over rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

import numpy as np
from scipy.special import stdtrit


@dataclass(frozen=True)
class Spread:
    """Values over seeds. `half` is half the width of the 95% interval of the mean; None with fewer than two values."""

    n: int
    mean: float
    median: float
    half: float | None

    @property
    def low(self) -> float | None:
        return None if self.half is None else self.mean - self.half

    @property
    def high(self) -> float | None:
        return None if self.half is None else self.mean + self.half


def spread(values: Iterable[float]) -> Spread | None:
    """Mean, median and Student's t interval (n - 1 degrees of freedom, 95%, two-sided); None without values."""
    values = list(values)
    if not values:
        return None
    n = len(values)
    half = float(stdtrit(n - 1, 0.975)) * stdev(values) / math.sqrt(n) if n > 1 else None
    return Spread(n, fmean(values), median(values), half)


def over_tasks(values: Mapping[str, Sequence[float]]) -> Spread | None:
    """The mean over tasks of each task's mean over seeds, `values`: task -> one value a seed; None without values.

    The tasks are fixed: the interval is of these tasks, and how far they lie apart does not widen it. Student's t with
    Satterthwaite's degrees of freedom (1946); no interval where a task has one seed.
    """
    groups = [list(v) for v in values.values() if v]
    if not groups:
        return None
    means = [fmean(g) for g in groups]
    n = sum(map(len, groups))
    if min(map(len, groups)) < 2:
        return Spread(n, fmean(means), median(means), None)
    parts = [(stdev(g) ** 2 / len(g) / len(groups) ** 2, len(g) - 1) for g in groups]
    variance, below = sum(v for v, _ in parts), sum(v * v / df for v, df in parts)
    half = float(stdtrit(variance**2 / below, 0.975)) * math.sqrt(variance) if below else 0.0
    return Spread(n, fmean(means), median(means), half)


def wilson(percent: float, rows: int) -> tuple[float, float]:
    """95% interval in percent of an accuracy over `rows` rows (Wilson score interval, 1927)."""
    z, p = 1.959963984540054, percent / 100
    centre = (p + z * z / (2 * rows)) / (1 + z * z / rows)
    half = z / (1 + z * z / rows) * math.sqrt(p * (1 - p) / rows + z * z / (4 * rows * rows))
    return 100 * (centre - half), 100 * (centre + half)


def bootstrap(scores: Mapping[str, Callable[[np.ndarray], float]], rows: int, draws: int = 1000,
              seed: int = 0) -> dict[str, np.ndarray]:
    """Scores over `draws` resamples of `rows` rows with replacement (Efron 1979), (draws,) by name.

    A score is a function of row numbers (rows,). All names see the same resamples, so the difference of two of the
    arrays is paired. A function of `seed` alone.
    """
    rng = np.random.default_rng(seed)
    out = {name: np.empty(draws) for name in scores}
    for i in range(draws):
        drawn = rng.integers(0, rows, rows)
        for name, score in scores.items():
            out[name][i] = score(drawn)
    return out


def percentile_interval(values: np.ndarray) -> tuple[float, float]:
    """95% interval of bootstrapped values: their 2.5th and 97.5th percentile."""
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)
