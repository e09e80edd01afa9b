"""Which state of a training is kept: the best on the held-out rows, never one that is not finite."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tiny
import torch
from training_runs import Line, settings

from lib.training import train


def kept(scores, better="max", tolerance=None):
    """(kept step, kept score, best scored, which state is in the model) of ten steps with these scores."""
    model, seen, left = Line(), [], list(scores)

    def held_out(m):
        seen.append(m.w.detach().clone())
        value = left.pop(0)
        spread = {} if tolerance is None else {"tolerance": tolerance if math.isfinite(value) else math.nan}
        return {"held_out": value, "scored": value} | spread

    history = train(model, lambda m, b, s: m.loss(b), tiny.encoded(80), settings(
        epochs=1, evaluations=len(scores), better=better), evaluate=held_out)
    which = [i for i, w in enumerate(seen) if torch.equal(w, model.w.detach())]
    return history, which, seen


def test_best_state_is_kept_and_left_in_the_model():
    history, which, seen = kept([3, 9, 5, 9, 8])
    assert (history.kept_step, history.kept_score, which, len(seen)) == (4, 9, [1], 5)
    assert history.best_scored == 9
    assert [p[0] for p in history.curve["held_out"]] == [2, 4, 6, 8, 10]


def test_direction():
    history, which, _ = kept([3, 2, 5], better="min")
    assert (history.kept_score, which) == (2, [1])


@pytest.mark.parametrize("scores", [[math.nan, 4, 3], [4, math.nan, 3], [4, 3, math.nan], [-5, math.nan, -6],
                                    [4, math.inf, 3], [4, -math.inf, 3]])
@pytest.mark.parametrize("better", ["max", "min"])
@pytest.mark.parametrize("tolerance", [None, 0.1])
def test_what_is_not_finite_never_wins(scores, better, tolerance):
    history, which, _ = kept(scores, better, tolerance)
    finite = [s for s in scores if math.isfinite(s)]
    wanted = max(finite) if better == "max" else min(finite)
    assert history.kept_score == wanted
    assert which == [scores.index(wanted)]
    assert all(math.isfinite(v) for _, v in history.curve["held_out"])


def test_first_score_may_be_nan_beside_any_tolerance():
    train(Line(), lambda m, b, s: m.loss(b), tiny.encoded(16), settings(),
          evaluate=lambda m: {"held_out": math.nan, "tolerance": 1.0})


def test_all_nan_keeps_the_last_state_without_a_score():
    history, which, _ = kept([math.nan, math.nan])
    assert (history.kept_score, history.kept_step, which) == (None, 10, [1])


@pytest.mark.parametrize("seed", range(6))
def test_within_the_tolerance_the_last_is_kept(seed):
    """The last state after the best one whose score is within the tolerance of the best."""
    scores = np.random.default_rng(seed).integers(0, 8, 5).astype(float)
    for tolerance in (0.0, 1.0, 3.0):
        first = int(scores.argmax())
        near = [i for i in range(first, 5) if scores[first] - scores[i] <= tolerance]
        wanted = near[-1] if tolerance else first
        history, which, _ = kept(scores, tolerance=tolerance)
        assert which == [wanted]
        assert (history.kept_score, history.highest_score) == (scores[wanted], scores.max())


@pytest.mark.parametrize(("steps", "evaluations"), [(10, 1), (10, 3), (10, 10), (10, 25), (3, 5)])
def test_evaluations_are_spread_and_end_with_the_last_step(steps, evaluations):
    seen = []
    history = train(Line(), lambda m, b, s: m.loss(b), tiny.encoded(8 * steps), settings(
        epochs=1, evaluations=evaluations), evaluate=lambda m: seen.append(1) or {"held_out": 1.0})
    points = [p[0] for p in history.curve["held_out"]]
    assert len(points) == min(steps, evaluations) == len(seen)
    assert points[-1] == steps


def test_without_evaluation_the_last_state_stays():
    history = train(Line(), lambda m, b, s: m.loss(b), tiny.encoded(80), settings(epochs=1))
    assert (history.kept_step, history.kept_score) == (10, None)
