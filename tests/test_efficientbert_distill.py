"""EfficientBERT's distillation: each part against NumPy, padding, what must be an error, slices of a supernet."""

import numpy as np
import pytest
import tiny
import torch
from safetensors.torch import load_file

from lib import fast, held_out, layers
from lib.errors import InputError
from lib.hidden import capture_hidden
from lib.methods import efficientbert_distill as distill
from lib.methods import efficientbert_model as eb
from lib.training import Step


def student_config(**changes):
    own = {"vocab_size": tiny.SIZE, "embedding_size": 6, "hidden_size": 16, "num_hidden_layers": 2,
           "num_attention_heads": 4, "max_position_embeddings": tiny.POSITIONS}
    return eb.EfficientBertConfig(**{**own, **changes})


def distiller(**changes):
    return distill.build(student_config(**changes), tiny.WIDTH, {"num_labels": 2}, 0).eval()


def batch(rows=4, classes=2):
    data = tiny.encoded(rows, classes=classes)
    return data.batch(np.arange(rows))


def arrays(*tensors):
    return [t.detach().double().numpy() for t in tensors]


def masked():
    g = torch.Generator().manual_seed(0)
    return torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]]), g


def test_state_loss():
    mask, g = masked()
    a, b = torch.randn(2, 4, 3, generator=g), torch.randn(2, 4, 3, generator=g)
    x, y, m = arrays(a, b, mask)
    expected = np.mean([((x[i, t] - y[i, t]) ** 2).mean() for i in range(2) for t in range(4) if m[i, t]])
    assert float(distill.state_loss(a, b, mask)) == pytest.approx(expected, rel=1e-6)
    a[0, 3], b[1, 2] = 99, -99
    assert float(distill.state_loss(a, b, mask)) == pytest.approx(expected, rel=1e-6)


def test_attention_loss():
    mask, g = masked()
    a, b = torch.randn(2, 3, 4, 4, generator=g), torch.randn(2, 3, 4, 4, generator=g)
    x, y, m = arrays(a, b, mask)
    expected = np.mean([(x[i, h, q, k] - y[i, h, q, k]) ** 2 for i in range(2) for h in range(3) for q in range(4)
                        for k in range(4) if m[i, q] and m[i, k]])
    assert float(distill.attention_loss(a, b, mask)) == pytest.approx(expected, rel=1e-6)
    a[0, :, 3], a[0, :, :, 3], b[1, :, :, 2:] = 99, 99, -99
    assert float(distill.attention_loss(a, b, mask)) == pytest.approx(expected, rel=1e-6)
    with pytest.raises(RuntimeError, match="attention scores"):
        distill.attention_loss(a, b[:, :1], mask)  # would broadcast


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_prediction_loss(temperature):
    g = torch.Generator().manual_seed(0)
    s, t = torch.randn(5, 3, generator=g), torch.randn(5, 3, generator=g)
    x, y = arrays(s, t)
    p = np.exp(y / temperature) / np.exp(y / temperature).sum(-1, keepdims=True)
    q = np.exp(x / temperature) / np.exp(x / temperature).sum(-1, keepdims=True)
    expected = -(p * np.log(q)).sum() / 15  # mean over batch and classes
    found = distill.prediction_loss(s, t, torch.zeros(5, dtype=torch.long), temperature)
    assert float(found) == pytest.approx(expected, rel=1e-5)
    labels = torch.randn(5, generator=g)
    regression = distill.prediction_loss(s[:, :1], t[:, :1], labels, temperature)
    assert float(regression) == pytest.approx(float(np.mean((x[:, 0] - labels.numpy()) ** 2)), rel=1e-5)


def test_parts_are_the_sums_over_layers():
    """From the models' own outputs: embedding, layers 2 and 4 of the teacher, scores by query and key."""
    d, teacher, b = distiller(), tiny.classifier(), batch()
    parts, ours, theirs = distill.losses(d, teacher, b)
    inputs = {k: b[k] for k in layers.INPUTS if k in b}
    mask = b["attention_mask"]
    t = teacher(**inputs, output_hidden_states=True).hidden_states
    s = d.student(**inputs, output_hidden_states=True).hidden_states
    torch.testing.assert_close(ours, d.student(**inputs).logits)
    torch.testing.assert_close(theirs, teacher(**inputs).logits)
    m = mask.bool().numpy()

    def mse(a, b):
        x, y = arrays(d.projection(a), b)
        return ((x - y)[m] ** 2).mean()

    def scores(attention, x):
        q, k = (f(x).view(*x.shape[:2], 4, -1).transpose(1, 2).detach().double().numpy()
                for f in (attention.query, attention.key))
        return q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])

    assert float(parts["embedding"]) == pytest.approx(mse(s[0], t[0]), rel=1e-5)
    assert float(parts["hidden"]) == pytest.approx(mse(s[1], t[2]) + mse(s[2], t[4]), rel=1e-5)
    expected = 0
    for i, j in ((0, 2), (1, 4)):
        ours = scores(d.encoder.layers[i].attention, s[i])
        theirs = scores(layers.encoder_layers(teacher)[j - 1].attention.self, t[j - 1])
        pairs = np.broadcast_to((m[:, None, :, None] & m[:, None, None, :]), ours.shape)
        expected += ((ours - theirs)[pairs] ** 2).mean()
    assert float(parts["attention"]) == pytest.approx(expected, rel=1e-4)


def test_padding_does_not_enter():
    d, teacher, b = distiller(), tiny.classifier(), batch()
    parts, _, _ = distill.losses(d, teacher, b)
    longer = {k: torch.nn.functional.pad(v, (0, 6)) if v.ndim == 2 else v for k, v in b.items()}
    again, _, _ = distill.losses(d, teacher, longer)
    for name in parts:
        torch.testing.assert_close(parts[name], again[name], msg=name)


def test_general_stage_computes_no_head():
    d, teacher, b = distiller(), tiny.classifier(dropout=0.1), batch()
    parts, ours, theirs = distill.losses(d, teacher, b, head=False)
    assert ours is None
    assert theirs is None
    whole, _, _ = distill.losses(d, teacher, b)
    for name in whole:
        torch.testing.assert_close(parts[name], whole[name])


@pytest.mark.parametrize("precise", [True, False])
def test_all_parts_teach_the_student_and_not_the_teacher(precise):
    d, teacher, b = distiller().train(), tiny.classifier(dropout=0.1), batch()
    before = tiny.state(teacher)
    with torch.autocast("cpu", torch.bfloat16, enabled=not precise):
        out = distill.task_loss(teacher)(d, b, Step(0, 1, 0, 0))
    out.value.backward()
    assert set(out.logs) == {"embedding", "attention", "hidden", "prediction"}
    assert all(v > 0 for v in out.logs.values())
    assert float(out.value) == pytest.approx(sum(out.logs.values()), rel=1e-5)
    assert not [n for n, p in d.named_parameters() if p.grad is None or not torch.isfinite(p.grad).all()]
    assert all(p.grad is None for p in teacher.parameters())
    assert tiny.same(before, tiny.state(teacher))


def test_the_teachers_dropout_is_off():
    """Two equal calls, the student in evaluation mode: all that could differ is the teacher."""
    d, teacher, b = distiller(), tiny.classifier(dropout=0.1), batch()
    for make in (distill.task_loss, distill.general_loss):
        one, two = (make(teacher)(d, b, Step(0, 1, 0, 0)).logs for _ in range(2))
        assert one == two
    teacher.train()  # Oracle: active dropout would show
    assert distill.task_loss(teacher)(d, b, Step(0, 1, 0, 0)).logs != distill.task_loss(teacher)(d, b, None).logs


def test_mean_loss_over_tokens():
    """In another order than its batches of 32 rows, against the losses of single rows; the dropout of a model in
    training is off, and nothing is trained."""
    data, teacher, d = tiny.encoded(40), tiny.classifier(dropout=0.1), distiller().train()
    before = tiny.state(d)
    loss = distill.general_loss(teacher)
    found = held_out.mean_loss(d, loss, data, "fp32")
    singles = [loss(d, data.batch(np.arange(i, i + 1)), None) for i in range(40)]
    tokens = np.array([s.weight for s in singles])
    for name in ("embedding", "hidden"):  # the attention's means are over pairs of tokens
        assert found[name] == pytest.approx(np.average([s.logs[name] for s in singles], weights=tokens), rel=1e-4)
    assert found["loss"] == pytest.approx(found["embedding"] + found["attention"] + found["hidden"], rel=1e-5)
    assert tiny.same(before, tiny.state(d))


def test_factors():
    d, teacher, b = distiller(), tiny.classifier(), batch()
    out = distill.task_loss(teacher, 2.0, 5.0)(d, b, Step(0, 1, 0, 0))
    assert float(out.value) == pytest.approx(2 * (out.logs["embedding"] + out.logs["attention"] + out.logs["hidden"])
                                             + 5 * out.logs["prediction"], rel=1e-5)


def test_a_missing_attention_loss_is_an_error():
    d, b = distiller(), batch()
    with pytest.raises(RuntimeError, match="0 of 4 of the teacher"):
        distill.losses(d, tiny.classifier(attention="sdpa"), b)
    with pytest.raises(InputError, match="sdpa"):
        distill.check_teacher(tiny.classifier(attention="sdpa"), student_config())
    teacher = tiny.classifier()
    with torch.no_grad():
        for module in [*d.encoder.layers, *layers.encoder_layers(teacher)]:
            inner = module.attention if hasattr(module.attention, "query") else module.attention.self
            inner.query.weight.zero_()
            inner.query.bias.zero_()
    with pytest.raises(RuntimeError, match="exactly 0"):
        distill.losses(d, teacher, b)


def test_other_heads_are_refused():
    with pytest.raises(InputError, match="heads: 2 of the student are not the teacher's 4"):
        distill.check_teacher(tiny.classifier(), student_config(num_attention_heads=2))
    distill.check_teacher(tiny.classifier(), student_config())
    with pytest.raises(RuntimeError, match="attention scores"):
        distill.losses(distiller(num_attention_heads=2), tiny.classifier(), batch())


def test_a_candidate_is_a_slice_of_the_supernet(tmp_path):
    whole = distiller(ffns=[[4, 1, eb.PLAIN]] * 2)
    whole.save(tmp_path / "supernet.safetensors")
    entries = [[2, 2, "tanh(W2(gelu(W1(x))))"], [1, 4, "W2(relu(mul(W1(x), x)))"]]
    candidate = distill.build(student_config(ffns=entries), tiny.WIDTH, {"num_labels": 3}, 1,
                              tmp_path / "supernet.safetensors")
    a, b = candidate.encoder.layers[0].ffns[1], whole.encoder.layers[0].ffns[1]
    assert torch.equal(a.dense1.weight, b.dense1.weight[:8])
    assert torch.equal(a.dense1.bias, b.dense1.bias[:8])
    assert torch.equal(a.dense2.weight, b.dense2.weight[:, :8])
    assert torch.equal(candidate.projection.weight, whole.projection.weight)
    assert candidate.student.classifier.out_features == 3
    fresh = distill.build(student_config(ffns=entries), tiny.WIDTH, {"num_labels": 3}, 1)
    assert torch.equal(candidate.encoder.pooler.weight, fresh.encoder.pooler.weight)  # of the seed, not of the supernet
    assert not torch.equal(candidate.encoder.pooler.weight, whole.encoder.pooler.weight)
    assert not [k for k in load_file(tmp_path / "supernet.safetensors") if "pooler" in k]


def test_a_path_of_the_supernet_is_the_sliced_candidate(tmp_path):
    """What stage 3 scores inside the supernet is what a student of these sizes would compute with its slices."""
    trees = ["tanh(W2(gelu(W1(x))))", "W2(relu(mul(W1(x), x)))"]
    whole = distiller(ffns=[[4, 1, t] for t in trees])
    for p in whole.parameters():
        torch.nn.init.normal_(p, std=0.2)
    whole.save(tmp_path / "supernet.safetensors")
    sizes = [(3, 2), (1, 3)]
    candidate = distill.build(student_config(ffns=[[s, d, t] for (s, d), t in zip(sizes, trees, strict=True)]),
                              tiny.WIDTH, {"num_labels": 2}, 0, tmp_path / "supernet.safetensors").eval()
    for layer, (s, d) in zip(whole.encoder.layers, sizes, strict=True):
        layer.path = (s, 16 // d)
    b = batch()
    with capture_hidden(whole.student) as a:
        whole.encoder(input_ids=b["input_ids"], attention_mask=b["attention_mask"])
    with capture_hidden(candidate.student) as c:
        candidate.encoder(input_ids=b["input_ids"], attention_mask=b["attention_mask"])
    torch.testing.assert_close(a[-1], c[-1])
    whole.encoder.layers[0].path = None
    with capture_hidden(whole.student) as full:
        whole.encoder(input_ids=b["input_ids"], attention_mask=b["attention_mask"])
    assert (full[-1] - c[-1]).abs().max() > 1e-3


def test_narrower_and_deeper_students_start_from_crops(tmp_path):
    """TINY and "++": leading slices of the wider model, each of its layers twice in a row."""
    wide = distiller(hidden_size=24, ffns=eb.RELEASED[:2])
    wide.save(tmp_path / "wide.safetensors")
    plus = distill.build(student_config(num_hidden_layers=4, ffns=eb.spread(eb.RELEASED[:2], 4)), tiny.WIDTH, {}, 0,
                         tmp_path / "wide.safetensors")
    for i in range(4):
        mine, theirs = plus.encoder.layers[i], wide.encoder.layers[i // 2]
        assert torch.equal(mine.attention.query.weight, theirs.attention.query.weight[:16, :16])
        assert torch.equal(mine.ffns[0].dense1.bias, theirs.ffns[0].dense1.bias[: len(mine.ffns[0].dense1.bias)])
    with pytest.raises(InputError, match="does not fit"):
        distill.build(student_config(hidden_size=32), tiny.WIDTH, {}, 0, tmp_path / "wide.safetensors")
    assert set(load_file(tmp_path / "wide.safetensors")) >= {"projection.weight", "encoder.embeddings.transform.weight"}


def test_students_have_the_studys_attention_and_dropout():
    d = distiller()
    assert d.student.config._attn_implementation == fast.ATTENTION
    assert all(type(m) is fast.Dropout for m in d.modules() if isinstance(m, torch.nn.Dropout))
