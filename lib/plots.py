"""Plots and tables of one run, for the notebooks."""

from __future__ import annotations

import matplotlib
import pandas as pd
from matplotlib import pyplot as plt

from lib.results import Record

matplotlib.rcParams |= {"svg.fonttype": "none", "axes.spines.top": False, "axes.spines.right": False, "font.size": 10}


def svg() -> None:
    """Draw figures of this notebook as SVG, sharp at every size."""
    from matplotlib_inline.backend_inline import set_matplotlib_formats

    set_matplotlib_formats("svg")


def curves(record: Record):
    """Loss against steps; beside it the scores of the held-out and, if watched, of the scored rows."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
    left.plot(*zip(*record.curve.get("loss", []), strict=True) if record.curve.get("loss") else ([], []))
    left.set(xlabel="optimiser step", ylabel="training loss")
    for name, words in (("held_out", "held-out rows (selection)"), ("scored", f"{record.split} (only watched)")):
        if points := record.curve.get(name):
            right.plot(*zip(*points, strict=True), marker="o", label=words)
    right.axhline(record.majority, linestyle=":", color="grey", label="majority class")
    right.axvline(record.selection.step, linestyle="--", linewidth=1, color="grey", label="kept state")
    right.set(xlabel="optimiser step", ylabel=f"{record.headline}, percent")
    right.legend(fontsize=8)
    plt.close(figure)  # or the inline backend draws it a second time
    return figure


def curve(record: Record, name: str, label: str):
    """One further curve of a method against steps."""
    figure, axes = plt.subplots(figsize=(4.5, 2.6), layout="constrained")
    axes.plot(*zip(*record.curve[name], strict=True))
    axes.set(xlabel="optimiser step", ylabel=label)
    plt.close(figure)  # or the inline backend draws it a second time
    return figure


def terms(record: Record, weights: dict[str, tuple[str, float]]):
    """Terms of a loss against steps. `weights`: curve -> (words, weight); a term of weight 0 is left out."""
    figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
    for name, (words, weight) in weights.items():
        if weight and record.curve.get(name):
            steps, values = zip(*record.curve[name], strict=True)
            axes.plot(steps, [weight * v for v in values], label=f"{words}, times {weight:g}")
    axes.set(xlabel="optimiser step", ylabel="weighted term of the loss", yscale="log")
    axes.legend(fontsize=8)
    plt.close(figure)  # or the inline backend draws it a second time
    return figure


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
    return pd.DataFrame(table).T.rename_axis("small run").round(4)


def summary(record: Record) -> pd.DataFrame:
    """The main numbers of a run, one row each."""
    r, none = record, "not defined"
    rows = {
        f"score on {r.split} ({r.headline}), percent": f"{r.score:.1f} ({r.rows} rows)",
        "best checkpoint on that split (optimistic, the papers' way), percent":
            none if r.best_on_scored_split is None else f"{r.best_on_scored_split:.1f}",
        "majority class, percent": f"{r.majority:.1f}",
        "teacher, percent": none if r.teacher is None else f"{r.teacher.score:.1f}",
        "retention, percent": none if r.retention is None else f"{r.retention:.1f}",
        "retention above the majority, percent":
            none if r.retention_above_majority is None else f"{r.retention_above_majority:.1f}",
        "label loyalty, percent": none if r.loyalty is None else f"{r.loyalty.label:.1f}",
        "probability loyalty, percent": none if r.loyalty is None else f"{r.loyalty.probability:.1f}",
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
