"""Answers as spans of a paragraph: windows of long paragraphs, the model's two outputs a token, and decoding.

As in BERT (Devlin et al. 2019, section 4.2 and 4.3): the probability of a token to start or end the answer is a
softmax over the sequence, a span's score is the sum of its two logits, and the first token stands for "no answer".
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import datasets
import numpy as np
import pandas as pd
import torch
from torch import nn
from transformers.modeling_outputs import ModelOutput

from lib import layers, squad
from lib.batches import Encoded, in_order
from lib.errors import InputError

QUESTION = 64  # tokens of a question at most (official run_squad.py)
LONGEST = 30  # tokens of an answer at most (official run_squad.py)


@dataclass(frozen=True)
class Windows(Encoded):
    """Windows of question and paragraph; labels (n, 2): first and last token of the answer, (0, 0) where it is none.

    `index` (n,) says which row of `rows` a window is of. `offsets` gives the characters of each of a window's tokens,
    (tokens, 2), -1 outside the paragraph.
    """

    offsets: list[np.ndarray] = field(default_factory=list)
    rows: datasets.Dataset | None = None


@dataclass
class Output(ModelOutput):
    """`logits` (B, T, 2) are start and end; padding has the lowest number of its type."""

    logits: torch.Tensor | None = None
    hidden_states: tuple | None = None
    attentions: tuple | None = None


class _Spans:
    """Mixed into a transformers question-answering model: one tensor of logits instead of two."""

    def forward(self, input_ids=None, attention_mask=None, **more):
        """input_ids, attention_mask: (B, T) -> `Output`."""
        out = super().forward(input_ids=input_ids, attention_mask=attention_mask, **more)
        logits = torch.stack([out.start_logits, out.end_logits], -1)
        if attention_mask is not None:
            logits = logits.masked_fill(attention_mask[..., None] == 0, torch.finfo(logits.dtype).min)
        return Output(logits=logits, hidden_states=out.hidden_states, attentions=out.attentions)


@functools.cache
def _with_spans(cls: type) -> type:
    return type(cls.__name__, (_Spans, cls), {"__module__": cls.__module__})


def install(model: nn.Module) -> nn.Module:
    """Let a question-answering model of transformers give its logits in one tensor, in place. Its state is the same."""
    if not isinstance(model, _Spans):
        model.__class__ = _with_spans(type(model))
    return model


def encode(rows: datasets.Dataset, tokenizer, max_length: int, stride: int) -> Windows:
    """Windows of at most `max_length` tokens over question and paragraph, neighbours sharing `stride` tokens.

    A window's label is the first accepted answer where the window holds all of it, else its first token.
    Raises `InputError` where a window has no room for more of the paragraph than it shares with its neighbour.
    """
    limit = min(max_length, tokenizer.model_max_length)
    if stride + QUESTION + 8 > limit:
        raise InputError(f"stride: {stride} is too large for windows of {limit} tokens; allowed: at most "
                         f"{max(0, limit - QUESTION - 8)} (a question takes up to {QUESTION})")
    found = tokenizer(_short(list(rows["text"]), tokenizer), list(rows["text_2"]), truncation="only_second",
                      max_length=limit, stride=stride, return_overflowing_tokens=True, return_offsets_mapping=True)
    owner = np.array(found["overflow_to_sample_mapping"])
    offsets, labels = [], np.zeros((len(owner), 2), dtype=np.int64)
    answers, starts = rows["answers"], rows["starts"]
    for i, row in enumerate(owner):
        inside = np.array([s == 1 for s in found.sequence_ids(i)])
        characters = np.where(inside[:, None], np.array(found["offset_mapping"][i]), -1)
        offsets.append(characters.astype(np.int32))
        if answers[row]:
            first, end = starts[row][0], starts[row][0] + len(answers[row][0])
            begins = np.flatnonzero(inside & (characters[:, 0] <= first) & (characters[:, 1] > first))
            ends = np.flatnonzero(inside & (characters[:, 0] < end) & (characters[:, 1] >= end))
            if len(begins) and len(ends):
                labels[i] = begins[0], ends[-1]
    inputs = {k: found[k] for k in ("input_ids", "attention_mask", "token_type_ids") if k in found}
    lengths = np.array([len(x) for x in inputs["input_ids"]])
    return Windows(inputs, labels, lengths, owner, {"input_ids": tokenizer.pad_token_id or 0}, offsets, rows)


def _short(questions: list[str], tokenizer) -> list[str]:
    """Questions cut after `QUESTION` tokens."""
    found = tokenizer(questions, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    return [q if len(o) <= QUESTION else q[: o[QUESTION - 1][1]] for q, o in zip(questions, found, strict=True)]


def best_span(start: np.ndarray, end: np.ndarray, offsets: np.ndarray) -> tuple[float, int, int]:
    """(score, first, last character) of the best span of a window: both ends in the paragraph, in order, not too long.

    start, end: (tokens,); offsets: (tokens, 2). Score -inf where the window holds nothing of the paragraph.
    """
    inside = np.flatnonzero(offsets[:, 0] >= 0)
    if not len(inside):
        return -np.inf, 0, 0
    low, high = inside[0], inside[-1] + 1
    total = start[low:high, None] + end[None, low:high]
    gap = np.arange(high - low)[None, :] - np.arange(high - low)[:, None]
    total = np.where((gap >= 0) & (gap < LONGEST), total, -np.inf)
    i, j = np.unravel_index(np.argmax(total), total.shape)
    return float(total[i, j]), int(offsets[low + i, 0]), int(offsets[low + j, 1])


def predict(model: nn.Module, data: Windows, batch_size: int = 64, precision: str = "fp32") -> pd.DataFrame:
    """One line a question: `answer` (the best span over its windows), `score` of it and `none`, that of no answer.

    `none` is the lowest over the windows, as in the official code. Dropout is off; the model's mode is restored.
    """
    device, mode = next(model.parameters()).device, model.training
    best: list = [(-np.inf, 0, 0)] * len(data.rows)
    none = np.full(len(data.rows), np.inf)
    model.eval()
    with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        for windows, batch in in_order(data, batch_size):
            logits = layers.classify(model, {k: v.to(device) for k, v in batch.items()}).float().cpu().numpy()
            for window, values in zip(windows, logits, strict=True):
                row, size = data.index[window], len(data.offsets[window])
                if not np.isfinite(values[:size]).all():
                    none[row] = np.nan  # stays: a minimum with NaN is NaN
                    continue
                best[row] = max(best[row], best_span(values[:size, 0], values[:size, 1], data.offsets[window]))
                none[row] = np.minimum(none[row], values[0].sum())
    model.train(mode)
    contexts = data.rows["text_2"]
    return pd.DataFrame({"idx": data.rows["idx"], "answer": [contexts[i][a:b] for i, (_, a, b) in enumerate(best)],
                         "score": [s for s, _, _ in best], "none": none})


def marked(predictions: pd.DataFrame, rows: datasets.Dataset, threshold: float | None) -> pd.DataFrame:
    """The predictions with `given` (the answer, or "" where `none` - `score` exceeds `threshold`), `em` and `f1`.

    `threshold` None: every question is answered (v1.1). A prediction that is not finite has NaN scores.
    """
    out = predictions.copy()
    silent = np.zeros(len(out), bool) if threshold is None else (out["none"] - out["score"] > threshold).to_numpy()
    out["given"] = np.where(silent, "", out["answer"])
    values = np.array([squad.score(g, a) for g, a in zip(out["given"], rows["answers"], strict=True)])
    values[~np.isfinite(out["none"].to_numpy())] = np.nan
    return out.assign(em=values[:, 0], f1=values[:, 1])


def best_threshold(predictions: pd.DataFrame, rows: datasets.Dataset) -> float:
    """The threshold on `none` - `score` of the highest mean F1 on these rows: chosen on held-out rows, then used.

    The official v2.0 script takes the best one on the scored rows themselves, which flatters.
    """
    gap = (predictions["none"] - predictions["score"]).to_numpy()
    given = np.array([squad.score(p, a)[1] for p, a in zip(predictions["answer"], rows["answers"], strict=True)])
    silent = np.array([float(not a) for a in rows["answers"]])
    order = np.argsort(gap, kind="stable")  # with a threshold at the k-th gap the first k + 1 are answered
    totals = np.concatenate([[0], np.cumsum(given[order])]) + silent.sum() - np.concatenate(
        [[0], np.cumsum(silent[order])])
    k = int(np.argmax(totals))
    if k == 0:
        return float(gap[order[0]]) - 1.0
    return float(gap[order[k - 1]]) if k == len(gap) else float((gap[order[k - 1]] + gap[order[k]]) / 2)
