"""When Theseus replaces a module: the schedule of the rate, and the draws that follow it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from theseus_runs import config, watch

from lib.methods.theseus import replaceables, replacing_rate
from lib.training import Step

# --- the rate


@pytest.mark.parametrize(("total", "share", "b"), [(100, 0.5, 0.3), (2334, 0.5, 0.3), (50, 1.0, 0.1), (7, 0.4, 0.9)])
def test_curriculum_is_min_1_kt_plus_b(total, share, b):
    p, t = config(replacing_share=share, base_rate=b), np.arange(total)
    k = (1 - b) / (share * total)
    expected = np.minimum(1, k * t + b)
    np.testing.assert_allclose([replacing_rate(i, total, p) for i in t], expected, atol=1e-12)
    anti = config(schedule="anti", replacing_share=share, base_rate=b)
    np.testing.assert_allclose([replacing_rate(i, total, anti) for i in t], 1 - expected, atol=1e-12)
    ends = config(schedule="anti", replacing_share=share, base_rate=b, anti_finish=True)
    np.testing.assert_allclose([replacing_rate(i, total, ends) for i in t],
                               np.where(t >= share * total, 1, 1 - expected), atol=1e-12)


def test_published_mrpc_example_reaches_1_at_step_1167():
    """b = 0.3, k = 0.0006 (methods.md 2.4): 0.7 / 0.0006 = 1166.7 steps."""
    total = 2 * 0.7 / 0.0006
    p = config(replacing_share=0.5, base_rate=0.3)
    assert replacing_rate(1000, total, p) == pytest.approx(0.3 + 0.0006 * 1000)
    assert replacing_rate(1166, total, p) < 1 == replacing_rate(1167, total, p)


def test_constant_rate_then_successor_fine_tuning():
    p = config(schedule="constant", rate=0.7, replacing_share=0.25)
    assert [replacing_rate(t, 40, p) for t in (0, 9, 10, 39)] == [0.7, 0.7, 1.0, 1.0]
    p = config(schedule="constant", rate=0.7, replacing_share=1)
    assert [replacing_rate(t, 40, p) for t in (0, 39)] == [0.7, 0.7]


# --- the draws


def cheap(model, batch, step):
    return sum(p.sum() for p in replaceables(model)[0].substitute.parameters()) * 0.0


def test_draws_are_bernoulli_one_a_module_and_batch(theseus_run, monkeypatch):
    rate = 0.3
    run = theseus_run(schedule="constant", rate=rate, replacing_share=1.0, epochs=150, evaluations=1)
    _, history, seen = watch(monkeypatch, run, loss=cheap)
    drawn = np.array(seen.choices)
    n = len(drawn)
    assert n == history.steps == 600
    assert np.abs(drawn.mean(0) - rate).max() < 4 * math.sqrt(rate * (1 - rate) / n)
    both = (drawn[:, 0] & drawn[:, 1]).mean()
    assert abs(both - rate**2) < 4 * math.sqrt(rate**2 * (1 - rate**2) / n)  # modules are independent
    again = (drawn[1:, 0] & drawn[:-1, 0]).mean()
    assert abs(again - rate**2) < 4 * math.sqrt(rate**2 * (1 - rate**2) / n)  # and so are batches


def test_draws_follow_the_curriculum_and_end_with_the_student_alone(theseus_run, monkeypatch):
    run = theseus_run(epochs=100, evaluations=1, base_rate=0.2)
    _, history, seen = watch(monkeypatch, run, loss=cheap)
    drawn = np.array(seen.choices)
    assert drawn[200:].all()
    for a, b in ((0, 100), (100, 200)):
        expected = np.mean([replacing_rate(t, 400, run.p) for t in range(a, b)])
        assert abs(drawn[a:b].mean() - expected) < 4 * math.sqrt(0.25 / 200)
    steps = [s for s, _ in history.curve["replacing_rate"]]
    rates = [v for _, v in history.curve["replacing_rate"]]
    assert steps[-1] == 400
    expected = [np.mean([replacing_rate(t, 400, run.p) for t in range(s - 4, s)]) for s in steps]
    np.testing.assert_allclose(rates, expected)


def test_draw_is_repeated_for_each_micro_batch(theseus_run, monkeypatch):
    """methods.md 2.5: under accumulation the draw is made anew, while the schedule moves once a step."""
    run = theseus_run(schedule="constant", rate=0.5, replacing_share=1.0, batch_size=2, accumulation=8)
    _, _, seen = watch(monkeypatch, run, loss=cheap)
    by_step = np.array(seen.choices).reshape(-1, 8, 2)
    assert (by_step != by_step[:, :1]).any()


def test_another_seed_draws_otherwise(theseus_run, monkeypatch):
    drawn = []
    for seed in (0, 1, 0):
        run = theseus_run(schedule="constant", seed=seed, replacing_share=1.0, epochs=5)
        drawn.append(watch(monkeypatch, run, loss=cheap)[2].choices)
    assert drawn[0] == drawn[2] != drawn[1]


def test_step_streams_are_independent():
    a, b = Step(3, 10, 0, 7), Step(3, 10, 0, 7)
    assert a.random().random(4).tolist() == b.random().random(4).tolist()
    others = [Step(4, 10, 0, 7).random(), Step(3, 10, 1, 7).random(), Step(3, 10, 0, 8).random(), a.random(1)]
    assert len({tuple(r.random(4)) for r in (a.random(), *others)}) == 5
