"""Masked language modelling: which tokens are hidden and how, the tied head, the loss, heads found and trained."""

import math

import numpy as np
import pytest
import tiny
import torch
from torch import nn
from transformers import AutoModelForMaskedLM

from lib import mlm, models, text, training
from lib.errors import InputError
from lib.parameters import validate
from lib.training import Step

SPECIAL = sorted(tiny.tokenizer().all_special_ids)


def batch(rows=400, width=30, seed=0):
    """Rows of ordinary words between [CLS] and [SEP], every third padded to half, some with [UNK] inside."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(len(SPECIAL), tiny.SIZE, (rows, width))
    mask = np.ones_like(ids)
    ids[:, 0], ids[:, -1], ids[:, 5] = 2, 3, 1
    ids[::3, width // 2 :], mask[::3, width // 2 :] = 0, 0
    ids[::3, width // 2 - 1] = 3
    return {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}


def within(count, n, p, z=5.0):
    """Whether a binomial count lies within z deviations: false once in a few million for right code."""
    return abs(count - n * p) < z * math.sqrt(n * p * (1 - p))


def test_shares_of_masking():
    b = batch(2000)
    m = mlm.Masker(tiny.tokenizer())(b, np.random.default_rng(1))
    before, after = b["input_ids"], m.inputs["input_ids"]
    ordinary = int((b["attention_mask"].bool() & ~torch.isin(before, torch.tensor(SPECIAL))).sum())
    chosen, words = int(m.where.sum()), tiny.SIZE - len(SPECIAL)
    assert within(chosen, ordinary, 0.15)
    hidden = after[m.where]
    masked, kept = hidden == tiny.tokenizer().mask_token_id, hidden == before[m.where]
    assert within(int(masked.sum()), chosen, 0.8)
    # a random word is the word itself now and then
    assert within(int(kept.sum()), chosen, 0.1 + 0.1 / words)
    assert within(int((~masked & ~kept).sum()), chosen, 0.1 * (1 - 1 / words))
    # every word comes as a random one, about equally often: chi square of the counts
    drawn = np.bincount(hidden[~masked & ~kept].numpy(), minlength=tiny.SIZE)[len(SPECIAL):]
    expected = drawn.sum() / words
    assert ((drawn - expected) ** 2 / expected).sum() < words + 6 * math.sqrt(2 * words)


def test_special_tokens_and_padding_are_never_touched():
    b = batch(2000)
    m = mlm.Masker(tiny.tokenizer(), share=0.9)(b, np.random.default_rng(1))
    out = torch.isin(b["input_ids"], torch.tensor(SPECIAL)) | (b["attention_mask"] == 0)
    assert not (m.where & out).any()
    assert torch.equal(m.inputs["input_ids"][~m.where], b["input_ids"][~m.where])
    assert torch.equal(m.targets, b["input_ids"][m.where])
    put_in = m.inputs["input_ids"][m.where]
    assert set(put_in.tolist()) & set(SPECIAL) == {tiny.tokenizer().mask_token_id}
    assert torch.equal(m.inputs["attention_mask"], b["attention_mask"])


def test_masks_follow_the_step_and_nothing_else():
    b, masker = batch(20), mlm.Masker(tiny.tokenizer())
    def at(*place):
        return masker(b, Step(*place).random()).inputs["input_ids"]

    assert torch.equal(at(3, 9, 0, 7), at(3, 9, 0, 7))
    for other in ((4, 9, 0, 7), (3, 9, 1, 7), (3, 9, 0, 8)):
        assert not torch.equal(at(3, 9, 0, 7), at(*other))


def test_one_token_at_least():
    ids = torch.tensor([[2, 10, 3, 0], [2, 11, 3, 0]])
    b = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    masker = mlm.Masker(tiny.tokenizer(), share=0.001)
    seen = set()
    for i in range(50):
        m = masker(b, np.random.default_rng(i))
        assert m.where.sum() == 1
        seen.add(int(m.targets))
    assert seen == {10, 11}
    with pytest.raises(ValueError, match="special tokens only"):
        masker({"input_ids": torch.tensor([[2, 3]]), "attention_mask": torch.ones(1, 2)}, np.random.default_rng(0))


def test_weighted_drawing_takes_the_exact_number_and_prefers_rare_words():
    b = batch(300)
    weights = np.ones(tiny.SIZE)
    rare, never = len(SPECIAL) + 3, len(SPECIAL) + 4
    weights[rare], weights[never] = 20.0, 1e-12
    m = mlm.Masker(tiny.tokenizer(), weights=weights)(b, np.random.default_rng(0))
    assert int(m.where.sum()) == math.ceil(0.15 * int(b["attention_mask"].sum()))
    share = {w: float((m.targets == w).sum() / (b["input_ids"] == w).sum()) for w in (rare, never, rare + 5)}
    assert share[rare] > 0.9
    assert share[never] == 0
    assert 0 < share[rare + 5] < 0.4
    assert not torch.isin(m.targets, torch.tensor(SPECIAL)).any()


def test_a_tokenizer_without_a_mask_is_refused():
    tokenizer = tiny.tokenizer()
    tokenizer.mask_token = None
    with pytest.raises(InputError, match="has no mask token"):
        mlm.Masker(tokenizer)


def numpy_head(hidden, table, head):
    """The head from its formula: LN(gelu(W h + b)) E^T + c."""
    erf = np.vectorize(math.erf)
    w = {k: v.detach().double().numpy() for k, v in head.state_dict().items()}
    x = hidden @ w["dense.weight"].T + w["dense.bias"]
    x = 0.5 * x * (1 + erf(x / math.sqrt(2)))
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + head.norm.eps)
    return (x * w["norm.weight"] + w["norm.bias"]) @ table.T + w["bias"]


def tiny_lm(dropout=0.0, kind="bert", seed=0):
    torch.manual_seed(seed)
    from transformers import AutoModel

    encoder = AutoModel.from_config(tiny.config(kind, layers=2, dropout=dropout))
    head = mlm.Head.of(encoder)
    nn.init.normal_(head.bias)
    return mlm.MaskedLM(encoder, head)


def test_head_and_loss_against_numpy():
    model, b = tiny_lm().double().eval(), batch(6, 12)
    m = mlm.Masker(tiny.tokenizer())(b, np.random.default_rng(3))
    with torch.no_grad():
        logits, hidden = model(m), model.hidden(m.inputs)
    table = model.encoder.get_input_embeddings().weight.detach().numpy()
    rows, columns = np.nonzero(m.where.numpy())
    expected = numpy_head(hidden.numpy()[rows, columns], table, model.head)
    np.testing.assert_allclose(logits.numpy(), expected, atol=1e-9)
    z = expected - expected.max(-1, keepdims=True)
    log_p = z - np.log(np.exp(z).sum(-1, keepdims=True))
    loss = -log_p[np.arange(len(rows)), b["input_ids"].numpy()[rows, columns]].mean()
    assert float(mlm.cross_entropy(logits, m.targets)) == pytest.approx(loss, rel=1e-6)


def test_gradients_reach_head_encoder_and_table_by_finite_differences():
    model, b = tiny_lm().double().eval(), batch(3, 10)
    m = mlm.Masker(tiny.tokenizer(), share=0.5)(b, np.random.default_rng(3))

    def value():
        return nn.functional.cross_entropy(model(m), m.targets)

    value().backward()
    target, seen = int(m.targets[0]), int(m.inputs["input_ids"][0, 1])
    absent = next(i for i in range(len(SPECIAL), tiny.SIZE) if i not in m.inputs["input_ids"] and i not in m.targets)
    table = model.encoder.get_input_embeddings().weight
    # a word that is nowhere in the batch has a gradient too: through the decoder, tied to the table
    head, norm = model.head, model.encoder.embeddings.LayerNorm
    for parameter, place in ((table, (target, 3)), (table, (seen, 5)), (table, (absent, 2)), (head.bias, (target,)),
                             (head.dense.weight, (1, 2)), (norm.weight, (4,))):
        gradient, step = float(parameter.grad[place]), 1e-6
        with torch.no_grad():
            parameter[place] += step
            up = float(value())
            parameter[place] -= 2 * step
            down = float(value())
            parameter[place] += step
        assert gradient == pytest.approx((up - down) / (2 * step), rel=1e-4, abs=1e-9)
        assert gradient != 0


def test_loss_is_over_masked_positions_only_and_weighs_by_them():
    model, b = tiny_lm().eval(), batch(8, 12)
    masker, step = mlm.Masker(tiny.tokenizer()), Step(0, 1, 0, 0)
    out = mlm.language_loss(masker)(model, b, step)
    m = masker(b, step.random())
    assert out.weight == int(m.where.sum())
    with torch.no_grad():
        every = model.logits(model.hidden(m.inputs))
        single = [mlm.cross_entropy(every[i, j][None], b["input_ids"][i, j][None]) for i, j in m.where.nonzero()]
    assert out.value.item() == pytest.approx(float(torch.stack(single).mean()), rel=1e-5)


def test_padding_changes_no_logit():
    model, b = tiny_lm().eval(), batch(8, 12)
    m = mlm.Masker(tiny.tokenizer())(b, np.random.default_rng(0))
    wide = {k: nn.functional.pad(v, (0, 5)) for k, v in m.inputs.items()}
    with torch.no_grad():
        a, b = model(m), model(mlm.Masked(wide, nn.functional.pad(m.where, (0, 5)), m.targets))
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_cross_entropy_is_computed_in_float32():
    logits = torch.randn(4, 1000, dtype=torch.bfloat16) * 20
    assert mlm.cross_entropy(logits, torch.arange(4)).dtype == torch.float32


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.txt"
    path.write_text("\n\n".join(t for t, _, _ in tiny.rows(800, seed=5)))
    return str(path)


def general(own, **changes):
    return validate(mlm.General, {"text": own, "text_tokens": 4000, "text_length": 32, "precision": "fp32", **changes})


def test_a_head_is_trained_on_a_fixed_encoder_and_built_once(backbone, places, tmp_path):
    # Each paragraph repeats one word, so that what is masked can be told from what is not
    words = [t.split()[i] for i, (t, _, _) in enumerate(tiny.rows(6, seed=5)) if len(t.split()) > i]
    path = tmp_path / "repeating.txt"
    path.write_text("\n\n".join(" ".join([words[i % len(words)]] * 14) + f" . {i}" for i in range(600)))
    own = str(path)
    p, tokenizer = general(own, head_epochs=20, head_lr=5e-3), models.load_tokenizer(backbone)
    before = tiny.state(models.load_encoder(backbone))
    head, artefact = mlm.head_for(backbone, tokenizer, p)
    encoder = models.load_encoder(backbone)
    assert tiny.same(before, tiny.state(encoder))
    assert artefact.meta["source"] == "trained here, encoder fixed"
    assert artefact.meta["tokens"] == artefact.meta["text_tokens"] > 3900
    sequences = text.load(own, tokenizer, 32, 4000)
    masker = mlm.Masker(tokenizer)
    found = mlm.quality(mlm.MaskedLM(encoder, head), sequences.held_out, masker)
    assert found == pytest.approx(artefact.meta["quality"], rel=1e-5)
    counts = mlm.word_counts(sequences.train, tiny.SIZE)
    assert counts.sum() == sequences.tokens
    # it must beat what knows the frequencies of words alone
    frequent = mlm.Head.of(encoder)
    frequent.start_from(counts)
    nn.init.zeros_(frequent.norm.weight)
    floor = mlm.quality(mlm.MaskedLM(encoder, frequent), sequences.held_out, masker)
    assert found["loss"] < floor["loss"] - 0.05
    _, again = mlm.head_for(backbone, tokenizer, p)
    assert again.key == artefact.key
    assert len([f for f in artefact.folder.parent.iterdir() if f.is_dir()]) == 1
    _, other = mlm.head_for(backbone, tokenizer, general(own, head_epochs=1))
    assert other.key != artefact.key


def test_masked_states_are_those_of_evaluation_mode(own, backbone):
    tokenizer, encoder = models.load_tokenizer(backbone), models.load_encoder(backbone).train()
    data = text.load(own, tokenizer, 32, 1000).train
    a, b = (mlm.masked_states(encoder, data, mlm.Masker(tokenizer)) for _ in range(2))
    assert torch.equal(a[0], b[0])
    assert torch.equal(a[1], b[1])
    assert not encoder.training


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_a_published_head_is_taken_over(kind, tmp_path, places, own):
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(tiny.config(kind, layers=2))
    for p in model.parameters():
        nn.init.normal_(p, std=0.2)
    model.tie_weights()
    model.eval().save_pretrained(tmp_path / kind)
    tiny.save_tokenizer(tmp_path / kind)
    tokenizer = models.load_tokenizer(str(tmp_path / kind))
    head, artefact = mlm.head_for(str(tmp_path / kind), tokenizer, general(own))
    assert artefact.meta["source"] == "published with the backbone"
    assert artefact.meta["tokens"] == 0
    ours = mlm.MaskedLM(models.load_encoder(str(tmp_path / kind)), head).eval()
    b = batch(4, 12)
    m = mlm.Masker(tokenizer)(b, np.random.default_rng(0))
    with torch.no_grad():
        theirs = model(**m.inputs).logits[m.where]
        torch.testing.assert_close(ours(m), theirs, atol=1e-4, rtol=1e-4)


def test_an_encoder_with_missing_weights_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    folder = tiny.save_encoder(tmp_path / "part", layers=2)
    weights = load_file(folder / "model.safetensors")
    gone = next(k for k in weights if "layer.1.output.dense.weight" in k)
    save_file({k: v for k, v in weights.items() if k != gone}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match="1 encoder tensors are missing or of another shape, such as encoder.layer.1"):
        models.load_encoder(str(folder))


def test_language_loss_trains_and_resumes_bit_for_bit(own, tmp_path):
    from lib.checkpoint import Checkpoints

    tokenizer = tiny.tokenizer()
    data = text.load(own, tokenizer, 32, 1500).train
    s = training.Settings(epochs=1, batch_size=8, precision="fp32", checkpoint_seconds=0, lr=1e-3)
    loss = mlm.language_loss(mlm.Masker(tokenizer))
    whole = tiny_lm(dropout=0.1)
    history = training.train(whole, loss, data, s)

    class Killed(Exception):
        pass

    def dies(model, batch, step):
        if step.index == 4:
            raise Killed
        return loss(model, batch, step)

    points = Checkpoints(tmp_path / "points", "x")
    with pytest.raises(Killed):
        training.train(tiny_lm(dropout=0.1), dies, data, s, checkpoints=points)
    resumed = tiny_lm(dropout=0.1)
    again = training.train(resumed, loss, data, s, checkpoints=points)
    assert tiny.same(tiny.state(whole), tiny.state(resumed))
    assert again.curve == history.curve
