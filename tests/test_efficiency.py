"""Counting and timing: against hand counts, known sleeps, and what must be refused."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from lib.efficiency import timing
from lib.errors import InputError

H, F, L, V, P = 16, 32, 2, 50, 40


def bert(**changes):
    config = BertConfig(vocab_size=V, hidden_size=H, num_hidden_layers=L, num_attention_heads=2, intermediate_size=F,
                        max_position_embeddings=P, num_labels=3, **changes)
    torch.manual_seed(0)
    return BertForSequenceClassification(config)


def test_size_is_the_hand_count_and_the_file_holds_four_bytes_a_parameter():
    layer = 4 * (H * H + H) + 2 * H + (H * F + F) + (F * H + H) + 2 * H
    tables = (V + P + 2) * H
    expected = tables + 2 * H + L * layer + (H * H + H) + (3 * H + 3)
    s = timing.size(bert())
    assert (s.parameters, s.parameters_without_embeddings) == (expected, expected - tables)
    assert 4 * expected < s.file_mb * 1e6 < 4 * expected + 20_000  # the rest is the header


def test_tied_weights_lie_in_the_file_once():
    torch.manual_seed(0)
    wide = {"vocab_size": 5000, "hidden_size": H, "num_hidden_layers": 1, "num_attention_heads": 2,
            "intermediate_size": F}
    tied = timing.size(BertForMaskedLM(BertConfig(**wide, tie_word_embeddings=True)))
    assert tied.file_mb * 1e6 < 4 * tied.parameters + 20_000
    assert tied.file_mb * 1e6 < 4 * 5000 * H * 2  # twice the table would be more


def test_size_refuses_half_precision():
    with pytest.raises(ValueError, match="bfloat16"):
        timing.size(bert().to(torch.bfloat16))


def test_timing_without_warm_up_is_refused():
    with pytest.raises(ValueError, match="warmup: 0"):
        timing.interleaved({"a": lambda: None}, rounds=3, warmup=0)
    with pytest.raises(ValueError, match="warmup: 0"):
        timing.latency({"a": bert()}, 1, 8, rounds=3, warmup=0)
    with pytest.raises(ValueError, match="rounds: 0"):
        timing.interleaved({"a": lambda: None}, rounds=0, warmup=1)
    with pytest.raises(ValueError, match="0 calls"):
        timing.interleaved({}, rounds=1, warmup=1)


def test_rounds_are_interleaved_and_warm_up_is_not_counted():
    order = []
    times = timing.interleaved({n: lambda n=n: order.append(n) for n in "abc"}, rounds=4, warmup=2)
    assert order == list("abc") * 6
    assert {n: len(t) for n, t in times.items()} == {"a": 4, "b": 4, "c": 4}


def test_a_slow_first_call_does_not_count():
    calls = []

    def call():
        calls.append(1)
        time.sleep(0.2 if len(calls) == 1 else 0.001)

    assert timing.interleaved({"a": call}, rounds=5, warmup=1)["a"].max() < 0.15


def test_time_limit_leaves_the_fewest_rounds():
    times = timing.interleaved({"a": lambda: time.sleep(0.01)}, rounds=1000, warmup=1, seconds=0.0, fewest=6)
    assert len(times["a"]) == 6


def test_summary_and_speed_up_against_numpy_and_by_hand():
    values = np.array([5.0, 1, 2, 4, 3])
    s = timing.summary(values)
    assert (s.median, s.low, s.high, s.iqr) == (3, 2, 4, 2)
    # the machine is three times slower in the last rounds: the ratio inside the rounds does not move
    base, other = np.array([2.0, 2, 6, 6, 6]), np.array([1.0, 1, 3, 3, 3])
    assert timing.speedup(base, other) == timing.Summary(2, 2, 2)
    with pytest.raises(ValueError, match="same rounds"):
        timing.speedup(base, other[:3])


def test_known_sleeps_give_their_ratio():
    times = timing.interleaved({"slow": lambda: time.sleep(0.03), "fast": lambda: time.sleep(0.01)}, rounds=7,
                                   warmup=1)
    assert 1.3 < timing.speedup(times["slow"], times["fast"]).median < 6


def test_inputs_hold_no_padding_and_fit_the_model():
    config = RobertaConfig(vocab_size=V, hidden_size=H, num_hidden_layers=1, num_attention_heads=2,
                           intermediate_size=F, max_position_embeddings=P + 2, pad_token_id=1)
    model = RobertaForSequenceClassification(config)
    given = timing.inputs(model, 64, 20)
    assert given["input_ids"].shape == (64, 20)
    assert not (given["input_ids"] == 1).any()
    assert given["input_ids"].max() < V
    assert given["attention_mask"].all()
    with pytest.raises(InputError, match="length: 41 is more than the model's 40 positions"):
        timing.inputs(bert(), 1, 41)


def test_latency_sees_dropout_off_and_a_deeper_model_is_slower():
    class Sleeper(nn.Module):
        def __init__(self, seconds):
            super().__init__()
            self.seconds, self.weight = seconds, nn.Parameter(torch.zeros(1))
            self.config = SimpleNamespace(vocab_size=V)

        def forward(self, input_ids, attention_mask):
            assert not self.training
            assert torch.is_inference_mode_enabled()
            assert input_ids.shape == attention_mask.shape == (2, 8)
            time.sleep(self.seconds)

    times = timing.latency({"deep": Sleeper(0.02), "flat": Sleeper(0.005)}, 2, 8, rounds=5, warmup=1)
    assert np.median(times["deep"]) > np.median(times["flat"])


def test_real_models_can_be_timed():
    times = timing.latency({"a": bert(), "b": bert()}, 2, 8, rounds=3, warmup=1)
    assert {len(t) for t in times.values()} == {3}
    assert all((t > 0).all() for t in times.values())
