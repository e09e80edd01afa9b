"""Runs that were made again: what `results/reproduced.csv` holds."""

from __future__ import annotations

from markupsafe import Markup

from lib import reproduce
from lib.reporting.tables import code, count, lines, small, table
from lib.systems import title_of


def page() -> Markup:
    """One line a run made again, and a sentence that counts them."""
    found = reproduce.load()
    if found.empty:
        return Markup("<p>No run was made again so far.</p>")
    equal = int(found["equal"].sum())
    said = Markup("<p>Made again: {}, {} of them equal to the bit.</p>").format(count(len(found), "run"), equal)
    head = ["Record", "Score then", "Score now", "Largest difference of a prediction", "Equal", "Code", "Machine"]
    return said + table("Runs made again", head, [_line(line) for line in found.to_dict("records")], sortable=True)


def _line(line: dict) -> list:
    def both(name: str) -> str:
        then, now = line[f"{name}_then"], line[name]
        return f"{name} {then}" + ("" if then == now else f", now {now}")

    return [
        lines(title_of(line["method"]), small(line["record"])), f"{line['score_then']:.2f}", f"{line['score']:.2f}",
        "0" if line["equal"] else f"{line['largest_difference']:.2g}", "yes, to the bit" if line["equal"] else "no",
        lines(both("code"), small(lines(code(str(line["commit_then"])[:12]), code(str(line["commit"])[:12])))),
        lines(both("processor"), small(f"{both('threads')}; {both('precision')}; {line['date']}")),
    ]  # fmt: skip
