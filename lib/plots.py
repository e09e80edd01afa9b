"""Plots and tables of one run, for the notebooks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import matplotlib
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from lib.reporting import figures
from lib.results import Record

matplotlib.rcParams |= figures.STYLE


def set_up() -> None:
    """Prepare a notebook: figures as SVG, those of `described` with their words; tables with every cell whole.

    A figure without words, of a cell of the reader's own, is shown as an image.
    """
    from IPython.core.interactiveshell import InteractiveShell
    from matplotlib_inline.backend_inline import set_matplotlib_formats

    plt.switch_backend("module://matplotlib_inline.backend_inline")  # `figures` draws for files, without a display
    set_matplotlib_formats("svg")
    number = itertools.count(1)  # the names of what is inside must differ between the figures of a page

    def html(figure: Figure) -> str | None:
        words = figure.get_label()
        return figures.svg(figure, words, f"plot{next(number)}") if words else None

    InteractiveShell.instance().display_formatter.formatters["text/html"].for_type(Figure, html)
    pd.set_option("display.max_colwidth", None)


def described(figure: Figure, words: str) -> Figure:
    """`figure` with `words` that say what it shows, for readers who cannot see it.

    It is closed, or the inline backend draws it a second time.
    """
    figure.set_label(words)
    plt.close(figure)
    return figure


def ends(points: Sequence[Sequence[float]]) -> str:
    """First and last point of a curve in words; `points`: [[step, value], ...], at least one."""
    (first, start), (last, end) = points[0], points[-1]
    return f"{start:.4g} at step {first:.0f}" + (f", {end:.4g} at step {last:.0f}" if last != first else "")


def curves(record: Record) -> Figure:
    """Loss against steps; beside it the scores of the held-out and, if watched, of the scored rows."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
    words = []
    if loss := record.curve.get("loss"):
        left.plot(*zip(*loss, strict=True))
        words.append(f"Training loss: {ends(loss)}.")
    left.set(xlabel="optimiser step", ylabel="training loss")
    for name, label in (("held_out", "held-out rows (selection)"), ("scored", f"{record.split} (only watched)")):
        if points := record.curve.get(name):
            right.plot(*zip(*points, strict=True), marker="o", label=label)
            words.append(f"Score ({record.headline}, percent), {label}: {ends(points)}.")
    right.axhline(record.majority, linestyle=":", color="grey", label="majority class")
    right.axvline(record.selection.step, linestyle="--", linewidth=1, color="grey", label="kept state")
    right.set(xlabel="optimiser step", ylabel=f"{record.headline}, percent")
    right.legend(fontsize=8)
    words.append(f"Majority class: {record.majority:.1f}. The state of step {record.selection.step} is kept.")
    return described(figure, " ".join(words))


def curve(record: Record, name: str, label: str) -> Figure | str:
    """One further curve of a method against steps, or a sentence that the run has none."""
    points = record.curve.get(name)
    if not points:
        return f"This run has no curve of this: {label}."
    figure, axes = plt.subplots(figsize=(4.5, 2.6), layout="constrained")
    axes.plot(*zip(*points, strict=True))
    axes.set(xlabel="optimiser step", ylabel=label)
    return described(figure, f"Against optimiser steps, {label}: {ends(points)}.")


def terms(record: Record, weights: dict[str, tuple[str, float]]) -> Figure:
    """Terms of a loss against steps. `weights`: curve -> (words, weight); a term of weight 0 is left out."""
    figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
    said = ["Terms of the loss against optimiser steps, weighted."]
    for name, (words, weight) in weights.items():
        if weight and record.curve.get(name):
            points, label = [(s, weight * v) for s, v in record.curve[name]], f"{words}, times {weight:g}"
            axes.plot(*zip(*points, strict=True), label=label)
            said.append(f"For the {label}: {ends(points)}.")
    axes.set(xlabel="optimiser step", ylabel="weighted term of the loss", yscale="log")
    axes.legend(fontsize=8)
    return described(figure, " ".join(said))


def caching_gain(record: Record) -> pd.DataFrame | str:
    """What keeping the teacher's answers gains (`study["caching_gain"]`), or a sentence that it was not measured."""
    gain = (record.study or {}).get("caching_gain")
    if gain is None:
        return "Not measured in this run; gain_steps=20 does."
    rows = {
        "training, teacher's answers from the cache, tokens a second": f"{gain['tokens_per_second_with_cache']:,.0f}",
        "training, teacher asked for every batch, tokens a second": f"{gain['tokens_per_second_without']:,.0f}",
        "ratio": f"{gain['ratio']:.2f}",
        "the teacher alone, filling the cache, tokens a second":
            f"{gain['tokens_per_second_of_the_teacher_alone']:,.0f}",
        "times that this run visits a row": f"{gain['visits_of_a_row']:.1f}",
        "ratio for this run, filling counted": f"{gain['ratio_with_filling']:.2f}",
        "optimiser steps timed, each way": f"{gain['steps_each']:.0f}",
    }
    return pd.DataFrame({"value": rows})


def compared(record: Record) -> pd.DataFrame | str:
    """The small runs of `study["compared"]`, one line each, or a sentence that there are none."""
    table = (record.study or {}).get("compared")
    if table is None:
        return "Not run; comparison_tokens=20000 makes small runs of that many tokens."
    rows = {name: {k: _digits(v) for k, v in values.items()} for name, values in table.items()}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("small run")


def _digits(value: float) -> str:
    """Four significant digits: small terms of a loss are compared, too."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def summary(record: Record) -> pd.DataFrame:
    """The main numbers of a run, one row each."""
    r, none = record, "not defined"
    rows = {
        f"score on {r.split} ({r.headline}), percent": f"{r.score:.1f} ({r.rows} rows)",
        "best checkpoint on that split (optimistic, the papers' way), percent":
            "not kept (score_curve is off)" if r.best_on_scored_split is None else f"{r.best_on_scored_split:.1f}",
        "majority class, percent": f"{r.majority:.1f}",
    }
    if r.teacher:  # fine-tuning, which makes teachers, has none
        rows |= {
            "teacher, percent": f"{r.teacher.score:.1f}",
            "retention, percent": none if r.retention is None else f"{r.retention:.1f}",
            "retention above the majority, percent":
                none if r.retention_above_majority is None else f"{r.retention_above_majority:.1f}",
            "label loyalty, percent": none if r.loyalty is None else f"{r.loyalty.label:.1f}",
            "probability loyalty, percent": none if r.loyalty is None else f"{r.loyalty.probability:.1f}",
        }
    rows |= {
        "parameters (without embeddings), millions":
            f"{r.parameters / 1e6:.1f} ({r.parameters_without_embeddings / 1e6:.1f})",
        "layers": str(r.layers),
        "learning rate": f"{r.hyperparameters['lr']:g}",
        "tokens trained on": f"{r.tokens:,} in {r.wall_seconds:.0f} s ({r.tokens_per_second:,.0f} a second, "
                             f"{r.environment.precision})",
        "scale": r.scale,
    }
    frame = pd.DataFrame({"value": rows})
    frame.index.name = f"{r.label} on {r.task}, seed {r.seed}"
    return frame


def runs(records: list[Record]) -> pd.DataFrame:
    """One line a record: a study's table."""
    return pd.DataFrame([{"run": r.label, "seed": r.seed, "layers": r.layers, "score, percent": round(r.score, 1),
                          "held-out score, percent": round(r.selection.held_out_score or float("nan"), 1),
                          "teacher, percent": round(r.teacher.score, 1) if r.teacher else "none",
                          "tokens": r.tokens, "scale": r.scale} for r in records]).set_index("run")


def module_impact(record: Record) -> pd.DataFrame:
    """Held-out score of the teacher with one substitute in place, and its difference to the teacher alone."""
    scores = record.study["module_impact"]
    rows = {("teacher alone" if k == "none" else f"module {k} replaced"):
            {"held-out score, percent": round(v, 1), "difference, points": round(v - scores["none"], 1)}
            for k, v in scores.items()}
    return pd.DataFrame(rows).T
