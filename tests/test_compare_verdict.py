"""What a comparison says of its numbers: scores resampled in pairs, ties named, and nothing said that cannot be."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import tiny

from lib import compare, evaluation, stats
from lib.compare import page as compare_page
from lib.compare import rows as compare_rows
from lib.compare.rows import Interval, Row
from lib.efficiency.timing import Size, Summary
from lib.tasks import TASKS


def test_scorer_gives_what_evaluation_gives():
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 60, 60)
    for task, logits, labels in (
            (TASKS["mrpc"], rng.normal(size=(60, 2)), rng.integers(0, 2, 60)),
            (TASKS["cola"], rng.normal(size=(60, 2)), rng.integers(0, 2, 60)),
            (TASKS["stsb"], rng.normal(size=(60, 1)), rng.normal(size=60)),
            (tiny.TRIPLE, rng.normal(size=(60, 3)), rng.integers(0, 3, 60))):
        expected = evaluation.headline(task, evaluation.metrics(task, logits[rows], labels[rows]))
        assert compare_rows.scorer(task, logits, labels)(rows) == pytest.approx(expected)


def test_bootstrap_is_paired_seeded_and_as_wide_as_theory_says():
    right = np.repeat([1.0, 0.0], [300, 100])
    other = right.copy()
    other[:20] = 0  # twenty rows worse, on the same rows

    def score(values):
        return lambda rows: 100 * values[rows].mean()

    draws = stats.bootstrap({"a": score(right), "b": score(other), "c": score(right)}, 400, 2000, seed=3)
    assert np.array_equal(draws["a"], draws["c"])
    again = stats.bootstrap({"a": score(right)}, 400, 2000, seed=3)
    assert np.array_equal(draws["a"], again["a"])
    assert not np.array_equal(draws["a"], stats.bootstrap({"a": score(right)}, 400, 2000, seed=4)["a"])
    low, high = stats.percentile_interval(draws["a"])
    assert high - low == pytest.approx(2 * 1.96 * 100 * np.sqrt(0.75 * 0.25 / 400), rel=0.1)
    low, high = stats.percentile_interval(draws["a"] - draws["b"])
    share = 20 / 400  # the difference is a proportion of its own, much narrower than the two scores apart
    assert high - low == pytest.approx(2 * 1.96 * 100 * np.sqrt(share * (1 - share) / 400), rel=0.15)


def row(method, score, half=1.0, parameters=10, speed=2.0, seed=0):
    draws = score + half / 1.96 * np.random.default_rng(seed).standard_normal(1000)
    return Row(method, compare.title_of(method), "/x", "", None, Interval(score, score - half, score + half), draws,
               None, Size(parameters, parameters, parameters / 10), 2, {}, {b: Summary(speed, speed - 0.1, speed + 0.1)
                                                                            for b in (1, 32)})


def found(*rows, majority=50.0, scored=500):
    return SimpleNamespace(rows=list(rows), teacher=rows[0], students=list(rows[1:]), majority=majority, scored=scored,
                           clear=rows[0].score.low > majority, regression=False, failed={})


def test_verdict_names_ties_and_withholds_what_cannot_be_said():
    text = " ".join(compare_page.verdict(found(row("bert", 90, parameters=20), row("theseus", 85, seed=1),
                                               row("truncated", 84.8, seed=2), row("kd", 60, seed=3, speed=2.05))))
    assert "Best student by score: BERT-of-Theseus, 85.0" in text
    assert "Not told apart from it by these 500 rows: Truncated, fine-tuned." in text
    assert "Behind it by more than the chance of these rows: Vanilla KD." in text
    assert "Smallest: BERT-of-Theseus, Truncated, fine-tuned and Vanilla KD" in text
    assert "busy" not in text
    text = " ".join(compare_page.verdict(found(row("bert", 50.5), row("theseus", 85, speed=0.3))))
    assert "The machine was busy while the models were timed: the middle half of one speed-up runs from 0.20 to 0.40" \
        in text
    assert "does not clear the majority (50.0)" in text
    assert "Best student" not in text


def test_few_rows_and_perfect_scores_are_explained():
    text = " ".join(compare_page.rows_mean(found(row("bert", 100, half=0), scored=30)))
    assert "30 rows are few" in text
    assert "up to about 10 percent of new rows may still be wrong" in text
    assert "few" not in " ".join(compare_page.rows_mean(found(row("bert", 90), scored=1000)))
