"""Training as long as the papers do: passes over the task there and here, and what longer runs changed.

A longer run is a variant named after its passes, `theseus-passes15`; `epochs` of the paper profile says how many a
paper takes.
"""

from __future__ import annotations

import re
from statistics import fmean

from markupsafe import Markup

from lib import profiles
from lib.reporting.ablations import differences, says_nothing
from lib.reporting.comparison import groups, task_title, tasks_of
from lib.reporting.tables import NOT_RUN, lines, small, table
from lib.results import Record
from lib.stats import Spread, spread
from lib.systems import BY_NAME, title_of

LONGER = re.compile(r"(?P<method>\w+)-passes(?P<passes>\d+)")
CLOSE = 0.9  # a run of at least this share of the paper's passes is as long


def page(records: list[Record]) -> Markup:
    """One table a group that has longer runs, a sentence where none has."""
    out = Markup("")
    for (profile, backbone), runs in groups(records).items():
        longer = [r for r in runs if LONGER.fullmatch(r.label)]
        if not longer:
            continue
        tasks = tasks_of(longer)
        rows = [_row(runs, method, tasks, passes) for method in BY_NAME if method != "bert"
                for passes in _lengths(longer, method)]
        head = ["Method", "Passes over the task"]
        head += [f"{task_title(t)}: {what}" for t in tasks for what in ("main view", "longer")]
        out += table(f"As long as the papers train: profile {profile}, backbone {backbone}", head, rows)
    return out or Markup("<p>No longer run was made yet.</p>")


def passes(r: Record) -> float | None:
    """How often a run saw each training row, on average; None where the record does not tell."""
    rows, batch = r.data.rows.get("train"), r.hyperparameters.get("batch_size")
    return r.steps * batch * r.hyperparameters.get("accumulation", 1) / rows if rows and batch else None


def papers_passes(method: str) -> float:
    """`epochs` of the paper profile."""
    return float(profiles.values("paper", method)["epochs"])


def _lengths(longer: list[Record], method: str) -> list[float]:
    """The paper's own length, and any other that was run."""
    run = {float(m["passes"]) for r in longer if (m := LONGER.fullmatch(r.label)) and m["method"] == method}
    return sorted(run | {papers_passes(method)})


def _row(runs: list[Record], method: str, tasks: list[str], length: float) -> list:
    own = papers_passes(method)
    said = "as in its paper" if length == own else f"longer than its paper's {own:g}: to compare with the others"
    cells = [c for t in tasks for c in (_main(runs, method, t), _longer(runs, method, t, length))]
    return [title_of(method), lines(f"{length:g}", small(said)), *cells]


def _main(runs: list[Record], method: str, task: str) -> Markup:
    found = [r for r in runs if (r.label, r.task) == (method, task)]
    if not found:
        return NOT_RUN
    known = [n for r in found if (n := passes(r))]
    return lines(_points(spread(r.score for r in found)), small(f"{fmean(known):.1f} passes") if known else "")


def _longer(runs: list[Record], method: str, task: str, length: float) -> Markup:
    label = f"{method}-passes{length:g}"
    found = [r for r in runs if (r.label, r.task) == (label, task)]
    if not found:
        main = [n for r in runs if (r.label, r.task) == (method, task) and (n := passes(r))]
        return lines("the main view is as long") if main and fmean(main) >= CLOSE * length else NOT_RUN
    silent = says_nothing(runs, task, (label, method))
    against = [("the main view", method), (f"truncated, {length:g} passes", f"truncated-passes{length:g}")]
    changes = [] if silent else [
        f"{_points(spread(d), sign='+')} to {name}" for name, base in against
        if base != label and (d := [x for r, x in differences(runs, label, base) if r.task == task])]
    return lines(_points(spread(r.score for r in found)), *map(small, changes), small(silent) if silent else "")


def _points(s: Spread, sign: str = "") -> str:
    return f"{s.mean:{sign}.1f}" + (f", {s.n} seed, no interval" if s.half is None else f"\u00a0±\u00a0{s.half:.1f}")
