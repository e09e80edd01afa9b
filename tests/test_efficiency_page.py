"""The efficiency page: printed numbers beside ours, what is not measured, and what a measured table shows."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from bs4 import BeautifulSoup

from lib import bench, claims, grid, profiles
from lib.claims import claim_tables, verdicts
from lib.efficiency import backends, machines, match
from lib.efficiency.match import sizes
from lib.errors import InputError
from lib.paths import ROOT
from lib.reporting import efficiency_bf16 as bf16
from lib.reporting import efficiency_counts as counts
from lib.reporting import efficiency_elsewhere as elsewhere
from lib.reporting import efficiency_page as page
from lib.reporting import efficiency_students as students
from lib.reporting import efficiency_times as times
from lib.reporting import training_speed
from lib.reporting.reported import load

ROW = {"paper": "x", "variant": "x", "layers": 6, "params_m": 1.0, "params_no_embeddings_m": 1.0, "flops_g": 1.0,
       "precision": "fp32", "threads": 2, "latency_iqr_ms": 0.5, "tokens_per_second": 1.0, "peak_memory_mb": 300.0,
       "file_mb": 100.0, "rounds": 9, "load": 1.5, "processor": "made up", "date": "2026-01-01", "versions": "torch 0"}


def text(html) -> str:
    return BeautifulSoup(str(html), "html.parser").get_text(" ")


def cells(html) -> list[list[str]]:
    found = BeautifulSoup(str(html), "html.parser").select("tbody tr")
    return [[c.get_text(" ", strip=True) for c in row.find_all(["th", "td"])] for row in found]


@pytest.fixture
def own(places):
    """A results folder with the real counts, to which a test adds measurements that it made up."""
    folder = places / "results"
    folder.mkdir()
    for name in ("sizes.csv", "blocks.csv", "reported.csv"):
        shutil.copy(ROOT / "results" / name, folder / name)
    return folder


def measured(*changes: dict) -> pd.DataFrame:
    return pd.DataFrame([{**ROW, "speedup_low": c["speedup_vs_bert_base"] - 0.1,
                          "speedup_high": c["speedup_vs_bert_base"] + 0.1, **c} for c in changes])


def test_counted_tables_hold_the_printed_number_and_every_way(own):
    got = cells(counts.counted(load(), ("flops_b",), "FLOPs", sizes()))
    base = next(r for r in got if r[1].startswith("BERT-base (teacher)"))
    assert base[2].startswith("22.5 ")
    assert re.search(r"22\.35 a multiply-add is 2 .*11\.17 a multiply-add is 1 .*22\.50 2, and one dense", base[3])
    assert base[5] == "agrees"
    mobile = next(r for r in got if r[1] == "MobileBERT")
    assert mobile[2].startswith("5.7 ")
    assert mobile[4] == "-0.247"
    assert mobile[5].startswith("no ")


def test_the_sentence_counts_what_agrees(own):
    html = counts.counted(load(), ("size_ratio", "memory_ratio"), "Ratios", sizes())
    verdicts = [r[5] for r in cells(html)]
    agreed, none = verdicts.count("agrees"), sum(v.startswith("no ") for v in verdicts)
    assert agreed + none == len(verdicts)
    assert f"{agreed} of {len(verdicts)} printed numbers agree within their rounding, 0 more" in text(html)
    assert f"{none} in no way" in text(html)


def test_a_printed_number_without_a_shape_stops_the_page(own):
    rows = load()
    import dataclasses

    rows.append(dataclasses.replace(next(r for r in rows if r.metric == "params_m"), system="NewBERT"))
    with pytest.raises(InputError, match="no shape for the printed theseus NewBERT|NewBERT"):
        counts.counted(rows, ("params_m",), "x", sizes())


def test_without_timings_nothing_is_claimed(own):
    parts = page.fragments(load())
    for name in ("efficiency-speed", "efficiency-stsb", "efficiency-blocks"):
        if not (ROOT / "results" / "efficiency.csv").exists():
            assert "not measured yet" in text(parts[name])
    assert text(parts["efficiency-speed"]).count("not measured yet") < 2  # said once, not in every row
    for html in parts.values():
        assert all(c for row in cells(html) for c in row)


def test_timings_stand_beside_the_printed_and_the_predicted(own):
    frame = measured(
        {"system": "BERT, 6 layers", "backend": "eager", "batch": 1, "length": 128, "latency_ms": 50.0,
         "speedup_vs_bert_base": 1.91},
        {"system": "BERT, 6 layers", "backend": "sdpa", "batch": 8, "length": 128, "latency_ms": 350.0,
         "speedup_vs_bert_base": 1.55},
        {"system": "TrimBERT n=2", "backend": "eager", "batch": 1, "length": 1024, "latency_ms": 900.0,
         "speedup_vs_bert_base": 1.33})
    got = cells(times.speeds(load(), sizes(), frame))
    theseus = next(r for r in got if r[1].startswith("BERT-of-Theseus (6 layers)"))
    assert theseus[2].startswith("1.94 ")
    assert theseus[4] == "2.00"
    assert theseus[5] == "eager 1.91 (1.81 to 2.01)"  # batch 8 is another question
    trim = next(r for r in got if r[1].startswith("n=2"))
    assert trim[4:] == ["1.37", "eager 1.33 (1.23 to 1.43)"]
    assert next(r for r in got if r[1] == "TinyBERT4")[5] == "not measured yet"


def test_a_latency_is_set_against_the_papers_own_base():
    got = cells(times.speeds(load(), sizes(), None))
    tiny = next(r for r in got if r[1] == "MobileBERT-TINY" and r[0].startswith("MobileBERT"))
    assert tiny[2].startswith("8.55 (40 ms)")  # 342 / 40
    assert "Pixel 4" in tiny[3]
    assert not [r for r in got if r[1] == "BERT-base"]


def test_sentences_are_made_from_the_numbers(own):
    said = text(times.faster_than_work(load(), sizes()))
    assert "BANDD+n=2 of TrimBERT (1.41 printed in Fig. 6, sequence length 1024, 1.37 by operations)" in said
    assert "; MobileBERT (5.50 printed in Abstract, 4.15 by operations)" in said
    assert "TinyBERT4" not in said  # 9.4 printed, 17.9 by operations
    said = text(counts.constant_surplus(load(), sizes()))
    assert "0.15 (12 layers), 0.15 (4 layers), 0.13 (6 layers)" in said
    assert "0.151" in said


def test_the_machine_is_named(own):
    frame = measured({"system": "DistilBERT", "backend": "eager", "batch": 1, "length": 128, "latency_ms": 50.0,
                      "speedup_vs_bert_base": 1.9})
    said = text(times.machine(frame))
    for word in ("1 timing.", "made up", "Threads: 2", "2026-01-01", "torch 0",
                 "1-minute load average, the timing's own 2 threads included: median 1.5"):
        assert word in said
    assert "make efficiency" in text(times.machine(None))


def test_what_was_timed_of_how_many_is_counted(own):
    one = {"system": "DistilBERT", "latency_ms": 50.0, "speedup_vs_bert_base": 1.9, "length": 128}
    frame = measured(*({**one, "backend": b, "batch": n, "rounds": k, "system": s} for b, n, k, s in (
        ("eager", 1, 15, "DistilBERT"), ("eager", 1, 6, "BERT-base"), ("sdpa", 1, 15, "BERT-base"),
        ("sdpa", 8, 3, "BERT-base"))))
    html = times.timed(frame, sizes())
    assert "Not timed at all: compile, bf16, onnx, onnx-int8." in text(html)
    assert f"Of {len(sizes())} systems" in text(html)
    assert "the fewest were 3, whose quartiles say little" in text(html)
    assert cells(html)[:3] == [["eager", "2 6 to 15 rounds", "none"], ["sdpa", "1 15 rounds", "1 3 rounds"],
                               ["compile", "none", "none"]]
    assert "say little" not in text(times.timed(frame[frame.rounds > 3], sizes()))
    assert times.timed(None, sizes()) == ""


def test_every_back_end_is_explained():
    told = (ROOT / "book" / "efficiency.md").read_text()
    for name in backends.BACKENDS:
        assert f"\n*{name}*\n: " in told, name
    assert set(times.SHOWN) == set(backends.BACKENDS)


def test_a_size_near_enough_for_a_claim_says_so(own):
    rows = [r for r in load() if r.metric == "size_ratio" and r.paper in ("tinybert", "mobilebert")]
    html = counts.counted(rows, ("size_ratio",), "x", sizes())
    agrees = {r[1]: r[5] for r in cells(html)}
    assert agrees["TinyBERT4"].startswith("no ")
    assert agrees["TinyBERT4"].endswith(counts.WITHIN)  # 7.63 is within 5% of 7.5
    far = [r for r in load() if (r.system, r.metric) == ("DistilBERT 6L", "params_m")]
    assert counts.WITHIN not in text(counts.counted(far, ("params_m",), "x", sizes()))  # 66.4 for 62.2
    declared = (ROOT / "results" / "claims.yaml").read_text()
    bounds = re.findall(r"size\(.*- 1\) <= ([\d.]+)", declared)
    assert set(map(float, bounds)) == {counts.CLAIMED}


def test_the_time_of_a_block_names_its_machine(own):
    said = text(page.fragments(load())["efficiency-blocks"])
    assert "made up" not in said
    timing = {**ROW, "length": 128, "backend": "sdpa", "ratio": 1.91, "ratio_low": 1.9, "ratio_high": 1.92}
    pd.DataFrame([timing]).to_csv(own / "blocks_time.csv", index=False)
    said = text(page.fragments(load())["efficiency-blocks"])
    assert "1.91 (sdpa, 1.90 to 1.92)" in said
    assert "Timed on made up, 2 threads, 2026-01-01." in said


def test_machines_are_not_mixed(own):
    one = {"system": "DistilBERT", "backend": "eager", "batch": 1, "latency_ms": 50.0, "speedup_vs_bert_base": 1.9}
    rows = [{**one, "length": n} for n in (32, 128)] + [{**one, "length": 128, "speedup_vs_bert_base": 123.4,
                                                         "processor": "another", "date": "2026-02-02"}]
    measured(*rows).to_csv(own / "efficiency.csv", index=False)
    said = text(page.fragments(load())["efficiency-speed"])
    assert "2 timings" in said
    assert "1 timing of other machines" in said
    assert "1.90" in said
    assert "123.4" not in said
    there = text(page.fragments(load())["efficiency-elsewhere"])
    assert "another, threads: 2" in there
    assert "123.40" in there
    assert "1.90" not in there
    assert machines.chosen(measured(*rows[1:])) == ("another", "2")  # as many rows: the machine timed last


def test_speed_ups_stand_by_batch():
    at = {"system": "DistilBERT", "batch": 1, "length": 128, "speedup_vs_bert_base": 1.9, "backend": "sdpa"}
    rows = [at, {**at, "backend": "bf16"}, {**at, "batch": 8}, {**at, "length": 32, "batch": 32},
            {**at, "system": "BERT-base"}]
    assert cells(elsewhere.by_batch(measured(*rows))) == [
        ["DistilBERT", "sdpa 1.90 (1.80 to 2.00) bf16 1.90 (1.80 to 2.00)", "sdpa 1.90 (1.80 to 2.00)"]]


def test_bf16_is_told_from_float32_by_the_quartiles():
    at = {"system": "DistilBERT", "batch": 1, "length": 128, "fp32_ms": 50.0, "bf16_ms": 25.0, "gain": 2.0,
          "gain_low": 1.9, "gain_high": 2.1, "rounds": 7, "threads": 2, "processor": "made up", "date": "2026-01-01",
          "versions": "torch 0"}
    rows = [at, {**at, "length": 32, "gain": 0.5, "gain_low": 0.4, "gain_high": 0.6},
            {**at, "system": "TinyBERT4", "gain": 1.1, "gain_low": 0.9}, {**at, "processor": "another", "gain": 7.0}]
    html = bf16.bf16(pd.DataFrame(rows))
    assert "made up, 2 threads, 2026-01-01 to 2026-01-01, torch 0. Of 3 timings bf16 was faster in 1," in text(html)
    assert "slower in 1 and not told apart by the quartiles in 1; the fewest rounds were 7." in text(html)
    assert cells(html) == [  # a table for each processor
        ["DistilBERT", "7.00 (1.90 to 2.10) 50.0 ms, 25.0 ms"],
        ["DistilBERT", "0.50 (0.40 to 0.60) 50.0 ms, 25.0 ms", "2.00 (1.90 to 2.10) 50.0 ms, 25.0 ms"],
        ["TinyBERT4", "none", "1.10 (0.90 to 2.10) 50.0 ms, 25.0 ms"]]
    assert "not measured yet" in text(bf16.bf16(None))


def test_without_another_machine_the_page_says_so():
    assert "Nothing was timed" in text(elsewhere.elsewhere([], sizes()))
    assert machines.of_others(measured()) == []


def test_claims_compare_latencies_through_the_base_of_the_same_rounds(own):
    at = {"backend": "eager", "batch": 1, "length": 128}
    rows = [{"system": "BERT-base", "latency_ms": 100.0, "speedup_vs_bert_base": 1.0},
            {"system": "TinyBERT4", "latency_ms": 30.0, "speedup_vs_bert_base": 5.0},  # timed in a slow minute
            {"system": "TinyBERT4", "latency_ms": 1.0, "speedup_vs_bert_base": 9.0, "processor": "another"}]
    measured(*({**at, **r} for r in rows)).to_csv(own / "efficiency.csv", index=False)
    assert claim_tables.latency("TinyBERT4", **at) == 20.0
    assert claim_tables.latency("BERT-base", **at) == 100.0
    with pytest.raises(InputError, match="has no row"):
        claim_tables.latency("TinyBERT4", **at | {"length": 1024})


@pytest.mark.parametrize(("quartiles", "word"), [((1.5, 3.0), "undecided"), ((2.2, 3.0), "holds"),
                                                 ((1.0, 1.3), "does not hold")])  # fmt: skip
def test_a_claim_over_timings_is_undecided_where_their_quartiles_leave_it_open(own, quartiles, word):
    """The effect, a / b, is highest where a is slowest and b fastest: here 4 / low and 4 / high of a's speed-up."""
    at = {"backend": "eager", "batch": 1, "length": 128, "speedup_low": 4.0, "speedup_high": 4.0}
    low, high = quartiles
    middle = (low + high) / 2
    rows = [{"system": "BERT-base", "latency_ms": 100.0, "speedup_vs_bert_base": 1.0},
            {"system": "TinyBERT4", "speedup_vs_bert_base": 4.0},
            {"system": "DistilBERT", "speedup_vs_bert_base": 4 / middle, "speedup_low": 4 / high,
             "speedup_high": 4 / low}]  # fmt: skip
    measured(*({**at, **r} for r in rows)).to_csv(own / "efficiency.csv", index=False)
    a, b = (f'latency("{n}", backend="eager", batch=1, length=128)' for n in ("DistilBERT", "TinyBERT4"))
    file = own / "timed.yaml"
    file.write_text("schema: 1\ngroup: {profile: glue, backbone: minilm-l6}\nclaims:\n- id: timed-one\n"
                    "  paper: distilbert\n"
                    f"  claim: One is faster.\n  where: Table 1\n  testable: full\n  test: {a} / {b} > 2\n")
    (v,) = verdicts.judge(claims.load(file), [])
    assert v.verdict == word
    assert v.value == pytest.approx(middle)
    assert v.timed == pytest.approx(quartiles)
    line = verdicts.table([v]).iloc[0]
    assert (line.low, line.high) == pytest.approx(quartiles)


def test_the_pass_over_stsb(own):
    frame = pd.DataFrame([{"system": n, "backend": "eager", "seconds": s, "threads": 2, "pairs": 1500, "passes": 3,
                           "ratio": r} for n, s, r in (("BERT-base", 90.0, 1.0), ("DistilBERT", 50.0, 1.77))])
    got = cells(times.stsb(load(), frame))
    assert [r[1] for r in got] == ["668 s", "410 s", "1.63"]
    assert got[2][3] == "1.77 (eager)"  # the median of the ratios inside the rounds, not that of the medians


def trained(*changes: dict) -> pd.DataFrame:
    row = {"profile": "glue", "backbone": "minilm-l6", "variant": None, "seed": 0, "processor": "one",
           "score": 60.0, "score_onnx": 60.0,
           "score_int8": 59.5, "drop_int8": -0.5, "standard_error": 2.9, "latency_ms": 10.0, "latency_int8_ms": 4.0,
           "speedup_int8": 2.5, "file_mb": 90.0, "file_int8_mb": 23.0}
    return pd.DataFrame([{**row, **c} for c in changes])


def test_students_show_drop_range_and_latency():
    frame = trained({"task": "rte", "method": "theseus"}, {"task": "rte", "method": "theseus", "seed": 1,
                    "score_int8": 61.0, "drop_int8": 1.0}, {"task": "rte", "method": "bert"})  # fmt: skip
    got = cells(students.students(frame))
    assert [r[:4] for r in got] == [["BERT-of-Theseus glue, minilm-l6", "RTE", "one", "2"],
                                    ["Teacher: BERT, fine-tuned glue, minilm-l6", "RTE", "one", "1"]]
    assert got[0][4:7] == ["60.00", "60.25", "+0.25 -0.50 to +1.00"]
    svg = str(students.pareto(frame))
    assert svg.startswith("<svg")
    assert "BERT-of-Theseus on RTE: 60.0 at 10.0 ms" in svg
    assert "not measured yet" in text(students.students(None))
    assert students.pareto(None) == ""


def test_latencies_of_two_processors_are_not_pooled():
    frame = trained({"task": "rte", "method": "kd"}, {"task": "rte", "method": "kd", "seed": 1},
                    {"task": "rte", "method": "kd", "seed": 2, "processor": "slower", "latency_ms": 40.0})
    assert [(r[2], r[3], r[8]) for r in cells(students.students(frame))] == [("one", "2", "10.00"),
                                                                             ("slower", "1", "40.00")]
    svg = str(students.pareto(frame))
    assert "Vanilla KD on RTE: 60.0 at 10.0 ms." in svg
    assert "Timed on one. Left out: 1 student timed on slower." in svg


def test_curves_are_drawn_from_batch_one():
    frame = measured(*({"system": n, "backend": "eager", "batch": b, "length": t, "latency_ms": t / 2 + b,
                        "speedup_vs_bert_base": 1.0} for n in ("BERT-base", "TinyBERT4") for b in (1, 8)
                       for t in (32, 128)))
    svg = str(times.curves(frame))
    assert "BERT-base on eager at 128: 65 ms" in svg
    assert "at 128: 72 ms" not in svg
    figure = times.drawn(frame, ["eager"])
    try:
        (ax,) = figure.axes
        assert list(ax.get_xticks()) == list(times.TOKENS)
        assert ax.get_legend() is None  # it stands above the panels, not on the curves
        assert [t.get_text() for t in figure.legends[0].get_texts()] == ["BERT-base", "TinyBERT4"]
    finally:
        plt.close(figure)
    assert times.curves(None) == ""


def test_speed_of_training_is_what_bench_measured_or_not_yet(own):
    assert "not measured yet" in text(training_speed.training(None))
    head = "comparison,ours,other,ratio,low,high,machine,date\n"
    (own / "bench.csv").write_text(head + "ours vs bare loop,2000.4,1000,2.0,1.9,2.1,<b>made up,2026-01-01\n"
                                   "bf16 vs fp32,50,51,0.98,0.9,1.07,<b>made up,2026-01-01\nnew,1,2,0.5,0.4,0.6,m,d\n")
    html = page.fragments(load())["efficiency-training"]
    first, second, third = cells(html)
    assert first == ["the study's loop | a plain loop over the same batches", "2,000", "1,000", "2.00", "1.90 to 2.10"]
    assert second[4] == "0.90 to 1.07, holds 1"
    assert third[0] == "new"
    assert [where.split(".")[0] for where in text(html).split("Measured on ")[1:]] == ["<b>made up, 2026-01-01", "m, d"]
    (own / "bench.csv").write_text("comparison,ours\nx,1\n")
    with pytest.raises(InputError, match=r"bench.csv: lacks the columns other"):
        page.fragments(load())


def test_every_comparison_of_bench_has_words(monkeypatch):
    monkeypatch.setattr(bench.training, "precision", lambda name: "bf16")
    run = SimpleNamespace(p=SimpleNamespace(precision="auto"), tokenizer=SimpleNamespace(model_max_length=512))
    names = set(bench.plan(run, {}, 2, 1))
    assert names - set(training_speed.COMPARED) == {"ours vs trainer pad 128"}
    assert set(training_speed.COMPARED) - names <= {"two runs of one thread vs one run of two"}  # not with a GPU
    assert training_speed.compared("ours vs trainer pad 128").endswith("padded to 128 tokens")


def test_a_broken_table_is_one_line(own):
    (own / "efficiency.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"efficiency.csv: cannot be read"):
        page.fragments(load())


def test_the_report_needs_no_torch_for_this_page():
    code = ("import sys; from lib.efficiency import match; from lib.reporting import efficiency_page; "
            "sys.exit('torch' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_the_page_is_planned_after_the_runs_and_only_for_the_book(places):
    assert grid.plan("demo", pages=True)["pages"][-1] == "efficiency"
    assert grid.plan("demo")["pages"] == []
    assert "efficiency" not in grid.methods()
    for profile in grid.LOCAL:
        assert (profiles.FOLDER / f"{profile}-efficiency.yaml").exists()


def test_profiles_of_the_notebook_are_valid():
    import yaml

    from lib import parameters
    from lib.efficiency import run as efficiency_run

    for path in profiles.FOLDER.glob("*-efficiency.yaml"):
        p = parameters.validate(efficiency_run.Config, yaml.safe_load(path.read_text()))
        assert set(p.systems) <= set(match.sizes().index)
