"""The comparison table: a method a line, for each task reported and ours in neighbouring cells, in four views."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from lib.reporting import teachers
from lib.reporting.cells import excluded, number, pair, related, runs_link, runs_of, seeds
from lib.reporting.comparison import (
    Cell,
    Over,
    cell,
    overall,
    paired,
    same_tokens,
    shared,
    task_title,
    tasks_of,
    token_budget,
)
from lib.reporting.reported import Reported, metric_title
from lib.reporting.tables import NOT_RUN, Keyed, controls, details, lines, note, small, table, view
from lib.results import Record
from lib.systems import BY_NAME, title_of

VIEWS = {
    "absolute": "score",
    "retention": "retention, % of the teacher",
    "difference": "difference to reported",
    "tokens": "score at equal tokens",
}
NOT_PRINTED = Markup('<span class="bc-none">not printed</span>')


@dataclass(frozen=True)
class _View:
    """One view of a cell: what stands in the reported half and in ours, and what each sorts by."""

    reported: object
    reported_key: float | None
    ours: object
    ours_key: float | None


def matrix(rows: list[Reported], records: list[Record], caption: str, name: str) -> Markup:
    """What the last column is, fields and table for the records of one group.

    The plain methods only: variants stand in the tables by task.

    `name`: id of the table. Raises `IndexError` where no record is given.
    """
    tasks, backbone = tasks_of(records), records[0].backbone
    head: list[object] = ["Method"]
    groups: list[tuple[object, int, str]] = [("", 1, "")]
    for t in tasks:
        hidden = Markup('<span class="bc-hidden">, {}</span>').format(task_title(t))
        head += [Markup("{}{}").format(word, hidden) for word in ("Reported", "Ours")]
        groups.append((lines(task_title(t), related(t, backbone)), 2, t))
    over = shared(rows, records)
    where = ", ".join(map(task_title, over.tasks)) if over else ""
    head.append(f"Over {where}: reported | ours" if over else "Over tasks")
    groups.append(("", 1, ""))
    body, data = [], []
    for label in BY_NAME:
        cells = [cell(rows, records, label, t) for t in tasks]
        line: list[object] = [title_of(label)]
        for c in cells:
            line += _pair(c, _views(rows, records, c))
        body.append([*line, _over(label, cells, over)])
        data.append({"run": "yes" if any(c.runs for c in cells) else "no",
                     "kind": "teacher" if label == "bert" else "paper" if label in _PAPERS else "baseline"})
    guess: list[object] = ["Majority class"]
    for t in tasks:
        values = [r.majority for r in records if r.task == t]
        low, high = f"{min(values):.1f}", f"{max(values):.1f}"
        guess += [NOT_PRINTED, Keyed(low if low == high else f"{low} to {high}", min(values))]
    body.append([*guess, Keyed("0 above majority", 0)])
    data.append({"run": "yes", "kind": "baseline teacher paper"})
    fields = controls(
        name,
        views=("Show", VIEWS),
        columns=("Task", {t: task_title(t) for t in tasks}),
        filters={"kind": ("Methods", {"paper": "the six papers", "baseline": "baselines", "teacher": "the teacher"}),
                 "run": ("Ours", {"yes": "run", "no": "not run"})},
        search="Search",
    )  # fmt: skip
    return _said_over(over) + _said_teachers(records) + fields + table(
        caption, head, body, sortable=True, name=name, groups=groups, data=data, pinned=1)


_PAPERS = ("theseus", "distilbert", "tinybert", "mobilebert", "efficientbert", "trimbert")


def _pair(c: Cell, views: dict[str, _View]) -> list[Keyed]:
    """The reported cell and ours. The runs stand below all views of ours."""
    left = Markup("").join(view(k, VIEWS[k], v.reported) for k, v in views.items())
    right = Markup("").join(view(k, VIEWS[k], v.ours) for k, v in views.items())
    right += runs_of(c) if c.runs else ""
    return [Keyed(left, {k: v.reported_key for k, v in views.items()}),
            Keyed(right, {k: v.ours_key for k, v in views.items()})]  # fmt: skip


def _views(rows: list[Reported], records: list[Record], c: Cell) -> dict[str, _View]:
    return {
        "absolute": _absolute(c),
        "retention": _retention(c),
        "difference": _difference(c),
        "tokens": _tokens(c, cell(rows, records, "truncated", c.task), token_budget(records, c.task)),
    }


def _printed(c: Cell) -> Markup | str:
    """The printed score; where it is another score than ours, it says which, lest it pass for the same."""
    r = c.reported
    if r is None:
        return NOT_PRINTED
    other = r.metric != c.metric or r.split != "dev"
    return lines(r.value, small(f"{metric_title(r.metric)}, {r.split}") if other else "",
                 "" if r.verified else Markup('<span class="bc-flag">unverified</span>'))  # fmt: skip


def _absolute(c: Cell) -> _View:
    key = c.reported.number if c.reported else None
    if not c.runs:
        return _View(_printed(c), key, NOT_RUN, None)
    mark = excluded(c) if c.comparable else ""
    ours = lines(runs_link(c), mark, small(seeds(c.ours)), small(c.why_not))
    return _View(_printed(c), key, ours, c.ours.mean)


def _retention(c: Cell) -> _View:
    key = c.reported_retention
    base = note(c.foreign_base) if c.foreign_base else ""
    left = NOT_PRINTED if key is None else lines(f"{key:.1f}", _above(c.reported_above), base)
    if not c.is_student:
        return _View("100", 100, "100 (the teacher)" if c.runs else NOT_RUN, 100 if c.runs else None)
    if not c.runs:
        return _View(left, key, NOT_RUN, None)
    if c.withheld:
        return _View(left, key, small(f"withheld: {c.withheld}"), None)
    mark = excluded(c) if c.against and c.against.what == "retention" else ""
    ours = lines(number(c.retention), _above(c.above and c.above.mean), mark, small(c.why_not))
    return _View(left, key, ours, c.retention.mean)


def _above(value: float | None) -> Markup | str:
    return "" if value is None else small(f"{value:.1f} above majority")


def _difference(c: Cell) -> _View:
    """Ours minus reported: of scores where they are comparable, else of retentions."""
    a = c.against
    if a is None:
        why = NOT_RUN if not c.runs else "nothing printed" if c.reported is None else "no retention printed"
        if c.runs and c.is_student and c.withheld:
            why = f"withheld: {c.withheld}"
        return _View(_printed(c), c.reported.number if c.reported else None, why if not c.runs else small(why), None)
    what = "of the score" if a.what == "score" else "of retention, " + c.why_not
    half = "" if a.ours.half is None else f"\u00a0±\u00a0{a.ours.half:.1f}"
    ours = lines(f"{a.difference:+.1f}{half}", excluded(c), small(what))
    return _View(lines(f"{a.reported:.1f}", small(a.what)), a.reported, ours, a.difference)


def _tokens(c: Cell, truncated: Cell, budget: float | None) -> _View:
    """Ours where the student was trained on as many tokens of the task as the others, else how many it was."""
    left = small("papers do not train at equal tokens")
    if not c.runs:
        return _View(left, None, NOT_RUN, None)
    if not c.is_student:
        return _View(left, None, lines(number(c.ours), small("the teacher")), c.ours.mean)
    used = sum(r.tokens for r in c.runs) / len(c.runs)
    shared = max(_before(r) for r in c.runs)
    said = lines(small(f"{used:,.0f} tokens of the task"), small(f"and {shared:,} before it" if shared else ""))
    if not same_tokens(c, budget):
        return _View(left, None, lines(small(f"not equal to the {budget:,.0f} of the others"), said), None)
    gain = paired(c, truncated) if c.label != "truncated" else None
    half = "" if gain is None or gain.half is None else f"\u00a0±\u00a0{gain.half:.1f}"
    gained = "" if gain is None else f"{gain.mean:+.1f}{half} to truncated"
    return _View(left, None, lines(number(c.ours), gained, said), c.ours.mean)


def _before(r: Record) -> int:
    """Tokens of the stages before the task, such as general distillation; not the teacher's."""
    return sum(a.tokens for a in r.artefacts if not a.kind.startswith("teacher"))


def _over(label: str, cells: list[Cell], over: Over | None) -> Keyed:
    """Retention over the tasks that most methods share. Of a method without one of them: no number to sort by."""
    if label == "bert":
        return Keyed("100 (the teacher)", 100)
    if not any(c.runs for c in cells):
        return Keyed(NOT_RUN)
    if over is None:
        return Keyed(small("withheld on every task"))
    if label not in over.cells:
        return Keyed(small("no number: not all of these tasks were run"))
    o = overall(over.cells[label])
    return Keyed(lines(pair("retention", o.reported, f"{o.ours:.1f}"),
                       pair("above majority", o.reported_above, f"{o.above:.1f}")), o.ours)


def _said_over(over: Over | None) -> Markup:
    """What the last column is, over which tasks, and which tasks are left out of it."""
    if over is None:
        return Markup("")
    out = ", ".join(map(task_title, over.withheld))
    return Markup("<p>The last column: the sum of the student's mean scores over {}, in percent of the sum of its "
                  "teacher's. These tasks leave the largest table in which every method has a retention on every task; "
                  "a method that lacks one of them has no number there.{}</p>").format(
        ", ".join(map(task_title, over.tasks)), f" Left out, because retention is withheld: {out}." if out else "")


def _said_teachers(records: list[Record]) -> Markup:
    """Which methods had at one seed another teacher than the rest; nothing where all had one."""
    found = teachers.differing(r for r in records if r.label in BY_NAME)
    if not found:
        return Markup("")
    items = Markup("").join(Markup("<li>{}: {}</li>").format(task_title(t), "; ".join(found[t])) for t in found)
    which = details("which runs, with the teacher's score and the arithmetic of the run",
                    Markup("<ul>{}</ul>").format(items))
    said = ("<div><p>Not one teacher everywhere: for some runs on {} it was trained anew by the same recipe, rows and "
            "seed but on another processor or with another number of threads, or it was brought. It is another model "
            "then, as with another seed. Each student's retention is of its own.</p>{}</div>")
    return Markup(said).format(", ".join(map(task_title, found)), which)
