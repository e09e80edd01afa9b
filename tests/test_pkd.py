"""BERT-PKD against the formula in NumPy: the layer mapping, the patience loss, and both inside a run."""

import numpy as np
import pytest
import tiny
import torch
from method_runs import start, without_dropout

from lib import layers, parameters, teacher_cache, training
from lib.errors import InputError
from lib.methods import kd, pkd
from lib.methods.pkd import Config, layer_mapping, patience_loss

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("teacher", "student", "skip", "last"), [
    (12, 6, [2, 4, 6, 8, 10], [7, 8, 9, 10, 11]),  # printed in the paper
    (12, 3, [4, 8], [10, 11]),  # last: teacher layers 9 and 10 from zero in the official script
    (6, 3, [2, 4], [4, 5]),
    (12, 5, [2, 4, 7, 9], [8, 9, 10, 11]),
    (24, 12, list(range(2, 24, 2)), list(range(13, 24))),
    (3, 2, [1], [2]),
])  # fmt: skip
def test_mapping(teacher, student, skip, last):
    assert layer_mapping(teacher, student, "skip") == skip
    assert layer_mapping(teacher, student, "last") == last


def test_mapping_rises_and_leaves_the_last_layer_out():
    for teacher in range(3, 25):
        for student in range(2, teacher):
            for mapping in ("skip", "last"):
                found = layer_mapping(teacher, student, mapping)
                assert len(found) == student - 1
                assert found == sorted(set(found))
                assert found[0] >= 1
                assert found[-1] < teacher


def test_mapping_that_cannot_be():
    for teacher, student in ((6, 1), (6, 6), (3, 5)):
        with pytest.raises(InputError, match=f"layers: {student} layers cannot .* allowed: 2 to {teacher - 1}"):
            layer_mapping(teacher, student, "skip")


def oracle(student, teacher, normalise):
    """Sum over layers and components of a row, (rows,)."""
    if normalise:
        student = student / np.sqrt((student**2).sum(-1, keepdims=True))
        teacher = teacher / np.sqrt((teacher**2).sum(-1, keepdims=True))
    return ((student - teacher) ** 2).sum((1, 2))


@pytest.mark.parametrize("normalise", [True, False])
def test_patience_loss_and_its_reductions(normalise):
    student, teacher = RNG.normal(0, 2, (5, 3, 8)), RNG.normal(1, 1, (5, 3, 8))
    rows = oracle(student, teacher, normalise)
    a, b = torch.tensor(student), torch.tensor(teacher)
    assert patience_loss(a, b, normalise, "sum").item() == pytest.approx(rows.mean(), rel=1e-5)
    assert patience_loss(a, b, normalise, "mean").item() == pytest.approx(rows.mean() / (3 * 8), rel=1e-5)


def test_patience_loss_by_hand():
    """(3, 4) against (4, 3): unit vectors (0.6, 0.8) and (0.8, 0.6), squares 0.04 + 0.04; at right angles 2."""
    a, b = torch.tensor([[[3.0, 4.0]]]), torch.tensor([[[4.0, 3.0]]])
    assert patience_loss(a, b, True, "sum").item() == pytest.approx(0.08)
    assert patience_loss(a, b, True, "mean").item() == pytest.approx(0.04)
    assert patience_loss(a, b, False, "sum").item() == pytest.approx(2.0)
    assert patience_loss(torch.tensor([[[5.0, 0]]]), torch.tensor([[[0.0, 9]]]), True, "sum").item() == pytest.approx(2)


def test_normalised_states_have_no_length():
    a, b = torch.randn(4, 2, 8), torch.randn(4, 2, 8)
    torch.testing.assert_close(patience_loss(7 * a, 0.1 * b), patience_loss(a, b))
    a.requires_grad_(True)
    patience_loss(a, b).backward()
    assert (a.grad * a).sum(-1).abs().max() < 1e-6  # the gradient turns a state and does not stretch it


def test_bfloat16_states_are_compared_in_float32():
    a, b = torch.randn(4, 2, 8), torch.randn(4, 2, 8)
    assert patience_loss(a.bfloat16(), b.bfloat16()).dtype == torch.float32


@pytest.mark.parametrize("mapping", ["skip", "last"])
@pytest.mark.parametrize("variant", ["", "paper", "code"])
def test_the_whole_loss_of_a_batch(places, mapping, variant):
    """Oracle: transformers' own hidden states of student and teacher, layer numbers as the paper counts them."""
    run = start("pkd", Config, places, depth=6, mapping=mapping, variant=variant, layers=3, beta=7.0)
    student, teacher = kd.student(run).eval(), tiny.classifier(layers=6, seed=1)
    batch = run.train.batch(np.arange(6))
    loss = pkd.loss_of(run.p, teacher_cache.live(teacher, True), pkd.plan(run.p))(student, batch, None)
    inputs = {k: batch[k] for k in layers.INPUTS}
    with torch.no_grad():
        own, theirs = student(**inputs, output_hidden_states=True), teacher(**inputs, output_hidden_states=True)
    s, t = (np.stack([h[:, 0].numpy() for h in o.hidden_states], 1) for o in (own, theirs))  # entry 0: embeddings
    pairs = {"skip": [2, 4], "last": [4, 5]}[mapping]
    rows = oracle(s[:, [1, 2]], t[:, pairs], True)
    patience = rows.mean() / (1 if variant == "paper" else 2 * 32)
    soft = kd.soft_loss(own.logits, theirs.logits, 10.0, variant == "code").item()
    hard = torch.nn.functional.cross_entropy(own.logits, batch["labels"]).item()
    assert loss.logs == pytest.approx({"hard": hard, "soft": soft, "patience": patience}, rel=1e-3, abs=1e-6)
    assert loss.value.item() == pytest.approx(0.5 * hard + 0.5 * soft + 7.0 * patience, rel=1e-3)


def test_patience_reaches_the_layers_below_the_last_and_beta_0_is_kd(places):
    run = start("pkd", Config, places, depth=6, layers=3)
    teacher, batch = tiny.classifier(layers=6, seed=1), run.train.batch(np.arange(6))

    def gradients(loss):
        student = kd.student(run).eval()
        loss(student, batch, None).value.backward()
        return [torch.cat([p.grad.flatten() for p in layer.parameters()]) for layer in layers.encoder_layers(student)]

    source = teacher_cache.live(teacher, True)
    with_, without = (gradients(pkd.loss_of(run.p.model_copy(update={"beta": b}), source, [2, 4])) for b in (1e2, 0))
    plain = gradients(kd.loss_of(run.p, source))
    assert all(torch.equal(a, b) for a, b in zip(without, plain, strict=True))
    assert torch.allclose(with_[2], without[2], atol=1e-6)
    assert all((with_[i] - without[i]).norm() > 0.1 * without[i].norm() for i in (0, 1))


def test_only_the_first_token_counts():
    """Other tokens may differ at will: a student whose first-token states are the teacher's has no patience loss."""
    first = torch.randn(4, 2, 8)
    assert patience_loss(first, first.clone()).item() == 0
    m = tiny.classifier(layers=3)
    ids = torch.tensor([[2, 7, 9, 3], [2, 11, 12, 3]])
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor([0, 1])}
    states = teacher_cache.live(m, True)(batch).states
    for i, h in enumerate(m(input_ids=ids, output_hidden_states=True).hidden_states[1:]):
        torch.testing.assert_close(states[:, i], h[:, 0])


@pytest.mark.parametrize("variant", ["", "paper"])
def test_accumulation_changes_nothing(places, variant):
    run = start("pkd", Config, places, variant=variant, beta=2.0)
    teacher, curves = tiny.classifier(seed=1), []
    for size, accumulation in ((9, 1), (3, 3)):
        q = run.with_parameters(batch_size=size, accumulation=accumulation, epochs=2)
        student = without_dropout(kd.student(q))
        loss = pkd.loss_of(q.p, teacher_cache.cached(q, teacher, True), pkd.plan(q.p))
        history = training.train(student, loss, q.train, q.settings())
        curves.append([v for _, v in history.curve["loss"]])
    np.testing.assert_allclose(curves[0], curves[1], rtol=2e-3)


def test_a_whole_run(places):
    run = start("pkd", Config, places, comparison_tokens=150)
    student, history = run.compress(pkd.compress)
    run.study = {"variants": pkd.compare(run, run.teacher().model)}
    record = run.finish(student, history)
    assert {"hard", "soft", "patience", "loss", "held_out"} <= set(record.curve)
    assert record.study["variants"]["paper"]["patience"] == pytest.approx(
        record.study["variants"]["as run"]["patience"] * 32, rel=0.5)  # one layer of width 32, summed
    assert [a.kind for a in record.artefacts] == ["teacher", "teacher-answers"]


@pytest.mark.parametrize("kind", ["roberta", "distilbert", "electra"])
def test_other_encoders(places, kind):
    """Any encoder whose layers stand in a list: the loss falls on the batch that it is trained on."""
    run = start("pkd", Config, places, kind=kind)
    student = kd.student(run)
    assert len(layers.encoder_layers(student)) == 2
    source = teacher_cache.cached(run, tiny.classifier(kind, seed=1), True)
    loss, batch = pkd.loss_of(run.p, source, pkd.plan(run.p)), run.train.batch(np.arange(8))
    optimizer = torch.optim.SGD(student.eval().parameters(), lr=0.01)
    values = []
    for _ in range(3):
        found = loss(student, batch, None)
        values.append(found.value.item())
        optimizer.zero_grad()
        found.value.backward()
        optimizer.step()
    assert values[0] > values[1] > values[2]


def test_patience_draws_the_states_together(places):
    """A student trained by the patience term alone comes closer to the teacher's states on rows it has not seen."""
    run = start("pkd", Config, places, alpha=0.0, beta=1000.0, epochs=6, lr=3e-3)
    teacher = tiny.classifier(seed=5)
    batch = run.sets["scored"].batch(np.arange(10))
    loss = pkd.loss_of(run.p, teacher_cache.live(teacher, True), pkd.plan(run.p))
    before = loss(kd.student(run).eval(), batch, None).logs["patience"]
    student, history = pkd.compress(run, teacher)
    assert history.curve["patience"][-1][1] < 0.8 * history.curve["patience"][0][1]
    assert loss(student.eval(), batch, None).logs["patience"] < 0.8 * before


def test_another_width_and_depth_are_refused_from_the_configuration_alone(tmp_path):
    narrow = str(tiny.save_encoder(tmp_path / "narrow"))
    wide = str(tiny.save_encoder(tmp_path / "wide", layers=6, hidden_size=64))
    with pytest.raises(InputError, match="width 32 cannot learn states from teacher .*wide of width 64; allowed: "):
        pkd.plan(Config(backbone=narrow, teacher=wide))
    with pytest.raises(InputError, match="layers: 1 layers cannot learn patiently from 4; allowed: 2 to 3"):
        pkd.plan(Config(backbone=narrow, layers=1))
    deep = str(tiny.save_encoder(tmp_path / "deep", layers=8))
    assert pkd.plan(Config(backbone=narrow, teacher=deep, layers=3)) == [2, 5]


@pytest.mark.parametrize(("values", "says"), [
    ({"beta": -1}, "parameter beta: -1"), ({"mapping": "first"}, "parameter mapping: 'first'"),
    ({"normalise": 1}, "parameter normalise: 1 "), ({"layers": -1}, "parameter layers: -1"),
])  # fmt: skip
def test_bad_parameters_are_one_line(values, says):
    with pytest.raises(InputError, match=says):
        parameters.validate(Config, values)
