"""MobileBERT: losses against NumPy, padding and trigrams, the slower rate, stages, and the papers' shapes."""

import contextlib
import json

import numpy as np
import pytest
import tiny
import torch
from torch import nn
from transformers import (
    AutoModelForSequenceClassification,
    MobileBertConfig,
    MobileBertForMaskedLM,
    MobileBertModel,
)

from lib import fast, mlm, parameters, runs, training
from lib.batches import Encoded
from lib.checkpoint import Checkpoints
from lib.errors import InputError
from lib.methods import mobilebert, mobilebert_shapes, mobilebert_stages, mobilebert_studies
from lib.methods import mobilebert_losses as losses
from lib.methods import mobilebert_student as students
from lib.methods.ibbert_model import IBBertConfig, IBBertForMaskedLM

VOCABULARY, DEPTH = 60, 3


def config(cls=MobileBertConfig, **changes):
    c = cls(**{"vocab_size": VOCABULARY, "hidden_size": 16, "embedding_size": 8, "num_hidden_layers": DEPTH,
               "num_attention_heads": 2, "intra_bottleneck_size": 8 if cls is MobileBertConfig else 24,
               "intermediate_size": 32, "num_feedforward_networks": 2 if cls is MobileBertConfig else 1,
               "classifier_activation": False, "max_position_embeddings": 40, **changes})
    c._attn_implementation = fast.ATTENTION
    return c


def student(seed=0, **changes):
    torch.manual_seed(seed)
    return fast.install(MobileBertForMaskedLM(config(**changes))).eval()


def teacher(seed=1):
    """Away from its initial state, so that its blocks and its attention have something to say."""
    torch.manual_seed(seed)
    model = fast.install(IBBertForMaskedLM(config(IBBertConfig))).eval().requires_grad_(False)
    for p in model.parameters():
        p.data += 0.2 * torch.randn_like(p)
    model.get_input_embeddings().weight.data[0] = 0
    return model


def batch(rows=4, length=9, seed=2):
    g = torch.Generator().manual_seed(seed)
    mask = (torch.arange(length)[None] < torch.tensor([length, 5, 7, 3])[:rows, None]).long()
    return {"input_ids": torch.randint(5, VOCABULARY, (rows, length), generator=g) * mask, "attention_mask": mask}


class Tokenizer:
    mask_token_id, all_special_ids, pad_token_id = 4, [0, 1, 2, 3, 4], 0

    def get_vocab(self):
        return {f"w{i}": i for i in range(VOCABULARY)}


def text(rows=24, seed=3):
    g = np.random.default_rng(seed)
    sequences = [[2, *g.integers(5, VOCABULARY, g.integers(4, 12)).tolist(), 3] for _ in range(rows)]
    return Encoded({"input_ids": sequences, "attention_mask": [[1] * len(s) for s in sequences]},
                   np.zeros(rows, dtype=np.int64), np.array([len(s) for s in sequences]), np.arange(rows),
                   {"input_ids": 0})


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


# Losses -----------------------------------------------------------------------------------------------------


def test_feature_transfer_against_numpy():
    s, t, mask = torch.randn(4, 9, 16), torch.randn(4, 9, 16), batch()["attention_mask"]
    a, b, real = s.double().numpy(), t.double().numpy(), mask.bool().numpy()
    pairs = [(a[i, j], b[i, j]) for i in range(4) for j in range(9) if real[i, j]]
    wanted = np.mean([(x - y) ** 2 for x, y in pairs])
    assert float(losses.feature_transfer(s, t, mask)) == pytest.approx(wanted, rel=1e-5)

    def normal(x):
        return (x - x.mean()) / np.sqrt(x.var())

    wanted = (100 * np.mean([(normal(x) - normal(y)) ** 2 for x, y in pairs])
              + 5000 * np.mean([(x.mean() - y.mean()) ** 2 for x, y in pairs])
              + 5 * np.mean([abs(x.var() - y.var()) for x, y in pairs]))
    assert float(losses.feature_transfer_code(s, t, mask)) == pytest.approx(wanted, rel=1e-4)


def test_the_codes_feature_loss_sees_scale_only_in_its_statistics():
    t, mask = torch.randn(4, 9, 16), batch()["attention_mask"]
    t -= t.mean(-1, keepdim=True)
    real = t[mask.bool()].double().numpy()
    assert float(losses.feature_transfer_code(2 * t, t, mask)) == pytest.approx(5 * (3 * real.var(-1)).mean(), rel=1e-3)


def test_attention_transfer_against_numpy():
    s, t, mask = torch.randn(4, 2, 9, 9), 3 * torch.randn(4, 2, 9, 9), batch()["attention_mask"]
    values = []
    for i in range(4):
        n = int(mask[i].sum())
        for h in range(2):
            for j in range(n):
                p, q = softmax(t[i, h, j, :n].double().numpy()), softmax(s[i, h, j, :n].double().numpy())
                values.append((p * np.log(p / q)).sum())
    assert float(losses.attention_transfer(s, t, mask)) == pytest.approx(np.mean(values), rel=1e-4)
    assert float(losses.attention_transfer(t, t, mask)) == pytest.approx(0, abs=1e-6)
    assert float(losses.attention_transfer(t, s, mask)) != pytest.approx(np.mean(values), rel=1e-2)


@pytest.mark.parametrize("loss", [losses.feature_transfer, losses.feature_transfer_code, losses.attention_transfer])
def test_padding_takes_no_part(loss):
    mask = batch()["attention_mask"]
    shape = (4, 2, 9, 9) if loss is losses.attention_transfer else (4, 9, 16)
    s, t, junk = torch.randn(shape), torch.randn(shape), 1e4 * torch.randn(shape)
    hidden = ~mask.bool()
    where = (hidden[:, None, :, None] | hidden[:, None, None, :]) if len(shape) == 4 else hidden[..., None]
    s.requires_grad_(True)
    value = loss(torch.where(where, junk, s), torch.where(where, -junk, t), mask)
    value.backward()
    assert value.item() == pytest.approx(loss(s, t, mask).item(), rel=1e-5)
    assert torch.isfinite(s.grad).all()
    assert s.grad.abs().sum() > 0
    assert not s.grad[where.expand(shape)].any()


def test_word_distillation_against_numpy():
    s, t, labels = torch.randn(7, VOCABULARY), torch.randn(7, VOCABULARY), torch.randint(0, VOCABULARY, (7,))
    p, log_q = softmax(t.double().numpy()), np.log(softmax(s.double().numpy()))
    mlm_loss, kd = -log_q[range(7), labels.numpy()].mean(), -(p * log_q).sum(-1).mean()
    value, given, soft = losses.word_distillation(s, t, labels, 0.3)
    assert (float(given), float(soft)) == (pytest.approx(mlm_loss, rel=1e-5), pytest.approx(kd, rel=1e-5))
    assert float(value) == pytest.approx(0.3 * mlm_loss + 0.7 * kd, rel=1e-5)


def test_run_blocks_is_the_models_own_pass_and_needs_scores():
    model, b = student(), batch()
    features, scores = losses.run_blocks(model, b, DEPTH)
    own = model(**b, output_hidden_states=True).hidden_states
    assert len(features) == len(scores) == DEPTH
    assert all(torch.allclose(x, y, atol=1e-5) for x, y in zip(features, own[1:], strict=True))
    model.config._attn_implementation = "eager"
    eager = model(**b, output_attentions=True).attentions
    for score, weights in zip(scores, eager, strict=True):
        mine = score.masked_fill(~b["attention_mask"].bool()[:, None, None], -1e30).softmax(-1)
        real = b["attention_mask"].bool()
        assert torch.allclose(mine.transpose(1, 2)[real], weights.transpose(1, 2)[real], atol=1e-5)
    with pytest.raises(RuntimeError, match="study attention"):
        losses.run_blocks(model, b, DEPTH)


# What transformers' classes do ------------------------------------------------------------------------------


def test_trigrams_look_one_token_beyond_the_text():
    """Zero padding vector: padding changes nothing. Another one: the last real token's embedding changes, only that."""
    model, ids = student(), torch.randint(5, VOCABULARY, (1, 5))
    padded = {"input_ids": torch.cat([ids, torch.zeros(1, 3, dtype=torch.long)], 1),
              "attention_mask": torch.tensor([[1] * 5 + [0] * 3])}
    assert torch.allclose(model(ids).logits, model(**padded).logits[:, :5], atol=1e-5)
    model.get_input_embeddings().weight.data[0] = 1.0
    short = model.mobilebert.embeddings(input_ids=ids)[0]
    long = model.mobilebert.embeddings(input_ids=padded["input_ids"])[0, :5]
    assert [not torch.allclose(a, b, atol=1e-5) for a, b in zip(short, long, strict=True)] == [False] * 4 + [True]
    assert not torch.allclose(model(ids).logits, model(**padded).logits[:, :5], atol=1e-4)


def test_the_padding_vector_stays_zero_in_training_with_tied_weights():
    def trained(keep):
        model = student()
        if keep:
            students.keep_padding_zero(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
        model(input_ids=batch()["input_ids"], labels=batch()["input_ids"]).loss.backward()
        optimizer.step()
        return model.get_input_embeddings().weight

    assert not trained(True)[0].any()
    assert trained(True)[7].any()
    assert trained(False)[0].any()  # why it is needed: the output layer shares the table


def test_one_layernorm_of_the_library_has_an_epsilon_of_its_own():
    norms = {n: m.eps for n, m in student(normalization_type="layer_norm", layer_norm_eps=1e-12).named_modules()
             if isinstance(m, nn.LayerNorm)}
    other = {n for n, e in norms.items() if e != 1e-12}
    assert {n.split(".layer.")[-1][2:] for n in other if ".layer." in n} == {"output.LayerNorm"}


@pytest.mark.parametrize(("name", "total"), [("MobileBERT", 24_581_888), ("MobileBERT-TINY", 15_485_696)])
def test_parameters_at_the_papers_shapes(name, total):
    b, n, e, f, v = 512, 128, 128, 512, 30522
    linear = lambda i, o: i * o + o  # noqa: E731
    tiny = name.endswith("TINY")
    bottlenecks = (1 if tiny else 2) * (linear(b, n) + 2 * n)
    attention = 2 * linear(n, n) + linear(n if tiny else b, n) + linear(n, n) + 2 * n
    ffn = (2 if tiny else 4) * (linear(n, f) + linear(f, n) + 2 * n)
    block = bottlenecks + attention + ffn + linear(n, b) + 2 * b
    embeddings = v * e + 512 * b + 2 * b + linear(3 * e, b) + 2 * b
    with torch.device("meta"):
        model = MobileBertModel(mobilebert_shapes.shape(name))
    assert sum(p.numel() for p in model.parameters()) == embeddings + 24 * block == total
    used = {n for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    assert any("bottleneck.attention" in n for n in used) is not tiny  # none that nothing uses


def test_the_scaled_student_has_the_teachers_frame():
    p = parameters.validate(mobilebert.Config, {})
    ib = IBBertConfig(hidden_size=192, embedding_size=96, intra_bottleneck_size=384, intermediate_size=1536,
                      num_hidden_layers=6, num_attention_heads=12)
    c = students.student_config(ib, p)
    assert (c.hidden_size, c.intra_bottleneck_size, c.intermediate_size, c.num_attention_heads) == (192, 96, 384, 12)
    assert (c.num_hidden_layers, c.num_feedforward_networks, c.hidden_act) == (6, 4, "relu")
    tiny = students.student_config(ib, p.model_copy(update={"tiny": True}))
    assert (tiny.num_feedforward_networks, tiny.use_bottleneck_attention) == (2, True)
    assert not tiny.key_query_shared_bottleneck
    with pytest.raises(InputError, match="inside: 100 is not a multiple of 12"):
        students.student_config(ib, p.model_copy(update={"inside": 100}))


def test_a_new_student_takes_embeddings_and_head_and_starts_on_the_teachers_scale():
    t, b = teacher(), batch()
    t.base_model.embeddings.LayerNorm.weight.data *= 3
    torch.manual_seed(0)
    s = students.new_student(t, config(), b)
    assert torch.equal(s.get_input_embeddings().weight, t.get_input_embeddings().weight)
    assert all(torch.equal(x, y) for x, y in zip(s.cls.parameters(), t.cls.parameters(), strict=True))
    assert s.cls.predictions.decoder.weight is s.get_input_embeddings().weight
    real = b["attention_mask"].bool()
    given, wanted = (m.base_model.embeddings(input_ids=b["input_ids"])[real] for m in (s, t))
    assert torch.allclose(given.mean(0), wanted.mean(0), atol=1e-4)
    assert (given - wanted).square().mean() < wanted.var(0).mean()
    assert s.config.attention_probs_dropout_prob == 0.1
    assert not any(m.p for m in s.modules() if isinstance(m, nn.Dropout))


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


# Stages -----------------------------------------------------------------------------------------------------


def settings(**changes):
    return parameters.validate(mobilebert.Config, {"precision": "fp32", "general_batch_size": 8, "transfer_epochs": 6,
                                                   "general_lr": 0.003, "transfer_lr": 0.003, **changes})


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


# Switches ---------------------------------------------------------------------------------------------------


def trained(p, folder):
    """Weights after the transfer (or its sum with distillation), but for key biases: softmax ignores them, so that
    their gradient is rounding alone, which Adam makes as large as any other.
    """
    s, t, masker = student(), teacher(), mlm.Masker(Tokenizer())
    if p.strategy == "auxiliary":
        loss = mobilebert_stages.distillation_loss(t, masker, 0.5, False, mobilebert_stages.parts(p))
        training.train(s, loss, text(), training.Settings(lr=0.003, epochs=2, batch_size=8, precision="fp32"))
    else:
        mobilebert_stages.transfer(s, t, masker, text(), p, False, Checkpoints(folder, "x"))
    return {n: v for n, v in tiny.state(s).items() if not n.endswith("key.bias")}


def furthest(a, b):
    return max((a[n] - b[n]).abs().max().item() for n in a)


@pytest.mark.parametrize("strategy", ["progressive", "joint", "auxiliary"])
@pytest.mark.parametrize("off", losses.PARTS)
def test_a_transfer_that_is_off_is_one_of_weight_zero(off, strategy, tmp_path, monkeypatch):
    switched = trained(settings(strategy=strategy, **{f"{off}_transfer": False}), tmp_path / "off")
    whole = trained(settings(strategy=strategy), tmp_path / "on")
    name = f"{off}_transfer"
    real = getattr(losses, name)
    monkeypatch.setattr(losses, name, lambda s, t, mask: 0.0 * real(s, t, mask))
    weightless = trained(settings(strategy=strategy), tmp_path / "zero")
    assert furthest(switched, weightless) < 1e-4
    assert furthest(switched, whole) > 1e-3


@pytest.mark.parametrize("strategy", ["progressive", "auxiliary"])
def test_without_attention_transfer_no_attention_map_is_computed(strategy, tmp_path, monkeypatch):
    def refuse(*_):
        raise AssertionError("asked for")

    monkeypatch.setattr(fast, "capture_scores", refuse)
    trained(settings(strategy=strategy, attention_transfer=False), tmp_path / "off")
    with pytest.raises(AssertionError, match="asked for"):
        trained(settings(strategy=strategy), tmp_path / "on")


def test_without_feature_transfer_no_block_output_is_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(losses, "feature_transfer", None)
    trained(settings(feature_transfer=False), tmp_path / "off")
    with pytest.raises(TypeError):
        trained(settings(), tmp_path / "on")


def test_both_off_leave_distillation_alone_or_nothing(places, films, backbone):
    off = {"feature_transfer": False, "attention_transfer": False}
    assert mobilebert_stages.parts(settings(strategy="auxiliary", **off)) == ()
    run = started(places, films, backbone, strategy="joint", **off)
    with pytest.raises(InputError, match="^feature_transfer and attention_transfer: both are false") as e:
        mobilebert.compress(run)
    assert "\n" not in str(e.value)
    assert not (places / "build" / "artefacts").exists()


def test_studies_name_their_runs():
    def of(**changes):
        return mobilebert_studies.variants(parameters.validate(mobilebert_studies.Config, changes))

    assert [(q.variant, q.feature_transfer, q.attention_transfer) for q in of(study="transfers")] == [
        ("", True, True), ("no-feature", False, True), ("no-attention", True, False)]
    assert [(q.variant, q.strategy) for q in of(study="strategies")] == [
        ("", "progressive"), ("joint", "joint"), ("auxiliary", "auxiliary")]
    assert [(q.variant, q.tiny, q.normalisation, q.activation) for q in of(study="shapes")] == [
        ("", False, "no_norm", "relu"), ("tiny", True, "no_norm", "relu"), ("unoptimised", False, "layer_norm", "gelu")]
    with pytest.raises(InputError, match="variant"):
        of(study="transfers", variant="mine")


def test_operational_variants_are_timed_side_by_side():
    table = mobilebert_shapes.operational(length=16, rounds=5, layers=1)
    assert list(table.index) == ["NoNorm, relu", "NoNorm, gelu", "LayerNorm, relu", "LayerNorm, gelu"]
    assert (table["median, ms"] > 0).all()
    assert table.loc["LayerNorm, gelu", "times faster than LayerNorm, gelu"] == 1


@pytest.mark.parametrize(("values", "words"), [
    ({"strategy": "both"}, "strategy"), ({"alpha": 1.5}, "alpha"), ({"lower_rate": "slow"}, "lower_rate"),
    ({"ffns": -1}, "ffns"), ({"normalisation": "batch"}, "normalisation"), ({"nonorm": True}, "nonorm: unknown")])
def test_bad_parameters_are_one_line(values, words):
    with pytest.raises(InputError, match=words) as e:
        parameters.validate(mobilebert.Config, values)
    assert "\n" not in str(e.value)


def started(places, films, backbone, **changes):
    own = places / "own.txt"
    own.write_text("\n\n".join(t for t, _, _ in tiny.rows(2000, seed=5)))
    p = parameters.validate(mobilebert.Config, {
        "task": films, "backbone": backbone, "profile": "test", "precision": "fp32", "epochs": 2, "teacher_epochs": 1,
        "evaluations": 1, "text": str(own), "text_tokens": 1500, "text_length": 16, "transfer_epochs": 1, **changes})
    return runs.start("mobilebert", p)


def test_a_whole_run_and_what_is_shared(places, films, backbone):
    run = started(places, films, backbone)
    student, history = run.compress(mobilebert.compress)
    record = run.finish(student, history)
    saved = json.loads(run.record_path.read_text())
    assert {a["kind"] for a in saved["artefacts"]} == {"ib-teacher", "mobilebert", "teacher"}
    assert saved["layers"] == 4  # as deep as its teacher
    distilled = saved["study"]["distillation"]
    assert len(distilled["transfer"]) == 4
    gap = distilled["student"]["gap"]
    assert set(gap) == set(mobilebert_shapes.STAGES)
    assert np.mean([b["feature"] for b in gap["after transfer"]]) < np.mean([b["feature"] for b in gap["start"]])
    assert list(mobilebert_shapes.stages(record).index)[-3:] == ["student, start", "student, after transfer",
                                                                 "student, after distillation"]
    assert mobilebert_shapes.gap(record).shape == (4, 6)
    again, info = AutoModelForSequenceClassification.from_pretrained(run.output, output_loading_info=True)
    assert not info["missing_keys"]
    b = run.sets["scored"].batch(np.arange(4))
    inputs = {k: b[k] for k in ("input_ids", "attention_mask")}
    assert torch.allclose(again(**inputs).logits, student.eval()(**inputs).logits, atol=1e-5)
    assert not again.get_input_embeddings().weight[0].any()
    dropout = {n: m.p for n, m in student.named_modules() if isinstance(getattr(m, "p", None), float)}
    assert dropout["dropout"] == 0.1  # on the pooled output, in fine-tuning alone
    assert {v for n, v in dropout.items() if "attention.self" in n} == {0.1}
    assert not any(v for n, v in dropout.items() if n != "dropout" and "attention.self" not in n)

    other = started(places, films, backbone, seed=1, lr=0.0005)
    other.compress(mobilebert.compress)
    first, second = ({a.kind: a.key for a in r.artefacts} for r in (run, other))
    assert [first[k] == second[k] for k in ("ib-teacher", "mobilebert", "teacher")] == [True, True, False]


@pytest.mark.parametrize("changes", [{"strategy": "joint", "variant": "code"}, {"strategy": "auxiliary", "tiny": True},
                                     {"normalisation": "layer_norm", "activation": "gelu", "inside": 16, "ffns": 1},
                                     {"attention_transfer": False}])
def test_strategies_and_shapes_give_a_student(places, films, backbone, changes):
    run = started(places, films, backbone, **changes)
    student, history = mobilebert.compress(run)
    assert np.isfinite(history.kept_score)
    assert student.config.num_feedforward_networks == changes.get("ffns", 2 if "tiny" in changes else 4)
    curves = run.artefacts[-1].meta["curve"]
    assert ("feature" in curves) is (changes.get("strategy") == "auxiliary")
    stages = run.artefacts[-1].meta.get("stages", [])
    assert len(stages) == {"joint": 1, "auxiliary": 0}.get(changes.get("strategy"), 4)
    assert all(("attention" in c) is changes.get("attention_transfer", True) for c in stages)
    assert all(b["attention"] > 0 for b in run.artefacts[-1].meta["gap"]["after distillation"])  # measured all the same


def test_variants_do_not_share_a_student(places, films, backbone):
    keys = {mobilebert_stages.distilled(r.p, r.tokenizer, mobilebert_stages.teacher(r.p, r.tokenizer), code).key
            for changes, code in (({}, False), ({}, True), ({"attention_transfer": False}, False))
            for r in [started(places, films, backbone, strategy="joint", **changes)]}
    assert len(keys) == 3


def test_another_architecture_is_refused_in_one_line(places, films, encoder):
    run = started(places, films, encoder("roberta"))
    with pytest.raises(InputError, match="the backbone is a roberta"):
        mobilebert.compress(run)


@pytest.mark.parametrize(("changes", "words"), [({"inside": 10}, "inside: 10"), ({"between": 32}, "between: 32")])
def test_widths_that_do_not_fit_are_refused_before_anything_is_built(places, films, backbone, changes, words):
    run = started(places, films, backbone, **changes)
    with pytest.raises(InputError, match=words):
        mobilebert.compress(run)
    assert not (places / "build" / "artefacts").exists()
