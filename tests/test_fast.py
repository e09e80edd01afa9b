"""The cheap dropout and attention against NumPy: same numbers, exact probabilities, same gradients."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import tiny
import torch
from torch import nn

from lib import fast, layers


def softmax_attention(q, k, v, seen, scale=None):
    """Attention in NumPy: q, k, v (B, h, T, d), `seen` (B, T) 0/1 over keys or None -> (B, T, h, d)."""
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if seen is not None:
        scores = np.where(seen[:, None, None, :] > 0, scores, -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhqk,bhkd->bqhd", e / e.sum(-1, keepdims=True), v)


def heads(seed=0, b=3, h=2, t=7, d=4):
    return [torch.from_numpy(np.random.default_rng(seed + i).normal(size=(b, h, t, d))) for i in range(3)]


def padding(b=3, t=7):
    seen = np.ones((b, t))
    seen[1, 4:] = 0
    seen[2, 1:] = 0
    return seen


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("captured", [False, True])
def test_attention_is_softmax_attention(masked, training, captured):
    q, k, v = heads()
    module = nn.Module().train(training)
    seen = padding() if masked else None
    mask = None if seen is None else torch.from_numpy(seen).bool()[:, None, None, :].expand(3, 1, 7, 7)
    # a dropout so small that no weight is dropped takes the unfused path of training
    p = 1e-12 if training else 0.5
    torch.manual_seed(0)
    if captured:
        with fast.capture_scores() as scores:
            out, weights = fast.attention(module, q, k, v, mask, dropout=p)
        np.testing.assert_allclose(scores[0], np.einsum("bhqd,bhkd->bhqk", q, k) / 2, atol=1e-12)
    else:
        out, weights = fast.attention(module, q, k, v, mask, dropout=p)
    assert weights is None
    np.testing.assert_allclose(out, softmax_attention(q.numpy(), k.numpy(), v.numpy(), seen), atol=1e-12)
    out, _ = fast.attention(module, q, k, v, mask, scaling=0.3)
    np.testing.assert_allclose(out, softmax_attention(q.numpy(), k.numpy(), v.numpy(), seen, 0.3), atol=1e-12)


@pytest.mark.parametrize("training", [False, True])
def test_attention_adds_a_position_bias_to_the_scores(training):
    q, k, v = heads()
    bias, seen = torch.from_numpy(np.random.default_rng(9).normal(size=(1, 2, 7, 7))), padding()
    mask = torch.from_numpy(seen).bool()[:, None, None, :].expand(3, 1, 7, 7)
    out, _ = fast.attention(nn.Module().train(training), q, k, v, mask, dropout=1e-12, position_bias=bias)
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) / 2 + bias.numpy()
    e = np.where(seen[:, None, None, :] > 0, np.exp(scores), 0.0)
    np.testing.assert_allclose(out, np.einsum("bhqk,bhkd->bqhd", e / e.sum(-1, keepdims=True), v), atol=1e-12)


def test_attention_refuses_a_mask_that_is_no_mask():
    q, k, v = heads()
    with pytest.raises(TypeError, match="boolean"):
        fast.attention(nn.Module().train(), q, k, v, torch.zeros(3, 1, 7, 7), dropout=0.1)


def test_attention_dropout_drops_weights_and_keeps_their_mean():
    q, k, v = (x.float() for x in heads(b=1, h=1, t=64, d=4))
    module = nn.Module().train()
    torch.manual_seed(1)
    outs = torch.stack([fast.attention(module, q, k, v, None, dropout=0.25)[0] for _ in range(1500)])
    exact = softmax_attention(q.numpy(), k.numpy(), v.numpy(), None)
    error = outs.std(0) / 1500**0.5
    assert outs.std(0).min() > 0
    assert (np.abs(outs.mean(0).numpy() - exact) < 5 * error.numpy()).all()
    module.eval()
    a, b = (fast.attention(module, q, k, v, None, dropout=0.25)[0] for _ in range(2))
    assert torch.equal(a, b)


def test_captures_nest_and_end():
    q, k, v = heads()
    with fast.capture_scores() as outer:
        fast.attention(nn.Module(), q, k, v, None)
        with fast.capture_scores() as inner:
            fast.attention(nn.Module(), q, k, v, None)
        fast.attention(nn.Module(), q, k, v, None)
    fast.attention(nn.Module(), q, k, v, None)
    assert (len(outer), len(inner)) == (2, 1)


# --- dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, 0.0001, 1 / 3, 1e-6])
def test_mask_keeps_each_entry_with_probability_one_minus_p(p):
    torch.manual_seed(0)
    calls, n = 200, 50_000
    dropped = sum(n - int(fast.keep_mask(torch.Size([n // 10, 10]), p).sum()) for _ in range(calls))
    total = calls * n
    # the drawn threshold adds its own deviation of at most 1/(2 * 65536) an entry and call
    deviation = np.sqrt(total * p * (1 - p)) + n * np.sqrt(calls) * 0.5 / 65536
    assert abs(dropped - total * p) < 4.5 * deviation


def test_threshold_is_drawn_so_that_the_probability_is_exact(monkeypatch):
    """p = 0.1 is no multiple of 2^-16: 6553 with probability 0.4, 6554 with 0.6. Every 16-bit number is looked at."""
    whole = np.arange(65536, dtype=np.uint16).view(np.int64)
    real = torch.Tensor.random_
    monkeypatch.setattr(torch.Tensor, "random_", lambda self, *a: self.copy_(torch.from_numpy(whole.copy())))
    torch.manual_seed(0)
    counts = [65536 - int(fast.keep_mask(torch.Size([65536]), 0.1).sum()) for _ in range(4000)]
    monkeypatch.setattr(torch.Tensor, "random_", real)
    assert set(counts) == {6553, 6554}
    share = np.mean(np.array(counts) == 6554)
    assert abs(share - 0.6) < 4 * np.sqrt(0.24 / 4000)


def test_mask_bits_are_even_and_independent():
    torch.manual_seed(0)
    mask = fast.keep_mask(torch.Size([4_000_000]), 0.5).numpy()
    for lag in (1, 2, 3, 4, 5, 64):  # four entries come from one draw of 64 bits
        assert abs(np.corrcoef(mask[:-lag], mask[lag:])[0, 1]) < 4 / np.sqrt(len(mask))
    by_place = mask.reshape(-1, 4).mean(0)
    assert np.abs(by_place - 0.5).max() < 4.5 * 0.5 / np.sqrt(1_000_000)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (5, 1), (2, 3, 5), (0,), (0, 4)])
def test_mask_has_any_shape(shape):
    assert fast.keep_mask(torch.Size(shape), 0.3).shape == torch.Size(shape)


def test_mask_at_the_ends():
    assert fast.keep_mask(torch.Size([1000]), 0.0).all()
    assert not fast.keep_mask(torch.Size([1000]), 1.0).any()
    assert torch.equal(fast.dropout(torch.ones(4), 1.0, True), torch.zeros(4))
    x = torch.ones(4)
    assert fast.dropout(x, 0.0, True) is x
    assert fast.dropout(x, 0.5, False) is x


def test_mask_is_a_function_of_the_seed():
    a, b, c = (torch.manual_seed(s) and fast.keep_mask(torch.Size([1000]), 0.3) for s in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_dropout_scales_and_its_gradient_uses_the_same_mask(dtype):
    x = torch.randn(200, 30, dtype=dtype).abs().add(1).requires_grad_()
    torch.manual_seed(3)
    y = fast.dropout(x, 0.2, True)
    kept = y != 0
    assert y.dtype == dtype
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-6
    torch.testing.assert_close(y[kept], x.detach()[kept] / 0.8, rtol=tolerance, atol=0)
    gradient = torch.randn_like(y)
    y.backward(gradient)
    torch.testing.assert_close(x.grad, torch.where(kept, gradient / 0.8, 0), rtol=tolerance, atol=0)


def test_dropout_module_is_off_in_evaluation():
    module, x = fast.Dropout(0.5), torch.ones(100)
    assert torch.equal(module.eval()(x), x)
    torch.manual_seed(0)
    assert sorted(set(module.train()(x).tolist())) == [0.0, 2.0]


# --- the first token alone


@pytest.mark.parametrize("kind", ["bert", "roberta", "electra"])
@pytest.mark.parametrize("training", [False, True])
def test_first_token_layer_is_the_full_layer(kind, training):
    """Logits and gradients with and without the shortcut. Dropout is 0: its draws differ between the two."""
    model = tiny.classifier(kind, classes=3, dropout=0.0).train(training)
    batch = tiny.encoded(6, classes=3, seed=4).batch(np.arange(6))
    assert len(set(batch["attention_mask"].sum(1).tolist())) > 1  # there is padding
    inputs = {k: batch[k] for k in ("input_ids", "attention_mask")}
    results = []
    for shortcut in (False, True):
        model.zero_grad()
        with fast.first_token([layers.encoder_layers(model)[-1]] if shortcut else []):
            logits = model(**inputs).logits
        torch.nn.functional.cross_entropy(logits, batch["labels"]).backward()
        gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        results.append((logits.detach(), gradients))
    (full, wanted), (fast_, got) = results
    torch.testing.assert_close(fast_, full, atol=2e-6, rtol=1e-5)
    assert wanted.keys() == got.keys()
    for name in wanted:
        torch.testing.assert_close(got[name], wanted[name], atol=2e-6, rtol=1e-4, msg=name)


@pytest.mark.parametrize("kind", ["bert", "roberta", "electra"])
def test_first_token_layer_really_leaves_the_rest_out(kind):
    model = tiny.classifier(kind)
    last, shapes = layers.encoder_layers(model)[-1], []
    last.register_forward_hook(lambda m, i, o: shapes.append((o[0] if isinstance(o, tuple) else o).shape))
    batch = tiny.encoded(5).batch(np.arange(5))
    layers.classify(model, batch)
    model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    width = batch["input_ids"].shape[1]
    assert [tuple(s) for s in shapes] == [(5, 1, tiny.WIDTH), (5, width, tiny.WIDTH)]


def test_first_token_ends_with_its_context_even_after_an_error():
    model = tiny.classifier()
    last = layers.encoder_layers(model)[-1]
    with pytest.raises(ZeroDivisionError), fast.first_token([last]):
        raise ZeroDivisionError
    assert not fast._first_only
    with fast.first_token([last]):
        with fast.first_token([last]):
            pass
        assert fast._first_only == {id(last)}
    assert not fast._first_only


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_installed_model_answers_as_the_library(kind):
    ours = tiny.classifier(kind, classes=3)
    plain = tiny.classifier(kind, classes=3, attention="eager", install=False)
    plain.load_state_dict(ours.state_dict())
    batch = tiny.encoded(8, seed=5).batch(np.arange(8))
    inputs = {k: batch[k] for k in ("input_ids", "attention_mask")}
    with torch.no_grad():
        torch.testing.assert_close(layers.classify(ours, batch), plain(**inputs).logits, atol=1e-5, rtol=1e-5)


def test_install_adds_nothing_to_the_state():
    plain = tiny.classifier(install=False, dropout=0.1)
    names, kinds = list(plain.state_dict()), [type(m).__name__ for m in plain.modules()]
    ours = fast.install(copy.deepcopy(plain))
    assert list(ours.state_dict()) == names
    assert [type(m).__name__ for m in ours.modules()] == kinds
    assert {type(m) for m in ours.modules() if isinstance(m, nn.Dropout)} == {fast.Dropout}
    assert [m.p for m in ours.modules() if isinstance(m, nn.Dropout)] == [
        m.p for m in plain.modules() if isinstance(m, nn.Dropout)]


def test_a_model_may_be_installed_twice():
    model = tiny.classifier()
    kinds = [type(m) for m in model.modules()]
    assert [type(m) for m in fast.install(model).modules()] == kinds


def test_install_leaves_the_mode_as_it_was():
    for training in (False, True):
        model = tiny.classifier(install=False, dropout=0.5).train(training)
        assert {m.training for m in fast.install(model).modules()} == {training}
