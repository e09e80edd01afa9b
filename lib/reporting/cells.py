"""Cells of the comparison as HTML, and one detailed table a task, for one profile and backbone."""

from __future__ import annotations

from markupsafe import Markup

from lib.paths import results_dir
from lib.reporting.comparison import Cell, cell, labels_of, protocol, task_title
from lib.reporting.reported import Reported, metric_title, paper_title
from lib.reporting.tables import NOT_RUN, count, flag, lines, note, small, table
from lib.results import Record, is_stale, path_of
from lib.stats import Spread
from lib.systems import title_of
from lib.tasks import TASKS


def number(s: Spread | None, digits: int = 1) -> str:
    """Mean with interval; with one seed the mean alone, and the cell says so."""
    if s is None:
        return "-"
    # Non-breaking spaces: a number and its interval stay on one line.
    return f"{s.mean:.{digits}f}" + (f"\u00a0±\u00a0{s.half:.{digits}f}" if s.half is not None else "")


def seeds(s: Spread) -> str:
    return f"median {s.median:.1f}, {s.n} seeds" if s.n > 1 else "one seed, no interval"


def anchor(record: Record) -> str:
    """Id of a run on the provenance page."""
    return f"run-{record.profile}-{record.backbone}-{record.task}-{record.label}-{record.seed}"


def record_page(record: Record) -> str:
    """Where the book keeps a copy of the record, from the book's root."""
    return f"records/{path_of(record).relative_to(results_dir() / 'runs').as_posix()}"


def command(text: str) -> Markup:
    """A command line that `study.js` puts a button to copy beside."""
    return Markup('<code class="bc-command">{}</code>').format(text)


def runs_of(c: Cell) -> Markup:
    """The runs behind a cell, folded up: score, record, and the command that makes it again."""
    items = Markup("").join(
        Markup('<li>seed {}: <a href="{}">record</a>, <a href="provenance.html#{}">provenance</a> {}</li>').format(
            r.seed, record_page(r), anchor(r), command(r.command)) for r in c.runs)
    name = Markup('{}<span class="bc-hidden">, {} on {}</span>').format(
        count(len(c.runs), "run"), title_of(c.label), task_title(c.task))
    return Markup('<details class="bc-runs"><summary>{}</summary><ul>{}</ul></details>').format(name, items)


EXCLUDED = {"above": "\u25b2 above reported", "below": "\u25bc below reported"}


def excluded(c: Cell) -> Markup | str:
    """A mark where the interval of ours excludes the printed number: sign, words and colour. Else nothing."""
    if not c.excluded:
        return ""
    title = f"the 95% interval of ours excludes the reported {c.against.what}"
    return Markup('<span class="bc-{}" title="{}">{}</span>').format(c.excluded, title, EXCLUDED[c.excluded])


def runs_link(c: Cell, linked: bool = True) -> Markup:
    """Our number, linked to its runs; stale runs are counted, not hidden. A notebook opened alone has no such page."""
    stale = sum(is_stale(r) for r in c.runs)
    link = Markup('<a href="provenance.html#{}">{}</a>').format(anchor(c.runs[0]), number(c.ours))
    link = link if linked else Markup("{}").format(number(c.ours))
    marks = [flag(f"{stale} stale", "made by other lib code than the present one")] if stale else []
    if c.shared_teacher:
        marks.append(flag("shared teacher", "seeds share one teacher: the interval is too narrow"))
    return Markup(" ").join([link, *marks])


def printed(r: Reported | None, c: Cell) -> Markup | str:
    if r is None:
        return "not printed"
    what = Markup('<span title="{}">{}</span>').format(f"{paper_title(r.paper)}, {r.system}, {r.where}", r.value)
    mark = "" if r.verified else flag("unverified")
    # A row of another variant, or taken over by another paper, says so
    row = small(r.system) if "reprinted" in r.system else ""
    return lines(what, small(f"{metric_title(r.metric)}, {r.split}"), row, mark)


def pair(name: str, reported: float | None, ours: str) -> Markup:
    """Reported | ours; ours alone is named so, lest it pass for the other."""
    if reported is None:
        return Markup("{}, ours:\u00a0{}").format(name, ours)
    return Markup("{}: {:.1f}\u00a0|\u00a0{}").format(name, reported, ours)


def verdict(c: Cell) -> Markup | str:
    """The difference where the numbers are comparable, else retention beside retention and what was scaled."""
    if not c.runs:
        return NOT_RUN
    if c.comparable:
        return lines(f"difference {c.ours.mean - c.reported.number:+.1f}", excluded(c))
    if not c.is_student:
        return small(c.why_not)
    if c.withheld:
        return lines(small(f"retention withheld: {c.withheld}"), small(c.why_not))
    return lines(
        pair("retention", c.reported_retention, number(c.retention)),
        pair("above majority", c.reported_above, number(c.above)),
        note(f"reported: {c.foreign_base}") if c.foreign_base else "",
        excluded(c),
        small(c.why_not),
    )


def majority_of(records: list[Record], task: str) -> str:
    values = sorted({round(r.majority, 1) for r in records if r.task == task})
    return " to ".join(f"{v:.1f}" for v in values[:: max(1, len(values) - 1)])


def related(task: str, backbone: str) -> Markup | str:
    """A flag where the default backbone saw data of this kind before, with what its card says; nothing for others."""
    seen = TASKS[task].seen_by(backbone) if task in TASKS else ""
    return flag(seen, f"The card of {backbone}: {TASKS[task].card}") if seen else ""


def task_table(rows: list[Reported], records: list[Record], task: str, caption: str) -> Markup:
    """Everything known about one task in one group, a method a line."""
    head = [
        "Method",
        "Reported",
        "Ours, mean ± 95% interval",
        "Median, seeds",
        "Difference, or retention: reported | ours",
        "Best checkpoint on the scored rows (the papers' selection, optimistic)",
        "Loyalty: same label, probabilities (%)",
    ]
    body = []
    for label in labels_of(records):
        c = cell(rows, records, label, task)
        if not c.runs:
            body.append([title_of(label), printed(c.reported, c), NOT_RUN, *[NOT_RUN] * 4])
            continue
        best = number(c.best) if c.best else "not kept"
        ours = lines(runs_link(c), small(c.runs[0].headline), runs_of(c))
        other = protocol(c.runs)
        name = lines(title_of(label), note(other)) if other else title_of(label)
        body.append([name, printed(c.reported, c), ours, seeds(c.ours), verdict(c), best, loyalty(c)])
    guess = f"{majority_of(records, task)}"
    body.append(["Majority class", "not printed", guess, "needs no seed", "0 above majority", "no checkpoint", "none"])
    return table(caption, head, body, sortable=True, pinned=1)


def loyalty(c: Cell) -> str:
    known = [r.loyalty for r in c.runs if r.loyalty]
    if not known:
        regression = c.task in TASKS and TASKS[c.task].regression
        return "not defined for regression" if regression else "not recorded"
    label = sum(x.label for x in known) / len(known)
    probability = sum(x.probability for x in known) / len(known)
    return f"{label:.1f}, {probability:.1f}"
