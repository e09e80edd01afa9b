"""Comparisons in this process, in haste. Helpers of the tests; nothing here is a result."""

from __future__ import annotations

from pathlib import Path

import yaml

from lib import compare, runs
from lib.compare import cost
from lib.compare import rows as compare_rows
from lib.methods import bert
from lib.parameters import validate


def ask(task, *more, methods="truncated theseus", minutes="30", backbone="", output=""):
    """Words of the command line."""
    return ["--task", str(task), "--methods", methods, "--minutes", minutes,
            *(("--backbone", str(backbone)) if backbone else ()), *(("--output", str(output)) if output else ()), *more]


def in_process(command, executed):
    """What papermill would do with this command, without a kernel: the notebook's cells, in this process."""
    method, values, i = Path(command[3]).stem, {}, 7
    assert command[1:3] == ["-m", "papermill"]
    while i < len(command):
        if command[i] == "-f":
            values |= yaml.safe_load(Path(command[i + 1]).read_text())
            i += 2
        elif command[i] == "-y":
            values |= yaml.safe_load(command[i + 1])
            i += 2
        else:
            assert command[i] in ("-r", "-p")
            values[command[i + 1]] = command[i + 2]
            i += 3
    module = cost.module(method)
    run = runs.start(method, validate(module.Config, values))
    made = bert.from_artefact(run) if method == "bert" else run.compress(module.compress)
    run.finish(*made)
    return ""


def hasten(monkeypatch):
    """Runs happen in this process and few rounds are timed; the list of methods that were run."""
    ran = []
    monkeypatch.setattr(compare, "run", lambda c, e: (ran.append(Path(c[3]).stem), in_process(c, e))[1])
    monkeypatch.setattr(cost, "SECONDS", 0.05)
    monkeypatch.setattr(compare_rows, "DRAWS", 100)
    real = compare_rows.timing.latency
    monkeypatch.setattr(compare_rows.timing, "latency", lambda *a, **k: real(*a, **{**k, "rounds": 5}))
    return ran
