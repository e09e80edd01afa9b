"""The picture of the first page: score retained against speed-up, every system, reported and ours.

Reported: what is printed of both; the mean of a system's scores over `TASKS` divided by that of a printed BERT-base
(`lib.systems` says which), against a printed speed-up. `sources` says which of them another paper prints. Ours: what a
trained student retains over the tasks that most methods of the committed group share (`comparison.overall`), against
how much faster the same student is than its teacher (results/students.csv). Both are of the small backbone, and the
picture says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

import matplotlib.pyplot as plt
import numpy as np
from markupsafe import Markup
from matplotlib.lines import Line2D
from matplotlib.text import Annotation, Text
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter
from matplotlib.transforms import Bbox
from sklearn.isotonic import isotonic_regression

from lib.reporting import efficiency_parts as parts
from lib.reporting import reported as printed_numbers
from lib.reporting.comparison import Over, main_group, overall, shared, task_title
from lib.reporting.figures import INK, PAPER, STYLE, colour_of, mark_of, svg
from lib.reporting.pages import Study
from lib.reporting.reported import Reported, paper_title
from lib.systems import BY_NAME, title_of

TASKS = ("qnli", "rte", "sst2", "mrpc")  # printed for every system below, in the table that `lib.systems` names
# Where a system's speed-up over BERT-base is printed: paper, table, row. DistilBERT prints a percentage: 60% faster.
SPEEDS = {
    **dict.fromkeys(("truncated", "kd", "layerdrop", "theseus"),
                    ("theseus", "Table 7", "BERT-of-Theseus (6 layers)")),  # also said of Tables 2 and 3
    "pkd": ("pkd", "efficiency table", "BERT6"),
    "pdbert": ("tinybert", "Table 1", "PD6"),
    "distilbert": ("distilbert", "Abstract", "DistilBERT"),
    "tinybert": ("tinybert", "Table 1", "TinyBERT4"),
    "mobilebert": ("mobilebert", "Abstract", "MobileBERT"),
}  # fmt: skip
# Not among them: TrimBERT prints no scores by task; of EfficientBERT the speed is known of one variant and the scores
# of another ("++", as reprinted).


@dataclass(frozen=True)
class Point:
    """A system: times faster than BERT-base (ours: than its teacher), and percent of the teacher's score retained."""

    method: str
    ours: bool
    speedup: float
    retained: float


def points(study: Study, speeds: dict[str, float]) -> list[Point]:
    """Every point that is known; a system that prints no score by task, or was not run or timed, has none.

    `speeds`: method -> speed-up of our students over their teachers.
    """
    out = []
    for method in SPEEDS:
        speed, kept = _printed_speed(study.reported, method), _printed_retention(study.reported, method)
        if speed is not None and kept is not None:
            out.append(Point(method, False, speed, kept))
    over = ours_over(study)
    if over is None:
        return out
    for method, cells in over.cells.items():
        o = overall(cells)
        if o and method in speeds:
            out.append(Point(method, True, speeds[method], o.ours))
    return out


def speeds_of_ours() -> tuple[dict[str, float], str]:
    """How many times faster the trained students of each method are than their teachers, and on which processor.

    Latency of one row of 128 tokens in PyTorch; the lowest of a method's students counts, for load only ever adds to
    it. Of several processors the one on which a teacher and most methods were timed.
    """
    frame = parts.csv("students.csv")
    if frame is None:
        return {}, ""
    plain = frame[frame.variant.fillna("") == ""]
    lowest = plain.groupby(["processor", "method"]).latency_ms.min().unstack()
    if "bert" not in lowest or not lowest["bert"].notna().any():
        return {}, ""
    lowest = lowest[lowest["bert"].notna()]
    processor = lowest.notna().sum(axis=1).idxmax()
    times = lowest.loc[processor].dropna()
    return (times["bert"] / times.drop("bert")).to_dict(), processor


def ours_over(study: Study) -> Over | None:
    """What the filled marks stand for: `comparison.shared` of the group with most committed runs."""
    group = main_group(study.committed)
    return shared(study.reported, group[2]) if group else None


def _printed_speed(rows: list[Reported], method: str) -> float | None:
    paper, where, system = SPEEDS[method]
    for r in printed_numbers.select(rows, paper, where, system):
        if r.metric == "speedup":
            return r.number
        if r.metric == "speed_gain" and r.number is not None:
            return 1 + r.number / 100
    return None


def _printed_retention(rows: list[Reported], method: str) -> float | None:
    """Ratio of the means over `TASKS`, student to teacher, each task by the metric that both print."""
    system = BY_NAME[method]
    if system.teacher is None:
        return None

    def score(place, task: str, metric: str = "") -> Reported | None:
        found = [r for r in printed_numbers.select(rows, place.paper, place.where, place.system)
                 if r.task == task and r.number is not None and metric in ("", r.metric)]  # fmt: skip
        return found[0] if found else None

    pairs = []
    for task in TASKS:
        student = score(system.printed, task)
        teacher = student and score(system.teacher, task, student.metric)
        if not teacher:
            return None
        pairs.append((student.number, teacher.number))
    return 100 * fmean(s for s, _ in pairs) / fmean(t for _, t in pairs)


def picture(study: Study) -> Markup:
    """The figure with its text alternative, or a sentence where there is no point."""
    speeds, processor = speeds_of_ours()
    found = points(study, speeds)
    if not found:
        return Markup("<p>No picture yet: nothing is printed and nothing was run.</p>")
    return svg(_plot(found), alt(found), "tradeoff") + caption(study, speeds, processor) + sources(found)


def sources(found: list[Point]) -> Markup:
    """Which paper prints scores, base and speed of each hollow mark; marks of one paper alone are named together."""
    alone: dict[str, list[str]] = {}
    mixed = []
    for p in (p for p in found if not p.ours):
        system, speed = BY_NAME[p.method], SPEEDS[p.method]
        papers = [paper_title(x) for x in (system.printed.paper, system.teacher.paper, speed[0])]
        if len(set(papers)) == 1:
            alone.setdefault(papers[0], []).append(system.title)
        else:
            places = (system.printed.where, system.teacher.where, speed[1])
            said = (f"{what} {paper} ({where})" for what, paper, where in
                    zip(("scores", "BERT-base", "speed"), papers, places, strict=True))
            mixed.append(f"{system.title}: {', '.join(said)}")
    said = "".join(f" {paper} prints scores, BERT-base and speed of {', '.join(m)}." for paper, m in alone.items())
    said += " From more than one paper are: " + "; ".join(mixed) + "." if mixed else ""
    return Markup("<p>Hollow marks.{}</p>").format(said) if said else Markup("")


def caption(study: Study, speeds: dict[str, float], processor: str) -> Markup:
    """Which tasks ours are over, where they were timed, and what has no filled mark."""
    over = ours_over(study)
    if over is None:
        return Markup("<p>No filled mark: no committed run of a student shows a retention.</p>")
    tasks = ", ".join(map(task_title, over.tasks))
    said = f"Ours: mean over {tasks}, the tasks that leave the largest table without a gap"
    said += f"; students and teachers timed on {processor}, one row of 128 tokens." if speeds else "."
    if untimed := [m for m in over.cells if m not in speeds]:
        said += f" Not timed there, so without a filled mark: {', '.join(map(title_of, untimed))}."
    if over.left_out:
        said += f" Not run on all of them, so without a filled mark: {', '.join(map(title_of, over.left_out))}."
    if over.withheld:
        said += f" Left out: {', '.join(map(task_title, over.withheld))}, where retention is withheld; "
        return Markup('<p>{}<a href="comparison.html">the comparison</a> says why.</p>').format(said)
    return Markup("<p>{}</p>").format(said)


def alt(found: list[Point]) -> str:
    """The plot in words."""
    parts = [f"{title_of(p.method)} {'ours' if p.ours else 'reported'}: {p.speedup:.2f} times faster, "
             f"{p.retained:.1f}% retained" for p in found]  # fmt: skip
    return f"Score retained against speed-up, over BERT-base as printed, over the teacher for ours. {'; '.join(parts)}."


def _plot(found: list[Point]):
    with plt.rc_context(STYLE):
        figure, ax = plt.subplots(figsize=(7.6, 4.6))
        ax.set_xscale("log")
        ax.axhline(100, color=INK, linewidth=0.8)
        for p in found:
            ax.plot(p.speedup, p.retained, color=colour_of(p.method), marker=mark_of(p.method), markersize=8,
                    markerfacecolor=None if p.ours else "none", linestyle="none")  # fmt: skip
        ticks = [t for t in (1, 1.5, 2, 3, 4, 6, 8, 10, 15) if t <= 1.3 * max(p.speedup for p in found)]
        ax.xaxis.set_major_locator(FixedLocator(ticks))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(StrMethodFormatter("{x:g}×"))
        ax.set_xlim(min(p.speedup for p in found) / 1.9, 1.9 * max(p.speedup for p in found))  # room for names
        ax.grid(color=INK, alpha=0.12)
        ax.set_xlabel("times faster than BERT-base; ours: than the student's own teacher (logarithmic)", fontsize=8.5)
        ax.set_ylabel("score retained (% of the teacher's)")
        handles = [
            Line2D([], [], color=INK, marker="o", linestyle="none", label="ours, scaled down"),
            Line2D([], [], color=INK, marker="o", markerfacecolor="none", linestyle="none", label="reported"),
        ]
        figure.legend(handles=handles, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 0.99), frameon=False)
        figure.tight_layout()
        _names(ax, found)  # last: it measures
    return figure


def _names(ax, found: list[Point]) -> None:
    """The name beside each mark. Marks of about one speed have theirs in a column, in the order of the marks and a
    line apart, so that no name lies on another and the thin lines to the marks do not cross.
    """
    marks = ax.transData.transform([(p.speedup, p.retained) for p in found])  # pixels
    unit = ax.figure.dpi / 72  # pixels in a point
    boxes = [Bbox.from_bounds(x - 5 * unit, y - 5 * unit, 10 * unit, 10 * unit) for x, y in marks]
    floor = ax.get_window_extent().y0
    columns: list[list[int]] = []
    for i in sorted(range(len(found)), key=lambda i: marks[i][0]):
        if columns and marks[i][0] - marks[columns[-1][-1]][0] < 12 * unit:
            columns[-1].append(i)
        else:
            columns.append([i])
    names = [title_of(p.method) + (" (ours)" if p.ours else "") for p in found]
    for column in sorted(columns, key=len, reverse=True):
        column.sort(key=lambda i: marks[i][1])
        heights = _apart([_off_line(ax, marks[i][1], 6 * unit) for i in column], 11 * unit, floor + 6 * unit)
        others = [b for i, b in enumerate(boxes) if i not in column]
        tries = [[_name(ax, names[i], marks[i], marks[column], y, side) for i, y in zip(column, heights, strict=True)]
                 for side in ("left", "right")]
        hits = [sum(extent(t).count_overlaps(others) for t in one) for one in tries]
        kept, other = tries if hits[0] <= hits[1] else tries[::-1]
        for t in other:
            t.remove()
        boxes += [extent(t) for t in kept]


def extent(name: Annotation) -> Bbox:
    """Where a name stands, in pixels, without the line to its mark."""
    name.get_window_extent()  # this places it
    return Text.get_window_extent(name)


def _off_line(ax, y: float, room: float) -> float:
    """A height in pixels at which the line at 100% does not run through a name."""
    line = ax.transData.transform((1, 100))[1]
    return y if abs(y - line) > room else line - room


def _apart(heights: list[float], step: float, lowest: float) -> list[float]:
    """Ascending heights, moved as little as possible (least squares) until they lie `step` apart and not too low."""
    up = step * np.arange(len(heights))
    return list(isotonic_regression(np.array(heights) - up, y_min=lowest) + up)


def _name(ax, text: str, mark, column, y: float, side: str):
    """A name at height `y`, on the right (aligned "left") of its column of marks or on the left of it; in pixels."""
    unit = ax.figure.dpi / 72
    moved = abs(y - mark[1]) > 4 * unit
    away = (20 if len(column) > 1 else 8) * unit
    x = column[:, 0].max() + away if side == "left" else column[:, 0].min() - away
    line = {"arrowstyle": "-", "color": INK, "linewidth": 0.5, "alpha": 0.6, "shrinkA": 0, "shrinkB": 4,
            "relpos": (0 if side == "left" else 1, 0.5)}
    at = ax.transData.inverted().transform((x, y))
    return ax.annotate(text, ax.transData.inverted().transform(mark), xytext=at, ha=side, va="center", fontsize=8,
                       color=INK, arrowprops=line if moved or len(column) > 1 else None,
                       bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.5})  # fmt: skip
