"""Headline scores over many resamples of the scored rows at once.

A resample is a vector of weights, how often each row was drawn. All metrics of `lib.evaluation` can be computed from
weights, so a thousand resamples are a few matrix products instead of a thousand calls.
"""

from __future__ import annotations

import numpy as np

from lib.tasks import Task


def draw(rows: int, draws: int, seed: int = 0) -> np.ndarray:
    """Weights (1 + draws, rows), float64: first all ones, then resamples with replacement (Efron 1979), each row of
    weights summing to `rows`. A function of its arguments alone."""
    drawn = np.random.default_rng(seed).multinomial(rows, np.full(rows, 1 / rows), size=draws)
    return np.concatenate([np.ones((1, rows)), drawn]).astype(np.float64)


def scores(task: Task, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Headline score in percent under each vector of weights, (draws,).

    logits: (rows, classes), or (rows, 1) for regression; labels: (rows,); weights: (draws, rows), counts. Where a
    metric is not defined (one side constant) it is 0, as in `lib.evaluation`. Raises `ValueError` for a metric that
    cannot be resampled here.
    """
    if task.regression:
        x, y = logits[:, 0].astype(np.float64), np.asarray(labels, dtype=np.float64)
        known = {"pearson": lambda: _pearson(x, y, weights),
                 "spearman": lambda: _spearman(x, y, weights)}
    else:
        table = _confusion(logits.argmax(-1), np.asarray(labels, dtype=np.int64), max(task.classes, 2), weights)
        known = {"accuracy": lambda: _accuracy(table), "f1": lambda: _f1(table), "matthews": lambda: _matthews(table)}
    if missing := set(task.headline) - set(known):
        raise ValueError(f"{task.name}: {', '.join(sorted(missing))} cannot be resampled")
    return 100 * np.mean([known[name]() for name in task.headline], axis=0)


def _confusion(predicted: np.ndarray, true: np.ndarray, classes: int, weights: np.ndarray) -> np.ndarray:
    """Counts (draws, true class, predicted class)."""
    cell = np.zeros((len(true), classes * classes))
    cell[np.arange(len(true)), true * classes + predicted] = 1
    return (weights @ cell).reshape(-1, classes, classes)


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """above / below, 0 where below is 0."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def _accuracy(table: np.ndarray) -> np.ndarray:
    return np.trace(table, axis1=1, axis2=2) / table.sum((1, 2))


def _f1(table: np.ndarray) -> np.ndarray:
    """Of class 1."""
    return _ratio(2 * table[:, 1, 1], table[:, 1, :].sum(1) + table[:, :, 1].sum(1))


def _matthews(table: np.ndarray) -> np.ndarray:
    """Matthews correlation, for any number of classes (Gorodkin 2004)."""
    n, right = table.sum((1, 2)), np.trace(table, axis1=1, axis2=2)
    true, predicted = table.sum(2), table.sum(1)
    covariance = right * n - (true * predicted).sum(1)
    return _ratio(covariance, np.sqrt((n**2 - (true**2).sum(1)) * (n**2 - (predicted**2).sum(1))))


def _pearson(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """x, y: (rows,), or (draws, rows) where they differ from draw to draw."""
    n = weights.sum(1, keepdims=True)
    x = x - (weights * x).sum(1, keepdims=True) / n
    y = y - (weights * y).sum(1, keepdims=True) / n
    both, xx, yy = (weights * x * y).sum(1), (weights * x * x).sum(1), (weights * y * y).sum(1)
    # What rounding leaves of a constant side is no variance.
    tiny = 1e-12 * n[:, 0]
    return np.divide(both, np.sqrt(xx * yy), out=np.zeros_like(both), where=(xx > tiny) & (yy > tiny))


def _spearman(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return _pearson(_ranks(x, weights), _ranks(y, weights), weights)


def _ranks(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Rank of each row in the resample, (draws, rows): equal values, copies of a row too, share their mean rank."""
    _, group = np.unique(values, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    counts = np.add.reduceat(weights[:, order], starts, axis=1)  # (draws, distinct values)
    return (np.cumsum(counts, axis=1) - counts / 2 + 0.5)[:, group]
