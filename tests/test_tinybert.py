"""TinyBERT against its formulas in NumPy: losses and gradients, shapes, mapping, budgets, ablations, whole runs."""

import json

import numpy as np
import pytest
import tiny
import torch
from method_runs import start
from transformers import AutoModelForSequenceClassification, BertConfig, BertModel

from lib import augmentation, evaluation, fast, layers, models, parameters, stages, training
from lib.errors import InputError
from lib.methods import tinybert, tinybert_data, tinybert_losses, tinybert_shape, tinybert_studies
from lib.methods.tinybert import Config
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


def batch_of(n=3):
    return tiny.encoded(n, seed=3).batch(np.arange(n))


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


# Shapes and mapping


def test_parameters_of_the_paper_s_students():
    """14.35M with pooler for TinyBERT4, 67.0M for TinyBERT6 (methods.md 9.7 and 0.3), counted from the shapes."""
    counts = {}
    for name in tinybert_shape.SHAPES:
        config = tinybert_shape.student_config(BertConfig(), tinybert_shape.scaled(BertConfig(), name))
        with torch.device("meta"):
            counts[name] = models.count_parameters(BertModel(config))[0]
    width, inner, vocabulary = 312, 1200, 30522
    layer = 4 * (width * width + width) + 2 * width * inner + inner + width + 4 * width
    whole = (vocabulary + 512 + 2) * width + 2 * width + 4 * layer + width * width + width
    assert counts["tinybert4"] == whole
    assert round(counts["tinybert4"] / 1e6, 2) == 14.35
    assert round(counts["tinybert6"] / 1e6, 1) == 67.0


def test_shapes_in_proportion():
    base, mini = BertConfig(), BertConfig(num_hidden_layers=6, hidden_size=384, intermediate_size=1536)
    large = BertConfig(num_hidden_layers=24, hidden_size=1024, num_attention_heads=16, intermediate_size=4096)
    shape = tinybert_shape.Shape
    assert tinybert_shape.scaled(base) == shape(4, 312, 12, 1200)
    assert tinybert_shape.scaled(base, "tinybert6") == shape(6, 768, 12, 3072)
    assert tinybert_shape.scaled(mini) == shape(2, 156, 12, 600)
    assert tinybert_shape.scaled(mini, "tinybert6") == shape(3, 384, 12, 1536)
    assert tinybert_shape.scaled(large) == shape(8, 416, 16, 1600)
    assert tinybert_shape.scaled(base, layers=3, width=120, intermediate=77) == shape(3, 120, 12, 77)
    with pytest.raises(InputError, match="width: 100 is no multiple of 12 heads; allowed: .*96 or 108"):
        tinybert_shape.scaled(base, width=100)
    with pytest.raises(InputError, match="layers: 13 is not between 1 and 12"):
        tinybert_shape.scaled(base, layers=13)


@pytest.mark.parametrize(("teacher", "student", "uniform", "top", "bottom"), [
    (12, 4, [3, 6, 9, 12], [9, 10, 11, 12], [1, 2, 3, 4]),
    (12, 6, [2, 4, 6, 8, 10, 12], [7, 8, 9, 10, 11, 12], [1, 2, 3, 4, 5, 6]),
    (6, 2, [3, 6], [5, 6], [1, 2]), (6, 4, [1, 3, 4, 6], [3, 4, 5, 6], [1, 2, 3, 4]),
])  # fmt: skip
def test_layer_mapping(teacher, student, uniform, top, bottom):
    found = [tinybert_shape.layer_mapping(teacher, student, m) for m in ("uniform", "top", "bottom")]
    assert found == [uniform, top, bottom]


def test_what_does_not_fit_is_said_from_the_configuration_alone(tmp_path):
    narrow = str(tiny.save_encoder(tmp_path / "narrow"))
    other = str(tiny.save_encoder(tmp_path / "heads", num_attention_heads=8))
    with pytest.raises(InputError, match="heads: a student of 2 attention heads .*allowed: heads=4, or without=att"):
        tinybert.plan(Config(backbone=narrow, heads=2))
    with pytest.raises(InputError, match="heads: .* teacher .*heads, which has 8"):
        tinybert.plan(Config(backbone=narrow, teacher=other))
    assert tinybert.plan(Config(backbone=narrow, heads=2, without=["attention"])).terms == ("embedding", "hidden")
    with pytest.raises(InputError, match="without: .*leaves no intermediate loss"):
        tinybert.plan(Config(backbone=narrow, without=["attention", "hidden", "embedding"]))
    with pytest.raises(InputError, match="without: 'generel' is unknown .*'general'"):
        tinybert.plan(Config(backbone=narrow, without="generel"))
    deep = str(tiny.save_encoder(tmp_path / "deep", layers=6))
    with pytest.raises(InputError, match="its depth is not that of backbone"):
        tinybert.plan(Config(backbone=narrow, teacher=deep))


@pytest.mark.parametrize(("values", "says"), [
    ({"shape": "tinybert5"}, "parameter shape: 'tinybert5'"), ({"replace": 0}, "parameter replace: 0"),
    ({"intermediate_share": 1}, "parameter intermediate_share: 1"), ({"new_rows": 0}, "parameter new_rows: 0"),
    ({"candidates": "many"}, "parameter candidates: 'many'"), ({"mapping": "middle"}, "parameter mapping: 'middle'"),
])  # fmt: skip
def test_bad_parameters_are_one_line(values, says):
    with pytest.raises(InputError, match=says):
        parameters.validate(Config, values)


# Budgets and rows


@pytest.mark.parametrize(("original", "tokens", "new_rows", "least", "want"), [
    (100, 1000, 20, 0.5, (100, 900)),  # enough budget: every row of it is new or original, none twice
    (100, 1000, 3, 0.5, (100, 300)),  # N_a is the cap
    (1000, 500, 20, 0.5, (250, 250)),  # short: half of it new
    (1000, 500, 20, 0.0, (500, 0)), (1000, 1000, 20, 0.0, (1000, 0)),
])  # fmt: skip
def test_shares(original, tokens, new_rows, least, want):
    assert tinybert_data.shares(original, tokens, new_rows, least) == want


TEXT = {"text_tokens": 2000, "text_length": 32, "head_epochs": 0.2, "general_epochs": 1}


def started(places, **values):
    own = places / "prose.txt"
    if not own.exists():
        rng, words = np.random.default_rng(0), [w for w in tiny.VOCABULARY if w.isalpha() and len(w) > 2]
        own.write_text("\n\n".join(" ".join(rng.choice(words, 40)) for _ in range(800)))
    return start("tinybert", Config, places, **{"text": str(own), **TEXT, **values})


def test_budget_is_that_of_the_other_methods(places):
    run = started(places, epochs=3, intermediate_share=0.25)
    whole = 3 * int(run.train.lengths.sum())
    assert tinybert_data.budget(run) == (round(0.25 * whole), whole - round(0.25 * whole))
    assert sum(tinybert_data.budget(run.with_parameters(max_tokens=300))) == 300


def test_augmented_rows_of_a_run(places):
    run = started(places, max_tokens=1200)
    rows = tinybert_data.augmented(run, 900, False)
    again = tinybert_data.augmented(run, 900, False)
    assert rows.inputs == again.inputs
    artefact = run.artefacts[-1]
    saved = [augmentation.New(*r) for r in json.loads((artefact.folder / "rows.json").read_text())]
    old = len(rows) - len(saved)
    assert saved
    assert rows.lengths[old:].sum() <= 1.3 * 450 + 20
    assert rows.lengths[:old].sum() <= 450
    np.testing.assert_array_equal(rows.labels[old:], run.train.labels[[n.row for n in saved]])
    texts = run.data.train["text"]
    assert all(len(n.text.split()) == len(texts[n.row].split()) and n.text != texts[n.row] for n in saved)
    decoded = [run.tokenizer.decode(ids, skip_special_tokens=True) for ids in rows.inputs["input_ids"][old:]]
    assert decoded == [n.text for n in saved]
    assert any("capped by the token budget of 900" in n for n in run.notes)
    assert any("no GloVe file" in n for n in run.notes)
    assert tinybert_data.augmented(run.with_parameters(seed=1), 900, False).inputs != rows.inputs


def test_a_whole_run(places):
    run = started(places, epochs=2)
    student, history = run.compress(tinybert.compress)
    record = run.finish(student, history)
    assert record.layers == 1
    assert {"intermediate_loss", "embedding", "hidden", "attention", "loss", "held_out"} <= set(record.curve)
    assert [a.kind for a in record.artefacts] == ["teacher", "tinybert-general", "mlm-head", "augmented-rows"]
    whole = 2 * int(run.train.lengths.sum())
    assert 0.8 * whole < record.tokens <= whole
    assert record.steps == record.curve["loss"][-1][0]
    assert record.curve["intermediate_loss"][-1][0] < record.curve["loss"][0][0]
    loaded, info = AutoModelForSequenceClassification.from_pretrained(run.output, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not any("projection" in k for k in loaded.state_dict())
    batch = run.sets["scored"].batch(np.arange(5))
    with torch.no_grad():
        own, theirs = (layers.classify(m.eval(), batch) for m in (student, loaded))
    torch.testing.assert_close(own, theirs, rtol=1e-5, atol=1e-5)
    assert [loaded.config.id2label[i] for i in range(2)] == list(run.task.labels)


def test_the_steps_are_apart_and_learn(places):
    """Step a lowers its loss and leaves head and teacher alone."""
    run = started(places, epochs=4, without=["augmentation"])
    teacher = run.teacher().model
    before = tiny.state(teacher)
    chosen = tinybert.plan(run.p)
    model = tinybert.start(run, teacher, chosen)
    head = tiny.state(model.student.classifier)
    first, _ = tinybert_data.budget(run)
    a = training.train(model, tinybert.state_loss(teacher, chosen), run.train,
                       tinybert_data.settings(run, first, lr=3e-3))
    assert tiny.same(head, tiny.state(model.student.classifier))
    assert a.curve["loss"][-1][1] < 0.8 * a.curve["loss"][0][1]
    assert tiny.same(before, tiny.state(teacher))


def test_general_distillation_is_shared_and_starts_the_student(places):
    runs_ = [started(places, seed=s) for s in (0, 1)]
    arts = [tinybert.general(r.p, r.tokenizer, tinybert.plan(r.p)) for r in runs_]
    assert arts[0].key == arts[1].key
    meta = arts[0].meta["general"]
    assert meta["after"]["loss"] < meta["before"]["loss"]
    assert 0 < arts[0].meta["tokens"] <= 2000
    teacher = tiny.classifier(layers=4)
    students = [tinybert.start(r, teacher, tinybert.plan(r.p)) for r in runs_]
    for name, value in students[0].student.base_model.encoder.state_dict().items():
        assert torch.equal(value, students[1].student.base_model.encoder.state_dict()[name])
    assert not torch.equal(students[0].student.classifier.weight, students[1].student.classifier.weight)
    assert torch.equal(students[0].projections.hidden.weight, students[1].projections.hidden.weight)
    scratch = tinybert.start(started(places, without=["general"]), teacher, tinybert.plan(runs_[0].p))
    first = next(iter(students[0].student.base_model.encoder.parameters()))
    assert not torch.equal(first, next(iter(scratch.student.base_model.encoder.parameters())))
    other = started(places, variant="code")
    assert tinybert.general(other.p, other.tokenizer, tinybert.plan(other.p)).key != arts[0].key


@pytest.mark.parametrize(("without", "curves", "kinds"), [
    (["general"], {"intermediate_loss"}, ["teacher", "mlm-head", "augmented-rows"]),
    (["task"], set(), ["teacher", "tinybert-general"]),
    (["augmentation"], {"intermediate_loss"}, ["teacher", "tinybert-general"]),
    (["attention", "hidden", "augmentation"], {"intermediate_loss", "embedding"}, ["teacher", "tinybert-general"]),
    (["prediction", "augmentation"], {"intermediate_loss", "hidden"}, ["teacher", "tinybert-general"]),
])  # fmt: skip
def test_ablations(places, without, curves, kinds):
    run = started(places, without=without, variant="no-" + without[0], max_tokens=400, teacher_tokens=200)
    student, history = run.compress(tinybert.compress)
    assert curves <= set(history.curve)
    assert [a.kind for a in run.artefacts] == kinds
    assert {"embedding", "hidden", "attention"} & set(without) & set(history.curve) == set()
    if without == ["task"]:
        assert set(history.curve) == {"loss", "held_out"}


@pytest.mark.parametrize("variant", ["", "code"])
def test_regression_uses_original_rows_in_step_b(places, variant):
    run = started(places, regression=True, variant=variant, epochs=2)
    teacher, chosen = run.teacher().model, tinybert.plan(run.p)
    loss, rows, _ = tinybert.prediction(run, teacher, tinybert_data.joined(run.train, run.train), 4000, chosen.code)
    assert len(rows) == len(run.train)
    batch = rows.batch(np.arange(6))
    student = tinybert.start(run, teacher, chosen).student.eval()
    with torch.no_grad():
        own, theirs = layers.classify(student, batch)[:, 0], layers.classify(teacher.eval(), batch)[:, 0]
    want = ((own - (batch["labels"] if variant == "code" else theirs)) ** 2).mean()
    got = loss(student, batch, None).detach()
    assert float(got) == pytest.approx(want.item(), rel=1e-4)


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


@pytest.mark.parametrize("kind", ["roberta", "distilbert", "electra"])
def test_other_architectures(kind, encoder):
    folder = encoder(kind)
    p = Config(backbone=folder)
    chosen = tinybert.plan(p)
    config = tinybert_shape.student_config(models.configuration(folder), chosen.shape)
    student, teacher = tinybert_shape.build(config), models.load_encoder(folder)
    model = tinybert.Distilled(student.base_model, Projections(chosen.shape.width, 32))
    batch = {k: v for k, v in batch_of().items() if k in layers.INPUTS}
    loss = tinybert.state_loss(teacher.eval(), chosen)(model.eval(), batch, None)
    assert loss.logs["attention"] > 0
    assert student.config._attn_implementation == fast.ATTENTION


# Studies


def test_studies_name_their_runs_and_change_what_they_say():
    p = tinybert_studies.Config()
    for study, runs_ in tinybert_studies.STUDIES.items():
        made = tinybert_studies.variants(p.model_copy(update={"study": study}))
        assert len(made) == len(runs_)
        assert len({q.variant for q in made}) == len(made)
    names = {c.get("variant") for c in tinybert_studies.STUDIES["objectives"]}
    assert {"no-embedding", "no-prediction", "no-transformer", "no-attention", "no-hidden"} <= names
    with pytest.raises(InputError, match="variant: 'x' cannot be set together with study"):
        tinybert_studies.variants(p.model_copy(update={"study": "code", "variant": "x"}))


def test_histories_add_up():
    a = training.History(steps=3, tokens=30, seconds=1.0, curve={"intermediate_loss": [[3, 1.0]]})
    b = training.History(steps=2, tokens=20, seconds=2.0, kept_step=1, kept_score=50.0, curve={"loss": [[2, 0.5]]})
    both = stages.joined(a, b)
    assert (both.steps, both.tokens, both.seconds, both.kept_step) == (5, 50, 3.0, 4)
    assert both.curve == {"intermediate_loss": [[3, 1.0]], "loss": [[5, 0.5]]}


@pytest.mark.slow
def test_given_enough_passes_the_student_answers_as_its_teacher(places):
    """From random weights, by the teacher's answers alone: labels are never seen. Chance is 50%."""
    run = started(places, epochs=60, lr=3e-3, intermediate_lr=3e-3, without=["general", "augmentation"],
                  teacher_epochs=30, teacher_lr=3e-3)
    teacher, rows = run.teacher().model, run.train
    answers = evaluation.predict(teacher, rows).argmax(-1)
    assert 0.3 < answers.mean() < 0.7
    rows.labels[:] = 0  # the teacher is ready; from here on labels teach nothing
    student, _ = tinybert.compress(run, teacher)
    assert (evaluation.predict(student, rows).argmax(-1) == answers).mean() > 0.9
