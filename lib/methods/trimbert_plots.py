"""Plots and tables of TrimBERT's notebook."""

from __future__ import annotations

import pandas as pd
import torch
from matplotlib import pyplot as plt

from lib import plots
from lib.diverged import Diverged
from lib.methods import trimbert_speed
from lib.methods.trimbert_model import TrimBertConfig, TrimBertModel
from lib.models import count_parameters
from lib.results import Record

TELLING = 0.1  # of the fall of the loss: networks that end nearer to each other have done nearly the same
# Two blocks a third as wide as BERT-base's, with heads of 64 as there, so that a page takes seconds
TINY = {"num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024,
        "vocab_size": 1000}


def language(records: list[Record]) -> pd.DataFrame:
    """Masked-word accuracy and loss on held-out text of each run's language-modelling stage, beside its score."""
    rows = []
    for r in records:
        mlm, words = r.study["mlm"], {}
        for when in ("before", "after"):
            accuracy, loss = mlm[when]["accuracy"], mlm[when]["loss"]
            words[f"accuracy {when}, percent"] = "not finite" if accuracy is None else f"{100 * accuracy:.1f}"
            words[f"loss {when}"] = "not finite" if loss is None else f"{loss:.2f}"
        rows.append({"run": r.label, "intermediate blocks": r.study["intermediate_blocks"],
                     "tokens of text": f"{mlm['tokens']:,}", **words, "fine-tuned score, percent": f"{r.score:.1f}"})
    return pd.DataFrame(rows).set_index("run")


def loss(reports: dict[str, dict]):
    """Loss of language modelling against steps, one line a network; a cross where training broke off."""
    figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
    said = ["Masked-word loss against optimiser steps."]
    for name, report in reports.items():
        curves = report["curve"]
        points = curves.get("masked_words") or curves.get("loss", [])  # the former without the L2 term
        if points:
            label = name + (" (diverged)" if report["diverged"] else "")
            line, = axes.plot(*zip(*points, strict=True), label=label)
            said.append(f"{label}: {plots.ends(points)}.")
            if report["diverged"]:
                axes.plot(*points[-1], marker="x", color=line.get_color())
    axes.set(xlabel="optimiser step", ylabel="masked-word loss")
    axes.legend(fontsize=8)
    return plots.described(figure, " ".join(said))


def control(reports: dict[str, dict]) -> pd.DataFrame:
    """How each network of `trimbert_studies.control` ended: loss on held-out text, and whether training broke off."""
    rows = []
    for name, report in reports.items():
        final = report["after"]["loss"]
        rows.append({"network": name, "LayerNorms": report["layernorms"], "steps": report["steps"],
                     "loss on held-out text before": f"{report['before']['loss']:.5f}",
                     "after": "not finite" if final is None else f"{final:.5f}",
                     "diverged": report["diverged"] or "no"})
    return pd.DataFrame(rows).set_index("network")


def control_says(reports: dict[str, dict]) -> str:
    """What the control can be read for: which networks broke off, or how far apart those that did not ended."""
    broken = [n for n, r in reports.items() if r["diverged"] or r["after"]["loss"] is None]
    if broken:
        return f"Training broke off or ended without a finite loss: {'; '.join(broken)}."
    ends = [r["after"]["loss"] for r in reports.values()]
    fall = max(r["before"]["loss"] - r["after"]["loss"] for r in reports.values())
    apart = max(ends) - min(ends)
    said = f"No network diverged. Their losses end within {apart:.5f} of each other; the largest fall was {fall:.5f}. "
    if apart < TELLING * fall:
        return said + "So few steps do not tell the networks apart: no evidence for the paper and none against it."
    return said + "They are apart, but none is near the paper's length of training."


def reports(records: list[Record], broken: list[Diverged]) -> dict[str, dict]:
    """What `loss` draws, by run: those with a record, and those that broke off in language modelling."""
    return {r.label: r.study["mlm"] for r in records} | {
        d.label: {"curve": {"loss": d.curve}, "diverged": d.message} for d in broken if d.stage != "fine-tuning"}


def diverged(broken: list[Diverged]) -> pd.DataFrame:
    """One line a run without a score: where it broke off, and what the training loop said."""
    return pd.DataFrame([{"run": d.label, "score": d.words, "stage": d.stage, "message": d.message} for d in broken]
                        ).set_index("run")


def sizes() -> pd.DataFrame:
    """Parameters of each n at the paper's shape, in millions, and how many times smaller than n = 1."""
    counts = {}
    for n in (1, 2, 3, 4, 6, 0):
        with torch.device("meta"):
            counts[n] = count_parameters(TrimBertModel(TrimBertConfig(intermediate_every=n)))[0]
    return pd.DataFrame([{"n": str(n or "infinite"), "intermediate blocks": 12 // n if n else 0,
                          "parameters, millions": round(c / 1e6, 1), "times smaller": round(counts[1] / c, 2)}
                         for n, c in counts.items()]).set_index("n")


def speed(batch_tokens: int, lengths=(128, 512, 1024), seconds: float = 2.0) -> pd.DataFrame | None:
    """Throughput relative to n = 1 by length and kind of softmax, medians with quartiles; None for 0 tokens.

    `batch_tokens`: tokens in a batch, at least one sequence. `seconds`: cap for each length.
    """
    if not batch_tokens:
        return None
    names = ("n = 1", "n = 2", "BANDD", "BANDD + n = 2")
    table = trimbert_speed.throughput(lengths, shape=TINY, variants={n: trimbert_speed.VARIANTS[n] for n in names},
                                      batch_tokens=batch_tokens, rounds=20, seconds=seconds)
    table["times n = 1"] = [f"{r.ratio:.2f} ({r.ratio_low:.2f} to {r.ratio_high:.2f})" for r in table.itertuples()]
    return table[table["variant"] != "n = 1"].pivot(index=["variant", "attention"], columns="length",
                                                    values="times n = 1")
