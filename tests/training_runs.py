"""A small training run, and a model that NumPy can follow. Helpers of the tests; nothing here is a result."""

from __future__ import annotations

import numpy as np
import tiny
import torch
from torch import nn

from lib.methods import bert
from lib.training import Settings, train

FAST = {"precision": "fp32", "lr": 2e-3, "batch_size": 8, "epochs": 2, "evaluations": 3}


def settings(**changes) -> Settings:
    """Two passes in batches of 8 rows, unless changed."""
    return Settings(**{**FAST, **changes})


class Line(nn.Module):
    """y = x w + b on a fixed table of inputs, found by the batch's row numbers."""

    def __init__(self, seed=0, n=256):
        super().__init__()
        rng = np.random.default_rng(seed)
        self.x, self.y = rng.normal(size=(n, 3)).astype(np.float32), rng.normal(size=n).astype(np.float32) * 5
        self.w = nn.Parameter(torch.from_numpy(rng.normal(size=(3, 1)).astype(np.float32)))  # a matrix: is decayed
        self.b = nn.Parameter(torch.zeros(1))  # a vector: is not

    def loss(self, batch):
        x, y = (torch.from_numpy(a)[batch["rows"]] for a in (self.x, self.y))
        return ((x @ self.w)[:, 0] + self.b - y).square().mean()


def run(seed=0, *, checkpoints=None, stop_at=None, evaluate=True, model=None, data=None, loss=bert.supervised,
        **changes):
    """(final state, history) of a small run with dropout; `stop_at` raises inside the loss of that optimiser step."""
    model = model or tiny.classifier(seed=3, layers=2, dropout=0.1)
    scores = iter(changes.pop("scores", None) or [50, 70, 60, 65, 64, 63, 62, 61, 60, 59])

    def failing(m, batch, step):
        if stop_at is not None and (step.index, step.micro) == stop_at:
            raise KeyboardInterrupt
        return loss(m, batch, step)

    def held_out(m):
        m.eval()
        torch.manual_seed(123)  # an evaluation that draws numbers and changes the mode disturbs nothing
        torch.rand(7)
        return {"held_out": float(next(scores)), "scored": 1.0}

    history = train(model, failing, data or tiny.encoded(40, seed=4),
                    settings(seed=seed, checkpoint_seconds=0.0, **changes), evaluate=held_out if evaluate else None,
                    checkpoints=checkpoints)
    return tiny.state(model), history


def told(history) -> dict:
    """A history without what the clock and the machine decide."""
    return {k: v for k, v in vars(history).items() if k not in ("seconds", "peak_memory_mb")}
