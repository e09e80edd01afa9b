"""Batches: every row once an epoch, little padding, the same order for the same seed, plans that stop where told."""

from __future__ import annotations

import itertools

import datasets
import numpy as np
import pytest
import tiny
import torch

from lib import batches


def mrpc_like(n: int, seed: int = 0) -> np.ndarray:
    """Lengths like MRPC's pairs in word pieces: mean 53, deviation 15, between 16 and 128."""
    return np.clip(np.random.default_rng(seed).normal(53, 15, n).round(), 16, 128).astype(int)


@pytest.mark.parametrize(("n", "size"), [(1, 4), (7, 4), (8, 4), (2000, 32), (1601, 32), (1633, 32), (100, 7)])
def test_every_row_once_an_epoch(n, size):
    lengths = mrpc_like(n)
    for epoch in range(3):
        out = batches.epoch_batches(lengths, size, 0, epoch)
        assert sorted(np.concatenate(out)) == list(range(n))
        assert len(out) == -(-n // size)
        assert sorted(len(b) for b in out)[1:] == [size] * (len(out) - 1)  # one batch may be short, no other


def test_padding_is_under_a_tenth_on_lengths_like_mrpc():
    lengths = mrpc_like(3668)
    out = batches.epoch_batches(lengths, 32, 0, 0)
    padded = sum(max(lengths[i] for i in b) * len(b) for b in out)
    share = 1 - lengths.sum() / padded
    assert share == pytest.approx(batches.padding_share(lengths, out), abs=1e-12)
    assert share < 0.1
    plain = [np.arange(i, min(i + 32, 3668)) for i in range(0, 3668, 32)]
    assert batches.padding_share(lengths, plain) > 0.3  # what bucketing saves


def test_order_is_a_function_of_seed_and_epoch():
    lengths = mrpc_like(400)
    order = {(s, e): [tuple(b) for b in batches.epoch_batches(lengths, 8, s, e)] for s in (0, 1) for e in (0, 1)}
    assert order[0, 0] == [tuple(b) for b in batches.epoch_batches(lengths, 8, 0, 0)]
    for a, b in itertools.combinations(order, 2):
        assert order[a] != order[b]


def test_long_batches_do_not_come_together():
    """Batches are shuffled: their order says nothing of their length."""
    lengths = mrpc_like(4000)
    mean = [lengths[b].mean() for b in batches.epoch_batches(lengths, 8, 0, 0)]
    assert abs(np.corrcoef(mean[:-1], mean[1:])[0, 1]) < 0.2


# --- plans


def test_plan_has_as_many_batches_as_the_epochs_ask_for():
    lengths = mrpc_like(100)
    for epochs, steps in ((1, 13), (3, 39), (0.5, 6), (2.5, 32), (0.001, 1)):
        assert len(batches.plan(lengths, 8, 0, epochs, 0)) == steps
    whole = batches.plan(lengths, 8, 0, 3, 0)
    for epoch in range(3):
        rows = np.concatenate(whole[13 * epoch : 13 * (epoch + 1)])
        assert sorted(rows) == list(range(100))


def test_plan_stops_before_the_token_cap_is_passed():
    lengths = mrpc_like(500)
    for cap in (1, 3000, 10_000, 60_000):
        out = batches.plan(lengths, 8, 3, 50, cap)
        spent = sum(int(lengths[b].sum()) for b in out)
        assert len(out) == 1 or spent <= cap
        assert spent > cap - 8 * lengths.max()  # and not long before
    assert len(batches.plan(lengths, 8, 3, 1, 10**9)) == len(batches.plan(lengths, 8, 3, 1, 0))


def test_a_longer_plan_begins_with_the_shorter():
    lengths = mrpc_like(300)
    short, long = (batches.plan(lengths, 8, 0, 3, cap) for cap in (20_000, 40_000))
    assert all(np.array_equal(a, b) for a, b in zip(short, long, strict=False))


# --- tensors


def test_batch_is_padded_to_its_longest_row():
    data = tiny.encoded(10, seed=1)
    rows = np.array([3, 0, 7])
    batch = data.batch(rows)
    width = max(data.lengths[rows])
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (3, width)
    for j, i in enumerate(rows):
        n = data.lengths[i]
        assert batch["input_ids"][j, :n].tolist() == data.inputs["input_ids"][i]
        assert batch["input_ids"][j, n:].eq(0).all()
        assert batch["attention_mask"][j].tolist() == [1] * n + [0] * (width - n)
    assert batch["labels"].tolist() == data.labels[rows].tolist()
    assert batch["rows"].tolist() == rows.tolist()


def test_padding_is_the_tokenizers_own():
    ids = {"input_ids": [[5, 6], [5, 6, 7]], "attention_mask": [[1, 1], [1, 1, 1]]}
    data = batches.Encoded(ids, np.array([0, 1]), np.array([2, 3]), np.arange(2), {"input_ids": 9})
    assert data.batch(np.array([0, 1]))["input_ids"].tolist() == [[5, 6, 9], [5, 6, 7]]


def test_evaluation_order_holds_every_row_once():
    data = tiny.encoded(23, seed=2)
    seen = [(rows, batch) for rows, batch in batches.in_order(data, 5)]
    assert sorted(np.concatenate([rows for rows, _ in seen])) == list(range(23))
    for rows, batch in seen:
        assert batch["labels"].tolist() == data.labels[rows].tolist()


def split(texts, seconds=None, labels=None) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"idx": list(range(len(texts))), "text": texts,
                                       "text_2": seconds or [""] * len(texts), "label": labels or [0] * len(texts)})


def test_encoding_is_the_tokenizers():
    tokenizer, texts = tiny.tokenizer(), ["a good film", "bad", "the plot is not very good"]
    data = batches.encode(split(texts, labels=[1, 0, 1]), tokenizer, 32)
    assert data.inputs["input_ids"] == [tokenizer(t)["input_ids"] for t in texts]
    assert data.lengths.tolist() == [5, 3, 8]
    assert data.labels.dtype == np.int64
    assert data.index.tolist() == [0, 1, 2]
    assert batches.encode(split(texts, labels=[1.5, 0.0, 1.0]), tokenizer, 32).labels.dtype == np.float32


def test_pairs_become_one_sequence_and_long_ones_are_cut():
    tokenizer = tiny.tokenizer()
    data = batches.encode(split(["good film"], ["bad plot"]), tokenizer, 32)
    assert tokenizer.decode(data.inputs["input_ids"][0]) == "[CLS] good film [SEP] bad plot [SEP]"
    assert data.inputs["token_type_ids"][0] == [0, 0, 0, 0, 1, 1, 1]
    long = batches.encode(split(["good " * 100, "bad"], ["film " * 100, "plot"]), tokenizer, 16)
    assert long.lengths.max() == 16
    assert tokenizer.decode(long.inputs["input_ids"][0]).count("[SEP]") == 2
    # a model with 64 positions is never given more, whatever max_length says
    assert batches.encode(split(["good " * 500]), tokenizer, 500).lengths.max() == tiny.POSITIONS


def test_batches_are_plain_tensors():
    for value in tiny.encoded(4).batch(np.arange(4)).values():
        assert isinstance(value, torch.Tensor)
