"""Plots of the book as SVG: the same colour and mark of a method everywhere, intervals drawn, readable in dark mode."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from markupsafe import Markup
from matplotlib.lines import Line2D

from lib.reporting.comparison import Cell, task_title
from lib.systems import BY_NAME, title_of

INK = "#010203"  # stands for "the page's text colour" until the SVG is written
PAPER = "#fdfefe"  # the same for its background
STYLE = {
    "svg.fonttype": "none",  # text stays text: searchable, and in the page's font
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def svg(figure, alt: str, name: str, ink: str = "currentColor", background: str = "none") -> Markup:
    """The figure as an inline SVG with a text alternative. `name` makes its internal ids differ from other figures'."""
    buffer = io.StringIO()
    with plt.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        # No date, so that the same records give the same bytes.
        metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(buffer, format="svg", facecolor=background, bbox_inches="tight", metadata=metadata)
    plt.close(figure)
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(INK, ink)
    text = text.replace(PAPER, "var(--pst-color-background)" if background == "none" else background)
    text = re.sub(r' id="([A-Za-z][\w.-]*)"', rf' id="{name}-\1"', text)
    text = re.sub(r'(url\(#|href="#)', rf"\1{name}-", text)
    opening = Markup('<svg role="img" aria-label="{}" class="bc-figure"').format(alt)
    return Markup(text.replace("<svg", opening, 1))


def colour_of(label: str) -> str:
    method = label.partition("-")[0]
    return BY_NAME[method].colour if method in BY_NAME else INK


def mark_of(label: str) -> str:
    method = label.partition("-")[0]
    return BY_NAME[method].mark if method in BY_NAME else "."


def retention_plot(rows: Sequence[Sequence[Cell]], subtitle: str):
    """Retention by task (panels) and method (lines): ours filled with its interval, the paper's hollow.

    `rows`: one sequence a method, one cell a task, the same tasks in all. The dashed line is what always answering
    the commonest class retains. A panel whose teacher does not clear that class says so instead.
    """
    labels, tasks = [r[0].label for r in rows], [c.task for c in rows[0]]
    columns = 2 if len(tasks) in (2, 4) else min(3, len(tasks))
    lines = -(-len(tasks) // columns)
    with plt.rc_context(STYLE):
        size = (1.7 + 2.8 * columns, 0.9 + lines * (0.8 + 0.32 * len(labels)))
        figure, grid = plt.subplots(lines, columns, figsize=size, sharey=True, squeeze=False)
        axes = list(grid.flat)
        for spare in axes[len(tasks) :]:
            spare.set_visible(False)
        for i, (task, ax) in enumerate(zip(tasks, axes, strict=False)):
            column = [row[i] for row in rows]
            teacher = column[0].teacher
            ax.axvline(100, color=INK, linewidth=0.8)
            if teacher and teacher.clears and teacher.majority > 0:
                ax.axvline(100 * teacher.majority / teacher.scores.mean, color=INK, linewidth=0.8, linestyle="--")
            for y, cell in enumerate(column):
                look = {"color": colour_of(cell.label), "marker": mark_of(cell.label), "markersize": 7}
                if cell.reported_retention is not None:
                    ax.plot(cell.reported_retention, y, **look, markerfacecolor="none", linestyle="none")
                if cell.retention is not None:
                    ax.errorbar(cell.retention.mean, y, xerr=cell.retention.half, capsize=3, **look)
            if teacher and not teacher.clears and any(c.runs for c in column):
                note = "ours withheld: teacher\nnot clear of the majority"
                ax.text(0.04, 0.03, note, transform=ax.transAxes, fontsize=8, style="italic")
            ax.set_title(task_title(task), fontsize=10)
            ax.set_yticks(range(len(labels)), [title_of(n) for n in labels])
            ax.grid(axis="x", color=INK, alpha=0.15)
            ax.margins(x=0.12)
        axes[0].set_ylim(len(labels) - 0.5, -0.5)
        figure.supxlabel("score retained (% of the teacher's)", fontsize=10)
        handles = [
            Line2D([], [], color=INK, marker="o", linestyle="-", label="ours, 95% interval"),
            Line2D([], [], color=INK, marker="o", markerfacecolor="none", linestyle="none", label="reported"),
            Line2D([], [], color=INK, linestyle="--", linewidth=0.8, label="majority class"),
        ]
        figure.legend(handles=handles, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 0.99), frameon=False)
        figure.suptitle(subtitle, fontsize=9)
        figure.tight_layout()
    return figure


def retention_alt(rows: Sequence[Sequence[Cell]]) -> str:
    """The plot in words."""
    parts = []
    for row in rows:
        for c in row:
            ours = "not run" if not c.runs else f"{c.retention.mean:.1f}" if c.retention else "withheld"
            printed = "not printed" if c.reported_retention is None else f"{c.reported_retention:.1f}"
            parts.append(f"{title_of(c.label)} on {task_title(c.task)}: ours {ours}, reported {printed}")
    return "Score retained, in percent of the teacher's. " + "; ".join(parts) + "."
