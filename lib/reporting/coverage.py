"""What was measured and what was not: one line a method, the first table of the report."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
from markupsafe import Markup

from lib.claims.verdicts import UNDECIDED, UNTESTED, Verdict
from lib.reporting.comparison import main_group, task_title, tasks_of
from lib.reporting.pages import Study
from lib.reporting.tables import NOT_RUN, lines, small, table
from lib.results import Record
from lib.systems import BY_NAME, title_of

NOT_TIMED = Markup('<span class="bc-none">not timed</span>')
# The shape of sizes.csv that stands for a method, as its paper runs it
SHAPES = {
    **dict.fromkeys(("truncated", "kd", "pkd", "pdbert", "layerdrop", "theseus"), "BERT, 6 layers"),
    "distilbert": "DistilBERT", "tinybert": "TinyBERT4", "mobilebert": "MobileBERT",
    "efficientbert": "EfficientBERT", "trimbert": "TrimBERT n=2",
}  # fmt: skip
TOGETHER = {"kd": "pkd"}  # whose claims are counted with another's
HEAD = ("Method", "Trained and scored here (seeds)", "Other variants", "Size and operations", "Speed",
        "Claims decided")  # fmt: skip


def page(study: Study, found: Iterable[Verdict], sizes: pd.DataFrame, timed: pd.DataFrame | None) -> Markup:
    """The table over the committed runs of `main_group`, and a sentence on their scale.

    `sizes`: results/sizes.csv by system; `timed`: results/efficiency.csv, None where nothing was timed.
    """
    found = list(found)
    group = main_group(study.committed)
    runs = group[2] if group else []
    body = [_line(m, runs, found, sizes, timed) for m in BY_NAME]
    return _scale(study) + table("Measured, and not", HEAD, body)


def _scale(study: Study) -> Markup:
    runs = study.committed
    if not runs:
        return Markup("<p>No run is committed yet: every number of this book is a printed one or a count.</p>")
    small_ones = sum(r.scale != "paper" for r in runs)
    where = "; ".join(sorted({r.scale for r in runs if r.scale != "paper"}))
    if not small_ones:
        return Markup("<p>All {} committed runs are at the papers' scale.</p>").format(len(runs))
    whole = len(runs) - small_ones
    rest = f"The other {whole} are at a paper's scale." if whole else "No run is at a paper's scale."
    return Markup("<p>{} of {} committed runs are small ({}), so their scores are not set against printed scores; "
                  "shares of a teacher's score and orders of methods are. {}</p>").format(
        small_ones, len(runs), where, rest)


def _line(method: str, runs: list[Record], found: list[Verdict], sizes, timed) -> list:
    shape = "BERT-base" if method == "bert" else SHAPES[method]
    counted = shape in sizes.index
    clocked = timed is not None and shape in set(timed.system)
    return [
        title_of(method), _tasks([r for r in runs if r.label == method]), _variants(method, runs),
        lines("counted", small(shape)) if counted else Markup('<span class="bc-none">not counted</span>'),
        lines("timed", small(shape)) if clocked else NOT_TIMED,
        _claims(method, found),
    ]  # fmt: skip


def _tasks(own: list[Record]) -> Markup | str:
    """Tasks with the number of seeds."""
    if not own:
        return NOT_RUN
    return ", ".join(f"{task_title(t)}\u00a0({len({r.seed for r in own if r.task == t})})" for t in tasks_of(own))


def _variants(method: str, runs: list[Record]) -> Markup | str:
    own = [r for r in runs if r.method == method and r.label != method]
    return f"{len({r.label for r in own})}, {len(own)} runs" if own else NOT_RUN


def _claims(method: str, found: list[Verdict]) -> Markup | str:
    if method in TOGETHER:
        return f"with {title_of(TOGETHER[method])}"
    own = [v for v in found if v.claim.paper == method]
    decided = sum(v.verdict not in (UNTESTED, UNDECIDED) for v in own)
    return Markup('<a href="claims.html">{} of {}</a>').format(decided, len(own)) if own else "states none of its own"
