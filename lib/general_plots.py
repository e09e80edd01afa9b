"""What a record keeps of its general stage: tables and curves for the notebooks of DistilBERT and PD-BERT."""

from __future__ import annotations

import pandas as pd
from matplotlib import pyplot as plt

from lib import reported
from lib.results import Record


def stage(record: Record) -> pd.DataFrame | str:
    """Masked words predicted on held-out text before and after the general stage, and the teacher's head if it has one.

    A sentence where the run had no general stage.
    """
    study = record.study or {}
    if "general" not in study:
        return "This run had no general stage."
    report, rows = study["general"], {}
    if "teacher_head" in study:
        head = study["teacher_head"]
        rows[f"teacher (head {head['source']})"] = head["quality"]
    rows["student at its start"] = report["before"]
    rows["student after the stage"] = report["after"]
    frame = pd.DataFrame([{"": name, "masked words right, percent": _percent(q["accuracy"]),
                           "cross-entropy, nats": "not finite" if q["loss"] is None else f"{q['loss']:.2f}",
                           "masked words asked": q["words"]} for name, q in rows.items()]).set_index("")
    frame.index.name = (f"{report['text']}: {report['text_tokens']:,} tokens drawn, {report['tokens']:,} trained on in "
                        f"{report['steps']} steps")
    return frame


def _percent(share: float | None) -> str:
    return "not finite" if share is None else f"{100 * share:.1f}"


def curves(record: Record):
    """The losses of the general stage against its optimiser steps, each with an axis of its own."""
    curve = (record.study or {}).get("general", {}).get("curve", {})
    titles = {"loss": "weighted sum", "ce": "T² KL on the vocabulary", "mlm": "masked words", "cosine": "1 − cosine"}
    shown = [(t, curve[k]) for k, t in titles.items() if curve.get(k)]
    figure, axes = plt.subplots(1, max(1, len(shown)), figsize=(2.6 * max(1, len(shown)), 2.4), layout="constrained",
                                squeeze=False)
    for axis, (title, points) in zip(axes[0], shown, strict=False):
        axis.plot(*zip(*points, strict=True))
        axis.set(title=title, xlabel="optimiser step")
        axis.set_ylim(bottom=0)
    return figure


def cost(record: Record) -> pd.DataFrame:
    """What was spent before the task and on it: artefacts are built once and shared, the task's stage is this run's."""
    rows = [{"stage": a.kind, "tokens": f"{a.tokens:,}", "seconds": f"{a.seconds:.0f}", "shared": "yes"}
            for a in record.artefacts]
    rows.append({"stage": "this run, on the task", "tokens": f"{record.tokens:,}",
                 "seconds": f"{record.wall_seconds:.0f}", "shared": "no"})
    return pd.DataFrame(rows).set_index("stage")


def ablation(records: list[Record], paper: str, where: str, names: dict[str, str]) -> pd.DataFrame | str:
    """Changes against the plain run, in points, beside the printed ones. `names`: variant -> system in `where`.

    A sentence where the study was not run.
    """
    by = {r.variant: r for r in records}
    if "" not in by or not names.keys() & by.keys():
        return "The study was not run in this notebook; pass study=ablation."
    plain, rows = by[""], reported.load()
    table = []
    for variant, system in names.items():
        if variant in by:
            printed = ", ".join(f"{r.value} ({r.unit})" for r in reported.select(rows, paper, where, system))
            table.append({"": system, f"score, percent ({plain.task})": f"{by[variant].score:.1f}",
                          "change, points": f"{by[variant].score - plain.score:+.1f}",
                          "change on the held-out rows, points": _change(by[variant], plain),
                          f"printed, {where}: change of the GLUE mean": printed or "not printed"})
    return pd.DataFrame(table).set_index("")


def _change(record: Record, plain: Record) -> str:
    a, b = record.selection.held_out_score, plain.selection.held_out_score
    return "not defined" if a is None or b is None else f"{a - b:+.1f}"
