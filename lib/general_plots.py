"""What a record keeps of its general stage: tables and curves for the notebooks of DistilBERT and PD-BERT."""

from __future__ import annotations

import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from lib import plots, results
from lib.reporting import reported
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


def curves(record: Record) -> Figure | str:
    """The losses of the general stage against its optimiser steps, each with an axis of its own.

    A sentence where the run has none.
    """
    curve = (record.study or {}).get("general", {}).get("curve", {})
    titles = {"loss": "weighted sum", "ce": "T² KL on the vocabulary", "mlm": "masked words", "cosine": "1 − cosine"}
    shown = [(t, curve[k]) for k, t in titles.items() if curve.get(k)]
    if not shown:
        return "This run has no curve of a general stage."
    figure, axes = plt.subplots(1, len(shown), figsize=(2.6 * len(shown), 2.4), layout="constrained", squeeze=False)
    for axis, (title, points) in zip(axes[0], shown, strict=True):
        axis.plot(*zip(*points, strict=True))
        axis.set(title=title, xlabel="optimiser step")
        axis.set_ylim(bottom=0)
    said = [f"{title}: {plots.ends(points)}." for title, points in shown]
    return plots.described(figure, " ".join(["Losses of the general stage against its optimiser steps.", *said]))


def cost(record: Record) -> pd.DataFrame:
    """What was spent before the task and on it: artefacts are built once and shared, the task's stage is this run's."""
    rows = [{"stage": a.kind, "tokens": f"{a.tokens:,}", "seconds": f"{a.seconds:.0f}", "shared": "yes"}
            for a in record.artefacts]
    rows.append({"stage": "this run, on the task", "tokens": f"{record.tokens:,}",
                 "seconds": f"{record.wall_seconds:.0f}", "shared": "no"})
    return pd.DataFrame(rows).set_index("stage")


def ablation(record: Record, paper: str, where: str, names: dict[str, str]) -> pd.DataFrame | str:
    """Changes against the plain run, in points, beside the printed ones. `names`: variant -> system in `where`.

    Over all records of the method under this profile and backbone: the mean of the differences of score, task by task
    and seed by seed, where both runs exist. A sentence where none does.
    """
    scores: dict[str, dict] = {}
    for r in results.load_all()[0]:
        if (r.method, r.profile, r.backbone) == (record.method, record.profile, record.backbone):
            scores.setdefault(r.variant, {})[r.task, r.seed] = r.score
    table, plain = [], scores.get("", {})
    for variant, system in names.items():
        pairs = sorted(plain.keys() & scores.get(variant, {}).keys())
        if pairs:
            changes = [scores[variant][k] - plain[k] for k in pairs]
            printed = ", ".join(f"{r.value}" for r in reported.select(reported.load(), paper, where, system))
            table.append({"": system, "ours: mean change, points": f"{sum(changes) / len(changes):+.2f}",
                          "tasks": ", ".join(sorted({t for t, _ in pairs})), "runs": len(pairs),
                          f"printed, {where}": printed or "not printed"})
    if not table:
        return "Not run; study=ablation makes these runs."
    return pd.DataFrame(table).set_index("")
