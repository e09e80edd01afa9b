"""The papers' own shapes from a configuration alone, operational variants timed side by side, tables of a run.

Nothing here is trained: weights are random, which changes no time.
"""

from __future__ import annotations

import pandas as pd
import torch
from transformers import MobileBertConfig, MobileBertModel

from lib import fast
from lib.efficiency import timing
from lib.methods.ibbert_model import IBBertConfig

SPEED = "speed, times that of LayerNorm, gelu"  # below 1: slower
STAGES = ("start", "after transfer", "after distillation")  # of the student, as the record keeps them
# MobileBERT 24.6M and TINY 15.5M by these shapes (the paper prints 25.3M and 15.1M), IB-BERT-large 294.2M (293M)
NAMES = ("MobileBERT", "MobileBERT-TINY", "IB-BERT-large")


def shape(name: str) -> MobileBertConfig:
    """Configuration of one of `NAMES` (paper, Table 1 and section 4.2; official code)."""
    if name == "IB-BERT-large":
        return IBBertConfig()
    if name == "MobileBERT-TINY":  # keys, queries and values all from the one bottleneck, two FFNs
        return MobileBertConfig(classifier_activation=False, use_bottleneck_attention=True,
                                key_query_shared_bottleneck=False, num_feedforward_networks=2)
    assert name == "MobileBERT", name
    return MobileBertConfig(classifier_activation=False)


def operational(name: str = "MobileBERT", length: int = 128, rounds: int = 7, layers: int = 0) -> pd.DataFrame:
    """Latency in ms at batch 1 of NoNorm or LayerNorm x relu or gelu, and the speed as a multiple of "w/o OPT"'s.

    The paper's "w/o OPT" is LayerNorm with gelu: 192 against 62 ms on a phone (Table 4). Here all four are timed in
    interleaved rounds after a warm-up, on this machine, in float32, with torch's own kernels; ratios are medians of
    the ratios inside the rounds. `layers`: fewer blocks than the paper's 24, for a quick look; 0: all.
    """
    models = {}
    for norm, words in (("no_norm", "NoNorm"), ("layer_norm", "LayerNorm")):
        for activation in ("relu", "gelu"):
            config = shape(name)
            config.normalization_type, config.hidden_act = norm, activation
            config.num_hidden_layers = layers or config.num_hidden_layers
            config._attn_implementation = fast.ATTENTION
            torch.manual_seed(0)
            models[f"{words}, {activation}"] = MobileBertModel(config).eval()
    times = timing.latency(models, 1, length, rounds=rounds)
    base = times["LayerNorm, gelu"]
    rows = []
    for label, seconds in times.items():
        ms, ratio = timing.summary(seconds * 1000), timing.speedup(base, seconds)
        rows.append({"variant": label, "median, ms": round(ms.median, 1),
                     "quartiles, ms": f"{ms.low:.1f} to {ms.high:.1f}",
                     SPEED: round(ratio.median, 2),
                     "quartiles": f"{ratio.low:.2f} to {ratio.high:.2f}"})
    return pd.DataFrame(rows).set_index("variant")


def stages(record) -> pd.DataFrame:
    """Masked words on held-out text after each task-agnostic stage of a run: accuracy and loss."""
    d = record.study["distillation"]
    rows = {"IB teacher, as made": d["teacher"]["start"], "IB teacher, trained": d["teacher"]["quality"]}
    rows |= {f"student, {k}": d["student"]["quality"][k] for k in STAGES if k in d["student"]["quality"]}
    return pd.DataFrame([{"stage": k, "masked words right, percent": round(100 * v["accuracy"], 1),
                          "loss, nats": round(v["loss"], 2), "words": v["words"]} for k, v in rows.items()]
                        ).set_index("stage")


def gap(record) -> pd.DataFrame:
    """Feature and attention difference to the teacher by block (from 1) and stage, on held-out text."""
    columns = {}
    found = record.study["distillation"]["student"]["gap"]
    for kind in ("feature", "attention"):
        columns |= {f"{kind}, {s}": [round(b[kind], 3) for b in found[s]] for s in STAGES if s in found}
    return pd.DataFrame(columns, index=pd.RangeIndex(1, len(found["start"]) + 1, name="block"))
