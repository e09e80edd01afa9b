"""Hidden states by hooks: equal to the library's own, differentiable, safe against the first-token shortcut."""

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from lib import fast, layers
from lib.hidden import capture_first_token, capture_hidden

SMALL = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}


def model(cls=BertForSequenceClassification, config=None):
    torch.manual_seed(0)
    config = config or BertConfig(**SMALL)
    config._attn_implementation = fast.ATTENTION
    return fast.install(cls(config)).eval()


def inputs():
    ids = torch.randint(5, 50, (2, 7), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize(("cls", "config"), [
    (BertForSequenceClassification, BertConfig(**SMALL)),
    (RobertaForSequenceClassification, RobertaConfig(**SMALL)),
    (DistilBertForSequenceClassification,
     DistilBertConfig(vocab_size=50, dim=16, n_layers=3, n_heads=2, hidden_dim=32)),
])
def test_states_are_the_librarys_own(cls, config):
    m = model(cls, config)
    with capture_hidden(m) as states:
        out = m(**inputs(), output_hidden_states=True)
    assert len(states) == 4
    assert all(torch.equal(a, b) for a, b in zip(states, out.hidden_states, strict=True))


def test_a_second_pass_starts_anew_and_hooks_go():
    m = model()
    with capture_hidden(m) as states:
        m(**inputs())
        first = states[-1]
        m(input_ids=inputs()["input_ids"].flip(0))
        assert len(states) == 4
        assert not torch.equal(first, states[-1])
    m(**inputs())
    assert len(states) == 4
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers.encoder_layers(m))


def test_gradients_flow():
    m = model()
    with capture_hidden(m) as states:
        m(**inputs())
    states[1].pow(2).mean().backward()
    first, second = layers.encoder_layers(m)[:2]
    assert first.output.dense.weight.grad.abs().sum() > 0
    assert second.output.dense.weight.grad is None


def test_first_token_shortcut():
    m = model()
    with pytest.raises(RuntimeError, match="layer 3"), capture_hidden(m):
        layers.classify(m, inputs())
    with capture_hidden(m, last=False) as states:
        logits = layers.classify(m, inputs())
    plain = m(**inputs(), output_hidden_states=True)
    assert len(states) == 3
    assert all(torch.equal(a, b) for a, b in zip(states, plain.hidden_states[:-1], strict=True))
    torch.testing.assert_close(logits, plain.logits)


def test_first_tokens_in_one_cheap_pass():
    m = model()
    with capture_first_token(m) as states:
        logits = layers.classify(m, inputs())
    plain = m(**inputs(), output_hidden_states=True)
    assert [s.shape for s in states] == [(2, 16)] * 4
    for own, theirs in zip(states, plain.hidden_states, strict=True):
        torch.testing.assert_close(own, theirs[:, 0])
    torch.testing.assert_close(logits, plain.logits)
