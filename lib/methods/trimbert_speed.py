"""Throughput of TrimBERT's variants by sequence length (the paper's Fig. 6), with random weights: no training needed.

Softmax is one fused kernel in today's libraries, and attention as a whole is another. A hand-written normalisation set
against these would only measure the kernels. So softmax is timed in three ways: written out in elementary operations
like the normalisation, as one kernel, and inside fused attention.
"""

from __future__ import annotations

import pandas as pd
import torch
from torch.nn import functional as F
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from lib.efficiency import timing
from lib.methods.trimbert_model import TrimBertConfig, TrimBertModel

# The paper's variants as changes of the configuration
VARIANTS = {"n = 1": {}, "n = 2": {"intermediate_every": 2}, "n = 3": {"intermediate_every": 3},
            "n = inf": {"intermediate_every": 0}, "BANDD": {"bandd": True},
            "NoMLPLN": {"intermediate_layernorm": False}, "BANDD + n = 2": {"bandd": True, "intermediate_every": 2}}
UNFUSED, KERNEL, FUSED = "trimbert_unfused", "trimbert_kernel", "sdpa"
WORDS = {UNFUSED: "softmax written out", KERNEL: "softmax as one kernel", FUSED: "fused attention"}


def unfused_softmax(scores: torch.Tensor) -> torch.Tensor:
    """Softmax over the last dimension in elementary operations, float32, as `trimbert_model.normalise` is written."""
    x = scores.float()
    x = (x - x.amax(-1, keepdim=True)).exp()
    return x / x.sum(-1, keepdim=True)


def _attention(softmax):
    def attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **_):
        """query, key, value: (B, heads, T, d); a boolean mask or None. Returns ((B, T, heads, d), None)."""
        scores = (query @ key.transpose(-1, -2)) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        if attention_mask is not None:
            scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
        weights = F.dropout(softmax(scores).to(value.dtype), dropout, module.training)
        return (weights @ value).transpose(1, 2).contiguous(), None

    return attention


for _name, _softmax in ((UNFUSED, unfused_softmax), (KERNEL, lambda s: s.softmax(-1, dtype=torch.float32))):
    AttentionInterface.register(_name, _attention(_softmax))
    AttentionMaskInterface.register(_name, sdpa_mask)


def build(attention: str, shape: dict, changes: dict, length: int) -> TrimBertModel:
    """An encoder with random weights that has positions for `length`. `shape`: fields of the configuration."""
    torch.manual_seed(0)
    config = TrimBertConfig(**{**shape, **changes, "max_position_embeddings": max(512, length)})
    config._attn_implementation = attention
    return TrimBertModel(config).eval()


def throughput(lengths=(128, 256, 512, 1024), *, shape: dict | None = None, variants: dict | None = None,
               batch_tokens: int = 1024, rounds: int = 10, seconds: float = float("inf"), device: str = "cpu",
               dtype: torch.dtype = torch.float32) -> pd.DataFrame:
    """Tokens a second in the forward pass of each variant, and its ratio to n = 1 with the softmax named.

    `shape`: configuration fields (BERT-base by default); `batch_tokens`: tokens in a batch, at least one sequence;
    `seconds`: cap for each length. All models of a length are timed in interleaved rounds; numbers are medians over
    rounds. A variant with BANDD has no softmax: it is timed once and set against n = 1 under each. Columns: length,
    batch, variant, attention (of both sides), tokens_per_second, ratio, ratio_low, ratio_high (quartiles).
    """
    chosen = VARIANTS if variants is None else variants
    rows = []
    for length in lengths:
        batch = max(1, batch_tokens // length)
        models = {(name, attention): build(attention, shape or {}, changes, length).to(device, dtype)
                  for name, changes in {"n = 1": {}, **chosen}.items()
                  for attention in ((UNFUSED,) if changes.get("bandd") else WORDS)}
        with torch.inference_mode():
            times = timing.latency({f"{n}|{a}": m for (n, a), m in models.items()}, batch, length, rounds=rounds,
                                       seconds=seconds)
        for name, changes in chosen.items():
            for attention, words in WORDS.items():
                own = times[f"{name}|{UNFUSED if changes.get('bandd') else attention}"]
                ratio = timing.speedup(times[f"n = 1|{attention}"], own)
                rows.append({"length": length, "batch": batch, "variant": name, "attention": words,
                             "tokens_per_second": batch * length / timing.summary(own).median,
                             "ratio": ratio.median, "ratio_low": ratio.low, "ratio_high": ratio.high})
    return pd.DataFrame(rows)
