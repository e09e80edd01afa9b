"""Compression by BERT-of-Theseus, watched at each call of its loss. Helpers of the tests; nothing here is a result."""

from __future__ import annotations

from types import SimpleNamespace

import tiny
import torch

from lib import layers
from lib.methods import bert, theseus
from lib.methods.theseus import replaceables
from lib.parameters import validate


def config(**values) -> theseus.Config:
    """The parameters of a run, checked."""
    return validate(theseus.Config, values)


def logits(model, batch) -> torch.Tensor:
    """Outputs of a batch with dropout off, (rows, classes)."""
    model.eval()
    with torch.no_grad():
        return layers.classify(model, batch)


def watch(monkeypatch, run, loss=None):
    """Compress and keep the mixed network: (student, history, what was seen at each call of the loss)."""
    seen = SimpleNamespace(mixed=None, states=[], choices=[], modes=[])
    prepare, supervised = theseus.prepare, bert.supervised

    def keep(*a):
        seen.mixed = prepare(*a)
        seen.before = tiny.state(seen.mixed)
        return seen.mixed

    def spy(model, batch, step):
        seen.choices.append([m.replaced for m in replaceables(model)])
        seen.modes.append([(m.predecessor.training, m.substitute.training) for m in replaceables(model)])
        if loss:
            return loss(model, batch, step)
        seen.states.append(tiny.state(model))
        return supervised(model, batch, step)

    monkeypatch.setattr(theseus, "prepare", keep)
    teacher = run.teacher().model
    with monkeypatch.context() as m:
        m.setattr(bert, "supervised", spy)
        student, history = theseus.compress(run, teacher)
    return student, history, seen
