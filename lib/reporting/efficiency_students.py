"""Trained students: what eight bits cost, and score against latency."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from markupsafe import Markup

from lib.reporting import figures
from lib.reporting.comparison import task_title
from lib.reporting.efficiency_parts import NOT_YET
from lib.reporting.tables import count, lines, small, table
from lib.results import run_label
from lib.systems import title_of


def students(frame: pd.DataFrame | None) -> Markup:
    """Trained students: score in float32 and int8, the drop, and latency of both; means over seeds."""
    if frame is None or frame.empty:
        return Markup("<p>{} (<code>python -m lib.efficiency.run students</code> scores the students of a grid)</p>"
                      ).format(NOT_YET)
    body = []
    keys = ["profile", "backbone", "task", "method", "variant", "processor"]  # latencies of two are never pooled
    for key, rows in frame.fillna({"variant": ""}).groupby(keys, sort=False):
        profile, backbone, task, method, variant, processor = key
        body.append([lines(title_of(run_label(method, variant)), small(f"{profile}, {backbone}")), task_title(task),
                     processor, len(rows), f"{rows.score_onnx.mean():.2f}", f"{rows.score_int8.mean():.2f}",
                     lines(f"{rows.drop_int8.mean():+.2f}", small(f"{rows.drop_int8.min():+.2f} to "
                                                                  f"{rows.drop_int8.max():+.2f}")),
                     f"{rows.standard_error.mean():.2f}", f"{rows.latency_ms.median():.2f}",
                     f"{rows.latency_int8_ms.median():.2f}", f"{rows.speedup_int8.median():.2f}",
                     f"{rows.file_mb.mean():.0f} to {rows.file_int8_mb.mean():.0f}"])
    head = ["Student", "Task", "Timed on", "Seeds", "Score, fp32", "Score, int8", "int8 minus fp32, points (range)",
            "Standard error of a score, points", "Latency, PyTorch, ms", "Latency, ONNX int8, ms", "Times faster",
            "File, MB"]
    return table("Trained students after dynamic quantisation, batch 1, 128 tokens", head, body)


def pareto(frame: pd.DataFrame | None) -> Markup:
    """Score against latency of the trained students, a panel a task; nothing where none was measured.

    Latencies of one processor alone, the one on which most students were timed; what it leaves out is said.
    """
    if frame is None or frame.empty:
        return Markup("")  # `students` says it
    every, (processor, *others) = frame, frame.processor.value_counts().index
    frame = every[every.processor == processor]
    tasks = list(dict.fromkeys(frame.task))
    rows = frame.fillna({"variant": ""}).groupby(["task", "method", "variant"], sort=False)[["score", "latency_ms"]]
    means = rows.mean().reset_index()
    with plt.rc_context(figures.STYLE):
        figure, axes = plt.subplots(1, len(tasks), figsize=(1.2 + 3 * len(tasks), 3.2), squeeze=False)
        for ax, task in zip(axes.flat, tasks, strict=True):
            for m in means[means.task == task].itertuples():
                name = run_label(m.method, m.variant)
                ax.plot(m.latency_ms, m.score, figures.mark_of(name), color=figures.colour_of(name), markersize=8)
                ax.annotate(title_of(name), (m.latency_ms, m.score), textcoords="offset points", xytext=(5, 4),
                            fontsize=8)
            ax.set_title(task_title(task), fontsize=10)
            ax.margins(0.25)
        figure.supxlabel("latency, ms (batch 1, 128 tokens, PyTorch)", fontsize=10)
        figure.supylabel("score, percent", fontsize=10)
        figure.tight_layout()
    words = "; ".join(f"{title_of(run_label(m.method, m.variant))} on {task_title(m.task)}: {m.score:.1f} at "
                      f"{m.latency_ms:.1f} ms" for m in means.itertuples())
    rest = count(len(every) - len(frame), "student")
    left = f" Left out: {rest} timed on {'; '.join(others)}." if others else ""
    return figures.svg(figure, f"Score against latency. {words}.", "students") + Markup(
        "<p>Timed on {}.{}</p>").format(processor, left)
