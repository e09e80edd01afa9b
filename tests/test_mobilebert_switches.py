"""MobileBERT's switches: a transfer that is off is off, whatever the strategy, and the studies turn the right ones."""

import pytest
import tiny
from mobilebert_models import Tokenizer, settings, student, teacher, text

from lib import fast, mlm, parameters, training
from lib.checkpoint import Checkpoints
from lib.errors import InputError
from lib.methods import mobilebert_losses as losses
from lib.methods import mobilebert_stages, mobilebert_studies


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
