"""The picture of the first page: score retained against speed-up, reported and ours."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from matplotlib.transforms import Bbox
from report_pages import REPORTED, study, text, three

from lib.reporting import tradeoff
from lib.reporting.coverage import SHAPES
from lib.reporting.pages import load_study
from lib.systems import BY_NAME


def ours_and_printed(shown) -> list[tradeoff.Point]:
    return tradeoff.points(shown, tradeoff.speeds_of_ours()[0])


@pytest.fixture
def timed(tmp_path, monkeypatch):
    """A results folder in which made-up students of four methods, one variant and two teachers were timed."""
    monkeypatch.setenv("BERT_RESULTS", str(tmp_path))
    rows = [("fast", "bert", "", 20.0), ("fast", "bert", "", 60.0), ("fast", "theseus", "", 8.0),
            ("fast", "theseus", "", 30.0), ("fast", "theseus", "layers2", 1.0), ("fast", "kd", "", 10.0),
            ("slow", "kd", "", 1.0), ("slow", "pkd", "", 1.0), ("slow", "truncated", "", 1.0),
            ("old", "bert", "", 50.0), ("old", "pkd", "", 1.0)]
    pd.DataFrame(rows, columns=["processor", "method", "variant", "latency_ms"]).to_csv(
        tmp_path / "students.csv", index=False)
    return tmp_path


def test_ours_are_as_much_faster_as_the_lowest_latencies_say_on_the_processor_with_most(timed):
    speeds, processor = tradeoff.speeds_of_ours()
    assert speeds == {"theseus": pytest.approx(2.5), "kd": pytest.approx(2.0)}
    assert processor == "fast"  # two methods beside a teacher; "slow" has three, and no teacher
    said = text(tradeoff.caption(study(*three(), *three("pkd")), speeds, processor))
    assert "timed on fast" in said
    assert "Not timed there, so without a filled mark: BERT-PKD." in said
    assert {p.method for p in ours_and_printed(study(*three(), *three("pkd"))) if p.ours} == {"theseus"}


@pytest.mark.parametrize("rows", ["", "fast,kd,,10\n"])
def test_without_a_timed_teacher_there_is_no_filled_mark(tmp_path, monkeypatch, rows):
    monkeypatch.setenv("BERT_RESULTS", str(tmp_path))
    (tmp_path / "students.csv").write_text("processor,method,variant,latency_ms\n" + rows)
    assert tradeoff.speeds_of_ours() == ({}, "")
    assert not any(p.ours for p in ours_and_printed(study(*three())))


def test_the_picture_holds_what_is_printed_of_both_and_our_students(timed):
    found = {(p.method, p.ours): p for p in ours_and_printed(study(*three()))}
    own = {(r.system, r.task): r.number for r in REPORTED if r.paper == "theseus" and r.where.startswith("Table 2 (")}
    s, t = (sum(own[name, task] for task in tradeoff.TASKS) for name in ("BERT-of-Theseus", "BERT-base (predecessor)"))
    assert found["theseus", False].retained == pytest.approx(100 * s / t)
    assert found["theseus", False].speedup == 1.94
    assert found["distilbert", False].speedup == pytest.approx(1.6)  # printed as 60% faster
    assert found["theseus", True].speedup == pytest.approx(2.5)
    assert found["theseus", True].retained == pytest.approx(100 * 61 / 66.1)
    assert ("tinybert", True) not in found  # not run
    assert not {m for m, _ in found} & {"trimbert", "efficientbert"}  # nothing printed of both
    html = tradeoff.picture(study(*three()))
    assert "BERT-of-Theseus ours: 2.50 times faster, 92.3% retained" in html
    assert html.startswith("<svg role=")


def test_retention_that_is_withheld_is_no_point(timed):
    assert not any(p.ours for p in ours_and_printed(study(*three(majority=65.95))))


def test_the_filled_marks_are_means_over_the_same_tasks(timed):
    both = [r for m in ("theseus", "truncated") for task in ("rte", "mrpc") for r in three(m, task=task)]
    runs = [*both, *three("kd", task="mrpc", scores=(64.0, 65.0, 66.0)), *three("pkd", task="cola"),
            *three(task="sst2", majority=65.95), *three("layerdrop", task="sst2", majority=65.95)]
    over = tradeoff.ours_over(study(*runs))
    assert over.tasks == ("mrpc", "rte")  # two methods on both are four cells; three on MRPC, one on CoLA
    assert set(over.cells) == {"truncated", "theseus"}
    assert over.left_out == ("kd", "pkd", "layerdrop")
    assert over.withheld == ("sst2",)
    runs += [r for m in ("pkd", "pdbert") for r in three(m, task="mrpc")]
    over = tradeoff.ours_over(study(*runs))
    assert over.tasks == ("mrpc",)  # five cells now
    assert set(over.cells) == {"truncated", "kd", "pkd", "pdbert", "theseus"}
    found = {p.method: p.retained for p in tradeoff.points(study(*runs), dict.fromkeys(over.cells, 2.0)) if p.ours}
    assert set(found) == set(over.cells)
    assert found["kd"] == pytest.approx(100 * 65 / 66.1)
    said = text(tradeoff.caption(study(*runs), {}, ""))
    assert "mean over MRPC" in said
    assert "without a filled mark: LayerDrop." in said
    assert "Left out: SST-2" in said


def test_hollow_marks_say_which_paper_prints_what():
    found = ours_and_printed(study())
    said = text(tradeoff.sources(found))
    assert "BERT-of-Theseus prints scores, BERT-base and speed of Truncated, fine-tuned, Vanilla KD, LayerDrop" in said
    assert ("MobileBERT: scores MobileBERT (Table 4), BERT-base BERT (Original Table 1), speed MobileBERT (Abstract)"
            in said)
    assert "PD-BERT: scores BERT-of-Theseus (Table 2)" in said
    for p in found:
        assert BY_NAME[p.method].title in said
    assert tradeoff.sources([p for p in found if p.ours]) == ""


def overlaps(found) -> list[str]:
    """Pairs of names, and names on marks, that touch in the picture of these points."""
    figure = tradeoff._plot(found)
    (ax,) = figure.axes
    names = {a.get_text(): tradeoff.extent(a) for a in ax.texts}
    assert len(names) == len(found)
    centres = ax.transData.transform([(p.speedup, p.retained) for p in found])
    marks = {f"mark {i}": Bbox.from_extents(x - 4, y - 4, x + 4, y + 4) for i, (x, y) in enumerate(centres)}
    plt.close(figure)
    boxes = list((names | marks).items())
    return [f"{a} / {b}" for i, (a, x) in enumerate(boxes) for b, y in boxes[i + 1 :] if a in names and x.overlaps(y)]


def test_no_name_of_the_picture_lies_on_another_or_on_a_mark():
    found = ours_and_printed(load_study())  # the committed records
    assert len(found) > 9
    assert overlaps(found) == []
    close = [tradeoff.Point(m, ours, 2.0, 90 + i / 10) for ours in (True, False) for i, m in enumerate(SHAPES)]
    assert overlaps(close) == []  # all on one spot
    low = [tradeoff.Point(m, True, 2.0, 50 + i / 10) for i, m in enumerate(SHAPES)]
    assert overlaps([*low, tradeoff.Point("kd", False, 2.0, 99.9)]) == []  # at the foot, and on the line of 100%
