"""The timed table: which rows are made, that it resumes, what it refuses; on tiny models, without believing times."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
import tiny
import torch

from lib import training
from lib.efficiency import backends, table
from lib.efficiency import run as efficiency_run
from lib.efficiency.backends import Ready, Skipped
from lib.errors import InputError
from lib.paths import ROOT

FACTS = {"paper": "none", "variant": "tiny", "layers": 1, "params_m": 0.1, "params_no_embeddings_m": 0.05,
         "flops_g": 0.01}


def subject(name: str, layers: int = 1, megabytes: float = 1.0) -> table.Subject:
    return table.Subject(name, lambda attention: tiny.classifier(layers=layers, attention=attention, install=False),
                         FACTS, megabytes)


BASE, ONE, TWO = subject("base", 4), subject("one"), subject("two")


def rows(tmp_path, subjects=(BASE, ONE, TWO), names=("eager",), points=((1, 8),), **changes) -> list[dict]:
    settings = {"rounds": 3, "warmup": 1, "fewest": 3, "folder": tmp_path / "onnx", **changes}
    return [r for found in table.measure(subjects, BASE, names, points, **settings) for r in found]


def test_rows_hold_every_column_and_speed_is_against_the_base(tmp_path):
    found = rows(tmp_path, points=((1, 8), (2, 16)))
    assert [(r["system"], r["batch"], r["length"]) for r in found] == [
        (n, *p) for p in ((1, 8), (2, 16)) for n in ("base", "one", "two")]
    for r in found:
        assert set(r) == set(table.COLUMNS)
        assert r["latency_ms"] > 0
        assert r["rounds"] == 3
        assert r["threads"] == torch.get_num_threads()
        assert r["tokens_per_second"] == pytest.approx(r["batch"] * r["length"] / r["latency_ms"] * 1000, rel=0.01)
    assert {r["speedup_vs_bert_base"] for r in found if r["system"] == "base"} == {1.0}


def test_timing_without_warm_up_is_refused_before_anything_is_built(tmp_path):
    def never(attention):
        pytest.fail("a model was built")

    with pytest.raises(ValueError, match="warmup: 0"):
        rows(tmp_path, subjects=(table.Subject("x", never, FACTS, 1),), warmup=0)
    with pytest.raises(ValueError, match="warmup: 0"):
        table.across(table.Subject("x", never, FACTS, 1), ["eager"], [(1, 8)], folder=tmp_path, warmup=0)


def test_speed_up_is_the_median_ratio_inside_the_rounds(tmp_path, monkeypatch):
    """Known sleeps: the base takes three times as long."""
    wait = {"base": 0.015, "one": 0.005}
    monkeypatch.setattr(table, "_build", lambda subjects, *a: (
        {s.name: Ready(lambda ids, mask, s=s: time.sleep(wait[s.name]), "fp32", 1.0) for s in subjects},
        {s.name: 0.0 for s in subjects}))
    base, one = rows(tmp_path, subjects=(BASE, ONE), rounds=5)
    assert 14 < base["latency_ms"] < 60
    assert 1.5 < one["speedup_vs_bert_base"] < 4
    assert one["speedup_low"] <= one["speedup_vs_bert_base"] <= one["speedup_high"]


def test_a_file_is_appended_to_and_what_is_there_is_not_measured_again(tmp_path):
    path = tmp_path / "efficiency.csv"
    assert len(table.load(path)) == 0
    first = rows(tmp_path, subjects=(BASE, ONE))
    table.append(path, first)
    before = path.read_bytes()
    frame = table.load(path)
    assert list(frame.columns) == table.COLUMNS
    done = set(frame[table.KEY].itertuples(index=False, name=None))
    again = rows(tmp_path, done=done)
    assert [r["system"] for r in again] == ["two"]  # the base is timed with it, but its row is there
    table.append(path, again)
    assert path.read_bytes().startswith(before)
    assert list(table.load(path).system) == ["base", "one", "two"]
    done = set(table.load(path)[table.KEY].itertuples(index=False, name=None))
    assert rows(tmp_path, done=done) == []


def test_no_point_begins_after_the_deadline(tmp_path):
    assert rows(tmp_path, deadline=time.monotonic() - 1) == []


def test_another_table_is_refused(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"x.csv: columns are a, b; wanted system, paper"):
        table.load(tmp_path / "x.csv")


def test_groups_fit_in_memory_with_the_base_and_lose_nobody():
    many = [subject(str(i), megabytes=m) for i, m in enumerate((50, 50, 300, 10, 10, 10))]
    found = table.groups([BASE, *many], BASE, 121, 2)
    assert [[s.name for s in g] for g in found] == [["0", "1"], ["2"], ["3", "4"], ["5"]]
    assert table.groups([BASE], BASE, 100, 2) == [[]]


def test_a_back_end_that_cannot_run_is_skipped_with_its_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    skips, said = table.Skips({}), []
    found = rows(tmp_path, names=("compile", "eager"), skips=skips, say=said.append)
    assert {r["backend"] for r in found} == {"eager"}
    assert skips.reasons["base", "compile"] == "torch.compile needs a C++ compiler, and there is none on the PATH"
    assert any("skipped" in line for line in said)


def test_bf16_is_not_timed_where_it_would_be_emulated(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "precision", lambda: "fp32")
    skips = table.Skips({})
    found = rows(tmp_path, names=("bf16", "eager"), skips=skips)
    assert {r["backend"] for r in found} == {"eager"}
    assert "no bf16 arithmetic" in skips.reasons["base", "bf16"]


@pytest.mark.parametrize("name", ["eager", "sdpa", "bf16", "onnx", "onnx-int8"])
def test_every_back_end_computes_the_model(name, tmp_path, monkeypatch):
    if name.startswith("onnx"):
        pytest.importorskip("onnxruntime")
    monkeypatch.setattr(training, "precision", lambda: "bf16")  # emulated where the processor has none

    def make(attention):
        return tiny.classifier(attention=attention, install=False)

    ready = backends.BACKENDS[name](make, tmp_path)
    ids, mask = table._inputs((2, 12))
    mask[1, 6:] = 0
    got = ready.run(ids, mask)
    got = torch.as_tensor(got[0]) if isinstance(got, list) else got.logits.float()
    want = make("eager")(input_ids=ids, attention_mask=mask).logits
    near = {"fp32": 1e-5, "bf16": 0.1, "int8": 0.2}[ready.precision]
    assert (got - want).abs().max().item() < near * want.abs().max().item()
    assert ready.precision == {"bf16": "bf16", "onnx-int8": "int8"}.get(name, "fp32")
    weights = 4e-6 * sum(p.numel() for p in make("eager").parameters())
    if name.startswith("onnx"):  # the graph of so small a network weighs as much as its weights
        file = tmp_path / ("model.onnx" if name == "onnx" else "model-int8.onnx")
        assert ready.file_mb == file.stat().st_size / 1e6
    else:
        assert ready.file_mb == pytest.approx({"fp32": 1, "bf16": 0.5}[ready.precision] * weights)


@pytest.mark.slow
def test_compiled_computes_the_model(tmp_path):
    def make(attention):
        return tiny.classifier(layers=1, attention=attention, install=False)

    ready = backends.compiled(make, tmp_path)
    ids, mask = table._inputs((2, 12))
    want = make("eager")(input_ids=ids, attention_mask=mask).logits
    assert torch.allclose(ready.run(ids, mask).logits, want, atol=1e-5)


def test_an_onnx_file_is_made_once(tmp_path):
    pytest.importorskip("onnxruntime")
    made = []

    def make(attention):
        made.append(attention)
        return tiny.classifier(layers=1, attention=attention, install=False)

    backends.onnx_int8(make, tmp_path)
    backends.onnx(make, tmp_path)
    backends.onnx_int8(make, tmp_path)
    assert made == ["eager"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model-int8.onnx", "model.onnx"]


def test_a_missing_fused_attention_is_a_skip(tmp_path):
    def make(attention):
        raise ValueError("X does not support an attention implementation through sdpa yet")

    with pytest.raises(Skipped, match="no fused attention for this architecture"):
        backends.sdpa(make, tmp_path)


PEAK = """
import numpy as np
from lib.efficiency import memory as m
before = m.resident()
highest = m.peak(lambda: np.ones(25_000_000).sum())  # 200 MB, freed on return
print(before, highest, m.peak(lambda: None), m.resident())
"""


@pytest.mark.skipif(not hasattr(time, "clock_gettime"), reason="Linux only")
def test_peak_memory_sees_what_a_call_holds_and_lets_go():
    """In a process of its own: training in this one told the allocator to keep what is freed."""
    done = subprocess.run([sys.executable, "-c", PEAK], cwd=ROOT, capture_output=True, text=True, check=True)
    before, highest, quiet, now = done.stdout.split()
    if highest == "None":
        pytest.skip("the kernel does not let the high-water mark be set back")
    assert 190 < float(highest) - float(before) < 260
    assert float(quiet) - float(now) < 60


def test_a_heavier_model_takes_more_memory(tmp_path):
    wide = table.Subject("wide", lambda attention: torch.nn.Sequential(torch.nn.Linear(4000, 4000)), FACTS, 64)

    def run(make, folder):
        model = make("eager")
        return Ready(lambda ids, mask: model(torch.ones(1, 4000)), "fp32", 64.0)

    table_backends = dict(backends.BACKENDS)
    backends.BACKENDS["linear"] = run
    try:
        ready, held = table._build([wide], "linear", tmp_path, table.Skips({}), lambda line: None)
        peak = table._peak("wide", ready["wide"], held, (1, 8))
    finally:
        backends.BACKENDS.clear()
        backends.BACKENDS.update(table_backends)
    assert peak is None or 60 < peak < 100


def test_across_times_one_model_on_several_back_ends(tmp_path):
    frame = table.across(ONE, ["eager", "sdpa"], [(1, 8), (2, 8)], folder=tmp_path, rounds=3, warmup=1, fewest=3)
    assert list(frame["back end"]) == ["eager", "sdpa"] * 2
    assert list(frame["times faster than eager"])[::2] == [1.0, 1.0]
    assert all(math.isfinite(v) and v > 0 for v in frame["latency, ms"])


@pytest.mark.parametrize(("values", "message"), [
    ({"systems": ["BERT-bse"]}, "systems: 'BERT-bse' is unknown"),
    ({"backends": ["onxn"]}, "backends: 'onxn' is unknown"),
    ({"lengths": []}, "must be whole numbers of 1 or more"), ({"batches": [0]}, "must be whole numbers of 1 or more"),
    ({"minutes": 0}, "greater than 0"), ({"rounds": 2}, "greater than or equal to 3"),
    ({"length": 128}, "parameter length: unknown"),
])
def test_parameters_that_are_wrong(values, message):
    from lib import parameters

    with pytest.raises(InputError, match=message) as e:
        parameters.validate(efficiency_run.Config, values)
    assert "\n" not in str(e.value)


def test_names_of_systems_may_come_as_text():
    from lib import parameters

    p = parameters.validate(efficiency_run.Config, {"systems": "BERT-base; TrimBERT BANDD, n=2", "lengths": "32 128"})
    assert p.systems == ["BERT-base", "TrimBERT BANDD, n=2"]
    assert p.lengths == [32, 128]


def test_the_command_refuses_in_one_line(places, capsys):
    assert efficiency_run.main(["speed", "--systems", "nothing"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_groups_timed_beside_other_programs_are_left_out(tmp_path, monkeypatch, capsys):
    groups = [[dict.fromkeys(table.COLUMNS, 1) | {"system": s, "load": load, "threads": 2} for s in ("base", name)]
              for name, load in (("quiet", 2.4), ("busy", 2.6))]
    monkeypatch.setattr(efficiency_run.efficiency_table, "measure", lambda *a, **k: iter(groups))
    path = tmp_path / "efficiency.csv"
    added = efficiency_run.speed(1, ["TinyBERT4"], ["eager"], 0, path)
    assert added == 2 * 4  # two rows of the quiet group in each of four passes, none of the busy one
    assert set(pd.read_csv(path).system) == {"base", "quiet"}
    said = capsys.readouterr().out
    assert "2 rows left out, load 2.6 at 2 threads" in said
    assert "8 left out, run again for them" in said
    assert "complete" not in said


def test_own_model(tmp_path):
    folder = tiny.save_classifier(tmp_path / "mine", ["no", "yes"])
    s = efficiency_run.own_subject(str(folder))
    assert s.name == "mine"
    assert s.facts["layers"] == tiny.LAYERS
    assert s.facts["flops_g"] >= 0
    frame = pd.DataFrame(rows(tmp_path, subjects=(BASE, s)))
    assert list(frame.system) == ["base", "mine"]
    with pytest.raises(InputError, match="model '/nowhere'"):
        efficiency_run.own_subject("/nowhere")


def test_what_was_not_timed_is_named(tmp_path):
    from lib.efficiency import notebook

    over = "the minutes were over"
    p = efficiency_run.Config(systems=["TinyBERT4"], backends=["eager", "onnx"], lengths=[8], batches=[1, 2])
    found = [{**r, "system": {"base": "BERT-base", "one": "TinyBERT4"}[r["system"]]}
             for r in rows(tmp_path, subjects=(BASE, ONE), points=((1, 8),))]
    frame = pd.DataFrame(found, columns=table.COLUMNS)
    said = notebook.missing(p, frame, table.Skips({("TinyBERT4", "onnx"): "no onnx here"}))
    assert [(i, *r) for i, r in zip(said.index, said.itertuples(index=False), strict=True)] == [
        ("BERT-base", "eager", over, "2 x 8"), ("TinyBERT4", "eager", over, "2 x 8"),
        ("BERT-base", "onnx", over, "1 x 8, 2 x 8"), ("TinyBERT4", "onnx", "no onnx here", "1 x 8, 2 x 8")]
    done = pd.DataFrame([{**f, "backend": b, "batch": n} for f in found for b in p.backends for n in p.batches])
    assert "Everything" in notebook.missing(p, done, table.Skips({}))


def test_the_notebooks_sizes_are_whole_where_they_are_counts():
    from lib.efficiency import notebook

    frame = notebook.sizes(["BERT-base", "TinyBERT4"])
    assert frame["layers"].tolist() == [12, 4]
    assert {str(frame[c].dtype) for c in ("layers", "fp32, MB", "int8, MB (arithmetic)")} == {"int64"}
    assert frame.loc["TinyBERT4", "parameters, M"] == 14.35


def timed(**changes) -> pd.DataFrame:
    both = [{"system": "BERT-base", "flops_g": 22.348}, {"system": "TinyBERT4", "flops_g": 1.247}]
    rest = {"backend": "eager", "batch": 1, "length": 128, "speedup_vs_bert_base": 1.0, "tokens_per_second": 252.8,
            "threads": 1, "load": 1.0, "latency_ms": 1.0, "latency_iqr_ms": 0.1, "speedup_low": 1, "speedup_high": 1}
    return pd.DataFrame([{**rest, **b, **changes} for b in both], columns=table.COLUMNS)


def test_the_notebook_predicts_from_the_operations_as_counted():
    from lib.efficiency import notebook

    said = notebook.predicted(timed())["predicted by FLOPs"]
    assert said["TinyBERT4"] == round(22_348_431_360 / 1_247_475_840, 2) == 17.91  # by the rounded column 17.92
    assert notebook.latency(timed())["tokens a second"].astype(str).tolist() == ["253", "253"]


@pytest.mark.parametrize(("threads", "load", "busy"), [(1, 1.1, False), (1, 2.39, True), (2, 2.4, False), (8, 9, True)])
def test_the_notebook_warns_of_a_busy_machine(threads, load, busy):
    from lib.efficiency import notebook

    said = notebook.load(timed(threads=threads, load=load))
    assert said.startswith("WARNING: ") is busy
    assert f"load at most {load:.1f}, {threads} thread" in said
    assert "Nothing" in notebook.load(timed().iloc[:0])


def test_the_notebook_times_the_users_own_model(tmp_path, places, capsys):
    from lib.efficiency import notebook

    folder = str(tiny.save_classifier(tmp_path / "mine", ["no", "yes"]))
    p = efficiency_run.Config(model=folder, backends=["eager", "sdpa"], lengths=[16], rounds=3, minutes=0.05)
    frame = notebook.own(p)
    assert list(frame["back end"]) == ["eager", "sdpa"]
    assert f"mine: BertForSequenceClassification, {tiny.LAYERS} layers" in capsys.readouterr().out
    with pytest.raises(InputError, match=f"lengths: 65 is more than the {tiny.POSITIONS} positions of model"):
        notebook.own(efficiency_run.Config(model=folder, lengths=[65]))
    assert "No model was given" in notebook.own(efficiency_run.Config())


def test_what_a_compiler_takes_is_not_the_models_memory(tmp_path):
    big = []

    def first_call_compiles(ids, mask):
        if not big:
            big.append(np.ones(25_000_000))  # 200 MB

    held = {"x": 0.0}
    peak = table._peak("x", Ready(first_call_compiles, "fp32", 1.0, lazy=True), held, (1, 8))
    assert peak is None or peak < 60
