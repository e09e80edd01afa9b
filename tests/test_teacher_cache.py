"""The teacher's answers: equal to asking it, whatever the order of rows; asked once; never stale; small on disk."""

import shutil
from collections import namedtuple

import numpy as np
import pytest
import tiny
import torch
from method_runs import start
from safetensors.torch import load_file

from lib import layers, runs, teacher_cache, training
from lib.errors import InputError
from lib.methods import kd, pkd
from lib.teacher_cache import Cached, compute


@pytest.fixture
def run(places):
    return start("pkd", pkd.Config, places)


def test_answers_are_the_teachers_own_for_any_order_and_batch(run):
    """Oracle: transformers' own forward pass, one row at a time, so without any padding."""
    teacher = tiny.classifier(dropout=0.3).train()
    rows = np.arange(len(run.train))
    cached = Cached(rows, compute(teacher, run.train, rows, "fp32", states=True))
    assert teacher.training
    teacher.eval()
    order = np.random.default_rng(0).permutation(rows)
    for part in np.array_split(order, 7):
        answer = cached(run.train.batch(part))
        for j, i in enumerate(part):
            one = run.train.batch([i])
            out = teacher(**{k: one[k] for k in layers.INPUTS}, output_hidden_states=True)
            torch.testing.assert_close(answer.logits[j], out.logits[0], atol=1e-5, rtol=1e-4)
            own = torch.stack([h[0, 0] for h in out.hidden_states[1:]])
            torch.testing.assert_close(answer.states[j], own, atol=1e-5, rtol=1e-4)


def test_live_equals_cached_and_has_no_gradient(run):
    teacher, rows = tiny.classifier(dropout=0.3), np.arange(20)
    cached = Cached(rows, compute(teacher.train(), run.train, rows, "fp32", True))
    live = teacher_cache.live(teacher, True)
    batch = run.train.batch(rows[[7, 3, 19]])
    assert not live(batch).logits.requires_grad
    torch.testing.assert_close(cached(batch).logits, live(batch).logits, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(cached(batch).states, live(batch).states, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_student_trained_on_the_cache_equals_one_trained_on_the_teacher(run, accumulation):
    """By loss curve and final logits; Adam moves weights without a gradient (key biases) by rounding alone."""
    teacher, q = tiny.classifier(), run.with_parameters(accumulation=accumulation, batch_size=8 // accumulation)
    found = {}
    for cache in (True, False):
        student = kd.student(q)
        source = teacher_cache.source(q.with_parameters(cache=cache), teacher, states=True)
        history = training.train(student, pkd.loss_of(q.p, source, pkd.plan(q.p)), q.train, q.settings())
        found[cache] = (history.curve, layers.classify(student, q.sets["scored"].batch(np.arange(10))))
    for name, points in found[True][0].items():
        np.testing.assert_allclose(points, found[False][0][name], rtol=1e-3, atol=1e-5, err_msg=name)
    torch.testing.assert_close(found[True][1], found[False][1], atol=1e-3, rtol=1e-2)


def test_a_row_that_was_not_asked_is_an_error(run):
    rows = np.array([2, 5, 9])
    cached = Cached(rows, compute(tiny.classifier(), run.train, rows, "fp32"))
    assert cached(run.train.batch(np.array([9, 2]))).states is None
    for missing in ([2, 3], [9, 50]):
        with pytest.raises(RuntimeError, match="every row"):
            cached(run.train.batch(np.array(missing)))


def test_asked_once_and_again_where_anything_differs(run, monkeypatch):
    calls = []
    monkeypatch.setattr(teacher_cache, "compute", lambda *a, **k: calls.append(1) or compute(*a, **k))
    teacher = tiny.classifier()
    teacher_cache.cached(run, teacher, True)
    teacher_cache.cached(run.with_parameters(epochs=3, lr=1e-2, variant="code"), teacher, True)
    assert len(calls) == 1
    teacher_cache.cached(run, teacher, False)
    with torch.no_grad():
        teacher.classifier.bias[0] += 1e-3
    teacher_cache.cached(run, teacher, True)
    other = runs.start("pkd", run.p.model_copy(update={"max_length": 8}))
    assert other.train.lengths.max() == 8 < run.train.lengths.max()
    teacher_cache.cached(other, teacher, True)
    teacher_cache.cached(run.with_parameters(precision="bf16"), teacher, True)
    assert len(calls) == 5
    assert len({a.key for a in run.artefacts}) == 3


def test_what_lies_on_disk(run):
    """Logits and one state a layer; nothing as long as a text. In bf16 the states keep two bytes."""
    teacher = tiny.classifier()
    for precision, kept, error in (("fp32", torch.float32, 1e-5), ("bf16", torch.bfloat16, 0.05)):
        q = run.with_parameters(precision=precision)
        teacher_cache.cached(q, teacher, states=True)
        tensors = load_file(q.artefacts[-1].folder / "answers.safetensors")
        n = len(run.train)
        assert {k: tuple(v.shape) for k, v in tensors.items()} == {"rows": (n,), "logits": (n, 2), "states": (n, 4, 32)}
        assert tensors["logits"].dtype == torch.float32
        assert tensors["states"].dtype == kept
        batch = run.train.batch(np.arange(5))
        exact = teacher_cache.live(teacher, True)(batch).states
        difference = (tensors["states"][:5].float() - exact).norm() / exact.norm()
        assert difference < error
        assert q.artefacts[-1].meta["tokens"] == run.train.lengths.sum()


def test_under_a_token_cap_only_what_is_visited_is_asked(run):
    q = run.with_parameters(max_tokens=200)
    cached = teacher_cache.cached(q, tiny.classifier())
    seen = cached.answer.logits.shape[0]
    assert 8 <= seen < len(run.train)
    assert q.artefacts[-1].meta["tokens"] <= 200
    training.train(kd.student(q), kd.loss_of(q.p, cached), q.train, q.settings())  # every row of the plan is there


def test_no_room_is_one_line(run, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: namedtuple("usage", "free")(1000))
    with pytest.raises(InputError, match="answers to .* rows need .* MB are free; pass cache=False"):
        teacher_cache.cached(run, tiny.classifier(), True)


def test_gain_is_measured_and_leaves_the_teacher_alone(run):
    teacher = run.teacher().model
    before = teacher_cache.teacher_hash(teacher)
    gain = pkd.caching_gain(run.with_parameters(gain_steps=4), teacher)
    assert gain["ratio"] == gain["tokens_per_second_with_cache"] / gain["tokens_per_second_without"]
    assert gain["steps_each"] == 4
    assert all(np.isfinite(v) and v > 0 for v in gain.values())
    tokens = run.train.lengths.sum()  # one epoch: every row is trained on once and asked once
    assert gain["visits_of_a_row"] == 1
    with_, without, alone = (tokens / gain[f"tokens_per_second_{k}"]
                             for k in ("with_cache", "without", "of_the_teacher_alone"))
    assert gain["ratio_with_filling"] == pytest.approx(without / (with_ + alone))
    assert teacher_cache.teacher_hash(teacher) == before
