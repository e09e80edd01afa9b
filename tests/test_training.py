"""The training loop against a few lines of NumPy, and its promises: equal under accumulation, resumed bit for bit."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tiny
import torch
from torch import nn
from transformers import get_linear_schedule_with_warmup

from lib import batches, training
from lib.checkpoint import Checkpoints
from lib.errors import InputError
from lib.evaluation import metrics, predict
from lib.methods import bert
from lib.training import Loss, Settings, rate, train

FAST = {"precision": "fp32", "lr": 2e-3, "batch_size": 8, "epochs": 2, "evaluations": 3}


def settings(**changes) -> Settings:
    return Settings(**{**FAST, **changes})


# --- the learning rate


@pytest.mark.parametrize(("total", "warmup"), [(100, 0.1), (37, 0.1), (10, 0.0), (1, 0.1), (2, 0.5), (1000, 0.06)])
def test_rate_rises_and_falls_linearly(total, warmup):
    ramp = math.ceil(warmup * total)
    t = np.arange(total)
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = np.where(t < ramp, (t + 1) / max(ramp, 1), (total - t) / max(1, total - ramp))
    got = np.array([rate(i, total, warmup) for i in t])
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    assert got.max() == 1
    assert got.min() > 0
    constant = [rate(i, total, warmup, decay=False) for i in t]
    np.testing.assert_allclose(constant, np.where(t < ramp, expected, 1))


def test_rate_is_the_librarys_schedule():
    """Ours counts the warm-up from 1, so that no step has rate 0; the decay is the same."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = get_linear_schedule_with_warmup(optimizer, 5, 50).lr_lambdas[0]
    for step in range(50):
        assert rate(step, 50, 0.1) == pytest.approx(theirs(step + 1) if step < 5 else theirs(step))


# --- the whole step, against NumPy


class Line(nn.Module):
    """y = x w + b on a fixed table of inputs, found by the batch's row numbers."""

    def __init__(self, seed=0, n=256):
        super().__init__()
        rng = np.random.default_rng(seed)
        self.x, self.y = rng.normal(size=(n, 3)).astype(np.float32), rng.normal(size=n).astype(np.float32) * 5
        self.w = nn.Parameter(torch.from_numpy(rng.normal(size=(3, 1)).astype(np.float32)))  # a matrix: is decayed
        self.b = nn.Parameter(torch.zeros(1))  # a vector: is not

    def loss(self, batch):
        x, y = (torch.from_numpy(a)[batch["rows"]] for a in (self.x, self.y))
        return ((x @ self.w)[:, 0] + self.b - y).square().mean()


def adamw(model: Line, plan, s: Settings):
    """AdamW (Loshchilov and Hutter 2019) with clipping, warm-up and decay; float64."""
    w, b = model.w.detach().double().numpy().ravel().copy(), 0.0
    m, v = np.zeros(4), np.zeros(4)
    for t, rows in enumerate(plan):
        x, y = model.x[rows].astype(float), model.y[rows].astype(float)
        error = x @ w + b - y
        g = np.append(2 * x.T @ error, 2 * error.sum()) / len(rows)
        if s.max_grad_norm:
            g *= min(1.0, s.max_grad_norm / (np.linalg.norm(g) + 1e-6))
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        lr = s.lr * rate(t, len(plan), s.warmup)
        step = lr * (m / (1 - 0.9 ** (t + 1))) / (np.sqrt(v / (1 - 0.999 ** (t + 1))) + s.adam_epsilon)
        w, b = w * (1 - lr * s.weight_decay) - step[:3], b - step[3]
    return w, b


@pytest.mark.parametrize("changes", [
    {}, {"weight_decay": 0.3}, {"max_grad_norm": 0.0}, {"max_grad_norm": 0.05, "warmup": 0.5}, {"adam_epsilon": 0.1},
    {"batch_size": 3, "accumulation": 3}, {"batch_size": 1, "accumulation": 9, "weight_decay": 0.1},
    # Adam forgets the size of a gradient unless epsilon is of its size
    {"batch_size": 2, "accumulation": 5, "max_grad_norm": 0.0, "adam_epsilon": 20.0, "lr": 0.9},
])
def test_steps_are_adamw_with_clipping_and_schedule(changes):
    s = settings(**{"lr": 0.05, "batch_size": 9, "epochs": 3, **changes})
    data, model = tiny.encoded(64, seed=1), Line()
    plan = batches.plan(data.lengths, s.batch_size * s.accumulation, s.seed, s.epochs, 0)
    w, b = adamw(model, plan, s)
    history = train(model, lambda m, batch, step: m.loss(batch), data, s)
    np.testing.assert_allclose(model.w.detach().numpy().ravel(), w, atol=2e-4)
    assert float(model.b.detach()) == pytest.approx(b, abs=2e-4)
    assert history.steps == len(plan)
    assert history.tokens == sum(int(data.lengths[p].sum()) for p in plan)


def test_decay_spares_vectors():
    groups = training.parameter_groups([nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(2))], 0.1)
    assert [(g["weight_decay"], len(g["params"])) for g in groups] == [(0.1, 1), (0.0, 1)]


# --- accumulation


@pytest.mark.parametrize("n", [24, 21, 17, 3])
def test_batch_8_is_accumulation_of_2_four_times(n):
    """Dropout 0, float32; 21 and 17 rows leave a ragged last window (5 and 1 rows)."""
    data, results = tiny.encoded(n, seed=2), []
    for size, accumulation in ((8, 1), (2, 4), (1, 8)):
        model = tiny.classifier(seed=1, layers=2)
        history = train(model, bert.supervised, data, settings(batch_size=size, accumulation=accumulation))
        results.append((tiny.state(model), history))
    (first, h1), *others = results
    for state, h in others:
        for k in first:
            # a key's bias moves all scores of a query alike: its gradient is 0, and Adam steps by rounding errors
            if "key.bias" not in k:
                torch.testing.assert_close(state[k], first[k], atol=1e-5, rtol=1e-4, msg=k)
        np.testing.assert_allclose(h.curve["loss"], h1.curve["loss"], rtol=1e-4)
        assert (h.steps, h.tokens) == (h1.steps, h1.tokens)


def test_golden_losses():
    """One list for (batch 8, accumulation 1) and (2, 4): a change of the loop's meaning shows here."""
    wanted = None
    for size, accumulation in ((8, 1), (2, 4)):
        history = train(Line(), lambda m, b, s: m.loss(b), tiny.encoded(64, seed=1),
                        settings(lr=0.1, batch_size=size, accumulation=accumulation, epochs=1))
        losses = [v for _, v in history.curve["loss"]]
        assert len(losses) == 8
        wanted = wanted or losses
        np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    golden = [13.7298, 38.2719, 32.4737, 10.4908, 6.97859, 19.4066, 19.9001, 15.3337]
    np.testing.assert_allclose(wanted, golden, rtol=1e-4)


def test_means_over_unequal_items_add_up():
    """A loss that is a mean over `weight` items: two micro-batches of 1 and 7 items weigh 1 and 7."""
    model, weights = Line(), {}

    def loss(m, batch, step):
        items = float(batch["rows"].double().mean()) + 1  # any weight that differs between micro-batches
        weights.setdefault(step.index, []).append((items, batch["rows"].numpy()))
        return Loss(m.loss(batch), weight=items, logs={"items": items})

    s = settings(lr=0.05, batch_size=4, accumulation=2, epochs=1, max_grad_norm=0, warmup=0)
    w, b = model.w.detach().numpy().ravel().astype(float), 0.0
    history = train(model, loss, tiny.encoded(8, seed=1), s)
    (n1, r1), (n2, r2) = weights[0]
    parts = []
    for rows in (r1, r2):
        x, e = model.x[rows].astype(float), model.x[rows] @ w + b - model.y[rows]
        parts.append((np.append(2 * x.T @ e, 2 * e.sum()) / 4, float((e**2).mean())))
    g = (n1 * parts[0][0] + n2 * parts[1][0]) / (n1 + n2)
    step = 0.05 * g / (np.abs(g) + 1e-8)  # Adam's first step
    np.testing.assert_allclose(model.w.detach().numpy().ravel(), w - step[:3], atol=1e-5)
    assert history.curve["loss"][0][1] == pytest.approx((n1 * parts[0][1] + n2 * parts[1][1]) / (n1 + n2), rel=1e-4)
    assert history.curve["items"][0][1] == pytest.approx((n1 * n1 + n2 * n2) / (n1 + n2))


def test_padding_share_is_that_of_the_batches_that_ran():
    ran = [0, 0]

    def loss(m, batch, step):
        ran[0] += batch["attention_mask"].numel()
        ran[1] += int(batch["attention_mask"].sum())
        return m.loss(batch)

    history = train(Line(), loss, tiny.encoded(64, seed=1), settings(batch_size=2, accumulation=4))
    assert history.padding_share == pytest.approx(1 - ran[1] / ran[0])


# --- the same again


def run(seed=0, *, checkpoints=None, stop_at=None, evaluate=True, model=None, data=None, loss=bert.supervised,
        **changes):
    """(final state, history) of a small run with dropout; `stop_at` raises inside the loss of that optimiser step."""
    model = model or tiny.classifier(seed=3, layers=2, dropout=0.1)
    scores = iter(changes.pop("scores", None) or [50, 70, 60, 65, 64, 63, 62, 61, 60, 59])

    def failing(m, batch, step):
        if stop_at is not None and (step.index, step.micro) == stop_at:
            raise KeyboardInterrupt
        return loss(m, batch, step)

    def held_out(m):
        m.eval()
        torch.manual_seed(123)  # an evaluation that draws numbers and changes the mode disturbs nothing
        torch.rand(7)
        return {"held_out": float(next(scores)), "scored": 1.0}

    history = train(model, failing, data or tiny.encoded(40, seed=4),
                    settings(seed=seed, checkpoint_seconds=0.0, **changes), evaluate=held_out if evaluate else None,
                    checkpoints=checkpoints)
    return tiny.state(model), history


def told(history) -> dict:
    """A history without what the clock and the machine decide."""
    return {k: v for k, v in vars(history).items() if k not in ("seconds", "peak_memory_mb")}


def test_same_seed_same_result_another_seed_another():
    torch.manual_seed(1)
    a, ha = run()
    torch.manual_seed(2)  # the state of the global generator does not matter
    np.random.seed(5)
    b, hb = run()
    c, _ = run(seed=1)
    assert tiny.same(a, b)
    assert told(ha) == told(hb)
    assert not tiny.same(a, c)


def test_dropout_differs_between_steps_and_micro_batches():
    seen = []

    def loss(m, batch, step):
        seen.append((step.index, step.micro, float(torch.rand(())), float(step.random().random()),
                     float(step.random(1).random())))
        return bert.supervised(m, batch, step)

    run(loss=loss, batch_size=4, accumulation=2, evaluate=False)
    assert len(seen) == len({s[:2] for s in seen}) == 20
    run(loss=loss, batch_size=4, accumulation=2, evaluate=False, seed=1)
    for column in (2, 3, 4):  # between seeds too
        assert len({s[column] for s in seen}) == 40


@pytest.mark.parametrize("stop_at", [(1, 0), (3, 0), (4, 0), (9, 0)])
def test_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path, stop_at):
    """10 steps, evaluations after steps 3, 7 and 10; stopped before, at and after a best state was kept."""
    wanted, history = run(checkpoints=None)
    with pytest.raises(KeyboardInterrupt):
        run(checkpoints=Checkpoints(tmp_path, "x"), stop_at=stop_at)
    left = {1: [50, 70, 60], 3: [70, 60], 4: [70, 60], 9: [60]}[stop_at[0]]
    got, resumed = run(checkpoints=Checkpoints(tmp_path, "x"), scores=left, model=tiny.classifier(
        seed=99, layers=2, dropout=0.1))  # whatever the model was: the checkpoint holds it all
    assert tiny.same(got, wanted)
    assert told(resumed) == told(history)
    assert (resumed.kept_step, resumed.kept_score) == (7, 70)


def test_resumed_under_accumulation_and_interrupted_twice(tmp_path):
    extra = {"batch_size": 3, "accumulation": 2, "evaluate": False}
    wanted, history = run(**extra)
    for stop_at in ((2, 1), (9, 0)):
        with pytest.raises(KeyboardInterrupt):
            run(checkpoints=Checkpoints(tmp_path, "x"), stop_at=stop_at, **extra)
    got, resumed = run(checkpoints=Checkpoints(tmp_path, "x"), **extra)
    assert tiny.same(got, wanted)
    assert told(resumed) == told(history)


def test_curve_of_a_long_run_is_the_same_after_resuming(tmp_path):
    """Over 100 steps a point of the curve is a mean over several steps."""
    extra = {"batch_size": 2, "epochs": 12, "evaluate": False, "model": None}
    make = lambda: Line()  # noqa: E731
    loss = lambda m, b, s: m.loss(b)  # noqa: E731
    _, history = run(**{**extra, "model": make()}, loss=loss)
    assert history.steps == 240
    assert [p[0] for p in history.curve["loss"]] == [*range(2, 241, 2)]
    for stop in (101, 200):
        with pytest.raises(KeyboardInterrupt):
            run(**{**extra, "model": make()}, loss=loss, checkpoints=Checkpoints(tmp_path, "x"), stop_at=(stop, 0))
    _, resumed = run(**{**extra, "model": make()}, loss=loss, checkpoints=Checkpoints(tmp_path, "x"))
    assert told(resumed) == told(history)


@pytest.mark.parametrize("damaged", [1, 2])
def test_damaged_newest_checkpoint_costs_steps_and_nothing_else(tmp_path, damaged, capsys):
    wanted, history = run()
    with pytest.raises(KeyboardInterrupt):
        run(checkpoints=Checkpoints(tmp_path, "x"), stop_at=(6, 0))
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) == 2
    for path in files[-damaged:]:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))
    left = [70, 60] if damaged == 1 else [50, 70, 60]
    got, resumed = run(checkpoints=Checkpoints(tmp_path, "x"), scores=left)
    said = capsys.readouterr().err
    assert "does not match its checksum" in said
    assert ("going on from step 5" in said) == (damaged == 1)
    assert tiny.same(got, wanted)
    assert told(resumed) == told(history)


def test_checkpoint_of_another_configuration_is_not_taken_up(tmp_path):
    wanted, _ = run()
    with pytest.raises(KeyboardInterrupt):
        run(checkpoints=Checkpoints(tmp_path, "other"), stop_at=(6, 0))
    got, _ = run(checkpoints=Checkpoints(tmp_path, "x"))
    assert tiny.same(got, wanted)


def test_checkpoints_come_as_often_as_asked(tmp_path):
    run(checkpoints=Checkpoints(tmp_path / "a", "x"))
    assert [int(p.name[5:13]) for p in sorted((tmp_path / "a").iterdir())] == [8, 9]  # none after the last step
    train(tiny.classifier(layers=1), bert.supervised, tiny.encoded(40), settings(checkpoint_seconds=1e9),
          checkpoints=Checkpoints(tmp_path / "b", "x"))
    assert not (tmp_path / "b").exists()


def test_watching_changes_nothing():
    """With and without evaluation the same weights come out at the same step."""
    watched, h = run(scores=[1, 2, 3])
    blind, _ = run(evaluate=False)
    assert h.kept_step == h.steps == 10
    assert tiny.same(watched, blind)


# --- selection


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


# --- precision, progress


def test_precision_is_what_the_processor_can(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for bf16, amx, expected in ((True, False, "bf16"), (False, True, "bf16"), (False, False, "fp32")):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda v=bf16: v)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda v=amx: v)
        assert training.precision("auto") == expected
        assert training.precision("fp32") == "fp32"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: False)
    assert training.precision("auto") == "fp32"
    with pytest.raises(InputError, match="bf16"):
        training.precision("bf16")


def test_bf16_trains_in_fp32_weights():
    model = tiny.classifier(layers=2, seed=1)
    history = train(model, bert.supervised, tiny.encoded(40), settings(precision="bf16", epochs=4))
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    losses = [v for _, v in history.curve["loss"]]
    assert losses[-1] < losses[0]


def test_progress_shows_loss_rate_and_speed(monkeypatch, capsys):
    monkeypatch.setenv("BERT_PROGRESS_SECONDS", "0")
    train(Line(), lambda m, b, s: m.loss(b), tiny.encoded(16), settings(name="films"))
    bar = capsys.readouterr().err
    for word in ("films", "loss=", "lr=", "tok_s=", "step"):
        assert word in bar


def test_training_learns():
    """A class that shows in one word is learnt; shuffled labels are not."""
    model = tiny.classifier(layers=2, seed=1)
    data = tiny.encoded(120, seed=7)
    train(model, bert.supervised, data, settings(lr=5e-3, epochs=8))
    test = tiny.encoded(60, seed=8)
    assert metrics(tiny.FILMS, predict(model, test), test.labels)["accuracy"] > 0.95
    assert not model.training
    assert metrics(tiny.FILMS, predict(tiny.classifier(layers=2, seed=1), test), test.labels)["accuracy"] < 0.9
