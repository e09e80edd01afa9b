"""All studies of all methods on one page: what was asked, what was run, and what the change of each variant is."""

from __future__ import annotations

from markupsafe import Markup

from lib.reporting.cells import command
from lib.reporting.comparison import groups, task_title, tasks_of, teacher_of
from lib.reporting.pages import Study
from lib.reporting.paper_pages import PAGES, Section, labels, reference, study_command
from lib.reporting.tables import NOT_RUN, controls, details, lines, small, table
from lib.results import Record
from lib.stats import over_tasks, spread
from lib.systems import title_of


def page(study: Study) -> Markup:
    """The list of studies; their tables stand on the pages of the methods."""
    rows, data = [], []
    for method, sections in PAGES.items():
        for s in sections:
            if s.study or s.words:
                found = variants_run(method, s, study)
                rows.append(_row(method, s, study, found))
                data.append({"method": method, "run": "yes" if found else "no"})
    fields = controls(
        "table-ablations",
        filters={"method": ("Method", {d["method"]: title_of(d["method"]) for d in data}),
                 "run": ("Ours", {"yes": "run", "no": "not run"})},
    )  # fmt: skip
    head = ["Study", "Method", "Printed in", "Variants run", "Change to the reference, points", "Command"]
    return _said(len(rows), sum(d["run"] == "yes" for d in data)) + fields + table(
        "Studies", head, rows, sortable=True, name="table-ablations", data=data)


def _said(every: int, run: int) -> Markup:
    if not run:
        said = "<p>None of the {} studies below was run: no variant of a method has a record here.</p>"
        return Markup(said).format(every)
    return Markup("<p>Studies run, or a part of their variants: {} of {}.</p>").format(run, every)


def variants_run(method: str, s: Section, study: Study) -> list[str]:
    """Labels of the section that were run, without the reference."""
    found = labels(s, study)
    if not any("-" in label for label in found):  # plain runs alone answer no question of a study
        return []
    return [label for label in found if label != reference(method, s)]


def _row(method: str, s: Section, study: Study, found: list[str]) -> list:
    title = Markup('<a href="{}.html#{}">{}</a>').format(method, s.anchor, s.title)
    changes = [_change(study, method, label, reference(method, s)) for label in found]
    return [
        title, title_of(method), s.where or "not printed", str(len(found)),
        lines(*changes) if changes else NOT_RUN, details("command", command(study_command(method, s))),
    ]  # fmt: skip


def _change(study: Study, method: str, label: str, base: str) -> Markup | str:
    """Mean over tasks of the differences to the reference, at the seeds that both have, of committed runs before the
    demo's. Tasks on which nothing can be told (`says_nothing`) are left out and named.
    """
    for records in (study.committed, study.local):
        for (profile, backbone), runs in groups(records).items():
            every = differences(runs, label, base)
            silent = {t: why for t in tasks_of(r for r, _ in every) if (why := says_nothing(runs, t, (label, base)))}
            pairs = [(r, d) for r, d in every if r.task not in silent]
            left = small("; ".join(f"{task_title(t)} left out: {why}" for t, why in silent.items())) if silent else ""
            if every and not pairs:
                return lines(label.removeprefix(f"{method}-"), left)
            if pairs:
                tasks = ", ".join(task_title(t) for t in tasks_of(r for r, _ in pairs))
                name = label.removeprefix(f"{method}-")
                s = over_tasks({t: [d for r, d in pairs if r.task == t] for t in tasks_of(r for r, _ in pairs)})
                count = f"{len(pairs)} pair{'s' * (len(pairs) > 1)}" + (", no interval" if s.half is None else "")
                change = f"{s.mean:+.1f}" + ("" if s.half is None else f"\u00a0±\u00a0{s.half:.1f}")
                return lines(f"{name}: {change}", small(f"{tasks}; {count}; {profile}, {backbone}"), left)
    return lines(label, small(f"no run of {base} with the same task and seed"))


def says_nothing(runs: list[Record], task: str, labels: tuple[str, ...]) -> str:
    """Why runs of `labels` cannot be compared on a task; empty where they can. The rule of the page of claims.

    The teacher does not clear the majority class, so that there is nothing to keep; or none of the students does (95%
    interval over seeds), and students that learnt nothing differ by chance.
    """
    teacher = teacher_of(runs, task)
    if teacher and not teacher.clears and (teacher.scores.n > 1 or teacher.scores.mean <= teacher.majority):
        return "its teacher does not clear the majority class"
    for label in labels:
        own = [r for r in runs if r.task == task and r.label == label]
        scores = spread(r.score for r in own)
        if scores and (scores.mean if scores.low is None else scores.low) > max(r.majority for r in own):
            return ""
    return "neither clears the majority class"


def differences(runs: list[Record], label: str, base: str) -> list[tuple[Record, float]]:
    """Score of each run of `label` minus that of the run of `base` with the same task and seed."""
    scores = {(r.task, r.seed): r.score for r in runs if r.label == base}
    return [(r, r.score - scores[r.task, r.seed]) for r in runs if r.label == label and (r.task, r.seed) in scores]
