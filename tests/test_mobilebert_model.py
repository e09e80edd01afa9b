"""MobileBERT's model: what transformers' classes do, the papers' shapes, and how a new student starts."""


import pytest
import torch
from mobilebert_models import VOCABULARY, batch, config, student, teacher
from torch import nn
from transformers import MobileBertModel

from lib import parameters
from lib.errors import InputError
from lib.methods import mobilebert, mobilebert_shapes
from lib.methods import mobilebert_student as students
from lib.methods.ibbert_model import IBBertConfig


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


def test_operational_variants_are_timed_side_by_side():
    table = mobilebert_shapes.operational(length=16, rounds=5, layers=1)
    assert list(table.index) == ["NoNorm, relu", "NoNorm, gelu", "LayerNorm, relu", "LayerNorm, gelu"]
    assert (table["median, ms"] > 0).all()
    assert table.loc["LayerNorm, gelu", "speed, times that of LayerNorm, gelu"] == 1  # right below 1, too
