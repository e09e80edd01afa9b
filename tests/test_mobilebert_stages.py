"""MobileBERT's stages: the slower rate, which block moves when, resuming, and the loss of distillation."""

import contextlib

import numpy as np
import pytest
import tiny
import torch
from mobilebert_models import DEPTH, Tokenizer, batch, settings, student, teacher, text
from torch import nn

from lib import mlm, training
from lib.checkpoint import Checkpoints
from lib.methods import mobilebert_losses as losses
from lib.methods import mobilebert_stages

# The slower rate --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_slower_is_the_optimisers_own_smaller_rate(decay):
    def run(hooks):
        torch.manual_seed(0)
        a, b = nn.Linear(5, 5), nn.Linear(5, 1)
        groups = [{"params": a.parameters(), "lr": 0.05 if hooks else 0.005}, {"params": b.parameters(), "lr": 0.05}]
        optimizer = torch.optim.AdamW(groups, weight_decay=decay)
        with mobilebert_stages.slower(a.parameters() if hooks else [], 0.1):
            for i in range(5):
                torch.manual_seed(i)
                b(a(torch.randn(8, 5)).tanh()).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        return [*a.parameters(), *b.parameters()]

    for x, y in zip(run(True), run(False), strict=True):
        assert torch.allclose(x, y, atol=1e-6)


def test_slower_ends_with_its_context():
    w = nn.Parameter(torch.zeros(1))
    with mobilebert_stages.slower([w], 0.0):
        pass
    w.grad = torch.ones(1)
    torch.optim.SGD([w], lr=1.0).step()
    assert w.item() == -1


# Transfer and distillation ----------------------------------------------------------------------------------


def test_joint_transfer_leaves_the_same_parts_alone_at_a_rate_that_warms_up(tmp_path, monkeypatch):
    s, given = student(), []
    original, before = training.train, tiny.state(s)
    monkeypatch.setattr(training, "train", lambda m, l, d, c, **k: given.append(c) or original(m, l, d, c, **k))
    p = settings(strategy="joint", transfer_lr=0.002)
    mobilebert_stages.transfer(s, teacher(), mlm.Masker(Tokenizer()), text(), p, False, Checkpoints(tmp_path, "x"))
    moved = {n for n, v in tiny.state(s).items() if not torch.equal(v, before[n])}
    assert moved
    assert all(".layer." in n for n in moved)
    assert {i for i in range(DEPTH) if any(f".layer.{i}." in n for n in moved)} == set(range(DEPTH))
    assert [(c.lr, c.warmup, c.decay) for c in given] == [(0.002, 0.1, False)]


def test_progressive_transfer_moves_each_block_in_its_turn(tmp_path, monkeypatch):
    """Above the block in turn nothing moves, below it moves, but by less, nor do embeddings and output layer; each
    stage's own loss falls.
    """
    t, s, seen = teacher(), student(), []
    original = training.train

    def watched(model, loss, data, s_, **given):
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        history = original(model, loss, data, s_, **given)
        seen.append({n: (p - before[n]).abs().mean().item() for n, p in model.named_parameters()})
        return history

    monkeypatch.setattr(training, "train", watched)
    p = settings(transfer_epochs=9, transfer_lr=0.003)
    state = mobilebert_stages.transfer(s, t, mlm.Masker(Tokenizer()), text(), p, False, Checkpoints(tmp_path, "x"))
    assert len(seen) == len(state["stages"]) == DEPTH
    for k, moved in enumerate(seen):
        block = [np.mean([v for n, v in moved.items() if f".layer.{i}." in n and n.endswith("weight")])
                 for i in range(DEPTH)]
        assert block[k] > 0
        assert all(b == 0 for b in block[k + 1 :])
        assert all(0 < b < 0.5 * block[k] for b in block[:k])
        assert not any(v for n, v in moved.items() if ".layer." not in n)
    for curves in state["stages"]:
        assert curves["feature"][-1][1] < curves["feature"][0][1]


def test_an_interrupted_transfer_goes_on_and_ends_the_same(tmp_path, monkeypatch):
    original = training.train

    def run(folder, most):
        s, t, calls = student(), teacher(), []

        def counted(*a, **k):
            if len(calls) == most:
                raise KeyboardInterrupt
            calls.append(1)
            return original(*a, **k)

        monkeypatch.setattr(training, "train", counted)
        with contextlib.suppress(KeyboardInterrupt):
            mobilebert_stages.transfer(s, t, mlm.Masker(Tokenizer()), text(), settings(), False,
                                       Checkpoints(folder, "x"))
        return s, len(calls)

    whole, calls = run(tmp_path / "a", 9)
    _, before = run(tmp_path / "b", 1)
    resumed, after = run(tmp_path / "b", 9)
    assert (calls, before, after) == (3, 1, 2)
    assert all(torch.equal(x, y) for x, y in zip(whole.parameters(), resumed.parameters(), strict=True))


@pytest.mark.parametrize("auxiliary", [False, True])
def test_distillation_loss_is_the_sum_of_its_parts(auxiliary):
    t, s, b = teacher(), student(), batch()
    masker, step = mlm.Masker(Tokenizer()), training.Step(0, 1, 0, 0)
    on = losses.PARTS if auxiliary else ()
    out = mobilebert_stages.distillation_loss(t, masker, 0.5, False, on)(s, b, step)
    masked = masker(b, step.random())
    given, wanted = (m(**masked.inputs).logits[masked.where] for m in (s, t))
    value = losses.word_distillation(given, wanted, masked.targets, 0.5)[0]
    if auxiliary:
        value = value + sum(losses.block_loss(losses.run_blocks(s, masked.inputs, DEPTH),
                                              losses.run_blocks(t, masked.inputs, DEPTH),
                                              b["attention_mask"], False, range(DEPTH)).values())
    assert out.value.item() == pytest.approx(value.item(), rel=1e-4)
    assert out.weight == len(masked.targets)
    out.value.backward()
    assert all(p.grad is None for p in t.parameters())


@pytest.mark.parametrize("auxiliary", [False, True])
def test_no_gradient_reaches_a_teacher_that_could_take_one(auxiliary):
    t, s, masker = teacher().requires_grad_(True), student(), mlm.Masker(Tokenizer())
    loss = mobilebert_stages.distillation_loss(t, masker, 0.5, False, losses.PARTS if auxiliary else ())
    loss(s, batch(), training.Step(0, 1, 0, 0)).value.backward()
    blocks = mobilebert_stages.transfer_loss(t, masker, [0, 1], False)
    blocks(s, batch(), training.Step(0, 1, 0, 0)).value.backward()
    assert all(p.grad is None for p in t.parameters())
