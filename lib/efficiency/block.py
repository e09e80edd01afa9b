"""One BERT-base block by part: what its feed-forward network costs beside its attention, in operations and in time."""

from __future__ import annotations

import pandas as pd
import torch
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertAttention, BertIntermediate, BertOutput

from lib.efficiency import counts, timing

LENGTHS = (32, 128, 256, 384, 512, 1024)


def row(length: int) -> dict:
    """FLOPs of one block at one length, batch 1: attention with its four linear layers, and FFN; FFN / attention."""
    config = BertConfig(num_hidden_layers=1, max_position_embeddings=max(512, length))
    found = counts.flops_by_module(counts.skeleton(config), 1, length)
    layer = "BertModel.encoder.layer.0."
    attention, ffn = found[layer + "attention"], found[layer + "intermediate"] + found[layer + "output"]
    return {"length": length, "attention_flops": attention, "ffn_flops": ffn, "ratio": round(ffn / attention, 4)}


def times(lengths, rounds: int, seconds: float, attention: str) -> pd.DataFrame:
    """FFN over attention in time, batch 1, random weights: the ratio inside interleaved rounds, with quartiles.

    Both parts have their residual and LayerNorm, attention its linear layers. `attention`: "eager" or "sdpa";
    `seconds`: cap of a length. Columns: length, backend, attention_ms, ffn_ms, ratio, ratio_low, ratio_high, rounds,
    and those of `timing.stamp`.
    """
    torch.manual_seed(0)
    config = BertConfig()
    config._attn_implementation = attention
    attend, first, second = (cls(config).eval() for cls in (BertAttention, BertIntermediate, BertOutput))
    rows = []
    for length in lengths:
        x = torch.randn(1, length, config.hidden_size)
        calls = {"attention": lambda x=x: attend(x), "ffn": lambda x=x: second(first(x), x)}
        with torch.inference_mode():
            found = timing.interleaved(calls, rounds=rounds, warmup=2, seconds=seconds)
        ratio = timing.speedup(found["ffn"], found["attention"])
        rows.append({"length": length, "backend": attention,
                     "attention_ms": round(timing.summary(1000 * found["attention"]).median, 3),
                     "ffn_ms": round(timing.summary(1000 * found["ffn"]).median, 3),
                     "ratio": round(ratio.median, 3), "ratio_low": round(ratio.low, 3),
                     "ratio_high": round(ratio.high, 3), "rounds": len(found["ffn"]),
                     **timing.stamp()})
    return pd.DataFrame(rows)
