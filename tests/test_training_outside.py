"""The training loop from outside: the precision that it takes, what it shows, and that it learns."""

from __future__ import annotations

import pytest
import tiny
import torch
from training_runs import Line, settings

from lib import training
from lib.errors import InputError
from lib.evaluation import metrics, predict
from lib.methods import bert
from lib.training import train


def test_precision_is_what_the_processor_can(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for bf16, amx, expected in ((True, False, "bf16"), (False, True, "bf16"), (False, False, "fp32")):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda v=bf16: v)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda v=amx: v)
        assert training.precision("auto") == expected
        assert training.precision("fp32") == "fp32"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: False)
    assert training.precision("auto") == "fp32"
    with pytest.raises(InputError, match="bf16"):
        training.precision("bf16")


def test_bf16_trains_in_fp32_weights():
    model = tiny.classifier(layers=2, seed=1)
    history = train(model, bert.supervised, tiny.encoded(40), settings(precision="bf16", epochs=4))
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    losses = [v for _, v in history.curve["loss"]]
    assert losses[-1] < losses[0]


def test_progress_shows_loss_rate_and_speed(monkeypatch, capsys):
    monkeypatch.setenv("BERT_PROGRESS_SECONDS", "0")
    train(Line(), lambda m, b, s: m.loss(b), tiny.encoded(16), settings(name="films"))
    bar = capsys.readouterr().err
    for word in ("films", "loss=", "lr=", "tok_s=", "step"):
        assert word in bar


def test_training_learns():
    """A class that shows in one word is learnt; shuffled labels are not."""
    model = tiny.classifier(layers=2, seed=1)
    data = tiny.encoded(120, seed=7)
    train(model, bert.supervised, data, settings(lr=5e-3, epochs=8))
    test = tiny.encoded(60, seed=8)
    assert metrics(tiny.FILMS, predict(model, test), test.labels)["accuracy"] > 0.95
    assert not model.training
    assert metrics(tiny.FILMS, predict(tiny.classifier(layers=2, seed=1), test), test.labels)["accuracy"] < 0.9
