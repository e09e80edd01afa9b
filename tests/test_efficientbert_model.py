"""EfficientBERT's student: counts at the paper's shapes, expressions, padding, saving."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy.special import erf
from transformers import AutoModelForSequenceClassification

from lib import fast, layers
from lib.methods import efficientbert_model as eb

SMALL = {"vocab_size": 40, "embedding_size": 6, "hidden_size": 12, "num_hidden_layers": 6, "num_attention_heads": 2,
         "max_position_embeddings": 20, "num_labels": 3}


def small(**changes):
    torch.manual_seed(0)
    config = eb.EfficientBertConfig(**{**SMALL, **changes})
    config._attn_implementation = fast.ATTENTION
    return fast.install(eb.EfficientBertForSequenceClassification(config)).eval()


def inputs(pad=0, width=9):
    ids = torch.randint(5, 40, (2, width), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    return {"input_ids": torch.where(mask.bool(), ids, pad), "attention_mask": mask}


def counted(shape):
    with torch.device("meta"):
        encoder = eb.EfficientBertModel(eb.config(shape), add_pooling_layer=False)
    ffns = sum(p.numel() for layer in encoder.layers for p in layer.ffns.parameters())
    return sum(p.numel() for p in encoder.parameters()), ffns


@pytest.mark.parametrize(("shape", "printed"), [("base", 15.74), ("tiny", 9.4), ("plusplus", 16.0),
                                                ("plusplus-released", 14.2)])
def test_parameters_with_projection(shape, printed):
    projection = eb.config(shape).hidden_size * 768 + 768
    decimals = 2 if shape == "base" else 1
    assert round((counted(shape)[0] + projection) / 1e6, decimals) == printed


def test_released_counts():
    total, ffns = counted("base")
    assert ffns == 3_911_040
    assert round(total / 1e6, 2) == 15.32
    assert [tuple(e) for e in eb.config().ffns] == list(eb.RELEASED)
    assert eb.config("plusplus").ffns[2:4] == [list(eb.RELEASED[1])] * 2


@pytest.mark.parametrize(("layers", "numbers"), [
    (1, [6]), (2, [3, 6]), (3, [2, 4, 6]), (4, [1, 3, 4, 6]), (6, [1, 2, 3, 4, 5, 6]), (8, [1, 1, 2, 3, 4, 4, 5, 6]),
    (12, [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6])])
def test_released_parts_stand_at_their_relative_depth(layers, numbers):
    """Fewer layers than six: by the map of the distillation, the l-th takes the l * 6 / layers-th."""
    assert [i + 1 for i in eb.taken(6, layers)] == numbers
    assert eb.spread(eb.RELEASED, layers) == [list(eb.RELEASED[n - 1]) for n in numbers]


# f in NumPy, written out by hand from table 11.5
def gelu(x):
    return x * 0.5 * (1 + erf(x / np.sqrt(2)))


ORACLES = [
    lambda x, w1, w2: np.tanh(w2(gelu(w1(x)))),
    lambda x, w1, w2: np.where((y := w2(gelu(w1(x)))) > 0, y, np.exp(np.minimum(y, 0)) - 1),
    lambda x, w1, w2: 1 / (1 + np.exp(-w2(np.maximum(w1(x), 0)))),
    lambda x, w1, w2: w2(gelu(w1(np.maximum(x, np.tanh(x))))),
    lambda x, w1, w2: w2(np.maximum(w1(x) * x[..., :w1(x).shape[-1]], 0)),
    lambda x, w1, w2: np.where((y := w2(gelu(w1(x)))) > 0, y, 0.01 * y),
]


@pytest.mark.parametrize("i", range(6))
def test_stacked_parts_are_the_formula(i):
    model = small()
    layer = model.efficientbert.layers[i]
    for p in layer.ffns.parameters():
        torch.nn.init.normal_(p, std=0.5)
    x = torch.randn(2, 4, 12)
    found = x
    for ffn in layer.ffns:
        found = ffn(found)
    expected = x.numpy().astype(float)
    s, d, _ = eb.RELEASED[i]
    assert len(layer.ffns) == s
    for ffn in layer.ffns:
        w1, b1, w2, b2 = (v.detach().double().numpy() for v in (ffn.dense1.weight, ffn.dense1.bias, ffn.dense2.weight,
                                                                ffn.dense2.bias))
        assert w1.shape == (12 // d, 12)
        y = expected + ORACLES[i](expected, lambda v, w=w1, b=b1: v @ w.T + b, lambda v, w=w2, b=b2: v @ w.T + b)
        y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-12)
        expected = y * ffn.LayerNorm.weight.detach().numpy() + ffn.LayerNorm.bias.detach().numpy()
    np.testing.assert_allclose(found.detach().numpy(), expected, atol=2e-4)


@pytest.mark.parametrize(("text", "inner", "expected"), [
    ("W2(add(W1(x), x))", 2, [[1 + 1, 2 + 2]]), ("W2(mul(x, W1(x)))", 2, [[1, 4]]),
    ("W2(add(W1(x), x))", 6, [[2, 4, 6, 8, 1, 2]]), ("W2(mul(x, W1(x)))", 6, [[1, 4, 9, 16, 1, 2]]),
    ("W2(max(W1(x), x))", 6, [[1, 2, 3, 4, 1, 2]]),
])
def test_unlike_widths_are_cut_or_filled(text, inner, expected):
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    found = {}

    def w1(v):
        return torch.cat([v, v], -1)[:, :inner]

    def w2(v):
        found["in"] = v
        return x

    eb.evaluate(eb.parse(text), x, w1, w2)
    assert found["in"].tolist() == expected


def test_embeddings_are_the_three_gram():
    model = small()
    e = model.efficientbert.embeddings
    ids = inputs()["input_ids"][:1]
    w = e.word_embeddings.weight.detach().numpy()
    row = np.concatenate([w[ids[0].numpy()], np.zeros((1, 6))])
    joined = np.stack([np.concatenate([row[t + 1], row[t], row[t - 1] if t else np.zeros(6)]) for t in range(9)])
    y = joined @ e.transform.weight.detach().numpy().T + e.transform.bias.detach().numpy()
    y = y + e.position_embeddings.weight.detach().numpy()[:9] + e.token_type_embeddings.weight.detach().numpy()[0]
    y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-12)
    np.testing.assert_allclose(e(ids)[0].detach().numpy(), y, atol=1e-4)


@pytest.mark.parametrize("pad", [0, 1])
def test_padding_changes_nothing(pad):
    model = small(pad_token_id=pad)
    batch = inputs(pad)
    assert not model.efficientbert.embeddings.word_embeddings.weight[pad].any()
    alone = {k: v[1:, :5] for k, v in batch.items()}
    a, b = model(**batch), model(**alone)
    torch.testing.assert_close(a.logits[1:], b.logits)
    longer = {k: torch.nn.functional.pad(v, (0, 4), value=pad if k == "input_ids" else 0) for k, v in batch.items()}
    torch.testing.assert_close(model(**longer).logits, a.logits)


def test_padding_holds_after_training_and_what_it_rests_on():
    """The last real token looks at the padding's vector: equality holds because that stays zero, and only then."""
    model = small().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(3):
        model(**inputs(), labels=torch.tensor([0, 2])).loss.backward()
        optimizer.step()
    table = model.eval().efficientbert.embeddings.word_embeddings.weight
    assert not table[0].any()
    batch = inputs()
    alone = {k: v[1:, :5] for k, v in batch.items()}
    torch.testing.assert_close(model(**batch).logits[1:], model(**alone).logits)
    with torch.no_grad():
        table[0] = 1.0
    padded = model.efficientbert.embeddings(batch["input_ids"])[1:, :5]
    bare = model.efficientbert.embeddings(alone["input_ids"])
    torch.testing.assert_close(padded[:, :4], bare[:, :4])
    assert (padded[:, 4] - bare[:, 4]).abs().max() > 0.01


def test_attention_implementations_agree():
    model = small()
    batch, found = inputs(), []
    for name in ("eager", "sdpa", fast.ATTENTION):
        model.set_attn_implementation(name)
        found.append(model(**batch).logits)
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[0], found[2])


def test_every_parameter_learns():
    model = small().train()
    model(**inputs(), labels=torch.tensor([0, 2])).loss.backward()
    assert not [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]


def test_saved_student_opens_here_and_elsewhere(tmp_path):
    model = small()
    model.save_pretrained(tmp_path / "student")
    again, report = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "student", output_loading_info=True, trust_remote_code=False)
    assert type(again) is eb.EfficientBertForSequenceClassification
    assert not any(report[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert torch.equal(again(**inputs()).logits, model(**inputs()).logits)
    assert again.config.ffns == model.config.ffns
    # without this repository: only what lies in the folder
    code = """
import json, sys, torch
from transformers import AutoModelForSequenceClassification
m = AutoModelForSequenceClassification.from_pretrained(sys.argv[1], trust_remote_code=True)
assert not [n for n in sys.modules if n == "lib" or n.startswith("lib.")]
batch = {k: torch.tensor(v) for k, v in json.loads(sys.argv[2]).items()}
print("LOGITS", json.dumps(m.eval()(**batch).logits.tolist()))
"""
    batch = json.dumps({k: v.tolist() for k, v in inputs().items()})
    out = subprocess.run([sys.executable, "-c", code, str(tmp_path / "student"), batch], cwd=tmp_path, text=True,
                         capture_output=True, check=True,
                         env=os.environ | {"HF_MODULES_CACHE": str(tmp_path / "modules")})
    line = next(line for line in out.stdout.splitlines() if line.startswith("LOGITS"))
    np.testing.assert_allclose(json.loads(line[7:]), model(**inputs()).logits.detach().numpy(), atol=1e-6)


def test_layers_stand_in_one_list():
    model = small(num_hidden_layers=4, ffns=[[4, 1, eb.PLAIN]] * 4)  # stacks as deep as the encoder
    assert layers.encoder_layers(model) is model.efficientbert.layers
    assert torch.equal(layers.classify(model, inputs()), model(**inputs()).logits)
    states = model(**inputs(), output_hidden_states=True).hidden_states
    assert len(states) == 5


@pytest.mark.parametrize(("text", "wrong"), [
    ("W2(gelu(W1(y)))", "'y'"), ("softmax(x)", "softmax"), ("gelu(x, x)", "gelu"), ("add(x)", "add"),
    ("x +", "cannot be read"), ("__import__('os')", "__import__"), ("x.y", "x.y")])
def test_bad_expressions_are_named(text, wrong):
    with pytest.raises(ValueError, match="expression") as e:
        eb.parse(text)
    assert wrong in str(e.value)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(("changes", "wrong"), [
    ({"ffns": [[1, 1, "W1(gelu(W2(x)))"]] * 6}, "W1"), ({"ffns": [[1, 1, "gelu(x)"]] * 6}, "exactly once"),
    ({"ffns": [[1, 1, "W2(W1(add(x, W1(x))))"]] * 6}, "exactly once"), ({"ffns": [[0, 1, eb.PLAIN]] * 6}, "stacks 0"),
    ({"ffns": [[1, 13, eb.PLAIN]] * 6}, "d 13"), ({"ffns": [[1, 1, eb.PLAIN]]}, "1 entries for 6"),
    ({"num_attention_heads": 5}, "5 heads")])
def test_bad_configurations_are_named(changes, wrong):
    with pytest.raises(ValueError, match=wrong):
        eb.EfficientBertConfig(**{**SMALL, **changes})
