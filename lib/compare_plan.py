"""What a comparison is asked for, whether it can be made, and how many tokens each method gets."""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

from lib import cost, grid, runs
from lib.cost import Cost
from lib.errors import InputError, one_of, shorten
from lib.parameters import Parameters, validate
from lib.paths import ROOT, write_atomic
from lib.provenance import digest
from lib.systems import title_of

PROFILE = "compare"
SHARE = 0.85  # of MINUTES that the estimate may fill: steps vary, and other programs run
FEWEST_STEPS = 30  # optimiser steps below which a score says nothing of a method
STARTUP = 1.5  # a notebook loads what this process loaded, and starts a kernel besides
OPTIONS = {
    "task": "your CSV, TSV, JSONL or parquet file, a folder with train, validation and test files, or a task's name",
    "teacher": "folder of your fine-tuned classifier; empty: the backbone is fine-tuned once and shared",
    "methods": "students to compare, by name",
    "minutes": "time for everything (60)",
    "backbone": "short name, Hugging Face id or folder; empty: the teacher, else minilm-l6",
    "text-column": "empty: guessed and printed",
    "text-column-2": "second text of a pair",
    "label-column": "empty: guessed and printed",
    "kind": "auto, classification or regression",
    "max-length": "tokens a row, cut beyond (128)",
    "lr": "one learning rate for every method (profile compare)",
    "seed": "of every run (0)",
    "output": "folder of students and page (results/compare/<task>)",
}
SHARED = ("task", "teacher", "backbone", "text_column", "text_column_2", "label_column", "kind", "max_length", "seed")


@dataclass(frozen=True)
class Request:
    """What was asked for: student methods, minutes, the parameters that every run shares, where it goes."""

    methods: tuple[str, ...]
    minutes: float
    values: dict[str, str]
    output: Path | None
    command: str

    @property
    def needed(self) -> tuple[str, ...]:
        """All runs in order: the teacher first where none is given, so that the students find it ready."""
        return self.methods if self.values.get("teacher") else ("bert", *self.methods)


def arguments(given: list[str] | None = None) -> Request:
    """The command line as a `Request`. Raises `InputError` for unknown names and a time that is none."""
    parser = argparse.ArgumentParser(prog="python -m lib.compare", description="Which method for my data?")
    parser.error = _refuse  # one line, not a page of usage
    for name, words in OPTIONS.items():
        parser.add_argument(f"--{name}", default="", help=words)
    a = vars(parser.parse_args(given))
    if not a["task"].strip():
        raise InputError("TASK: is empty; give a file, a folder or the name of a task")
    names = list(dict.fromkeys(a["methods"].replace(",", " ").split()))
    for name in names:
        one_of("METHODS", name, grid.methods())
    students = tuple(n for n in names if n != "bert")  # the teacher's row is always there
    if not students:
        raise InputError(f"METHODS: {shorten(a['methods'])} names no student; allowed, one or more of: "
                         f"{', '.join(n for n in grid.methods() if n != 'bert')}")
    try:
        minutes = float(a["minutes"] or 60)
    except ValueError:
        minutes = math.nan
    if not (math.isfinite(minutes) and minutes > 0):
        raise InputError(f"MINUTES: {shorten(a['minutes'])} must be a number of minutes above 0")
    values = {k: a[k] for k in SHARED if a[k] != ""}
    values |= {k: a["lr"] for k in ("lr", "teacher_lr") if a["lr"]}
    words = [w for k, v in a.items() if v for w in (f"--{k.replace('_', '-')}", v)]
    return Request(students, minutes, values, Path(a["output"]).expanduser() if a["output"] else None,
                   shlex.join(["python", "-m", "lib.compare", *words]))


def _refuse(message: str):
    raise InputError(message)


def profiles(method: str = "") -> list[Path]:
    """Profile files of a method's run, in the order in which they count."""
    files = [ROOT / "notebooks" / "profiles" / f"{PROFILE}{ending}.yaml" for ending in ("", f"-{method}")]
    return [f for f in files if f.exists()]


def settings(method: str) -> dict:
    """What the profile files set for a method."""
    return {k: v for f in profiles(method) for k, v in yaml.safe_load(f.read_text()).items()}


def parameters(request: Request, method: str, **changes) -> Parameters:
    """Parameters of a run as its notebook will read them."""
    return validate(cost.module(method).Config, {**settings(method), **request.values, **changes})


def check(request: Request) -> runs.Run:
    """Load rows, tokenizer and teacher, and check what can be checked before training; the run of the teacher."""
    for method in request.needed:
        parameters(request, method)
    with cost.scratch():  # nothing is left behind where something is wrong
        return runs.start("bert", parameters(request, "bert"))


def check_folder(folder: Path) -> None:
    """Raise `InputError` where `folder` cannot be written or holds something that is no comparison."""
    nearest = next(p for p in (folder, *folder.parents) if p.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise InputError(f"output {folder}: {nearest} is no folder that can be written to; choose another --output")
    if folder.exists() and any(folder.iterdir()) and not (folder / "plan.json").exists():
        raise InputError(f"output {folder}: is not empty and holds no comparison; choose another --output")


def identity(request: Request, base: runs.Run) -> dict[str, str]:
    """What must be equal for a comparison to be continued, by names that a message can use."""
    found = base.identity
    return {"rows": found["data"], "TEACHER": found["teacher"] or "none", "backbone": found["backbone"],
            "MINUTES": f"{request.minutes:g}", "seed": str(base.p.seed), "max_length": str(base.p.max_length),
            "lr": f"{base.p.lr:g}", "profile": digest(settings("bert"))}


def limits(base: runs.Run) -> tuple[int, int]:
    """(least, largest) budget in tokens: some steps of training, and the epochs of the profile."""
    largest = int(base.p.epochs * base.train.lengths.sum())
    return min(largest, int(FEWEST_STEPS * base.p.batch_size * base.train.lengths.mean())), largest


def budget(costs: dict[str, Cost], minutes: float, spent: float, least: int, largest: int) -> int:
    """The token budget, equal for all of `costs`, that fills what is left of the minutes, with a reserve.

    `spent`: seconds already gone or set aside. At most `largest`. Raises `InputError` where not even `least` fits.
    """
    fixed, a_token = sum(c.fixed for c in costs.values()), sum(c.per_token for c in costs.values())
    available = SHARE * 60 * minutes - spent - fixed
    if available < a_token * least:
        need = math.ceil((spent + fixed + a_token * least) / SHARE / 6) / 10
        raise InputError(f"MINUTES: {minutes:g} is too short; {', '.join(costs)} on the least budget ({least:,} tokens "
                         f"each) needs about {need:g} minutes here; raise MINUTES or name fewer METHODS")
    if a_token * largest <= available:
        return largest
    fits = int(available / a_token)
    return max(least, fits - fits % 1000)


def timing_seconds(minutes: float) -> float:
    """Seconds set aside for loading the students and timing them."""
    return min(60.0, 6 * minutes)


def plan(request: Request, base: runs.Run, folder: Path, began: float) -> dict:
    """The plan of a comparison, kept in its folder so that it can be continued: identity, budget, cost of each method.

    Raises `InputError` where `folder` holds another comparison, and where the time is too short.
    """
    path, own = folder / "plan.json", identity(request, base)
    kept = _read(path)
    for name, value in own.items() if kept else ():
        if kept["identity"].get(name) != value:
            raise InputError(f"output {folder}: holds a comparison with another {name} ({kept['identity'].get(name)} "
                             f"there, {value} now); choose another --output, or delete that folder")
    costs = {k: Cost(**v) for k, v in kept["costs"].items()} if kept else {}
    missing = [m for m in request.needed if m not in costs]
    if not missing:
        return kept
    print(f"measuring a few training steps of {', '.join(missing)}", flush=True)
    least, largest = limits(base)
    costs |= _measure(request, base, missing, kept["budget"] if kept else largest, began)
    spent = time.perf_counter() - began + timing_seconds(request.minutes)
    if not kept:
        chosen = budget({m: costs[m] for m in request.needed}, request.minutes, spent, least, largest)
    else:  # a method joins at the budget of those that are there, or they could not be compared
        chosen = kept["budget"]
        need = (spent + sum(costs[m].seconds(chosen) for m in missing)) / 60
        if need > request.minutes:
            raise InputError(f"MINUTES: {request.minutes:g} is too short; {', '.join(missing)} at this comparison's "
                             f"{chosen:,} tokens needs about {need:.1f} minutes; another --output compares all methods "
                             "at a smaller budget")
    kept = {"identity": own, "budget": chosen, "costs": {k: vars(c) for k, c in costs.items()}}
    write_atomic(path, json.dumps(kept, indent=1).encode())
    return kept


def _read(path: Path) -> dict | None:
    if not path.exists():
        return None
    try:
        kept = json.loads(path.read_text())
        return {"identity": dict(kept["identity"]), "budget": int(kept["budget"]),
                "costs": {k: vars(Cost(**v)) for k, v in kept["costs"].items()}}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise InputError(f"{path}: is not the plan of a comparison ({shorten(str(e))}); delete that folder, or choose "
                         "another --output") from None


def _measure(request: Request, base: runs.Run, names: list[str], at: int, began: float) -> dict[str, Cost]:
    """Cost of each method at the largest budget `at`; the teacher first, because the others need one."""
    startup = STARTUP * (time.perf_counter() - began)
    costs, teacher = {}, base.teacher().model if request.values.get("teacher") else None
    for name in names if teacher or names[0] == "bert" else ["bert", *names]:
        p = parameters(request, name, max_tokens=at, teacher_tokens=at)
        found, model = cost.measure(base, name, p, startup, teacher)
        teacher = teacher if name != "bert" else model
        if name in names:
            costs[name] = found
        if time.perf_counter() - began > 60 * request.minutes:
            raise InputError(f"MINUTES: {request.minutes:g} is too short; it was over when a few steps of {name} had "
                             "been measured")
    return costs


def show(made: dict, request: Request) -> float:
    """Print the estimate; its seconds."""
    costs = {m: Cost(**made["costs"][m]) for m in request.needed}
    for m, c in costs.items():
        speed = f"{1 / c.per_token:,.0f} tokens a second" if c.per_token else "no part that the budget decides"
        print(f"  {title_of(m)}: {speed}, {c.fixed:.0f} s besides, about {c.seconds(made['budget']) / 60:.1f} minutes")
    total = sum(c.seconds(made["budget"]) for c in costs.values())
    print(f"estimate: {made['budget']:,} tokens for each method, about {total / 60:.1f} of {request.minutes:g} minutes",
          flush=True)
    return total
