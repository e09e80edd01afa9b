"""The benchmark at a tiny scale: what is counted, that both sides do the same work, and the file. No real speeds."""

from __future__ import annotations

import csv
import math

import numpy as np
import pytest
import tiny
import torch
from torch import nn

from lib import batches, bench, layers, parameters, runs
from lib.errors import InputError
from lib.methods import kd

SCALE = {"precision": "fp32", "batch_size": "8", "max_length": "32", "profile": "test"}
NAMES = ["ours vs trainer best", "ours vs trainer pad 64", "ours vs bare loop", "cached vs uncached teacher",
         "ours vs matrix peak (TFLOP/s)", "two runs of one thread vs one run of two"]


@pytest.fixture
def run(places, films, backbone):
    return runs.start("kd", parameters.validate(kd.Config, {"task": films, "backbone": backbone, **SCALE}))


def test_stopwatch_takes_whole_steps_after_the_first_ones(monkeypatch):
    clock = iter([0.0, 9.0, 10.0, 11.0, 13.0])
    monkeypatch.setattr(bench.time, "perf_counter", lambda: next(clock))
    watch = bench.Stopwatch()
    for tokens in (5, 5, 1, 2, 7):
        watch.tick(torch.ones(1, tokens))
    assert watch.rate == (1 + 2) / (13.0 - 10.0)  # the last step has no end


def test_ratio_and_interval_by_hand():
    """Ratios 2 and 8: geometric mean 4; t with one degree of freedom, half width 12.706 * sd / sqrt(2) in logs."""
    rates = {"a": iter([20.0, 80.0]), "b": iter([10.0, 10.0])}
    order = []

    def block(name):
        return lambda steps, number: order.append(name) or next(rates[name])

    row = bench.compare("x", block("a"), block("b"), 2, 1)
    assert order == ["a", "b", "b", "a"]  # the order turns round
    half = 12.7062 * np.std(np.log([2, 8]), ddof=1) / math.sqrt(2)
    assert row == {"comparison": "x", "ours": 50.0, "other": 10.0, "ratio": 4.0,
                   "low": pytest.approx(4 * math.exp(-half), abs=1e-3),
                   "high": pytest.approx(4 * math.exp(half), rel=1e-3)}


def test_every_side_does_the_asked_number_of_steps_on_like_rows(run, monkeypatch):
    """Our loop and the bare one meet the very same batches; no side changes what it must not."""
    seen = {}

    class Spy(bench.Stopwatch):
        def tick(self, mask):
            super().tick(mask)
            seen.setdefault(current, []).append(int(mask.sum()))

    monkeypatch.setattr(bench, "Stopwatch", Spy)
    for name, make, model in (("ours", bench.ours, run.backbone()), ("bare", bench.bare, bench.plain(run))):
        current = name
        assert make(run, model)(3, 5) > 0
    steps = bench.SKIPPED + 3 + 1
    assert seen["ours"] == seen["bare"]
    assert len(seen["ours"]) == steps
    plan = batches.plan(run.train.lengths, 8, 5, 1, 0)[:steps]
    assert seen["ours"] == [int(run.train.lengths[rows].sum()) for rows in plan]


def test_equal_losses_without_dropout(run):
    """The library's model and ours are the same function, so that the comparison is of speed alone."""
    theirs, own = bench.plain(run).eval(), run.backbone().eval()
    layers.output_layer(own).load_state_dict(layers.output_layer(theirs).state_dict())
    batch = run.train.batch(np.arange(8))
    inputs = {k: v for k, v in batch.items() if k in layers.INPUTS}
    with torch.no_grad():
        torch.testing.assert_close(own(**inputs).logits, theirs(**inputs).logits, atol=1e-5, rtol=0)
    assert {m.p for m in theirs.modules() if isinstance(m, nn.Dropout)} == {0.1}
    assert {m.p for m in own.modules() if isinstance(getattr(m, "p", None), float)} == {0.1}


def test_trainer_sides(run, tmp_path):
    pytest.importorskip("accelerate", reason="requirements-bench.txt is installed by `make bench`")
    assert bench.trainer(run, bench.plain(run), tmp_path)(2, 0) > 0
    assert bench.trainer(run, bench.plain(run), tmp_path, width=32)(2, 0) > 0


def test_trainer_without_accelerate_is_one_line(run, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(InputError, match="accelerate is not installed; `make bench`|requirements-bench.txt"):
        bench.trainer(run, nn.Linear(1, 1), tmp_path)


def test_operations_by_hand():
    """4 layers of width 32, inner 64: 4 * 32 * 32 + 2 * 32 * 64 weights a layer; rows of 10 tokens."""
    model = tiny.classifier()
    weights = 4 * (4 * 32 * 32 + 2 * 32 * 64)
    assert bench.operations(model, np.array([10, 10])) == 3 * (2 * weights + 4 * 10 * 32 * 4)
    # a token stands in the long row more often than in the short one
    assert bench.operations(model, np.array([5, 15])) == pytest.approx(3 * (2 * weights + 4 * 12.5 * 32 * 4))
    assert all(bench.peak(p, 0.01, 64) > 0 for p in ("fp32", "bf16"))


ROW = {"comparison": "a vs b", "ours": 2.0, "other": 1.0, "ratio": 2.0, "low": 1.9, "high": 2.1}


def test_file(places):
    path = bench.write(ROW, bench.machine("fp32"))
    (row,) = csv.DictReader(path.open())
    assert tuple(row) == bench.FIELDS
    assert row["ratio"] == "2.0"
    assert "threads; fp32; torch" in row["machine"]
    assert len(row["date"]) == 10


def test_a_new_row_replaces_that_of_its_machine_only(places):
    for ratio, where in ((2.0, "one"), (3.0, "another"), (4.0, "one")):
        bench.write(ROW | {"ratio": ratio}, where)
    bench.write(ROW | {"comparison": "c vs d"}, "one")
    assert [(r["comparison"], r["machine"], r["ratio"]) for r in bench.load()] == [
        ("a vs b", "another", "3.0"), ("a vs b", "one", "4.0"), ("c vs d", "one", "2.0")]


def test_a_file_with_other_columns_is_kept_and_named(places):
    path = places / "results" / "bench.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("comparison,ratio\na vs b,2\n")
    with pytest.raises(InputError, match=r"bench.csv: its columns are not comparison, ours"):
        bench.write(ROW, "one")
    assert path.read_text() == "comparison,ratio\na vs b,2\n"


def test_what_was_measured_is_kept_when_a_later_comparison_fails(places, films, backbone, monkeypatch):
    """Written one by one; run again, only the rest is measured, and `--again` measures all."""
    called = []

    def fails():
        raise InputError("made up")

    def calls(last):
        return {"a vs b": lambda: called.append("a") or ROW, "c vs d": last}

    words = [f"task={films}", f"backbone={backbone}", *(f"{k}={v}" for k, v in SCALE.items())]
    monkeypatch.setattr(bench, "plan", lambda *args: calls(fails))
    assert bench.main(words) == 2
    assert [r["comparison"] for r in bench.load()] == ["a vs b"]
    monkeypatch.setattr(bench, "plan", lambda *args: calls(lambda: ROW | {"comparison": "c vs d"}))
    assert bench.main(words) == 0
    assert [r["comparison"] for r in bench.load()] == ["a vs b", "c vs d"]
    assert called == ["a"]
    assert bench.main([*words, "--again"]) == 0
    assert called == ["a", "a"]


@pytest.mark.parametrize(("words", "said"), [
    (["nonsense"], "bench: 'nonsense' is no NAME=VALUE"), (["--rounds", "1"], "at least 2"),
    (["task=nope"], "task: 'nope' is unknown"), (["lr=fast"], "parameter lr"),
])
def test_wrong_words_are_one_line(places, words, said, capsys):
    assert bench.main(words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_names_of_the_comparisons(run, monkeypatch):
    """Known without measuring; the precisions are compared only where bf16 is the study's."""
    monkeypatch.setattr(bench.os, "cpu_count", lambda: 2)
    assert list(bench.plan(run, {}, 2, 2)) == NAMES
    run.p = run.p.model_copy(update={"precision": "bf16"})
    assert list(bench.plan(run, {}, 2, 2)) == [*NAMES[:4], "bf16 vs fp32", *NAMES[4:]]


@pytest.mark.slow
def test_whole(places, films, backbone, monkeypatch):
    pytest.importorskip("accelerate", reason="requirements-bench.txt is installed by `make bench`")
    words = [f"{k}={v}" for k, v in SCALE.items()]
    assert bench.main([f"task={films}", f"backbone={backbone}", "--rounds", "2", "--steps", "2", *words]) == 0
    rows = list(csv.DictReader((places / "results" / "bench.csv").open()))
    assert [r["comparison"] for r in rows] == NAMES
    assert all(float(r["low"]) <= float(r["ratio"]) <= float(r["high"]) for r in rows)
