"""The variants that the TrimBERT paper compares, as lists of runs that a notebook goes through."""

from __future__ import annotations

from lib import models
from lib.errors import InputError
from lib.methods import trimbert
from lib.methods.trimbert import Config

# At twelve blocks the paper has n = 1, 2, 3, 4, 6, inf; at six blocks 4 and 6 both leave one intermediate block.
STUDIES: dict[str, list[dict]] = {
    "none": [{}],
    "blocks": [{"every": n} for n in (1, 2, 3, 4, 6, 0)],
    "changes": [{"every": n, "bandd": b, "nomlpln": m} for n in (1, 2) for b, m in ((True, False), (False, True),
                                                                                    (True, True))],
    "dropout": [{"every": 1, "bandd": True, "removed_dropout": d} for d in ("output", "weights", "both", "none")],
}


def name(p: Config) -> str:
    """Variant name of a run in a study, e.g. "scratch-n2-bandd"."""
    words = [p.origin, f"n{p.every or 'inf'}"] + ["bandd"] * p.bandd + ["nomlpln"] * p.nomlpln
    if p.bandd and p.removed_dropout != "output":
        words.append(f"drop{p.removed_dropout}")
    return "-".join(words)


def variants(p: Config) -> list[Config]:
    """The runs of a study, each with its variant name; of two n that leave the same blocks the first is run."""
    if p.study != "none" and p.variant:
        raise InputError(f"variant: {p.variant!r} cannot be set together with study={p.study!r}, which names its runs")
    blocks = p.scratch_blocks if p.origin == "scratch" else models.depth(p.backbone)
    found, seen = [], set()
    for c in STUDIES[p.study]:
        q = type(p).model_validate({**p.model_dump(), "study": "none", **c})
        count = blocks // q.every if q.every else 0
        if p.study == "blocks" and (count in seen or q.every > blocks):
            continue
        seen.add(count)
        found.append(q if p.study == "none" else type(p).model_validate({**q.model_dump(), "variant": name(q)}))
    return found


def control(run) -> dict[str, dict]:
    """Language modelling from scratch without a LayerNorm: after intermediate blocks, after attention, and with both.

    The paper's reason for removing the former: without the latter training diverges. Reports by name, as in the
    artefact's "mlm", on `control_tokens` tokens of text.
    """
    out = {}
    for words, change in (("n = 1", {}), ("no LayerNorm after intermediate blocks", {"nomlpln": True}),
                          ("no LayerNorm after attention", {"attention_layernorm": False})):
        one = run.with_parameters(**{"origin": "scratch", "every": 1, "bandd": False, "nomlpln": False,
                                     "text_tokens": max(1000, run.p.control_tokens), **change})
        out[words] = trimbert.pretrained(one).meta["mlm"]
    return out
