"""One sentence a paper, from the committed records and the printed numbers alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from markupsafe import Markup

from lib.claims.verdicts import WORDS, Verdict
from lib.reporting.cells import number
from lib.reporting.comparison import (
    Cell,
    cell,
    main_group,
    paired,
    protocol,
    same_tokens,
    task_title,
    tasks_of,
    token_budget,
)
from lib.reporting.pages import Study
from lib.reporting.paper_pages import PAPERS
from lib.reporting.tables import count
from lib.stats import Spread
from lib.systems import title_of


def papers(study: Study, found: Iterable[Verdict] = ()) -> Markup:
    """A list with one sentence for each of the six papers, and what became of its claims."""
    found = list(found)
    items = Markup("").join(
        Markup('<li><a href="{}.html">{}</a>: {} {}</li>').format(p, title_of(p), sentence(p, study), claims(p, found))
        for p in PAPERS)
    return Markup("<ul>{}</ul>").format(items)


def claims(paper: str, found: list[Verdict]) -> Markup | str:
    """How many claims of the paper got which verdict, in the verdicts' own order: of training, then of arithmetic."""
    parts = []
    for name, training in (("of training", True), ("of printed numbers, counts or timings", False)):
        counts = Counter(v.verdict for v in found if v.claim.paper == paper and v.claim.of_training == training)
        words = ", ".join(f"{w} {counts[w]}" for w in WORDS if counts[w])
        parts += [f"{name}: {words}"] if words else []
    return Markup('<a href="claims.html">Its claims</a> {}.').format("; ".join(parts)) if parts else ""


def sentence(method: str, study: Study) -> str:
    """What the group with most committed runs says of a method."""
    found = main_group(study.committed)
    cells = _cells(method, study) if found else []
    if not cells:
        others = sum(r.method == method for r in study.committed)
        demo = any(r.method == method for r in study.local)
        none = "no committed run (the demo on this machine ran it)." if demo else "no committed run."
        return f"only variants were run ({count(others, 'run')})." if others else none
    kept = [_kept(c) for c in cells]
    other = protocol(r for c in cells for r in c.runs)
    return (f"{other}: " if other else "") + "; ".join(kept) + ". " + against_truncated(method, study)


def _cells(method: str, study: Study) -> list[Cell]:
    _, _, runs = main_group(study.committed)
    cells = [cell(study.reported, runs, method, t) for t in tasks_of(runs)]
    return [c for c in cells if c.runs]


def _kept(c: Cell) -> str:
    what = f"on {task_title(c.task)} "
    if c.retention is None:
        return what + f"its score is {number(c.ours)} (retention withheld: {c.withheld})"
    printed = "not printed" if c.reported_retention is None else f"{c.reported_retention:.1f}%"
    printed += f", {c.foreign_base}" if c.foreign_base else ""
    one = "" if c.retention.half is not None else " with one seed"
    floor = f", above a majority guess {number(c.above)}%" if c.above and c.teacher and c.teacher.majority else ""
    return what + (f"it keeps {number(c.retention)}% of the teacher's score{one}{floor} (reported at BERT-base: "
                   f"{printed})")


def against_truncated(method: str, study: Study) -> str:
    """Ahead, behind or not told apart, task by task, at equal tokens and seed by seed."""
    profile, backbone, runs = main_group(study.committed)
    said: dict[str, list[str]] = {}
    for c in _cells(method, study):
        base = cell(study.reported, runs, "truncated", c.task)
        if not same_tokens(c, token_budget(runs, c.task)):
            continue
        gain = paired(c, base)
        if gain is not None:
            said.setdefault(side(gain), []).append(f"{task_title(c.task)} ({gain.mean:+.1f})")
    if not said:
        return "It was not run beside truncated fine-tuning at equal tokens."
    order = ("ahead on", "behind on", "not told apart on", "one seed alone on")
    parts = [f"{k} {', '.join(said[k])}" for k in order if k in said]
    return f"Against truncated fine-tuning at equal tokens: {'; '.join(parts)} points."


def side(gain: Spread) -> str:
    """Which side of zero the 95% interval of a difference lies on; one seed has no interval and decides nothing."""
    if gain.half is None:
        return "one seed alone on"
    return "ahead on" if gain.low > 0 else "behind on" if gain.high < 0 else "not told apart on"
