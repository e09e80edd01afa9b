"""The picture of the first page: score retained against speed-up, every system, reported and ours.

Reported: what a paper prints of both; the mean of its scores over `TASKS` divided by that of its own BERT-base. Ours:
retention over the tasks of the committed group (`comparison.overall`) against the speed-up of the *paper's* shape as
its FLOPs at 128 tokens predict it (results/sizes.csv). Ours is thus retention at our scale, and the picture says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

import matplotlib.pyplot as plt
import pandas as pd
from markupsafe import Markup
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from lib.errors import InputError
from lib.paths import ROOT, results_dir
from lib.reporting import reported as printed_numbers
from lib.reporting.comparison import cell, main_group, overall, tasks_of
from lib.reporting.figures import INK, STYLE, colour_of, mark_of, svg
from lib.reporting.pages import Study
from lib.reporting.reported import Reported
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
# The shape of sizes.csv that stands for a method of ours, as the paper runs it
SHAPES = {
    **dict.fromkeys(("truncated", "kd", "pkd", "pdbert", "layerdrop", "theseus"), "BERT, 6 layers"),
    "distilbert": "DistilBERT", "tinybert": "TinyBERT4", "mobilebert": "MobileBERT",
    "efficientbert": "EfficientBERT", "trimbert": "TrimBERT n=2",
}  # fmt: skip


@dataclass(frozen=True)
class Point:
    """A system: times faster than BERT-base, and percent of the teacher's score retained."""

    method: str
    ours: bool
    speedup: float
    retained: float


def points(study: Study) -> list[Point]:
    """Every point that is known; a system that prints no score by task, or was not run, has none."""
    out = []
    for method in SPEEDS:
        speed, kept = _printed_speed(study.reported, method), _printed_retention(study.reported, method)
        if speed is not None and kept is not None:
            out.append(Point(method, False, speed, kept))
    group, sizes = main_group(study.committed), _sizes()
    if group is None or sizes is None:
        return out
    runs = group[2]
    for method, shape in SHAPES.items():
        o = overall(cell(study.reported, runs, method, t) for t in tasks_of(runs))
        if o and shape in sizes.index:
            flops = sizes["flops_128"]
            out.append(Point(method, True, float(flops["BERT-base"] / flops[shape]), o.ours))
    return out


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


def _sizes() -> pd.DataFrame | None:
    for folder in (results_dir(), ROOT / "results"):
        if (folder / "sizes.csv").exists():
            try:
                return pd.read_csv(folder / "sizes.csv", index_col="system")
            except (OSError, ValueError) as e:
                raise InputError(f"{folder / 'sizes.csv'}: cannot be read ({e})") from e
    return None


def picture(study: Study) -> Markup:
    """The figure with its text alternative, or a sentence where there is no point."""
    found = points(study)
    if not found:
        return Markup("<p>No picture yet: nothing is printed and nothing was run.</p>")
    return svg(_plot(found), alt(found), "tradeoff")


def alt(found: list[Point]) -> str:
    """The plot in words."""
    parts = [f"{title_of(p.method)} {'ours' if p.ours else 'reported'}: {p.speedup:.2f} times faster, "
             f"{p.retained:.1f}% retained" for p in found]  # fmt: skip
    return "Score retained against speed-up over BERT-base. " + "; ".join(parts) + "."


def _plot(found: list[Point]):
    with plt.rc_context(STYLE):
        figure, ax = plt.subplots(figsize=(7.6, 4.6))
        ax.set_xscale("log")
        ax.axhline(100, color=INK, linewidth=0.8)
        for p in found:
            ax.plot(p.speedup, p.retained, color=colour_of(p.method), marker=mark_of(p.method), markersize=8,
                    markerfacecolor=None if p.ours else "none", linestyle="none")  # fmt: skip
        _names(ax, found)
        ticks = [t for t in (1, 1.5, 2, 3, 4, 6, 8, 10, 15) if t <= 1.3 * max(p.speedup for p in found)]
        ax.xaxis.set_major_locator(FixedLocator(ticks))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(StrMethodFormatter("{x:g}×"))
        ax.set_xlim(1.1, 1.7 * max(p.speedup for p in found))
        ax.grid(color=INK, alpha=0.12)
        ax.set_xlabel("times faster than BERT-base (logarithmic); ours: FLOPs of the paper's shape at 128 tokens")
        ax.set_ylabel("score retained (% of the teacher's)")
        handles = [
            Line2D([], [], color=INK, marker="o", linestyle="none", label="ours, scaled down"),
            Line2D([], [], color=INK, marker="o", markerfacecolor="none", linestyle="none", label="reported"),
        ]
        figure.legend(handles=handles, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 0.99), frameon=False)
        figure.tight_layout()
    return figure


def _names(ax, found: list[Point]) -> None:
    """The name beside each point: on its left where others lie close on its right, and further down where it would
    lie on another name.
    """
    low, high = ax.get_ylim()
    step = (high - low) / 26
    placed: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for p in sorted(found, key=lambda p: -p.retained):
        left = any(1.1 < q.speedup / p.speedup < 1.9 and abs(q.retained - p.retained) < 3 * step for q in found)
        y = p.retained
        while any(abs(y - other) < step and 1 / 1.9 < p.speedup / x < 1.9 for x, other in placed[left]):
            y -= step
        placed[left].append((p.speedup, y))
        ax.annotate(title_of(p.method), (p.speedup, p.retained), xytext=(p.speedup * (1 / 1.05 if left else 1.05), y),
                    ha="right" if left else "left", fontsize=8, va="center", color=INK)  # fmt: skip
