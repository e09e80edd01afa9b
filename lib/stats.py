"""Mean, median and interval over seeds, and the interval of an accuracy over rows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, median, stdev

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


def wilson(percent: float, rows: int) -> tuple[float, float]:
    """95% interval in percent of an accuracy over `rows` rows (Wilson score interval, 1927)."""
    z, p = 1.959963984540054, percent / 100
    centre = (p + z * z / (2 * rows)) / (1 + z * z / rows)
    half = z / (1 + z * z / rows) * math.sqrt(p * (1 - p) / rows + z * z / (4 * rows * rows))
    return 100 * (centre - half), 100 * (centre + half)
