"""Tables that a paper's notebook shows: the paper's numbers beside ours, in HTML, with what was scaled down.

Each function reads the records that exist when it is called, or takes a `Study` that was read before. Committed runs
come first, then this machine's demo.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from markupsafe import Markup

from lib.errors import InputError, one_of
from lib.reporting.cells import number, printed, runs_link, seeds, verdict
from lib.reporting.comparison import Cell, cell, groups, paired, task_title, tasks_of
from lib.reporting.pages import Study, load_study
from lib.reporting.reported import TASK_TITLES, Reported, metric_title, paper_title, reported_table, select
from lib.reporting.tables import NOT_RUN, count, lines, small, table
from lib.results import Record
from lib.stats import spread
from lib.systems import BY_NAME, Printed, title_of


def committed_and_local(study: Study) -> Iterator[tuple[str, list[Record]]]:
    """(caption, records) of each profile and backbone."""
    for what, records in (("committed runs", study.committed), ("demo on this machine", study.local)):
        for (profile, backbone), runs in groups(records).items():
            scales = "; ".join(sorted({r.scale for r in runs}))
            yield f"{what}, profile {profile}, backbone {backbone} ({scales})", runs


def ours_table(method: str, study: Study | None = None) -> Markup:
    """All tasks of a method beside the printed row that `lib.systems` names for it."""
    study = study or load_study()
    one_of("method", method, BY_NAME)
    out = Markup("").join(_rows(study.reported, runs, method, c) for c, runs in committed_and_local(study))
    return out or _nothing(method)


def beside(paper: str, method: str, where_prefix: str, study: Study | None = None) -> Markup:
    """Reported | ours of `method` beside one table of `paper`, one line a task. Ours carries its retention.

    Where nothing was run, the printed numbers stand alone with "not run". Raises `InputError` where the paper has no
    such table, the method is unknown, or the table has no row of that method.
    """
    study = study or load_study()
    one_of("method", method, BY_NAME)
    reported_table(paper, where_prefix, study.reported)  # an unknown table is named here, with those that exist
    system = BY_NAME[method]
    if system.printed.paper != paper:
        raise InputError(f"method {method}: its numbers are those of {system.printed.paper}, not of {paper}")
    rows = select(study.reported, paper, where_prefix, system.printed.system)
    if not rows:
        raise InputError(f"{paper} {where_prefix}: no row {system.printed.system!r}")
    teachers = []
    if system.teacher and system.teacher.paper == paper:
        teachers = select(study.reported, paper, where_prefix, system.teacher.system)
    name = f"{paper_title(paper)} {where_prefix}: reported | ours, {title_of(method)}"
    printed_rows = _as_declared(rows, system.printed) + _as_declared(teachers, system.teacher)
    out = Markup("").join(_rows(printed_rows, runs, method, f"{name}, {c}") for c, runs in committed_and_local(study))
    if out:
        return out
    rows = [r for r in rows if r.task != "-"] or rows  # sizes and speeds belong to no task
    what = [small(f"{metric_title(r.metric)}, {r.split}") for r in rows]
    names = [TASK_TITLES.get(r.task, r.task) or "the model" for r in rows]
    body = [[n, lines(r.value, w), NOT_RUN] for n, r, w in zip(names, rows, what, strict=True)]
    return table(name, ["Task", "Reported", "Ours"], body)


def _as_declared(rows: list[Reported], declared: Printed | None) -> list[Reported]:
    """The rows under the table that `lib.systems` declares, so that `comparison.cell` finds them."""
    return [replace(r, where=declared.where) for r in rows] if declared else []


def _rows(rows: list[Reported], runs: list[Record], method: str, caption: str) -> Markup:
    cells = [cell(rows, runs, method, t) for t in tasks_of(runs)]
    ours = ("Ours, mean ± 95% interval", "Median, seeds")
    head = ["Task", "Reported", *ours, "Difference, or retention: reported | ours"]
    body = [[task_title(c.task), printed(c.reported, c), runs_link(c, linked=False), seeds(c.ours), verdict(c)]
            for c in cells if c.runs]  # fmt: skip
    return table(caption, head, body) if body else Markup("")


def _nothing(label: str) -> Markup:
    return Markup("<p>{}: {}.</p>").format(title_of(label), NOT_RUN)


def variants_beside(
    paper: str, where_prefix: str, systems: dict[str, str | None], study: Study | None = None, title: str = ""
) -> Markup:
    """An ablation: variants of a method, a line each, reported | ours by task, with the difference to the first line.

    `systems`: our label ("theseus", "theseus-constant") -> the row's name in the paper's table, None where it has none.
    Differences inside one table carry over to another scale better than the scores do. A task where fewer than two of
    the lines were run has none and is left out. Raises `InputError` for a table or a row that the paper lacks; where no
    row is named, no table is needed.
    """
    study = study or load_study()
    if any(systems.values()):
        frame = reported_table(paper, where_prefix, study.reported)
        for system in filter(None, systems.values()):
            one_of(f"{paper} {where_prefix}: row", system, list(frame.index))
    out = Markup("")
    for name, runs in committed_and_local(study):
        tasks = [t for t in tasks_of(runs) if len({r.label for r in runs if r.task == t} & set(systems)) > 1]
        if not tasks:
            continue
        body = []
        for label in systems:
            line = [_variant(study, runs, paper, where_prefix, systems, label, t) for t in tasks]
            body.append([title_of(label), *line])
        what = "reported | ours" if any(systems.values()) else "ours"
        caption = f"{title or f'{paper_title(paper)} {where_prefix}'}: {what}, {name}"
        out += table(caption, ["Variant", *map(task_title, tasks)], body)
    if out:
        return out
    missing = [title_of(label) for label in systems if not any(r.label == label for r in study.records)]
    if missing:
        return Markup("<p>Ours: not run: {}.</p>").format(", ".join(missing))
    return Markup("<p>Ours: no two of these lines were run on one task.</p>")


def _variant(study, runs, paper, where, systems, label, task) -> Markup:
    """One cell of an ablation."""
    first = next(iter(systems))

    def pair(name: str) -> tuple[Cell, float | None]:
        c = cell([], runs, name, task)
        rows = select(study.reported, paper, where, systems[name]) if systems[name] else []
        found = [r.number for r in rows if r.task == task and r.metric == c.metric]
        return c, found[0] if found else None

    (c, left), (base, base_left) = pair(label), pair(first)
    ours = runs_link(c, linked=False) if c.runs else NOT_RUN
    change = paired(c, base)
    delta = f"{change.mean:+.1f}" if label != first and change else ""
    if delta and not c.ours.n == base.ours.n == change.n:  # else it is the difference of the two cells
        delta += f" over {count(change.n, 'common seed')}"
    if not any(systems.values()):  # a table of ours alone
        return lines(ours, small(seeds(c.ours)) if c.runs else "", delta and small(f"to the first line: {delta}"))
    shown = "not printed" if left is None else f"{left:.1f}"
    if delta:
        theirs = "not printed" if left is None or base_left is None else f"{left - base_left:+.1f}"
        delta = small(f"to the first line: {theirs}\u00a0|\u00a0{delta}")
    return lines(Markup("{} | {}").format(shown, ours), small(seeds(c.ours)) if c.runs else "", delta)


TOGETHER = Markup("<p>What the plain runs say of it: after training, one substitute alone is put into the teacher. The "
                  "substitutes were trained together, while the paper trains each alone, so this is another experiment "
                  "than its table.</p>")  # fmt: skip


def module_impact(method: str = "theseus", study: Study | None = None) -> Markup:
    """Ours of Theseus' Table 5: held-out score with one trained substitute in place, as difference to the predecessor.

    Read from `study["module_impact"]` of the records ("none", "1", "2", ... -> percent). The substitutes were trained
    together; the paper trains each alone.
    """
    out = Markup("")
    for name, runs in committed_and_local(study or load_study()):
        known = [r for r in runs if r.label == method and "module_impact" in (r.study or {})]
        tasks = tasks_of(known)
        modules = sorted({m for r in known for m in r.study["module_impact"] if m != "none"}, key=lambda m: (len(m), m))
        body = []
        for m in modules:
            line = [f"module {m}"]
            for t in tasks:
                impacts = [r.study["module_impact"] for r in known if r.task == t]
                s = spread(i[m] - i["none"] for i in impacts if m in i)
                line.append(lines(number(s), small(seeds(s))) if s else NOT_RUN)
            body.append(line)
        if body:
            out = out or TOGETHER
            caption = f"Held-out score with one module replaced, difference to the predecessor in points, {name}"
            out += table(caption, ["Replaced", *map(task_title, tasks)], body)
    return out or _nothing(method)
