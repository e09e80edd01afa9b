"""Every metric, loyalty, retention and the majority against a few lines of NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tiny
import torch

from lib import evaluation, layers
from lib.evaluation import METRICS, headline, loyalty, majority, metrics, predict, retention, softmax, standard_error
from lib.tasks import TASKS

MRPC, COLA, STSB, RTE = (TASKS[n] for n in ("mrpc", "cola", "stsb", "rte"))


def confusion(labels, predictions) -> tuple[int, int, int, int]:
    pairs = list(zip(labels, predictions, strict=True))
    return tuple(sum(p == wanted for p in pairs) for wanted in ((1, 1), (0, 1), (1, 0), (0, 0)))  # tp, fp, fn, tn


def ranks(x) -> np.ndarray:
    """Average ranks: the mean of the places that equal values take."""
    return np.array([(np.sum(x < v) + 1 + np.sum(x <= v)) / 2 for v in x])


def pearson(a, b) -> float:
    a, b = a - a.mean(), b - b.mean()
    return float((a * b).sum() / math.sqrt((a * a).sum() * (b * b).sum()))


def value(name, predictions, labels) -> float:
    return METRICS[name]().compute(predictions=predictions, references=labels)[name]


@pytest.mark.parametrize("seed", range(4))
def test_class_metrics_from_the_confusion_matrix(seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, 50)
    predictions = np.where(rng.random(50) < 0.7, labels, 1 - labels)
    tp, fp, fn, tn = confusion(labels, predictions)
    assert value("accuracy", predictions, labels) == pytest.approx((tp + tn) / 50)
    assert value("f1", predictions, labels) == pytest.approx(2 * tp / (2 * tp + fp + fn))
    product = math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert value("matthews", predictions, labels) == pytest.approx((tp * tn - fp * fn) / product)
    assert value("matthews", predictions, labels) == pytest.approx(pearson(labels.astype(float), predictions))


@pytest.mark.parametrize("seed", range(3))
def test_correlations(seed):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=40), rng.integers(0, 6, 40) / 2.0  # the target has many ties
    a += b
    assert value("pearson", a, b) == pytest.approx(pearson(a, b))
    assert value("spearman", a, b) == pytest.approx(pearson(ranks(a), ranks(b)))
    assert value("spearman", np.exp(a), b) == pytest.approx(value("spearman", a, b))  # order alone counts
    assert value("pearson", 3 * a - 7, b) == pytest.approx(value("pearson", a, b))


def test_ends_of_the_scale():
    y = np.array([0, 1, 1, 0])
    assert [value(n, y, y) for n in ("accuracy", "f1", "matthews")] == [1, 1, 1]
    assert [value(n, 1 - y, y) for n in ("accuracy", "f1", "matthews")] == [0, 0, -1]
    assert value("matthews", np.zeros(4, int), y) == 0
    assert value("f1", np.zeros(4, int), y) == 0
    x = np.array([1.0, 2, 3, 5])
    assert [value(n, -x, x) for n in ("pearson", "spearman")] == pytest.approx([-1, -1])
    assert [value(n, np.full(4, 2.0), x) for n in ("pearson", "spearman")] == [0, 0]
    assert [value(n, x, np.full(4, 2.0)) for n in ("pearson", "spearman")] == [0, 0]


def test_metrics_take_the_largest_logit():
    logits = np.array([[0.2, 0.1, 0.9], [5, -1, 2], [-3, -2, -9]])
    assert metrics(tiny.TRIPLE, logits, np.array([2, 0, 1])) == {"accuracy": 1.0}
    assert metrics(tiny.TRIPLE, logits, np.array([1, 0, 1])) == {"accuracy": pytest.approx(2 / 3)}


def test_each_task_has_its_papers_headline():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(60, 2)), rng.integers(0, 2, 60)
    wrong = logits.argmax(-1)
    tp, fp, fn, tn = confusion(labels, wrong)
    f1, accuracy = 2 * tp / (2 * tp + fp + fn), (tp + tn) / 60
    got = metrics(MRPC, logits, labels)
    assert got == pytest.approx({"f1": f1, "accuracy": accuracy})
    assert headline(MRPC, got) == pytest.approx(100 * (f1 + accuracy) / 2)
    got = metrics(COLA, logits, labels)
    assert got.keys() == {"matthews", "accuracy"}
    assert headline(COLA, got) == pytest.approx(100 * got["matthews"])
    assert headline(RTE, metrics(RTE, logits, labels)) == pytest.approx(100 * accuracy)
    target = rng.normal(size=60)
    got = metrics(STSB, logits[:, :1], target)
    assert headline(STSB, got) == pytest.approx(
        50 * (pearson(logits[:, 0], target) + pearson(ranks(logits[:, 0]), ranks(target))))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_logit_that_is_not_finite_makes_the_score_nan(bad):
    logits = np.random.default_rng(0).normal(size=(9, 2))
    logits[4, 1] = bad
    assert all(math.isnan(v) for v in metrics(MRPC, logits, np.arange(9) % 2).values())
    assert math.isnan(headline(MRPC, metrics(MRPC, logits, np.arange(9) % 2)))


# --- the floor


def test_majority_answers_the_commonest_training_class():
    train, scored = np.array([1] * 7 + [0] * 3), np.array([1, 1, 0, 0, 0])
    assert majority(RTE, train, scored) == pytest.approx(40)
    p = 2 / 5  # everything is called 1: precision 2/5, recall 1
    assert majority(MRPC, train, scored) == pytest.approx(50 * (2 * p / (p + 1) + p))
    assert majority(COLA, train, scored) == 0
    assert majority(tiny.TRIPLE, np.array([2, 2, 0]), np.array([0, 1, 2, 2])) == pytest.approx(50)
    assert majority(STSB, np.array([1.0, 2.0]), np.array([0.0, 5.0, 2.0])) == 0


def test_majority_on_mrpc_is_the_74_8_that_everyone_scores():
    """MRPC's validation rows: 279 of 408 are paraphrases."""
    scored = np.array([1] * 279 + [0] * 129)
    assert majority(MRPC, np.array([1, 1, 0]), scored) == pytest.approx(74.8, abs=0.05)


def test_retention():
    assert retention(60, 80) == 75
    assert retention(60, 80, 50) == pytest.approx(100 / 3)
    assert retention(40, 80, 50) == pytest.approx(-100 / 3)
    assert retention(90, 80) > 100
    assert retention(60, 50, 50) is None
    assert retention(60, 40, 50) is None
    assert retention(60, 0) is None
    assert retention(60, -5) is None  # a Matthews correlation may lie below 0


@pytest.mark.parametrize("name", ["rte", "cola", "stsb"])
def test_standard_error_is_the_spread_of_the_score_over_samples(name):
    rng, n, task = np.random.default_rng(0), 300, TASKS[name]
    scores = []
    for _ in range(400):
        if name == "stsb":
            a, b = rng.multivariate_normal([0, 0], [[1, 0.8], [0.8, 1]], n).T
            scores.append(100 * pearson(a, b))
        else:
            labels = rng.integers(0, 2, n)
            answers = np.where(rng.random(n) < 0.8, labels, 1 - labels)
            scores.append(100 * ((labels == answers).mean() if name == "rte" else pearson(labels * 1.0, answers * 1.0)))
    assert standard_error(task, float(np.mean(scores)), n) == pytest.approx(np.std(scores), rel=0.35)


def test_standard_error_at_the_ends():
    assert standard_error(RTE, 80, 100) == pytest.approx(4)
    assert standard_error(RTE, 100, 100) == standard_error(RTE, 0, 100) == standard_error(COLA, 100, 100) == 0
    assert standard_error(COLA, 0, 101) == pytest.approx(10)
    assert math.isnan(standard_error(RTE, math.nan, 100))


# --- loyalty


def entropy(p) -> float:
    p = p[p > 0]
    return float(-(p * np.log2(p)).sum())


@pytest.mark.parametrize("classes", [2, 3, 6])
def test_probability_loyalty_from_the_formula(classes):
    """1 - sqrt(H(m) - (H(p) + H(q)) / 2), m the mean of the two, base 2; mean over rows."""
    rng = np.random.default_rng(classes)
    s, t = rng.normal(size=(2, 30, classes)) * 3
    expected = []
    for a, b in zip(s, t, strict=True):
        p, q = np.exp(a) / np.exp(a).sum(), np.exp(b) / np.exp(b).sum()
        expected.append(1 - math.sqrt(max(0.0, entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2)))
    got = loyalty(s.astype(np.float32), t.astype(np.float32))
    assert got["probability"] == pytest.approx(100 * np.mean(expected), abs=1e-3)
    assert got["label"] == pytest.approx(100 * np.mean([a.argmax() == b.argmax() for a, b in zip(s, t, strict=True)]))
    assert loyalty(t, s) == pytest.approx(got)  # symmetric


def test_loyalty_at_the_ends():
    logits = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    assert loyalty(logits, logits) == pytest.approx({"label": 100, "probability": 100}, abs=1e-4)
    assert loyalty(logits + 7, logits) == pytest.approx({"label": 100, "probability": 100}, abs=0.1)
    a, b = np.array([[500.0, 0.0]]), np.array([[0.0, 500.0]])
    assert loyalty(a, b) == pytest.approx({"label": 0, "probability": 0}, abs=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_loyalty_of_answers_that_are_not_finite_is_an_error(bad):
    logits = np.array([[0.0, 1.0], [bad, 0.0]])
    for pair in ((logits, np.zeros((2, 2))), (np.zeros((2, 2)), logits)):
        with pytest.raises(ValueError, match="finite"):
            loyalty(*pair)


def test_softmax_of_large_logits():
    p = softmax(np.array([[1000.0, 999.0], [-1000.0, -1001.0]], dtype=np.float32))
    np.testing.assert_allclose(p, [[1 / (1 + math.exp(-1)), 1 / (1 + math.e)]] * 2, rtol=1e-12)


# --- predictions


def test_predictions_stand_in_the_order_of_the_rows():
    model, data = tiny.classifier(classes=3), tiny.encoded(23, seed=1)
    got = predict(model, data, batch_size=4)
    with torch.no_grad():
        one = [layers.classify(model, data.batch(np.array([i])))[0].numpy() for i in range(23)]
    np.testing.assert_allclose(got, one, atol=2e-6)
    assert got.dtype == np.float32
    np.testing.assert_allclose(predict(model, data, batch_size=100), got, atol=2e-6)


def test_predicting_has_dropout_off_and_leaves_the_mode():
    model, data = tiny.classifier(dropout=0.5).train(), tiny.encoded(9)
    a, b = predict(model, data), predict(model, data)
    assert np.array_equal(a, b)
    assert model.training
    predict(model.eval(), data)
    assert not model.training
    assert not any(p.grad is not None for p in model.parameters())


def test_bf16_predictions_are_near():
    model, data = tiny.classifier(), tiny.encoded(9)
    exact, coarse = predict(model, data), predict(model, data, precision="bf16")
    assert coarse.dtype == np.float32
    assert 0 < np.abs(exact - coarse).max() < 0.05


def test_metrics_are_evaluate_metrics_that_work_offline():
    import evaluate

    assert all(issubclass(m, evaluate.Metric) for m in METRICS.values())
    metric = evaluation.Accuracy()
    metric.add_batch(predictions=[1, 0], references=[1, 1])
    metric.add_batch(predictions=[1], references=[1])
    assert metric.compute() == {"accuracy": pytest.approx(2 / 3)}
