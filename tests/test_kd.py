"""Vanilla KD against the formula in NumPy, and as a whole on made-up rows."""

import numpy as np
import pytest
import tiny
import torch
from method_runs import start, without_dropout
from transformers import AutoModelForSequenceClassification

from lib import batches, layers, models, parameters, teacher_cache, training
from lib.errors import InputError
from lib.methods import kd, truncated
from lib.methods.kd import Config, mixed, soft_loss

RNG = np.random.default_rng(0)


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def oracle(student, teacher, temperature):
    """T^2 * mean over rows of sum over classes p (log p - log q)."""
    p, q = softmax(teacher / temperature), softmax(student / temperature)
    return temperature**2 * (p * (np.log(p) - np.log(q))).sum(-1).mean()


@pytest.mark.parametrize("temperature", [1.0, 2.0, 20.0])
@pytest.mark.parametrize("classes", [2, 3, 6])
def test_soft_loss_and_its_gradient(temperature, classes):
    student, teacher = RNG.normal(0, 3, (5, classes)), RNG.normal(0, 3, (5, classes))
    z = torch.tensor(student, dtype=torch.float32, requires_grad=True)
    value = soft_loss(z, torch.tensor(teacher), temperature)
    value.backward()
    assert value.item() == pytest.approx(oracle(student, teacher, temperature), rel=1e-4)
    gradient = temperature * (softmax(student / temperature) - softmax(teacher / temperature)) / 5
    np.testing.assert_allclose(z.grad.numpy(), gradient, atol=1e-5)
    # the code's mean over classes too: as many times smaller as there are classes
    both = soft_loss(torch.tensor(student), torch.tensor(teacher), temperature, over_classes=True)
    assert both.item() == pytest.approx(oracle(student, teacher, temperature) / classes, rel=1e-4)


def test_soft_loss_by_hand():
    """Student undecided, teacher 1/4 to 3/4 at T = 2: 4 (1/4 ln 1/2 + 3/4 ln 3/2) = 0.52325. Not its reverse."""
    student, teacher = torch.zeros(1, 2), torch.tensor([[0.0, 2 * np.log(3)]], dtype=torch.float32)
    assert soft_loss(student, teacher, 2.0).item() == pytest.approx(0.523248, abs=1e-5)
    assert soft_loss(teacher, student, 2.0).item() == pytest.approx(0.575364, abs=1e-5)  # 4 * 1/2 ln(4/3)


def test_gradient_size_does_not_depend_on_the_temperature():
    """What T^2 is for: at large T the gradient tends to (z_S - z_T) / classes, for centred logits."""
    student, teacher = torch.tensor([[1.0, -1.0]], requires_grad=True), torch.tensor([[-1.0, 1.0]])
    for temperature in (50.0, 500.0):
        (g,) = torch.autograd.grad(soft_loss(student, teacher, temperature), student)
        np.testing.assert_allclose(g.numpy(), [[1.0, -1.0]], atol=2e-3)


def test_mixture_weights_and_logs():
    student, teacher, labels = torch.randn(4, 3), torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    hard = -np.log(softmax(student.numpy())[range(4), labels]).mean()
    soft = oracle(student.numpy(), teacher.numpy(), 10.0)
    for alpha in (0.0, 0.3, 1.0):
        loss = mixed(student, teacher, labels, Config(alpha=alpha))
        assert loss.value.item() == pytest.approx((1 - alpha) * hard + alpha * soft, rel=1e-4)
        assert loss.logs == pytest.approx({"hard": hard, "soft": soft}, rel=1e-4)
    code = mixed(student, teacher, labels, Config(alpha=1.0, variant="code-lr2"))
    assert code.value.item() == pytest.approx(soft / 3, rel=1e-4)


def test_regression_distils_the_teachers_output():
    student, teacher, labels = torch.randn(4, 1), torch.randn(4, 1), torch.randn(4)
    to_labels = ((student[:, 0] - labels) ** 2).mean()
    to_teacher = ((student - teacher) ** 2).mean()
    for variant in ("", "code"):
        loss = mixed(student, teacher, labels, Config(alpha=0.3, temperature=7.0, variant=variant))
        torch.testing.assert_close(loss.value, 0.7 * to_labels + 0.3 * to_teacher)


def test_gradient_by_finite_differences_on_a_tiny_model():
    model, teacher = tiny.classifier(layers=2).double(), tiny.classifier(seed=1)
    data = batches.Encoded({"input_ids": [[2, 7, 9, 3], [2, 11, 3]], "attention_mask": [[1] * 4, [1] * 3]},
                           np.array([1, 0]), np.array([4, 3]), np.arange(2), {})
    batch, loss = data.batch(np.arange(2)), kd.loss_of(Config(temperature=3.0), teacher_cache.live(teacher))
    weight = layers.encoder_layers(model)[0].output.dense.weight
    model.requires_grad_(False)
    weight.requires_grad_(True)
    loss(model, batch, None).value.backward()
    for place in ((0, 0), (5, 17), (15, 31)):
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                weight[place] += sign * 1e-3
                values.append(loss(model, batch, None).value.item())
                weight[place] -= sign * 1e-3
        assert weight.grad[place].item() == pytest.approx((values[0] - values[1]) / 2e-3, abs=3e-4, rel=2e-3)


def test_padding_does_not_enter():
    model, teacher = tiny.classifier(layers=2), tiny.classifier(seed=1)
    batch = {"input_ids": torch.tensor([[2, 7, 9, 3]]), "attention_mask": torch.ones(1, 4, dtype=torch.long),
             "labels": torch.tensor([1])}
    padded = {"input_ids": torch.tensor([[2, 7, 9, 3, 0, 0]]), "attention_mask": torch.tensor([[1, 1, 1, 1, 0, 0]]),
              "labels": torch.tensor([1])}
    loss = kd.loss_of(Config(), teacher_cache.live(teacher))
    torch.testing.assert_close(loss(model, batch, None).value, loss(model, padded, None).value)


def test_accumulation_changes_nothing(places):
    """(batch 8, accumulation 1) equals (3, 3 micro-batches of 3, 3, 2 rows): one golden list of losses."""
    run, teacher = start("kd", Config, places), tiny.classifier(seed=1)
    curves = []
    for variant in ("", "code"):
        for size, accumulation in ((9, 1), (3, 3)):
            q = run.with_parameters(batch_size=size, accumulation=accumulation, variant=variant)
            student = without_dropout(kd.student(q))
            history = training.train(student, kd.loss_of(q.p, teacher_cache.live(teacher)), q.train, q.settings())
            curves.append([v for _, v in history.curve["loss"]])
        np.testing.assert_allclose(curves[-2], curves[-1], rtol=2e-3)
    assert not np.allclose(curves[0], curves[-1], rtol=2e-2)


@pytest.mark.parametrize("regression", [False, True])
def test_a_whole_run(places, regression):
    """Student from the backbone's lowest layers, teacher untouched, losses in the record, an ordinary folder left."""
    run = start("kd", Config, places, regression=regression)
    first, backbone = kd.student(run), run.backbone()
    for i in range(2):
        for a, b in zip(layers.encoder_layers(first)[i].parameters(), layers.encoder_layers(backbone)[i].parameters(),
                        strict=True):
            assert torch.equal(a, b)
    same = layers.cut(backbone, [0, 1]).state_dict()
    assert all(torch.equal(v, same[k]) for k, v in first.state_dict().items())
    teacher = run.teacher().model
    before = teacher_cache.teacher_hash(teacher)
    student, history = run.compress(kd.compress)
    record = run.finish(student, history)
    assert teacher_cache.teacher_hash(teacher) == before
    assert record.layers == 2
    assert record.paper == "pkd"
    assert [a.kind for a in record.artefacts] == ["teacher", "teacher-answers"]
    hard, soft, loss = (dict(map(tuple, record.curve[k])) for k in ("hard", "soft", "loss"))
    assert loss == pytest.approx({s: 0.5 * hard[s] + 0.5 * soft[s] for s in loss}, rel=1e-4)
    again = AutoModelForSequenceClassification.from_pretrained(run.output).eval()
    batch = run.sets["scored"].batch(np.arange(5))
    inputs = {k: batch[k] for k in layers.INPUTS}
    torch.testing.assert_close(again(**inputs).logits, student(**inputs).logits, atol=1e-5, rtol=1e-4)


def test_the_same_start_as_truncated_fine_tuning(places):
    """With alpha = 0 the method is truncated fine-tuning, number by number."""
    run = start("kd", Config, places, alpha=0.0)
    student, history = kd.compress(run, tiny.classifier(seed=1))
    plain = start("truncated", truncated.Config, places)
    other, other_history = truncated.compress(plain)
    np.testing.assert_allclose(history.curve["loss"], other_history.curve["loss"], rtol=1e-5)
    for (k, a), b in zip(student.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, msg=k)


def test_small_runs_beside_each_other(places):
    run = start("kd", Config, places, comparison_tokens=150)
    table = kd.compare(run, tiny.classifier(seed=1))
    assert list(table) == ["paper", "code", "labels only", "teacher only", "T = 1"]
    row = table["labels only"]
    assert row["loss"] == pytest.approx(row["hard"], rel=1e-5)
    assert table["code"]["soft"] == pytest.approx(table["paper"]["soft"] / 2, rel=0.2)
    assert run.artefacts == []  # they belong to no record


@pytest.mark.parametrize(("values", "says"), [
    ({"alpha": 1.5}, "parameter alpha: 1.5"), ({"alpha": -0.1}, "parameter alpha: -0.1"),
    ({"temperature": 0}, "parameter temperature: 0"), ({"cache": "perhaps"}, "parameter cache: 'perhaps'"),
    ({"temprature": 3}, "did you mean 'temperature'"),
])  # fmt: skip
def test_bad_parameters_are_one_line(values, says):
    with pytest.raises(InputError, match=says):
        parameters.validate(Config, values)


@pytest.mark.parametrize("count", [4, 9])
def test_a_student_that_is_not_smaller_is_refused_before_training(tmp_path, count):
    name = str(tiny.save_encoder(tmp_path / "b", layers=4))
    assert models.depth(name) == 4
    with pytest.raises(InputError, match=f"layers: {count} is not between 1 and 3"):
        kd.student_depth(Config(backbone=name, layers=count))
