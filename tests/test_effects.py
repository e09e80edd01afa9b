"""Effects with known truth: coverage of the interval, Holm by hand, how much more it would take."""

import math

import numpy as np
import pytest

from lib.claims import effects, resampling
from lib.claims.effects import Effect


def world(rng, truth, seeds, rows, sd_seed, weights, sd_row=1.0, interaction=0.3):
    """Draws (seeds, 1 + draws) of an effect that is a mean over rows: a constant, the rows' own share, the seeds', and
    what a seed does on a row."""
    of_rows = rng.normal(0, sd_row, rows)
    of_seeds = rng.normal(0, sd_seed, (seeds, 1))
    values = truth + of_rows + of_seeds + rng.normal(0, interaction, (seeds, rows))
    return values @ weights.T / rows


@pytest.mark.parametrize(("seeds", "sd_seed", "tasks"), [(3, 0.2, 1), (3, 0.05, 2), (3, 0.2, 3), (5, 0.1, 1)])
def test_the_interval_covers_the_truth_as_often_as_it_says(seeds, sd_seed, tasks):
    rng = np.random.default_rng(11)
    rows, trials = 150, 300
    weights = resampling.draw(rows, 200, seed=1)
    hits = 0
    for i in range(trials):
        draws = {str(t): world(rng, 0.7, seeds, rows, sd_seed, weights) for t in range(tasks)}
        low, high = effects.estimate(draws, dict.fromkeys(draws, rows), seed=i).interval()
        hits += low < 0.7 < high
    # 0.95 within three standard errors of 300 trials below; an interval a little too wide is allowed, not too narrow
    assert 0.91 <= hits / trials <= 0.995


def test_rows_alone_or_seeds_alone_would_cover_too_rarely():
    """The check above could fail: with the rows' part left out the interval misses."""
    rng = np.random.default_rng(12)
    rows, hits = 150, 0
    weights = resampling.draw(rows, 200, seed=1)
    for _ in range(200):
        d = world(rng, 0.7, 3, rows, 0.01, weights, interaction=0.0)
        mean, se = d[:, 0].mean(), d[:, 0].std(ddof=1) / math.sqrt(3)
        hits += abs(mean - 0.7) < 4.303 * se
    assert hits / 200 < 0.8


def test_equal_rows_leave_students_interval_over_the_seeds():
    values = np.array([1.0, 2.0, 4.0])
    e = effects.estimate({"rte": np.repeat(values[:, None], 4001, 1)}, {"rte": 100})
    low, high = e.interval()
    half = 4.302653 * values.std(ddof=1) / math.sqrt(3)
    assert e.value == pytest.approx(7 / 3)
    assert e.df == pytest.approx(2)
    assert (low, high) == pytest.approx((7 / 3 - half, 7 / 3 + half), rel=0.05)


def test_equal_seeds_leave_the_interval_over_the_rows():
    rng = np.random.default_rng(2)
    one = rng.normal(0, 0.5, 4001)
    e = effects.estimate({"rte": np.repeat(one[None], 3, 0)}, {"rte": 500})
    assert e.se == pytest.approx(0.5, rel=0.05)
    assert e.df == pytest.approx(499, rel=0.01)


def test_tasks_weigh_alike_whatever_their_seeds():
    e = effects.estimate({"a": np.full((2, 50), 1.0), "b": np.full((5, 50), 3.0)}, {"a": 10, "b": 1000})
    assert e.value == 2.0
    assert e.by_task == {"a": 1.0, "b": 3.0}
    assert e.seeds == {"a": 2, "b": 5}


def test_one_seed_has_no_interval_and_no_p():
    e = effects.estimate({"a": np.full((1, 50), 1.0), "b": np.full((3, 50), 1.0)}, {"a": 10, "b": 10})
    assert e.se is None
    assert e.interval() is None
    assert e.p(0) == 1.0
    with pytest.raises(ValueError, match="standard error"):
        effects.needed(e, 0.0)


def test_an_effect_without_any_spread():
    e = effects.estimate({"a": np.full((3, 50), 1.0)}, {"a": 10})
    assert e.se == 0
    assert (e.p(0.0), e.p(1.0)) == (0.0, 1.0)
    assert e.interval() == (1.0, 1.0)


def test_p_is_that_of_the_interval():
    e = Effect(1.0, 0.4, 5.0, {"a": 3}, {"a": 100}, {"a": 1.0})
    low, _ = e.interval(0.95)
    assert e.p(low) == pytest.approx(0.05)
    assert e.p(1.0) == pytest.approx(1.0)


def test_holm_by_hand():
    # 0.01 * 4 = 0.04; 0.02 * 3 = 0.06, which fails, so 0.03 * 2 = 0.06 and 0.5 fail too
    got = effects.holm({"c": 0.03, "a": 0.01, "d": 0.5, "b": 0.02})
    assert {k: round(v[0], 10) for k, v in got.items()} == {"a": 0.04, "b": 0.06, "c": 0.06, "d": 0.5}
    assert got["a"][1] == pytest.approx(1 - 0.05 / 4)
    assert [got[k][1] for k in "bcd"] == pytest.approx([1 - 0.05 / 3] * 3)
    assert effects.holm({}) == {}
    assert effects.holm({"x": 0.04})["x"] == (0.04, pytest.approx(0.95))


def test_holms_interval_and_p_agree():
    rng = np.random.default_rng(4)
    found = {str(i): Effect(v, 0.5, 4.0, {"a": 3}, {"a": 9}, {}) for i, v in enumerate(rng.normal(1.5, 1.5, 40))}
    levels = effects.holm({k: e.p(0.0) for k, e in found.items()})
    outcomes = set()
    for k, e in found.items():
        low, high = e.interval(levels[k][1])
        assert (levels[k][0] < 0.05) == (not low <= 0 <= high)
        outcomes.add(levels[k][0] < 0.05)
    assert outcomes == {True, False}


def test_how_many_seeds_it_would_take():
    # one task, variance of the seeds 1, none of the rows: half-width t * 1 / sqrt(n) below 0.9
    e = Effect(0.9, math.sqrt(1 / 3), 2.0, {"a": 3}, {"a": 100}, {"a": 0.9}, ((1 / 3, 3),), 0.0)
    n = effects.needed(e, 0.0).seeds
    assert n == 8  # t(7) = 2.365, 2.365 / sqrt(8) = 0.836; t(6) = 2.447, 2.447 / sqrt(7) = 0.925
    assert effects.needed(e, 0.0).rows is None
    assert "8 seeds" in effects.needed(e, 0.0).words


def test_how_many_rows_it_would_take():
    e = Effect(0.5, 1.0, 99.0, {"a": 3}, {"a": 100}, {"a": 0.5}, ((0.0, 3),), 1.0)
    need = effects.needed(e, 0.0)
    assert need.seeds is None
    assert need.rows == 16  # 1.96 / sqrt(16) = 0.49
    assert need.words == "16 times the rows"


def test_both_may_be_needed_and_nothing_may_be_enough():
    e = Effect(0.5, math.sqrt(2.0), 4.0, {"a": 3}, {"a": 100}, {"a": 0.5}, ((1.0, 3),), 1.0)
    need = effects.needed(e, 0.0)
    assert (need.seeds, need.rows) == (None, None)
    assert 25 <= need.both <= 40  # variance 2 / k below (0.5 / 1.96)^2 from k = 31 on
    assert "over 1000" in effects.needed(e, 0.5).words
    assert "over 1000" in effects.needed(e, 0.4999).words


def test_more_is_asked_for_than_there_is():
    rng = np.random.default_rng(9)
    weights = resampling.draw(100, 300)
    for i in range(20):
        e = effects.estimate({"a": world(rng, 0.1, 3, 100, 0.2, weights)}, {"a": 100}, seed=i)
        low, high = e.interval()
        if low <= 0 <= high:
            need = effects.needed(e, 0.0)
            assert need.seeds is None or need.seeds > 3
            assert need.rows is None or need.rows > 1
