"""The IB-BERT architecture and the teacher made from a BERT: counts, reload, padding, and how near it starts."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertModel,
    MobileBertConfig,
    MobileBertModel,
    RobertaConfig,
    RobertaModel,
)

from lib import fast
from lib.errors import InputError
from lib.hidden import capture_hidden
from lib.methods import ibbert
from lib.methods.ibbert_model import (
    IBBertConfig,
    IBBertForMaskedLM,
    IBBertForSequenceClassification,
    IBBertModel,
)

SMALL = {"vocab_size": 60, "hidden_size": 16, "intra_bottleneck_size": 24, "embedding_size": 8, "num_hidden_layers": 3,
         "num_attention_heads": 2, "intermediate_size": 48}


def small(cls=IBBertForMaskedLM, **changes):
    torch.manual_seed(0)
    config = IBBertConfig(**{**SMALL, **changes})
    config._attn_implementation = fast.ATTENTION
    return fast.install(cls(config)).eval()


def count(model):
    return sum(p.numel() for p in model.parameters())


def backbone(width=24, layers=3, seed=0):
    """A BERT that is not at its initial state: else hidden states hardly differ from token to token."""
    torch.manual_seed(seed)
    config = BertConfig(vocab_size=60, hidden_size=width, num_hidden_layers=layers, num_attention_heads=2,
                        intermediate_size=2 * width, max_position_embeddings=40, initializer_range=0.3)
    config._attn_implementation = fast.ATTENTION
    model = BertModel(config).eval()
    for p in model.parameters():
        p.data += 0.05 * torch.randn_like(p)
    return model


def batches(count=8, rows=16, length=12, seed=1):
    g = torch.Generator().manual_seed(seed)
    out = []
    for _ in range(count):
        mask = (torch.arange(length)[None] < torch.randint(4, length + 1, (rows, 1), generator=g)).long()
        out.append({"input_ids": torch.randint(5, 60, (rows, length), generator=g) * mask, "attention_mask": mask})
    return out


def test_parameters_at_the_papers_shape():
    c = IBBertConfig()
    b, n, e, f, v = 512, 1024, 128, 4096, 30522
    linear = lambda i, o: i * o + o  # noqa: E731
    block = (linear(b, n) + 2 * n + 3 * linear(b, n) + linear(n, n) + 2 * n + linear(n, f) + linear(f, n) + 2 * n
             + linear(n, b) + 2 * b)
    embeddings = v * e + 512 * b + 2 * b + linear(3 * e, b) + 2 * b
    with torch.device("meta"):
        total = count(IBBertModel(c, add_pooling_layer=False))
    assert total == embeddings + 24 * block == 294_205_184
    assert abs(total / 1e6 - 293) < 1.5  # the paper prints 293M
    assert (c.num_attention_heads, c.hidden_act, c.normalization_type) == (4, "gelu", "layer_norm")


def test_transformers_own_block_cannot_do_it():
    """The reason for a file of our own; should the library learn it, this fails and the file can go."""
    own = MobileBertModel(MobileBertConfig(**SMALL, use_bottleneck_attention=False, key_query_shared_bottleneck=False,
                                           num_feedforward_networks=1))
    with pytest.raises(RuntimeError):
        own(torch.ones(1, 4, dtype=torch.long))


def test_queries_keys_and_values_come_from_the_blocks_input():
    model, seen = small(), {}
    layer = model.base_model.encoder.layer[1]
    layer.register_forward_pre_hook(lambda m, given: seen.update(block=given[0]))
    for name in ("query", "key", "value"):
        linear = getattr(layer.attention.self, name)
        linear.register_forward_pre_hook(lambda m, given, n=name: seen.update({n: given[0]}))
    model(torch.randint(5, 60, (2, 6)))
    assert all(torch.equal(seen[n], seen["block"]) for n in ("query", "key", "value"))


@pytest.mark.parametrize(("cls", "auto"), [(IBBertModel, AutoModel), (IBBertForMaskedLM, AutoModelForMaskedLM),
                                           (IBBertForSequenceClassification, AutoModelForSequenceClassification)])
def test_reloads_equal_with_its_file(cls, auto, tmp_path):
    model, ids = small(cls), torch.randint(5, 60, (2, 6))
    model.save_pretrained(tmp_path)
    assert (tmp_path / "ibbert_model.py").exists()
    again, info = auto.from_pretrained(tmp_path, output_loading_info=True)
    assert type(again) is cls
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert torch.allclose(model(ids)[0], again(ids)[0], atol=1e-6)


@pytest.mark.slow
def test_opens_without_this_repository(tmp_path):
    model, ids = small(), torch.arange(5, 11)[None]
    model.save_pretrained(tmp_path / "m")
    code = ("import sys; sys.modules['lib'] = None\n"
            "import torch; from transformers import AutoModelForMaskedLM as A\n"
            f"m = A.from_pretrained({str(tmp_path / 'm')!r}, trust_remote_code=True).eval()\n"
            "print(float(m(torch.arange(5, 11)[None]).logits.double().sum()))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path,
                          env={"HF_HOME": str(tmp_path), "PATH": "/usr/bin", "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) == pytest.approx(model(ids).logits.double().sum().item(), rel=1e-4)


def test_padding_changes_nothing_where_the_padding_vector_is_zero():
    model = small()
    assert not model.get_input_embeddings().weight[0].any()
    ids = torch.randint(5, 60, (1, 5))
    padded = torch.cat([ids, torch.zeros(1, 3, dtype=torch.long)], 1)
    mask = torch.tensor([[1] * 5 + [0] * 3])
    assert torch.allclose(model(ids).logits, model(padded, attention_mask=mask).logits[:, :5], atol=1e-5)


def test_principal_directions_and_regression():
    torch.manual_seed(0)
    x = torch.randn(500, 6) * torch.tensor([5.0, 4, 3, 0.1, 0.1, 0.1])
    x -= x.mean(0)
    u = ibbert.principal(x, 3).float()
    assert torch.allclose(u.T @ u, torch.eye(3), atol=1e-5)
    assert (x - x @ u @ u.T).square().sum() < 0.001 * x.square().sum()
    x, noise = torch.randn(500, 6) + 2, torch.randn(500, 4)
    y = x @ torch.randn(6, 4) + 1 + 0.5 * noise
    a, offset, share = ibbert.regression(x, y)
    design = np.hstack([x.double().numpy(), np.ones((500, 1))])
    solution, rest = np.linalg.lstsq(design, y.double().numpy(), rcond=None)[:2]
    assert np.allclose(a.T.numpy(), solution[:-1], atol=0.01)
    assert np.allclose(offset.numpy(), solution[-1], atol=0.03)
    assert share == pytest.approx(1 - rest.sum() / ((y - y.mean(0)) ** 2).sum().item(), abs=1e-3)
    assert ibbert.regression(x, noise)[2] < 0.1


def test_the_teacher_starts_near_its_backbone():
    """Its blocks see most of what the backbone's blocks see; with random linear layers they would see nothing of it."""
    bert, given = backbone(), batches()
    model, seen = ibbert.from_backbone(bert, ibbert.configuration(bert.config, 20, 16), given)
    assert len(seen) == 3
    assert min(seen) > 0.5
    narrower = ibbert.configuration(bert.config, 6, 4)
    assert ibbert.from_backbone(bert, narrower, given)[1][1] < seen[1]
    test, kept = batches(1, seed=5)[0], []
    for block in model.base_model.encoder.layer:
        block.bottleneck.input.register_forward_hook(lambda m, g, out: kept.append(out))
    model(**test)
    with capture_hidden(bert) as states:
        bert(**test)
    real = test["attention_mask"].bool()
    for own, theirs in zip(kept, states[:3], strict=True):
        assert torch.nn.functional.cosine_similarity(own[real], theirs[real]).mean() > 0.75


def test_widths_that_do_not_shrink_and_other_architectures_are_refused():
    bert = backbone()
    c = ibbert.configuration(bert.config, 0, 0)
    assert (c.hidden_size, c.embedding_size, c.intra_bottleneck_size, c.num_hidden_layers) == (12, 6, 24, 3)
    with pytest.raises(InputError, match="between: 24"):
        ibbert.configuration(bert.config, 24, 0)
    with pytest.raises(InputError, match="embedding: 12"):
        ibbert.configuration(bert.config, 12, 12)
    roberta = RobertaModel(RobertaConfig(vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                                         intermediate_size=16))
    with pytest.raises(InputError, match="roberta"):
        ibbert.configuration(roberta.config, 0, 0)
