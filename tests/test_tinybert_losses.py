"""TinyBERT's losses against its formulas in NumPy: values, gradients, dropout of the teacher, accumulation."""

import numpy as np
import pytest
import tiny
import torch
from tinybert_runs import batch_of

from lib import layers, training
from lib.methods import tinybert, tinybert_losses
from lib.methods.tinybert_losses import Projections, Seen

RNG = np.random.default_rng(0)
LENGTHS = [5, 3, 1]
MASK = np.array([[1] * n + [0] * (5 - n) for n in LENGTHS])


# The losses


def paper_states(s, t):
    """Mean over rows of the mean over real positions and components."""
    return np.mean([((s[b, :n] - t[b, :n]) ** 2).mean() for b, n in enumerate(LENGTHS)])


def paper_scores(s, t):
    """Mean over rows of (1 / heads) sum over heads of MSE over real queries and keys."""
    return np.mean([np.mean([((s[b, h, :n, :n] - t[b, h, :n, :n]) ** 2).mean() for h in range(s.shape[1])])
                    for b, n in enumerate(LENGTHS)])


def code_scores(s, t):
    """The official code: masked scores added as -10000, those at or below -100 set to 0, mean over everything."""
    added = np.where(MASK[:, None, None, :] == 1, 0.0, -10000.0)
    s, t = (np.where(x + added <= -100, 0.0, x + added) for x in (s, t))
    return ((s - t) ** 2).mean()


def test_state_loss():
    s, t = RNG.normal(0, 1, (3, 5, 6)), RNG.normal(1, 2, (3, 5, 6))
    a, b, m = torch.tensor(s), torch.tensor(t), torch.tensor(MASK)
    assert tinybert_losses.state_loss(a, b, m).item() == pytest.approx(paper_states(s, t), rel=1e-5)
    assert tinybert_losses.state_loss(a, b, m, code=True).item() == pytest.approx(((s - t) ** 2).mean(), rel=1e-5)


def test_attention_loss():
    s, t = RNG.normal(0, 1, (3, 2, 5, 5)), RNG.normal(1, 2, (3, 2, 5, 5))
    s[0, 0, 0, 0] = -120.0
    a, b, m = torch.tensor(s), torch.tensor(t), torch.tensor(MASK)
    assert tinybert_losses.attention_loss(a, b, m).item() == pytest.approx(paper_scores(s, t), rel=1e-5)
    assert tinybert_losses.attention_loss(a, b, m, code=True).item() == pytest.approx(code_scores(s, t), rel=1e-5)


def test_padding_enters_no_loss_of_the_paper_and_the_code_s():
    s, t = torch.randn(3, 5, 6), torch.randn(3, 5, 6)
    wild = torch.where(torch.tensor(MASK)[:, :, None].bool(), s, 1e3)
    m = torch.tensor(MASK)
    assert tinybert_losses.state_loss(wild, t, m) == tinybert_losses.state_loss(s, t, m)
    assert tinybert_losses.state_loss(wild, t, m, code=True) > 1e3
    a, b = torch.randn(3, 2, 5, 5), torch.randn(3, 2, 5, 5)
    both = (m[:, None, :, None] * m[:, None, None, :]).bool()
    loud = torch.where(both, a, 50.0)
    assert tinybert_losses.attention_loss(loud, b, m) == tinybert_losses.attention_loss(a, b, m)
    keys = torch.where(m[:, None, None, :].bool(), a, 50.0)  # padded keys enter neither
    torch.testing.assert_close(tinybert_losses.attention_loss(keys, b, m, code=True),
                               tinybert_losses.attention_loss(a, b, m, code=True))


def test_soft_cross_entropy_by_hand():
    s, t = RNG.normal(0, 1, (4, 3)), RNG.normal(0, 2, (4, 3))
    for temperature in (1.0, 4.0):
        p = np.exp(t / temperature) / np.exp(t / temperature).sum(1, keepdims=True)
        q = np.exp(s / temperature) / np.exp(s / temperature).sum(1, keepdims=True)
        want = -(p * np.log(q)).sum(1).mean()
        got = tinybert_losses.soft_cross_entropy(torch.tensor(s), torch.tensor(t), temperature)
        assert got.item() == pytest.approx(want, rel=1e-5)
        code = tinybert_losses.soft_cross_entropy(torch.tensor(s), torch.tensor(t), temperature, code=True)
        assert code.item() == pytest.approx(want / 3, rel=1e-5)
    even = tinybert_losses.soft_cross_entropy(torch.zeros(2, 4), torch.zeros(2, 4))
    assert even.item() == pytest.approx(np.log(4))
    with pytest.raises(ValueError, match="two classes"):
        tinybert_losses.soft_cross_entropy(torch.zeros(2, 1), torch.zeros(2, 1))


# The whole intermediate loss on tiny models


def oracle_scores(model, batch):
    """Q K^T / sqrt(d) of each layer from the layer's own weights and transformers' own hidden states."""
    inputs = {k: batch[k] for k in layers.INPUTS if k in batch}
    with torch.no_grad():
        states = model(**inputs, output_hidden_states=True).hidden_states
        out = []
        for h, layer in zip(states, layers.encoder_layers(model), strict=False):
            inner = layer.attention.self
            d = inner.attention_head_size

            def heads(x, d=d):
                return x.view(*x.shape[:2], -1, d).transpose(1, 2)

            q, k = heads(inner.query(h)), heads(inner.key(h))
            out.append((q @ k.transpose(-1, -2) / d**0.5).numpy())
    return [s.numpy() for s in states], out


@pytest.mark.parametrize("code", [False, True])
@pytest.mark.parametrize("mapping", [[2, 4], [3, 4], [1, 2]])
def test_the_whole_loss_of_a_batch(code, mapping):
    """Two layers of width 16 learn from four of width 32, both of four heads."""
    teacher = tiny.classifier(layers=4, seed=1)
    student = tiny.classifier(layers=2, seed=2, hidden_size=16)
    torch.manual_seed(5)
    projections, batch = Projections(16, 32, code), batch_of()
    mask = batch["attention_mask"].numpy()
    plan = tinybert.Plan(None, mapping, tinybert_losses.TERMS, code)
    got = tinybert.state_loss(teacher, plan)(tinybert.Distilled(student, projections), batch, None)
    (s, sa), (t, ta) = oracle_scores(student, batch), oracle_scores(teacher, batch)

    def project(x, linear):
        bias = 0 if linear.bias is None else linear.bias.detach().numpy()
        return x @ linear.weight.detach().numpy().T + bias

    lengths = mask.sum(1)

    def states(a, b):
        if code:
            return ((a - b) ** 2).mean()
        return np.mean([((a[i, :n] - b[i, :n]) ** 2).mean() for i, n in enumerate(lengths)])

    def attention(a, b):
        if code:
            keep = mask[:, None, None, :] == 1
            return (np.where(keep, a - b, 0.0) ** 2).mean()
        return np.mean([((a[i, :, :n, :n] - b[i, :, :n, :n]) ** 2).mean() for i, n in enumerate(lengths)])

    want = {"embedding": states(project(s[0], projections.embedding), t[0]),
            "hidden": sum(states(project(s[m + 1], projections.hidden), t[g]) for m, g in enumerate(mapping)),
            "attention": sum(attention(sa[m], ta[g - 1]) for m, g in enumerate(mapping))}
    assert got.logs == pytest.approx(want, rel=1e-4)
    assert got.value.item() == pytest.approx(sum(want.values()), rel=1e-4)


def test_projections_of_the_two_variants():
    paper, code = Projections(16, 32), Projections(16, 32, code=True)
    assert paper.embedding is not paper.hidden
    assert sum(p.numel() for p in paper.parameters()) == 2 * 16 * 32
    assert code.embedding is code.hidden
    assert sum(p.numel() for p in code.parameters()) == 16 * 32 + 32


@pytest.mark.parametrize("code", [False, True])
def test_gradients_by_finite_differences(code):
    """In float64, along a random direction, for the student's weights and for the projections."""
    student, teacher = (tiny.classifier(layers=n, seed=n, hidden_size=w).double() for n, w in ((2, 16), (4, 32)))
    torch.manual_seed(0)
    model = tinybert.Distilled(student, Projections(16, 32, code)).double()
    batch = batch_of()
    with torch.no_grad():
        theirs = tinybert_losses.watch(teacher, batch)

    def value():
        seen = tinybert_losses.watch(model.student, batch)
        mask = batch["attention_mask"]

        def states(a, b):
            squares = ((a - b) ** 2).mean(-1)
            return squares.mean() if code else ((squares * mask).sum(1) / mask.sum(1)).mean()

        total = states(model.projections.embedding(seen.states[0]), theirs.states[0])
        for m, g in enumerate((2, 4)):
            total = total + states(model.projections.hidden(seen.states[m + 1]), theirs.states[g])
            d = seen.scores[m] - theirs.scores[g - 1]
            if code:
                total = total + (torch.where(mask[:, None, None, :].bool(), d, 0.0) ** 2).mean()
            else:
                pairs = mask[:, :, None] * mask[:, None, :]
                total = total + (((d**2).mean(1) * pairs).sum((1, 2)) / pairs.sum((1, 2))).mean()
        return total

    loss = tinybert_losses.intermediate_loss(tinybert_losses.watch(model.student, batch), theirs, model.projections,
                                             batch["attention_mask"], [2, 4], code=code)
    loss.value.backward()
    trained = [p for p in model.parameters() if p.grad is not None]
    assert len(trained) > 20
    direction = [torch.randn_like(p) for p in trained]
    for p, d in zip(trained, direction, strict=True):
        if p is student.get_input_embeddings().weight:
            d[0] = 0.0  # torch gives the padding word no gradient, and in the code's variant padding has a say
    slope = sum((p.grad * d).sum() for p, d in zip(trained, direction, strict=True)).item()
    with torch.no_grad():
        ends = []
        for sign in (1, -1):
            for p, d in zip(trained, direction, strict=True):
                p += sign * 1e-5 * d
            ends.append(value().item())
            for p, d in zip(trained, direction, strict=True):
                p -= sign * 1e-5 * d
    norm = sum((p.grad**2).sum() for p in trained).sqrt().item()
    assert slope == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-4 * norm)  # losses are computed in float32
    assert abs(slope) > 1e-3 * norm
    assert all(p.grad is None for p in (student.classifier.weight, student.bert.pooler.dense.weight))


def test_a_loss_without_attention_scores_is_an_error():
    student = tiny.classifier(layers=2, attention="sdpa")
    with pytest.raises(RuntimeError, match="0 attention maps for 2 layers"):
        tinybert_losses.watch(student, batch_of())
    same = tiny.classifier(layers=2)
    seen = tinybert_losses.watch(same, batch_of())
    assert len(seen.scores) == 2
    with pytest.raises(RuntimeError, match="the attention loss is 0"):
        tinybert_losses.intermediate_loss(seen, seen, Projections(32, 32), batch_of()["attention_mask"], [1, 2])
    with pytest.raises(RuntimeError, match="the attention loss is 0"):
        tinybert_losses.intermediate_loss(seen, Seen(seen.states, []), Projections(32, 32),
                                          batch_of()["attention_mask"], [])


def test_terms_can_be_left_out():
    a, b = (tinybert_losses.watch(tiny.classifier(layers=2, seed=s), batch_of()) for s in (0, 1))
    mask = batch_of()["attention_mask"]
    whole = tinybert_losses.intermediate_loss(a, b, Projections(32, 32), mask, [1, 2])
    assert set(whole.logs) == set(tinybert_losses.TERMS)
    for term in tinybert_losses.TERMS:
        part = tinybert_losses.intermediate_loss(a, b, Projections(32, 32), mask, [1, 2], (term,))
        assert set(part.logs) == {term}
        assert part.value.item() == pytest.approx(part.logs[term])


def test_the_code_s_teacher_has_dropout_and_the_paper_s_has_none():
    teacher = tiny.classifier(layers=4, dropout=0.5)
    step = training.Step(0, 1, 0, 0)
    for code in (False, True):
        student = tiny.classifier(layers=2, seed=2)
        model = tinybert.Distilled(student, Projections(32, 32, code))
        loss = tinybert.state_loss(teacher, tinybert.Plan(None, [2, 4], tinybert_losses.TERMS, code))
        torch.manual_seed(0)
        values = {loss(model, batch_of(), step).value.item() for _ in range(3)}
        assert len(values) == (3 if code else 1)


def test_accumulation_changes_nothing():
    """The paper's means are over rows, so that (8, 1) equals (2, 4)."""
    curves = []
    for size, accumulation in ((8, 1), (2, 4)):
        teacher, student = tiny.classifier(layers=4, seed=1), tiny.classifier(layers=2, seed=2, hidden_size=16)
        torch.manual_seed(0)
        model = tinybert.Distilled(student, Projections(16, 32))
        plan = tinybert.Plan(None, [2, 4], tinybert_losses.TERMS, False)
        settings = training.Settings(batch_size=size, accumulation=accumulation, lr=1e-3, precision="fp32", epochs=2)
        history = training.train(model, tinybert.state_loss(teacher, plan), tiny.encoded(24), settings)
        curves.append([v for _, v in history.curve["loss"]])
    np.testing.assert_allclose(curves[0], curves[1], rtol=2e-3)
