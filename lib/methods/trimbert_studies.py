"""The variants that the TrimBERT paper compares, as lists of runs that a notebook goes through."""

from __future__ import annotations

import re
from typing import Literal

import torch
from torch import nn

from lib import diverged, models, runs, studies
from lib.diverged import Diverged
from lib.methods import trimbert
from lib.methods.trimbert_model import TrimBertModel
from lib.results import Record

# At twelve blocks the paper has n = 1, 2, 3, 4, 6, inf; at six blocks 4 and 6 both leave one intermediate block.
STUDIES: dict[str, list[dict]] = {
    "none": [{}],
    "blocks": [{"every": n} for n in (1, 2, 3, 4, 6, 0)],
    "changes": [{"every": n, "bandd": b, "nomlpln": m} for n in (1, 2) for b, m in ((True, False), (False, True),
                                                                                    (True, True))],
    "dropout": [{"every": 1, "bandd": True, "removed_dropout": d} for d in ("output", "weights", "both", "none")],
    # Which start learns is read off the loss on held-out text: `origin="scratch"`
    "gain": [*({"every": 1, "bandd": True, "gain_start": g} for g in (1.0, 0.3, 0.1, 0.05, 0.02)),
             {"every": 1, "bandd": True, "gain_start": 0.05, "removed_dropout": "none"}],
    # The last one is to diverge, by the paper
    "layernorm": [{"every": 1}, {"every": 1, "nomlpln": True}, {"every": 1, "attention_layernorm": False}],
}


class Config(trimbert.Config):
    """Parameters of the notebook: one run, or one of the studies."""

    study: Literal["none", "blocks", "changes", "dropout", "gain", "layernorm"] = "none"


def name(p: trimbert.Config) -> str:
    """Variant name of a run in a study, e.g. "scratch-n2-bandd"."""
    words = [p.origin, f"n{p.every or 'inf'}"] + ["bandd"] * p.bandd + ["nomlpln"] * p.nomlpln
    words += ["noattln"] * (not p.attention_layernorm)
    if p.bandd and p.removed_dropout != "output":
        words.append(f"drop{p.removed_dropout}")
    if p.bandd and p.gain_start != 1:
        words.append(f"gain{p.gain_start:g}")
    return "-".join(words)


def run_all(p: trimbert.Config) -> tuple[list[Record], list[Diverged]]:
    """Run what `p` asks for: (records, what diverged), in order. A study goes on after a variant that diverged.

    Raises `RuntimeError` where nothing is left: a single run that diverged, or every variant of a study.
    """
    records, broken = [], []
    for q in variants(p):
        run = runs.start("trimbert", q)
        found = _attempt(run)
        (broken if isinstance(found, Diverged) else records).append(found)
    if not records:
        raise RuntimeError("trimbert: no run has a score; " + "; ".join(f"{d.label} {d.words}: {d.message}"
                                                                       for d in broken))
    return records, broken


def _attempt(run) -> Record | Diverged:
    # Asked first, so that no rate is tuned and no teacher trained for a variant that cannot be fine-tuned
    report = trimbert.pretrained(run.with_parameters()).meta["mlm"]
    if report["diverged"] or report["after"]["loss"] is None:
        why = report["diverged"] or "outputs on held-out text are not finite after the last step"
        return diverged.keep(run, "language modelling", report["steps"], run.p.general_lr, why,
                             report["curve"].get("loss", []))
    history = None
    try:
        student, history = run.compress(trimbert.compress)
        record = run.finish(student, history)
    except RuntimeError as e:
        place = re.search(r"\(step (\d+), lr ([^)]+)\)", str(e))
        if "not finite" not in str(e) or not (place or history):
            raise
        step, lr = (int(place[1]), float(place[2])) if place else (history.steps, run.p.lr)
        return diverged.keep(run, "fine-tuning", step, lr, str(e), history.curve.get("loss", []) if history else [])
    diverged.forget(run)
    return record


def variants(p: trimbert.Config) -> list[trimbert.Config]:
    """The runs of a study, each with its variant name; of two n that leave the same blocks the first is run."""
    blocks = p.scratch_blocks if p.origin == "scratch" else models.depth(p.backbone)
    found, seen = [], set()
    for q in studies.variants(p, STUDIES[p.study]):
        count = blocks // q.every if q.every else 0
        if p.study == "blocks" and (count in seen or q.every > blocks):
            continue
        seen.add(count)
        found.append(q if p.study == "none" else type(p).model_validate({**q.model_dump(), "variant": name(q)}))
    return found


def control(run) -> dict[str, dict]:
    """Language modelling from scratch without a LayerNorm: after intermediate blocks, after attention, and with both.

    The paper's reason for removing the former: without the latter training diverges. Reports by name, as in the
    artefact's "mlm", on `control_tokens` tokens of text; with "layernorms", how many the network has.
    """
    out = {}
    for words, change in (("n = 1", {}), ("no LayerNorm after intermediate blocks", {"nomlpln": True}),
                          ("no LayerNorm after attention", {"attention_layernorm": False})):
        one = run.with_parameters(**{"origin": "scratch", "every": 1, "bandd": False, "nomlpln": False,
                                     "text_tokens": max(1000, run.p.control_tokens), **change})
        with torch.device("meta"):
            network = TrimBertModel(trimbert.architecture(one.p, run.tokenizer))
        norms = sum(isinstance(m, nn.LayerNorm) for m in network.modules())
        out[words] = {**trimbert.pretrained(one).meta["mlm"], "layernorms": norms}
    return out
