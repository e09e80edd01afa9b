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

from lib import grid, profiles, runs
from lib.compare import cost
from lib.compare.cost import Cost
from lib.errors import InputError, one_of, shorten
from lib.parameters import Parameters, validate
from lib.paths import write_atomic
from lib.provenance import digest
from lib.systems import title_of
from lib.tasks import TASKS

PROFILE = "compare"
SHARE = 0.85  # of MINUTES that the estimate may fill: steps vary, and other programs run
FEWEST_STEPS = 30  # optimiser steps below which a score says nothing of a method
# Each method's learning rate is chosen on the held-out rows: one rate does not suit both a method that trains all
# weights and one that trains few of them. BERT-base is fine-tuned at the lowest, small backbones at the higher ones.
GRID = (3e-5, 1e-4, 3e-4)
TRIAL = 0.5  # of the budget, for each rate of the grid
CHOOSING_STEPS = 100  # optimiser steps of a budget below which choosing would be guessing
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
    "lr": "one learning rate for every method; empty: each method's is chosen on the held-out rows",
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


def settings(method: str) -> dict:
    """What the profile files set for a method."""
    return profiles.values(PROFILE, method)


def parameters(request: Request, method: str, **changes) -> Parameters:
    """Parameters of a run as its notebook will read them."""
    return validate(cost.module(method).Config, {**settings(method), **request.values, **changes})


def check(request: Request) -> runs.Run:
    """Load rows, tokenizer and teacher, and check what can be checked before training; the run of the teacher."""
    if (task := TASKS.get(request.values["task"])) and task.span:
        raise InputError(f"task {task.name}: answers with spans, which this comparison does not score; use the grid")
    for method in request.needed:
        p = parameters(request, method)
    if p.seed == p.tuning_seed:
        raise InputError(f"seed: {p.seed} is the seed with which learning rates are chosen; it must be another")
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
            "lr": request.values.get("lr", "chosen"), "profile": digest([settings("bert"), GRID, TRIAL])}


@dataclass(frozen=True)
class Limits:
    """Budgets in tokens: the least that says anything, the least that allows choosing a rate, the largest of use."""

    least: int
    choosing: int
    largest: int


def limits(base: runs.Run) -> Limits:
    """Limits of a budget from steps of training, and from the epochs of the profile."""
    largest = int(base.p.epochs * base.train.lengths.sum())
    step = base.p.batch_size * base.train.lengths.mean()
    return Limits(min(largest, int(FEWEST_STEPS * step)), min(largest, int(CHOOSING_STEPS * step)), largest)


def effort(grid) -> tuple[int, float]:
    """(trainings, budgets) of a method: the run itself, and a shorter trial for each rate of the grid."""
    return 1 + len(grid), 1 + TRIAL * len(grid)


def fits(costs: dict[str, Cost], seconds: float, grid) -> float:
    """The largest equal budget in tokens at which `costs` take no more than `seconds`; below 0 where none does."""
    fixed = sum(c.seconds(0, *effort(grid)) for c in costs.values())
    a_token = effort(grid)[1] * sum(c.per_token for c in costs.values())
    return math.inf if a_token == 0 and fixed <= seconds else (seconds - fixed) / max(a_token, 1e-12)


def needed(costs: dict[str, Cost], budget: int, spent: float, grid) -> float:
    """Minutes for a budget, with the reserve, rounded up to a tenth."""
    return math.ceil((spent + sum(c.seconds(budget, *effort(grid)) for c in costs.values())) / SHARE / 6) / 10


def budget(costs: dict[str, Cost], minutes: float, spent: float, at: Limits, choose: bool) -> tuple[int, list[float]]:
    """(tokens for each of `costs`, learning rates to choose from) that fill what is left of the minutes.

    `spent`: seconds gone or set aside. Without `choose`, or where the minutes allow no choosing, which is printed, the
    grid is empty. Raises `InputError` where not even the least budget fits.
    """
    seconds, grid = SHARE * 60 * minutes - spent, list(GRID) if choose else []
    if grid and fits(costs, seconds, grid) < at.choosing:
        print(f"MINUTES: {minutes:g} leave no time to choose a learning rate for each method, so all use one; about "
              f"{needed(costs, at.choosing, spent, grid):g} would")
        grid = []
    tokens = fits(costs, seconds, grid)
    if tokens < at.least:
        need = needed(costs, at.least, spent, grid)
        raise InputError(f"MINUTES: {minutes:g} is too short; {', '.join(costs)} on the least budget ({at.least:,} "
                         f"tokens each) needs about {need:g} minutes here; raise MINUTES or name fewer METHODS")
    return at.largest if tokens >= at.largest else max(at.least, int(tokens) - int(tokens) % 1000), grid


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
    at = limits(base)
    costs |= _measure(request, base, missing, kept["budget"] if kept else at.largest, began)
    spent = time.perf_counter() - began + timing_seconds(request.minutes)
    if not kept:
        chosen, grid = budget({m: costs[m] for m in request.needed}, request.minutes, spent, at,
                              "lr" not in request.values)
    else:  # a method joins at the budget of those that are there, or they could not be compared
        chosen, grid = kept["budget"], kept["grid"]
        need = (spent + sum(costs[m].seconds(chosen, *effort(grid)) for m in missing)) / 60
        if need > request.minutes:
            raise InputError(f"MINUTES: {request.minutes:g} is too short; {', '.join(missing)} at this comparison's "
                             f"{chosen:,} tokens needs about {need:.1f} minutes; another --output compares all methods "
                             "at a smaller budget")
    kept = {"identity": own, "budget": chosen, "grid": grid, "costs": {k: vars(c) for k, c in costs.items()}}
    write_atomic(path, json.dumps(kept, indent=1).encode())
    return kept


def _read(path: Path) -> dict | None:
    if not path.exists():
        return None
    try:
        kept = json.loads(path.read_text())
        return {"identity": dict(kept["identity"]), "budget": int(kept["budget"]), "grid": list(kept["grid"]),
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
        try:
            found, model = cost.measure(base, name, p, startup, teacher)
        except InputError:
            raise
        except Exception as e:  # any method's any mistake: the others can still be compared without it
            raise InputError(f"METHODS: {name} failed in its first steps on these rows ({type(e).__name__}: "
                             f"{shorten(' '.join(str(e).split()), 200)}); leave it out to compare the others") from e
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
    seconds = {m: c.seconds(made["budget"], *effort(made["grid"])) for m, c in costs.items()}
    for m, c in costs.items():
        speed = f"{1 / c.per_token:,.0f} tokens a second" if c.per_token else "no part that the budget decides"
        print(f"  {title_of(m)}: {speed}, about {seconds[m] / 60:.1f} minutes in all")
    total = sum(seconds.values())
    trials = f", after {len(made['grid'])} trials of {TRIAL:g} times that to choose its learning rate"
    print(f"estimate: {made['budget']:,} tokens for each method{trials if made['grid'] else ''}: about "
          f"{total / 60:.1f} of {request.minutes:g} minutes", flush=True)
    return total


def budgeted(request: Request, method: str, made: dict, **changes) -> Parameters:
    """Parameters of a run under a plan: budget, and the learning rates that it tries first."""
    tokens, grid = made["budget"], made["grid"]
    more = {"max_tokens": tokens, "teacher_tokens": tokens}
    if grid:
        more |= {"lr_grid": grid, "tuning_tokens": max(1, int(TRIAL * tokens))}
        if not request.values.get("teacher"):
            more["teacher_lr_grid"] = grid
    return parameters(request, method, **more, **changes)
