"""Resampled scores: each draw must be what the study's own metrics give on the rows drawn."""

import numpy as np
import pytest

from lib import evaluation
from lib.claims import resampling
from lib.tasks import TASKS


def example(task, rows=60, seed=3):
    rng = np.random.default_rng(seed)
    if task.regression:
        labels = np.round(rng.uniform(0, 5, rows) * 2) / 2  # with ties, as STS-B has
        return np.round(labels + rng.normal(0, 1, rows), 1)[:, None], labels
    labels = rng.integers(0, task.classes, rows)
    return np.eye(task.classes)[labels] + rng.normal(0, 1, (rows, task.classes)), labels


@pytest.mark.parametrize("name", ["mrpc", "stsb", "cola", "rte", "sst2", "mnli", "qqp", "trec"])
def test_each_draw_is_the_metric_on_the_rows_drawn(name):
    task = TASKS[name]
    logits, labels = example(task)
    weights = resampling.draw(60, 12, seed=5)
    got = resampling.scores(task, logits, labels, weights)
    for w, score in zip(weights, got, strict=True):
        rows = np.repeat(np.arange(60), w.astype(int))
        wanted = evaluation.headline(task, evaluation.metrics(task, logits[rows], labels[rows]))
        assert score == pytest.approx(wanted, abs=1e-9)


def test_the_first_weights_are_the_rows_as_they_are():
    weights = resampling.draw(50, 20, seed=1)
    assert weights.shape == (21, 50)
    assert (weights[0] == 1).all()
    assert (weights.sum(1) == 50).all()
    assert len({tuple(w) for w in weights}) == 21


def test_a_constant_answer_scores_nothing():
    task = TASKS["stsb"]
    labels = example(task)[1]
    assert resampling.scores(task, np.full((60, 1), 2.3), labels, resampling.draw(60, 5)) == pytest.approx(np.zeros(6))
    task = TASKS["cola"]
    labels = example(task)[1]
    assert resampling.scores(task, np.tile([0.0, 1.0], (60, 1)), labels, resampling.draw(60, 5)).max() == 0


def test_a_mean_metric_varies_as_its_standard_error_says():
    task = TASKS["rte"]
    logits, labels = example(task, rows=400)
    got = resampling.scores(task, logits, labels, resampling.draw(400, 1500))
    share = got[0] / 100
    assert got[1:].std() == pytest.approx(100 * np.sqrt(share * (1 - share) / 400), rel=0.08)
