"""TrimBERT's language modelling beside what its runs scored after fine-tuning, one line a variant."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup

from lib.reporting.beside import committed_and_local
from lib.reporting.cells import number
from lib.reporting.comparison import task_title, tasks_of
from lib.reporting.pages import Study
from lib.reporting.tables import NOT_RUN, lines, small, table
from lib.results import Record
from lib.stats import spread
from lib.systems import title_of

HEAD = ["Variant", "Intermediate blocks", "Parameters", "Tokens of text", "Loss before", "Loss after",
        "Words right, percent"]


def language(labels: list[str], study: Study, title: str) -> Markup:
    """Loss (nats a masked word) on held-out text before and after the stage, accuracy after it, score on each task.

    The stage is made once and shared by all tasks and seeds, so it has no interval. Empty where no run has one.
    """
    out = Markup("")
    for name, runs in committed_and_local(study):
        known = [r for r in runs if r.label in labels and "mlm" in (r.study or {})]
        tasks = tasks_of(known)
        body = [_line(label, [r for r in known if r.label == label], tasks)
                for label in labels if any(r.label == label for r in known)]
        if body:
            caption = f"{title}: language modelling on held-out text, and scores after fine-tuning, {name}"
            out += table(caption, [*HEAD, *map(task_title, tasks)], body)
    return out


def _line(label: str, runs: list[Record], tasks: list[str]) -> list:
    ends = [r.study["mlm"]["after"] for r in runs]
    line = [
        title_of(label),
        _each(r.study["intermediate_blocks"] for r in runs),
        _each(f"{r.parameters / 1e6:.1f}M" for r in runs),
        _each(f"{r.study['mlm']['tokens']:,}" for r in runs),
        _each(f"{r.study['mlm']['before']['loss']:.2f}" for r in runs),
        _each("not finite" if e["loss"] is None else f"{e['loss']:.2f}" for e in ends),
        _each("not finite" if e["accuracy"] is None else f"{100 * e['accuracy']:.1f}" for e in ends),
    ]  # fmt: skip
    for task in tasks:
        s = spread(r.score for r in runs if r.task == task)
        line.append(lines(number(s), small(f"{s.n} seed{'s' * (s.n > 1)}")) if s else NOT_RUN)
    return line


def _each(values: Iterable) -> str:
    """What all runs share; where they differ (a stage that was made again, a head of another size), each once."""
    return ", ".join(dict.fromkeys(map(str, values)))
