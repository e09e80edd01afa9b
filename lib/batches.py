"""Tokenised rows and length-bucketed batches, padded to the longest row of each batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import datasets
import numpy as np
import torch

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Encoded:
    """Tokenised rows: model inputs by name (lists of ids), labels (n,), lengths (n,) in tokens."""

    inputs: dict[str, list[list[int]]]
    labels: np.ndarray
    lengths: np.ndarray
    index: np.ndarray
    pad: dict[str, int]

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows) -> Batch:
        """The rows as tensors (B, T), T the longest of them; labels (B,) and row numbers (B,) beside them."""
        width = int(self.lengths[rows].max())
        out: Batch = {}
        for name, lists in self.inputs.items():
            array = np.full((len(rows), width), self.pad.get(name, 0), dtype=np.int64)
            for j, i in enumerate(rows):
                ids = lists[i]
                array[j, : len(ids)] = ids
            out[name] = torch.from_numpy(array)
        out["labels"] = torch.from_numpy(self.labels[rows])
        out["rows"] = torch.from_numpy(np.asarray(rows, dtype=np.int64))
        return out


def encode(rows: datasets.Dataset, tokenizer, max_length: int) -> Encoded:
    """Tokenise a split; pairs become one sequence with the tokenizer's own separators, truncated to `max_length`."""
    limit = min(max_length, tokenizer.model_max_length)
    second = rows["text_2"] if any(rows["text_2"]) else None
    encoded = tokenizer(list(rows["text"]), None if second is None else list(second), truncation=True, max_length=limit)
    inputs = {k: v for k, v in encoded.items() if k in ("input_ids", "attention_mask", "token_type_ids")}
    lengths = np.array([len(x) for x in inputs["input_ids"]])
    labels = np.array(rows["label"])
    labels = labels.astype(np.float32 if labels.dtype.kind == "f" else np.int64)
    return Encoded(inputs, labels, lengths, np.array(rows["idx"]), {"input_ids": tokenizer.pad_token_id or 0})


def epoch_batches(lengths: np.ndarray, size: int, seed: int, epoch: int, bucket: int = 50) -> list[np.ndarray]:
    """Shuffled batches of row numbers for one epoch, rows of like length together.

    Rows are shuffled, cut into pools of `bucket * size` rows, sorted by length inside a pool, cut into batches, and
    the batches are shuffled. A function of (seed, epoch) alone, so a resumed run sees the same order.
    """
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(lengths))
    batches = []
    for start in range(0, len(order), bucket * size):
        pool = order[start : start + bucket * size]
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        batches += [pool[i : i + size] for i in range(0, len(pool), size)]
    return [batches[i] for i in rng.permutation(len(batches))]


def plan(lengths: np.ndarray, size: int, seed: int, epochs: float, max_tokens: int) -> list[np.ndarray]:
    """All batches of a run in order: `epochs` passes (the last may be partial), cut where `max_tokens` is reached.

    `max_tokens` counts real tokens, 0 means no cap. There is always at least one batch.
    """
    batches: list[np.ndarray] = []
    tokens, epoch = 0, 0
    per_epoch = -(-len(lengths) // size)
    wanted = max(1, round(per_epoch * epochs))
    while len(batches) < wanted:
        for b in epoch_batches(lengths, size, seed, epoch):
            if len(batches) >= wanted or (max_tokens and batches and tokens + lengths[b].sum() > max_tokens):
                return batches
            batches.append(b)
            tokens += int(lengths[b].sum())
        epoch += 1
    return batches


def in_order(data: Encoded, size: int) -> Iterator[tuple[np.ndarray, Batch]]:
    """Batches sorted by length for evaluation, with the row numbers that each one holds."""
    order = np.argsort(-data.lengths, kind="stable")
    for i in range(0, len(order), size):
        rows = order[i : i + size]
        yield rows, data.batch(rows)


def padding_share(lengths: np.ndarray, batches: list[np.ndarray]) -> float:
    """Share of the processed tokens that is padding."""
    padded = sum(int(lengths[b].max()) * len(b) for b in batches)
    return 1 - sum(int(lengths[b].sum()) for b in batches) / padded
