"""A step of the training loop against a few lines of NumPy: learning rate, AdamW, clipping, and accumulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tiny
import torch
from torch import nn
from training_runs import Line, settings
from transformers import get_linear_schedule_with_warmup

from lib import batches, training
from lib.methods import bert
from lib.training import Loss, Settings, rate, train

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
