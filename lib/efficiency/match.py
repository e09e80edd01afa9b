"""Which printed size, operation count or speed belongs to which of our shapes, and whether ours agrees.

The papers seldom say what they count. So each printed number is held against every way of counting that the study
knows, and the page shows all of them: nothing is chosen by hand, and a number that no way reproduces says so. Light on
imports: the report loads no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from lib.errors import InputError
from lib.paths import ROOT, results_dir
from lib.reporting.reported import Reported

BASE = "BERT-base"
# (paper, system as printed) -> system of lib.efficiency.shapes
OURS = {
    ("bert", "BERT-base"): BASE, ("bert", "BERT-large"): "BERT-large",
    **{("theseus", f"BERT-of-Theseus ({n} layers)"): f"BERT, {n} layers" for n in (6, 4, 3)},
    **{("theseus", n): "BERT, 6 layers"
       for n in ("BERT-of-Theseus", "Fine-tuning", "Vanilla KD", "BERT-PKD", "PD-BERT")},
    ("theseus", "DistilBERT"): "DistilBERT", ("theseus", "TinyBERT4"): "TinyBERT4",
    ("theseus", "MobileBERT"): "MobileBERT",
    ("distilbert", "BERT-base"): BASE, ("distilbert", "DistilBERT"): "DistilBERT",
    ("tinybert", "BERT-base (teacher)"): BASE, ("tinybert", "BERT-TINY (pretrained 4L312)"): "TinyBERT4",
    ("tinybert", "BERT-SMALL"): "PD-BERT Small", ("tinybert", "BERT4-PKD"): "BERT, 4 layers",
    ("tinybert", "DistilBERT4"): "DistilBERT4", ("tinybert", "MobileBERT-TINY"): "MobileBERT-TINY",
    ("tinybert", "TinyBERT4"): "TinyBERT4", ("tinybert", "BERT6-PKD"): "BERT, 6 layers",
    ("tinybert", "PD6"): "BERT, 6 layers", ("tinybert", "DistilBERT6"): "DistilBERT",
    ("tinybert", "TinyBERT6"): "TinyBERT6",
    ("mobilebert", "MobileBERT-TINY"): "MobileBERT-TINY", ("mobilebert", "MobileBERT"): "MobileBERT",
    ("mobilebert", "MobileBERT w/o OPT"): "MobileBERT w/o OPT", ("mobilebert", "BERT-base"): BASE,
    ("mobilebert", "DistilBERT 6L"): "DistilBERT", ("mobilebert", "IB-BERT-large (teacher)"): "IB-BERT-large",
    ("mobilebert", "BERT-large"): "BERT-large",
    ("mobilebert", "MobileBERT LayerNorm+gelu"): "MobileBERT w/o OPT",
    ("mobilebert", "MobileBERT LayerNorm+relu"): "MobileBERT, LayerNorm",
    ("mobilebert", "MobileBERT NoNorm+gelu"): "MobileBERT, gelu",
    ("mobilebert", "MobileBERT NoNorm+relu"): "MobileBERT",
    ("efficientbert", "EfficientBERT"): "EfficientBERT", ("efficientbert", "EfficientBERT-TINY"): "EfficientBERT-TINY",
    ("efficientbert", "EfficientBERT++"): "EfficientBERT++",
    ("efficientbert", "EfficientBERT++ (as reprinted)"): "EfficientBERT++",
    ("efficientbert", "BERT-base"): BASE, ("efficientbert", "MobileBERT-TINY"): "MobileBERT-TINY",
    **{("trimbert", f"n={n}"): f"TrimBERT n={n}" for n in ("1", "2", "3", "4", "6", "inf")},
    ("trimbert", "BANDD or NoMLPLN"): "TrimBERT BANDD", ("trimbert", "BANDD+n=2"): "TrimBERT BANDD, n=2",
    ("pkd", "BERT6"): "BERT, 6 layers", ("pkd", "BERT3"): "BERT, 3 layers",
    **{("pdbert", f"BERT-{n}"): f"PD-BERT {n}" for n in ("Tiny", "Mini", "Small", "Medium")},
    ("pdbert", "BERT-Base"): BASE,
    ("minilm", "BERT-base"): BASE, ("minilm", "MiniLM-L12-H384"): "MiniLM-L12",
    ("minilm", "MiniLM-L6-H384"): "MiniLM-L6", ("minilm", "MiniLM-L6-H768"): "BERT, 6 layers",
}  # fmt: skip
NOT_OURS = {
    ("distilbert", "ELMo"): "an LSTM, none of the methods here",
    ("trimbert", "ALBERT (quoted)"): "quoted from another paper, not compared there",
    ("trimbert", "Softermax (quoted)"): "quoted from another paper; specialised hardware",
}
PARAMETERS = ("params_m", "params_m_without_projection")
COUNTED = (*PARAMETERS, "params_embedding_m", "params_layers_m", "params_change", "flops_b", "size_ratio",
           "memory_ratio")
TIMED = ("speedup", "throughput_ratio", "latency_ms")
# What is known about a number that no way of counting gives.
REASONS = {
    ("theseus", "params_layers_m", "BERT-of-Theseus"): "cut off: six layers hold 42.53 million",
    ("theseus", "params_m", "TinyBERT4"): "14.48 rounded twice (14.5, then 15)",
    ("bert", "params_m", "BERT-large"): "a round number",
    ("tinybert", "params_m", "BERT-SMALL"): "29.06 with heads; PD-BERT itself prints 29.1",
    ("tinybert", "params_m", "MobileBERT-TINY"): "taken from MobileBERT's paper",
    ("mobilebert", "params_m", "DistilBERT 6L"): "another way of counting, which could not be found",
    ("tinybert", "size_ratio", "TinyBERT4"): "109 / 14.5: the paper divides its rounded counts",
    ("mobilebert", "size_ratio", "MobileBERT"): "109 / 25.3: the paper divides its own counts, and its 25.3 is not met",
}
UNKNOWN = "not found: no way of counting the shape of the official code gives it"


def agreement(printed: str, ours: float) -> str:
    """How our number stands to a printed one: "rounded", "cut off" or "" (neither).

    `printed` as the paper prints it; its last digit is its precision. A bound (">2") and a range ("2-3") agree where
    ours lies in it once rounded to their precision.
    """
    text = printed.strip()
    if text[0] in "<>":
        bound = float(text[1:])
        return "rounded" if (ours > bound if text[0] == ">" else ours < bound) else ""
    low, dash, high = text.partition("-")
    unit = 10.0 ** -len(low.partition(".")[2])
    if dash and low:
        return "rounded" if float(low) - unit / 2 <= ours <= float(high) + unit / 2 else ""
    value = float(text)
    if abs(ours - value) <= unit / 2 + 1e-9:
        return "rounded"
    return "cut off" if 0 <= ours - value < unit else ""


def sizes() -> pd.DataFrame:
    """`results/sizes.csv`, indexed by system: `python -m lib.efficiency.run sizes` writes it, without any timing.

    Without one among the results the repository's own: like `reported.csv` it does not depend on the runs.
    """
    own = results_dir() / "sizes.csv"
    path = own if own.exists() else ROOT / "results" / "sizes.csv"
    try:
        return pd.read_csv(path, keep_default_na=True).set_index("system")
    except (OSError, ValueError, KeyError) as e:
        raise InputError(f"{path}: cannot be read ({type(e).__name__}); `make sizes` writes it") from e


@dataclass(frozen=True)
class Way:
    """One way of counting, in words, and what it gives."""

    words: str
    value: float


def ways(reported: Reported, frame: pd.DataFrame) -> list[Way]:
    """Every way in which we can count what a printed number may mean; none for a metric that is not counted.

    Parameters in millions, FLOPs in 10**9 at batch 1 and 128 tokens, ratios to BERT-base counted in the same way.
    """
    one, base = frame.loc[OURS[reported.paper, reported.system]], frame.loc[BASE]
    if reported.metric in PARAMETERS:
        return [Way(w, v / 1e6) for w, v in _parameters(one).items()]
    if reported.metric == "params_embedding_m":
        return [Way("embedding tables", one.embeddings / 1e6)]
    if reported.metric == "params_layers_m":
        return [Way("neither embeddings nor pooler", (one.parameters - one.pooler - one.embeddings) / 1e6)]
    if reported.metric == "flops_b":
        return [Way("a multiply-add is 2", one.flops_128 / 1e9), Way("a multiply-add is 1", one.flops_128 / 2e9),
                Way("2, and one dense layer over all tokens (our guess)", one.flops_128_dense / 1e9)]
    if reported.metric in ("size_ratio", "memory_ratio"):
        mine, theirs = _parameters(one), _parameters(base)
        theirs |= {w: base.parameters - base.pooler for w in mine if w not in theirs}  # beside it: the plain encoder
        return [Way(w, theirs[w] / v) for w, v in mine.items()]
    if reported.metric == "params_change":
        return [Way("with pooler, percent", 100 * (one.parameters / base.parameters - 1))]
    return []


def _parameters(row: pd.Series) -> dict[str, float]:
    out = {"without pooler": row.parameters - row.pooler, "with pooler": row.parameters}
    if not math.isnan(row.pretraining):
        out["with pre-training heads"] = row.pretraining
    if row.extra_parameters:
        out[row.extra] = row.parameters - row.pooler + row.extra_parameters
    return out


def reason(reported: Reported) -> str:
    """Why a printed number is not met, as far as it is known."""
    return REASONS.get((reported.paper, reported.metric, reported.system), UNKNOWN)
