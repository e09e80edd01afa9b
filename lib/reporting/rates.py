"""Which learning rate each method was given on each task, and where the grid ended there."""

from __future__ import annotations

from markupsafe import Markup

from lib.reporting.comparison import task_title, tasks_of
from lib.reporting.tables import NOT_RUN, details, lines, small, table
from lib.results import Record
from lib.systems import BY_NAME, title_of


def chosen(records: list[Record]) -> Markup:
    """A folded table of the plain runs of one group; nothing where no run chose from a grid."""
    found = [r for r in records if r.label in BY_NAME and "lr" in r.selection.chosen]
    if not found:
        return Markup("")
    tasks = tasks_of(found)
    body = [[title_of(m), *(_cell([r for r in found if (r.label, r.task) == (m, t)]) for t in tasks)]
            for m in BY_NAME if any(r.label == m for r in found)]  # fmt: skip
    return details("learning rates chosen", table("Learning rates chosen", ["Method", *map(task_title, tasks)], body))


def _cell(runs: list[Record]) -> object:
    """The rates of a method's runs on a task, and whether one is the lowest or highest of its grid."""
    if not runs:
        return NOT_RUN
    rates = sorted({r.selection.chosen["lr"] for r in runs})
    ends = {end for r in runs for grid in [r.selection.grid.get("lr", [])] if len(grid) > 1
            for end, limit in (("lowest", min(grid)), ("highest", max(grid))) if r.selection.chosen["lr"] == limit}
    blind = any(len({s["score"] for s in r.selection.scores}) == 1 < len(r.selection.scores) for r in runs)
    return lines(", ".join(f"{x:g}" for x in rates), *(small(f"the {end} of its grid") for end in sorted(ends)),
                 small("all rates scored alike: the default") if blind else "")
