"""MobileBERT's losses against NumPy: padding takes no part, and scores are those of the model's own pass."""

import numpy as np
import pytest
import torch
from mobilebert_models import DEPTH, VOCABULARY, batch, student

from lib.methods import mobilebert_losses as losses


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


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
