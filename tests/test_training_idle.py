"""What does not move: parameters that are not trained or not touched, and steps that are skipped."""

from __future__ import annotations

import math

import pytest
import tiny
import torch
from training_runs import FAST, Line, run, settings

from lib import training
from lib.checkpoint import Checkpoints
from lib.methods import bert
from lib.training import train

# --- what is not trained


def test_only_the_given_parameters_move_and_nothing_piles_up():
    model = tiny.classifier(layers=2, seed=1)
    before = tiny.state(model)
    chosen = list(model.classifier.parameters())
    train(model, bert.supervised, tiny.encoded(16), settings(epochs=1), parameters=chosen)
    after = tiny.state(model)
    assert {k for k in after if not torch.equal(after[k], before[k])} == {"classifier.weight", "classifier.bias"}
    assert all(p.grad is None for p in model.parameters())


def test_clip_all_looks_at_every_gradient(monkeypatch):
    """The norm over all gradients is larger, so the chosen parameter's share of it is smaller."""
    original = training._update

    def first_gradient(clip_all):
        model, seen = Line(), []

        def spy(m, optimizer, ordered, s):
            original(m, optimizer, ordered, s)
            seen.append(m.w.grad.clone())

        monkeypatch.setattr(training, "_update", spy)
        train(model, lambda m, b, s: m.loss(b), tiny.encoded(8), settings(
            epochs=1, clip_all=clip_all, max_grad_norm=0.5), parameters=[model.w])
        return seen[0].norm()

    assert float(first_gradient(False)) == pytest.approx(0.5, rel=1e-3)
    assert float(first_gradient(True)) < 0.499


def test_a_loss_without_trained_input_is_an_error_unless_allowed():
    frozen = lambda m, b, s: m.loss(b).detach()  # noqa: E731
    with pytest.raises(RuntimeError, match="depends on no trained parameter"):
        train(Line(), frozen, tiny.encoded(16), settings())
    model = Line()
    before = tiny.state(model)
    history = train(model, lambda m, b, s: m.loss(b) if s.index % 2 else m.loss(b).detach(), tiny.encoded(32),
                    settings(epochs=1, idle_allowed=True))
    assert (history.idle_steps, history.steps) == (2, 4)
    assert not tiny.same(tiny.state(model), before)
    model = Line()
    train(model, frozen, tiny.encoded(16), settings(idle_allowed=True))
    assert tiny.same(tiny.state(model), before)


def test_momentum_moves_what_a_step_did_not_touch_only_where_asked():
    for zero, moves in ((False, False), (True, True)):
        model, seen = Line(), []

        def loss(m, batch, step, seen=seen):
            seen.append(float(m.b.detach()))
            return m.loss(batch) if step.index == 0 else m.w.sum() * 0.001

        train(model, loss, tiny.encoded(24), settings(epochs=1, zero_gradients=zero))
        assert seen[1] != seen[0]
        assert (seen[2] != seen[1]) == moves


def test_momentum_of_untouched_parameters_survives_resuming(tmp_path):
    """zero_gradients: after resuming, a parameter that the first step does not touch must move as it would have."""
    def loss(m, batch, step):
        return m.loss(batch) if step.index < 2 else m.w.sum() * 0.001

    extra = {"loss": loss, "evaluate": False, "zero_gradients": True, "epochs": 1}
    wanted, _ = run(model=Line(), **extra)
    with pytest.raises(KeyboardInterrupt):
        run(model=Line(), checkpoints=Checkpoints(tmp_path, "x"), stop_at=(3, 0), **extra)
    got, _ = run(model=Line(), checkpoints=Checkpoints(tmp_path, "x"), **extra)
    assert tiny.same(got, wanted)


def test_adam_counts_the_steps_of_a_late_parameter_from_its_first_batch(tmp_path):
    """zero_gradients: the first real update of Adam is lr * sign(gradient), whenever it comes (official code)."""
    def loss(m, batch, step):
        return m.loss(batch) if step.index == 4 else m.w.sum() * 0.001

    def moved(**more):
        model = Line()
        before = float(model.b.detach())
        extra = {"loss": loss, "evaluate": False, "zero_gradients": True, "epochs": 1, "warmup": 0.0, "decay": False}
        if more:
            with pytest.raises(KeyboardInterrupt):
                run(model=Line(), stop_at=(2, 0), **more, **extra)
        run(model=model, **more, **extra)
        return abs(float(model.b.detach()) - before)

    assert moved() == pytest.approx(FAST["lr"], rel=1e-3)
    assert moved(checkpoints=Checkpoints(tmp_path, "x")) == pytest.approx(FAST["lr"], rel=1e-3)


# --- losses that are not finite


def test_a_step_that_is_not_finite_is_skipped():
    def loss(m, batch, step):
        return m.loss(batch) * (math.nan if step.index in (1, 2) else 1.0)

    history = train(Line(), loss, tiny.encoded(80), settings(epochs=1))
    assert history.idle_steps == 2
    assert [p[0] for p in history.curve["loss"]] == [1, 4, 5, 6, 7, 8, 9, 10]
    assert all(math.isfinite(v) for _, v in history.curve["loss"])


def test_ten_in_a_row_stop_the_run_and_say_what_to_do():
    with pytest.raises(RuntimeError, match=r"not finite for 10 steps in a row \(step 12, lr 0.002\); lower lr"):
        train(Line(), lambda m, b, s: m.loss(b) * (1.0 if s.index < 2 else math.inf), tiny.encoded(200), settings())
