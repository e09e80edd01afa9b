"""The runs that the EfficientBERT notebook makes, with its tables and its plot of the search."""

from __future__ import annotations

from typing import Literal

import pandas as pd
import torch
from matplotlib import pyplot as plt

from lib import plots, studies
from lib.methods import efficientbert, efficientbert_search, efficientbert_space
from lib.methods.efficientbert_model import SHAPES, EfficientBertModel, config
from lib.results import Record

# The control: the plain function under the same stacks, ratios and training.
STUDIES = {"none": [{}], "control": [{}, {"control": True, "variant": "control"}],
           # The paper's ablations of its search: without warm-up KD, and as many candidates in one stage (filled in)
           "search": [{"architecture": "search", "variant": "search"},
                      {"architecture": "search", "warm_up": False, "variant": "search-cold"},
                      {"architecture": "search", "variant": "coarse"}]}


class Config(efficientbert.Config):
    """Parameters of the notebook: one run, or it and others to compare it with."""

    study: Literal["none", "control", "search"] = "none"


def variants(p: Config) -> list[Config]:
    """The runs of a study, each with its variant name. `InputError` for a variant name beside a study."""
    one_stage = {"candidates": [sum(p.candidates), 0, 0]}
    return studies.variants(p, [{**c, **one_stage} if c.get("variant") == "coarse" else c for c in STUDIES[p.study]])


def architecture(record: Record) -> pd.DataFrame:
    """Each layer's stacks, inner width and function, as the student has them."""
    rows = [{"layer": i + 1, "stacks s": s, "inner width, of the hidden": f"1/{d}" if d > 1 else "1", "f(x)": text}
            for i, (s, d, text) in enumerate(record.study["architecture"])]
    return pd.DataFrame(rows).set_index("layer")


def general_table(record: Record) -> pd.DataFrame:
    """Losses on held-out text before and after each general stage, dropout off: one row a term."""
    found = record.study["general"]
    columns = {f"{stage}, {when}": found[stage][when] for stage in ("supernet", "student")
               for when in ("before", "after")}
    return pd.DataFrame(columns).round(3).rename_axis("mean over tokens of held-out text")


def search_table(record: Record) -> pd.DataFrame:
    """One line a stage of the search: candidates by where they came from, spread and best of their scores, cost."""
    scored = pd.DataFrame(record.study["search"])
    if scored.empty:
        return pd.DataFrame({"search": ["none: the released functions were used"]})
    names = {1: "1: operators and sizes", 2: "2: operators", 3: "3: sizes"}
    rows = {}
    for stage, part in scored.groupby("stage"):
        rows[names[stage]] = {
            "candidates": len(part), "from the best leaf": int((part["how"] == "best leaf").sum()),
            "first score": round(part["score"].iloc[0], 1), "median": round(part["score"].median(), 1),
            "best": round(part["score"].max(), 1), "tokens": int(part["tokens"].sum()),
            "seconds": round(part["seconds"].sum(), 1)}
    frame = pd.DataFrame.from_dict(rows, orient="index")
    frame.index.name = "stage (scores: held-out rows, percent)"
    return frame


def search_plot(record: Record):
    """Score of every candidate in the order of the search, and the best so far of its stage."""
    scored = pd.DataFrame(record.study["search"])
    if scored.empty:
        return None
    figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
    scored = scored[scored["score"] > efficientbert_search.DIVERGED]  # diverged candidates have no score
    for how, marker in (("start", "s"), ("mutation", "o"), ("best leaf", "^")):
        part = scored[scored["how"] == how]
        axes.scatter(part.index, part["score"], marker=marker, s=25, label=how)
    for stage, part in scored.groupby("stage"):
        axes.plot(part.index, part["score"].cummax(), color="grey", linewidth=1)
        axes.annotate(f"stage {stage}", (part.index[0], axes.get_ylim()[1]), fontsize=8)
    axes.set(xlabel="candidate", ylabel="held-out score, percent")
    axes.legend(fontsize=8)
    found = "; ".join(f"stage {stage}: {len(part)} candidates, best {part['score'].max():.1f}"
                      for stage, part in scored.groupby("stage"))
    return plots.described(figure, "Score on the held-out rows, percent, of every candidate in the order of the "
                                   f"search, and the best so far of its stage. {found}.")


def sizes() -> pd.DataFrame:
    """Parameters of the paper's shapes, counted here, in millions (no pooler), beside what the official code prints."""
    printed = {"base": "15.74", "tiny": "9.4", "plusplus": "16.0", "plusplus-released": "not printed"}
    rows = {}
    for shape in SHAPES:
        c = config(shape)
        with torch.device("meta"):
            total = sum(p.numel() for p in EfficientBertModel(c, add_pooling_layer=False).parameters())
        ffns = efficientbert_space.ffn_parameters(c, [f[:2] for f in c.ffns])
        with_projection = total + c.hidden_size * 768 + 768
        rows[shape] = {"layers": c.num_hidden_layers, "width": c.hidden_size, "feed-forward parts": f"{ffns / 1e6:.3f}",
                       "without projection": f"{total / 1e6:.2f}", "with projection": f"{with_projection / 1e6:.2f}",
                       "official code, with projection": printed[shape]}
    return pd.DataFrame(rows).T.rename_axis("millions of parameters")
