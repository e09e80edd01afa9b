"""TrimBERT's architecture: sizes, equality with BERT, the normalisation, padding, saving."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
)

from lib import fast, layers, models
from lib.methods import trimbert_model as tm

SMALL = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
CHANGES = {  # every way in which the architecture can differ from BERT
    "n2": {"intermediate_every": 2}, "ninf": {"intermediate_every": 0}, "bandd": {"bandd": True},
    "bandd-weights": {"bandd": True, "removed_dropout": "weights"}, "nomlpln": {"intermediate_layernorm": False},
    "no-gain": {"bandd": True, "head_gain": False}, "scaled": {"bandd": True, "scale_scores": True},
    "all": {"bandd": True, "intermediate_every": 2, "intermediate_layernorm": False},
    "control": {"attention_layernorm": False},
}


def build(attention="eager", cls=tm.TrimBertForSequenceClassification, seed=0, **changes):
    torch.manual_seed(seed)
    config = tm.TrimBertConfig(**SMALL, **changes)
    config._attn_implementation = attention
    model = cls(config).eval()
    for module in model.modules():  # gain 1 and bias 0 would hide that they are used
        if isinstance(module, tm.NormalisedSelfAttention) and module.gain is not None:
            with torch.no_grad():
                module.gain.uniform_(0.5, 2)
                module.bias.uniform_(-0.5, 0.5)
    return model


def inputs(rows=2, width=7, padded=3):
    ids = torch.randint(5, 50, (rows, width), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, width - padded:] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("change", [{"attention_layernorm": False}, {"intermediate_layernorm": False}])
def test_a_missing_layernorm_changes_little_at_the_start_and_much_where_weights_are_large(change):
    """Why the notebook's control ends alike after few steps: the networks differ, their first outputs hardly."""
    def difference(deviation):
        with_all, without = (build(cls=tm.TrimBertModel, initializer_range=deviation, **c)(**inputs()).last_hidden_state
                             for c in ({}, change))
        return (with_all - without).abs().mean().item()

    assert 0 < difference(0.02) < 0.01
    assert difference(0.5) > 0.1


@pytest.mark.parametrize(("every", "millions"), [(1, 109.5), (2, 81.1), (3, 71.7), (4, 67.0), (6, 62.2), (0, 52.8)])
def test_sizes_at_the_papers_shape(every, millions):
    """methods.md 12.1, with pooler: 23.8M embeddings, 2.36M an attention block, 4.72M an intermediate block."""
    with torch.device("meta"):
        model = tm.TrimBertModel(tm.TrimBertConfig(intermediate_every=every))
    total, _ = models.count_parameters(model)
    by_hand = 23_837_184 + 590_592 + 12 * (4 * 590_592 + 1536) + (12 // every if every else 0) * 4_723_968
    assert total == by_hand
    assert round(total / 1e6, 1) == millions
    with torch.device("meta"):
        other = tm.TrimBertModel(tm.TrimBertConfig(intermediate_every=every, bandd=True, intermediate_layernorm=False))
    blocks = 12 // every if every else 0
    assert models.count_parameters(other)[0] == total + 12 * 24 - blocks * 1536  # a gain and a bias a head; 0.00%


@pytest.mark.parametrize("attention", ["eager", "sdpa", fast.ATTENTION])
@pytest.mark.parametrize(("theirs", "ours"), [(BertForSequenceClassification, tm.TrimBertForSequenceClassification),
                                              (BertForMaskedLM, tm.TrimBertForMaskedLM)])
def test_n1_is_bert(theirs, ours, attention):
    torch.manual_seed(0)
    bert = theirs(BertConfig(**SMALL)).eval()
    model = build(attention, ours)
    model.load_state_dict(bert.state_dict())  # strict: the names are BERT's
    seen = inputs()["attention_mask"].bool()
    with torch.no_grad():
        a, b = bert(**inputs()).logits, model(**inputs()).logits
    if a.ndim == 3:
        a, b = a[seen], b[seen]
    torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


@pytest.mark.parametrize("every", [1, 2, 3, 0])
def test_intermediate_blocks_stand_after_every_nth(every):
    names = set(build(intermediate_every=every).state_dict())
    has = [f"bert.encoder.layer.{i}.intermediate.dense.weight" in names for i in range(3)]
    assert has == {1: [True] * 3, 2: [False, True, False], 3: [False, False, True], 0: [False] * 3}[every]


def oracle(q, k, mask, gain, bias, eps=1e-3):
    """Section 12.2 in loops over examples, heads and queries. q, k: (B, h, T, d); mask: (B, T)."""
    b, h, t, _ = q.shape
    w = np.zeros((b, h, t, t))
    for e in range(b):
        keys = np.flatnonzero(mask[e])
        for a in range(h):
            for i in range(t):
                x = np.array([q[e, a, i] @ k[e, a, j] for j in keys])
                for j, value in zip(keys, x, strict=True):
                    sigma = np.sqrt(((x - x.mean()) ** 2).mean())
                    w[e, a, i, j] = gain[a] * (value - x.mean()) / (sigma + eps) + bias[a]
    return w


@pytest.mark.parametrize("additive", [False, True])
def test_normalised_attention_against_numpy(additive):
    layer = build(bandd=True).bert.encoder.layer[0].attention.self
    rng = np.random.default_rng(0)
    hidden = torch.tensor(rng.normal(size=(2, 6, 16)), dtype=torch.float32)
    mask = np.array([[1] * 6, [1, 1, 0, 1, 0, 0]])
    seen = torch.tensor(mask, dtype=torch.bool)[:, None, None].expand(2, 1, 6, 6)
    given = torch.zeros(2, 1, 6, 6).masked_fill(~seen, -1e4) if additive else seen
    context, weights = layer(hidden, given)

    def heads(linear):
        x = hidden.numpy().astype(np.float64) @ linear.weight.detach().numpy().T + linear.bias.detach().numpy()
        return x.reshape(2, 6, 2, 8).transpose(0, 2, 1, 3)

    w = oracle(heads(layer.query), heads(layer.key), mask, layer.gain.detach().numpy(), layer.bias.detach().numpy())
    np.testing.assert_allclose(weights.detach().numpy(), w, atol=2e-4)
    expected = (w @ heads(layer.value)).transpose(0, 2, 1, 3).reshape(2, 6, 16)
    np.testing.assert_allclose(context.detach().numpy(), expected, atol=2e-4)


def test_properties_of_the_weights():
    scores = torch.randn(2, 2, 5, 9, generator=torch.Generator().manual_seed(0)) * 3
    seen = torch.ones(2, 1, 5, 9, dtype=torch.bool)
    seen[1, :, :, 6:] = False
    w = tm.normalise(scores, seen, torch.ones(2), torch.zeros(2), 1e-3)
    torch.testing.assert_close(w.sum(-1), torch.zeros(2, 2, 5), atol=1e-5, rtol=0)  # not 1: no softmax
    assert (w < 0).any()
    assert not w[1, :, :, 6:].any()
    b = tm.normalise(scores, seen, torch.ones(2), torch.full((2,), 0.5), 1e-3)
    assert not b[1, :, :, 6:].any()  # the bias reaches seen keys alone
    torch.testing.assert_close(tm.normalise(scores, None, None, None, 1e-3),
                               tm.normalise(scores, torch.ones_like(seen), None, None, 1e-3), atol=1e-6, rtol=0)
    # what lies under the mask plays no part, however large
    hidden = scores.masked_fill(~seen, 1e4)
    torch.testing.assert_close(tm.normalise(hidden, seen, torch.ones(2), torch.zeros(2), 1e-3), w)
    torch.testing.assert_close(tm.normalise(scores * 100, seen, None, None, 0.0),  # scale is removed
                               tm.normalise(scores, seen, None, None, 0.0), atol=1e-4, rtol=1e-4)
    # eps is added to the deviation: for a deviation of 1e-3 it halves the weights
    flat = torch.tensor([[[[-1e-3, 1e-3]]]])
    torch.testing.assert_close(tm.normalise(flat, None, None, None, 1e-3), torch.tensor([[[[-0.5, 0.5]]]]))


def test_equal_scores_have_a_gradient_and_bf16_statistics_are_fp32():
    scores = torch.full((1, 1, 2, 4), 2.0, requires_grad=True)
    tm.normalise(scores, None, torch.ones(1), torch.zeros(1), 1e-3).sum().backward()
    assert torch.isfinite(scores.grad).all()
    half = torch.randn(1, 1, 3, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    w = tm.normalise(half, None, None, None, 1e-3)
    assert w.dtype == torch.float32
    torch.testing.assert_close(w, tm.normalise(half.float(), None, None, None, 1e-3))


@pytest.mark.parametrize("attention", ["eager", fast.ATTENTION])
@pytest.mark.parametrize("name", CHANGES)
def test_padding_changes_nothing(name, attention):
    model = build(attention, **CHANGES[name])
    batch = inputs()
    alone = {k: v[1:, :4] for k, v in batch.items()}
    torch.testing.assert_close(model(**batch).logits[1:], model(**alone).logits, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", CHANGES)
def test_save_and_reload(name, tmp_path):
    model = build(fast.ATTENTION, **CHANGES[name])
    model.save_pretrained(tmp_path)
    assert (tmp_path / "trimbert_model.py").exists()
    again, info = AutoModelForSequenceClassification.from_pretrained(
        tmp_path, trust_remote_code=False, attn_implementation=fast.ATTENTION, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert torch.equal(model(**inputs()).logits, again.eval()(**inputs()).logits)


def test_new_parts_of_a_loaded_model_are_initialised(tmp_path):
    """The masked-word model out of a classifier: its head is new, gains and biases come along."""
    model = build(bandd=True)
    model.save_pretrained(tmp_path)
    again = AutoModelForMaskedLM.from_pretrained(tmp_path)
    inner = again.bert.encoder.layer[1].attention.self
    assert torch.equal(inner.gain, model.bert.encoder.layer[1].attention.self.gain)
    fresh = tm.TrimBertForMaskedLM(tm.TrimBertConfig(**SMALL, bandd=True))
    assert torch.equal(fresh.bert.encoder.layer[0].attention.self.gain, torch.ones(2))
    small = tm.TrimBertForMaskedLM(tm.TrimBertConfig(**SMALL, bandd=True, gain_start=0.1))
    assert torch.equal(small.bert.encoder.layer[0].attention.self.gain, torch.full((2,), 0.1))
    assert not fresh.bert.encoder.layer[0].attention.self.bias.any()
    assert again.cls.predictions.decoder.weight is again.bert.embeddings.word_embeddings.weight


def test_a_saved_student_opens_without_this_repository(tmp_path):
    """In another process that knows nothing of the study, with the user's own consent to the modelling file."""
    model = build(bandd=True, intermediate_every=2)
    model.save_pretrained(tmp_path / "student")
    torch.save(model(**inputs()).logits.detach(), tmp_path / "logits.pt")
    torch.save(inputs(), tmp_path / "inputs.pt")
    code = (
        "import sys, torch\n"
        "from transformers import AutoModelForSequenceClassification as A\n"
        f"m = A.from_pretrained(r'{tmp_path / 'student'}', trust_remote_code=True, attn_implementation='eager')\n"
        "m.eval()\n"
        "assert not any(n == 'lib' or n.startswith('lib.') for n in sys.modules)\n"
        f"x = torch.load(r'{tmp_path / 'inputs.pt'}')\n"
        f"torch.testing.assert_close(m(**x).logits, torch.load(r'{tmp_path / 'logits.pt'}'), atol=1e-6, rtol=0)\n"
        "print('same')\n")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120,
                          env={"HF_MODULES_CACHE": str(tmp_path / "cache"), "PATH": "/usr/bin", "HF_HUB_OFFLINE": "1"})
    assert done.stdout.strip() == "same", done.stderr


def test_which_dropout_goes():
    def rates(**changes):
        layer = build(bandd=True, **changes).bert.encoder.layer[0]
        return [getattr(m, "p", 0.0) for m in (layer.attention.self.dropout, layer.attention.output.dropout,
                                               layer.output.dropout)]

    assert rates() == [0.1, 0.0, 0.1]
    assert rates(removed_dropout="weights") == [0.0, 0.1, 0.1]
    assert rates(removed_dropout="both") == [0.0, 0.0, 0.1]
    assert rates(removed_dropout="none") == [0.1, 0.1, 0.1]


@pytest.mark.parametrize("bad", [{"intermediate_every": -1}, {"removed_dropout": "all"}])
def test_bad_configuration(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        tm.TrimBertConfig(**bad)


def test_blocks_that_the_configuration_does_not_describe_are_not_saved(tmp_path):
    model = build(intermediate_every=2)  # of three blocks the second has one
    layers.cut(model, [0, 1]).save_pretrained(tmp_path / "lowest")
    with pytest.raises(ValueError, match=r"after \[1\] of 2"):
        layers.cut(model, [1, 2]).save_pretrained(tmp_path / "highest")
    assert not (tmp_path / "highest").exists()


def test_the_study_opens_a_student_whose_method_was_not_imported(tmp_path):
    model = build(intermediate_every=2, num_labels=2)
    model.save_pretrained(tmp_path / "student")
    code = ("import sys\nfrom lib import models\n"
            "assert 'lib.methods.trimbert_model' not in sys.modules\n"
            f"print(type(models._load(models.AutoConfig, r'{tmp_path / 'student'}', 'teacher', 'x')).__name__)\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "TrimBertConfig", done.stderr


def test_bf16_training_step_of_everything():
    """Under autocast the statistics stay float32, the outputs near fp32's, and every weight gets a finite gradient."""
    model = build(fast.ATTENTION, bandd=True, intermediate_every=2, intermediate_layernorm=False)
    whole = model(**inputs()).logits
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        weights = model.bert.encoder.layer[0].attention.self(torch.randn(2, 7, 16))[1]
    assert weights.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        half = model(**inputs()).logits
    torch.testing.assert_close(half.float(), whole, atol=0.05, rtol=0.05)
    half.float().square().sum().backward()
    grads = {n: p.grad for n, p in model.named_parameters()}
    assert all(g is not None and torch.isfinite(g).all() for g in grads.values())
    assert all(g.abs().sum() > 0 for n, g in grads.items() if n.endswith("self.gain"))
