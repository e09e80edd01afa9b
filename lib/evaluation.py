"""Metrics, predictions, and how loyal a student is to its teacher.

The metrics are `evaluate.Metric` classes of our own over scikit-learn and SciPy: `evaluate.load("glue")` needs the
hub. They give the same values.
"""

from __future__ import annotations

import math

import datasets
import evaluate
import numpy as np
import torch
from scipy import stats
from scipy.spatial.distance import jensenshannon
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from torch import nn

from lib import layers
from lib.batches import Encoded, in_order
from lib.tasks import Task


class _Metric(evaluate.Metric):
    """Base: predictions and references of one type, one value out."""

    kind = "int64"

    def __init__(self):
        super().__init__(keep_in_memory=True)

    def _info(self):
        features = datasets.Features(
            {"predictions": datasets.Value(self.kind), "references": datasets.Value(self.kind)})
        return evaluate.MetricInfo(description=self.__doc__, citation="", inputs_description="", features=features)


class Accuracy(_Metric):
    """Share of rows whose class is right."""

    def _compute(self, predictions, references):
        return {"accuracy": float(accuracy_score(references, predictions))}


class F1(_Metric):
    """F1 of class 1, as GLUE defines it for MRPC and QQP."""

    def _compute(self, predictions, references):
        return {"f1": float(f1_score(references, predictions, zero_division=0))}


class Matthews(_Metric):
    """Matthews correlation of classes; 0 where one side is constant."""

    def _compute(self, predictions, references):
        return {"matthews": float(matthews_corrcoef(references, predictions))}


class Pearson(_Metric):
    """Pearson correlation; 0 where one side is constant (a constant answer explains nothing)."""

    kind = "float64"

    def _compute(self, predictions, references):
        return {"pearson": _correlation(stats.pearsonr, predictions, references)}


class Spearman(_Metric):
    """Spearman rank correlation; 0 where one side is constant."""

    kind = "float64"

    def _compute(self, predictions, references):
        return {"spearman": _correlation(stats.spearmanr, predictions, references)}


METRICS = {"accuracy": Accuracy, "f1": F1, "matthews": Matthews, "pearson": Pearson, "spearman": Spearman}


def _correlation(function, a, b) -> float:
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(function(a, b)[0])


def metrics(task: Task, logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """All metrics of a task as fractions. logits: (n, classes), or (n, 1) for regression. NaN logits give NaN."""
    wanted = list(task.headline)
    if not task.regression and "accuracy" not in wanted:
        wanted.append("accuracy")
    if not np.isfinite(logits).all():
        return dict.fromkeys(wanted, math.nan)
    predictions = logits[:, 0] if task.regression else logits.argmax(-1)
    out = {}
    for name in wanted:
        out |= METRICS[name]().compute(predictions=predictions, references=labels)
    return out


def headline(task: Task, values: dict[str, float]) -> float:
    """The score in percent: 100 * mean of the task's headline metrics."""
    return 100 * float(np.mean([values[name] for name in task.headline]))


def standard_error(task: Task, score: float, rows: int) -> float:
    """Standard error in points of a headline score in percent on `rows` rows.

    sqrt(s (1 - s) / n) for shares (accuracy, and F1 as if it were one); (1 - r^2) / sqrt(n - 1) for correlations, of
    which Matthews' is one (Pearson's of two binary variables).
    """
    s = min(max(score / 100, -1.0), 1.0)
    if task.headline[0] in ("matthews", "pearson", "spearman"):
        return 100 * (1 - s * s) / math.sqrt(max(rows - 1, 1))
    return 100 * math.sqrt(max(s * (1 - s), 0.0) / rows)


def majority(task: Task, train_labels: np.ndarray, labels: np.ndarray) -> float:
    """Score in percent of always answering the commonest training class (the mean, for regression)."""
    if task.regression:
        logits = np.full((len(labels), 1), float(np.mean(train_labels)))
    else:
        counts = np.bincount(train_labels, minlength=task.classes)
        logits = np.tile(np.eye(task.classes)[counts.argmax()], (len(labels), 1))
    return headline(task, metrics(task, logits, labels))


def predict(model: nn.Module, data: Encoded, batch_size: int = 64, precision: str = "fp32") -> np.ndarray:
    """Logits (n, classes) in float32, dropout off, rows in the order of `data`. The model's mode is restored."""
    device = next(model.parameters()).device
    mode = model.training
    model.eval()
    out = None
    with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        for rows, batch in in_order(data, batch_size):
            logits = layers.classify(model, {k: v.to(device) for k, v in batch.items()}).float().cpu().numpy()
            if out is None:
                out = np.empty((len(data), logits.shape[-1]), dtype=np.float32)
            out[rows] = logits
    model.train(mode)
    return out


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities (n, classes) in float64."""
    z = logits.astype(np.float64)
    z = np.exp(z - z.max(-1, keepdims=True))
    return z / z.sum(-1, keepdims=True)


def loyalty(student: np.ndarray, teacher: np.ndarray) -> dict[str, float]:
    """Label and probability loyalty in percent (Xu et al. 2021, "Beyond Preserved Accuracy", section 3).

    Label: share of rows with the same class. Probability: 100 * mean(1 - Jensen-Shannon distance), base 2.
    """
    if not (np.isfinite(student).all() and np.isfinite(teacher).all()):
        raise ValueError("loyalty: logits must be finite")
    same = float((student.argmax(-1) == teacher.argmax(-1)).mean())
    distance = jensenshannon(softmax(student), softmax(teacher), base=2, axis=-1)
    distance = np.nan_to_num(distance)  # the root of a rounding error below zero, for equal distributions
    return {"label": 100 * same, "probability": 100 * float(1 - distance.mean())}


def retention(student: float, teacher: float, floor: float = 0.0) -> float | None:
    """100 * (student - floor) / (teacher - floor); None where the teacher is not above the floor."""
    return None if teacher - floor <= 0 else 100 * (student - floor) / (teacher - floor)
