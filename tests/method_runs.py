"""A started run of a method on made-up rows with a tiny backbone. Helpers of the tests; nothing here is a result."""

from __future__ import annotations

from pathlib import Path

import tiny

from lib import parameters, runs

SETTINGS = {"precision": "fp32", "epochs": 1, "teacher_epochs": 1, "batch_size": 8, "evaluations": 1, "max_length": 32,
            "profile": "test", "lr": 1e-3, "teacher_lr": 1e-3}  # fmt: skip


def start(method: str, config: type, folder: Path, *, depth: int = 4, kind: str = "bert", regression: bool = False,
          **values) -> runs.Run:  # fmt: skip
    """Call it with the fixture `places`, whose folder `folder` is."""
    name = tiny.save_encoder(folder / f"{kind}-{depth}", kind, layers=depth)
    make = tiny.ratings if regression else tiny.films
    task = make(folder / ("ratings.csv" if regression else "films.csv"))
    chosen = {"task": str(task), "backbone": str(name), **SETTINGS, **values}
    return runs.start(method, parameters.validate(config, chosen))


def without_dropout(model):
    """The model with all dropout off in training too: micro-batches would draw it anew."""
    for m in model.modules():
        if isinstance(getattr(m, "p", None), float):
            m.p = 0.0
    return model
