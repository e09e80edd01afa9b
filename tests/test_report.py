"""The report: statistics against SciPy, what may be compared and what is withheld; nothing is lost or injected."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from scipy import stats as oracle
from synthetic_records import put, record, results_folder

from lib import report, results, stats
from lib.errors import InputError
from lib.paths import ROOT
from lib.reporting import comparison, tables
from lib.reporting.pages import hours, load_study
from lib.reporting.reported import load


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("BERT_RESULTS", str(results_folder(tmp_path / "results")))
    monkeypatch.setenv("BERT_BOOK", str(tmp_path / "book"))
    return tmp_path


def fragments(folder) -> dict[str, str]:
    assert report.main() == 0
    return {p.stem: p.read_text() for p in (folder / "book" / "_generated").iterdir() if p.suffix in (".html", ".md")}


def row_of(html: str, caption: str, head: str) -> list[str]:
    """Text of the cells of one row of one table."""
    from bs4 import BeautifulSoup

    table = next(t for t in BeautifulSoup(html, "html.parser").find_all("table") if caption in t.caption.get_text())
    row = next(r for r in table.find_all("tr") if r.find("th", scope="row") and r.th.get_text() == head)
    return [c.get_text(" ", strip=True).replace("\u00a0", " ") for c in row.find_all("td")]


# --- statistics


@pytest.mark.parametrize("n", [2, 3, 5, 30])
def test_interval_is_students(n):
    values = np.random.default_rng(n).normal(70, 3, n)
    s = stats.spread(values)
    low, high = oracle.t.interval(0.95, n - 1, values.mean(), oracle.sem(values))
    assert (s.low, s.high) == pytest.approx((low, high), abs=1e-9)
    assert (s.mean, s.median, s.n) == pytest.approx((values.mean(), np.median(values), n))


def test_one_value_has_no_interval_and_none_no_mean():
    assert stats.spread([70.0]).half is None
    assert stats.spread([]) is None


@pytest.mark.parametrize(("hits", "rows"), [(0, 10), (10, 10), (180, 277)])
def test_interval_of_an_accuracy_is_wilsons(hits, rows):
    wanted = oracle.binomtest(hits, rows).proportion_ci(0.95, method="wilson")
    assert stats.wilson(100 * hits / rows, rows) == pytest.approx((100 * wanted.low, 100 * wanted.high), abs=1e-6)


# --- what may be compared with what


def cell_of(records, label="theseus", task="rte"):
    return comparison.cell(load(ROOT / "results" / "reported.csv"), records, label, task)


def three(**changes):
    scores = changes.pop("scores", (60.0, 61.0, 62.0))
    return [record(seed=i, score=s, teacher=66.0 + i / 10, **changes) for i, s in enumerate(scores)]


def test_scaled_down_runs_are_compared_by_retention_only():
    c = cell_of(three())
    assert not c.comparable
    assert c.why_not == "scaled down, minilm-l6"
    each = [100 * s / t for s, t in zip((60, 61, 62), (66, 66.1, 66.2), strict=True)]
    assert c.retention.mean == pytest.approx(np.mean(each))


def test_absolute_numbers_need_backbone_metric_split_and_scale():
    paper = {"backbone": "bert-base", "scale": "paper"}
    assert cell_of(three(**paper)).comparable
    assert not cell_of(three(**paper | {"scale": "scaled down: 100 steps"})).comparable
    assert not cell_of(three(**paper | {"headline": "f1"})).comparable
    assert not cell_of(three(**paper | {"split": "test"})).comparable
    # Theseus prints one MNLI number, the mean of both halves; a run scores one half
    assert not cell_of(three(task="mnli", **paper), task="mnli").comparable


@pytest.mark.parametrize(("teachers", "withheld"), [((66.0, 66.1, 66.2), False), ((50.0, 60.0, 58.0), True)])
def test_retention_is_withheld_where_the_teacher_does_not_clear_the_majority(teachers, withheld):
    runs = [record(seed=i, teacher=t) for i, t in enumerate(teachers)]
    c = cell_of(runs)
    low = oracle.t.interval(0.95, 2, np.mean(teachers), oracle.sem(teachers))[0]
    assert (low <= runs[0].majority) == withheld
    assert bool(c.withheld) == (c.retention is None) == (c.above is None) == withheld
    assert ("majority" in c.withheld) == withheld


def test_one_teacher_uses_the_interval_over_rows_of_an_accuracy_and_else_withholds():
    assert not cell_of([record(teacher=66.0)]).withheld
    assert "majority" in cell_of([record(teacher=55.0)]).withheld
    assert "one teacher" in cell_of([record(task="cola", teacher=45.0, majority=0.0)], task="cola").withheld


def test_a_brought_teacher_decides_for_its_students():
    brought = results.Teacher(score=53.0, metrics={}, artefact=None, source="own checkpoint x", seconds=0, tokens=0)
    students = [r.model_copy(update={"teacher": brought}) for r in three()]
    c = cell_of([*students, *(record("bert", seed=i, score=80 + i / 10) for i in range(3))])
    assert "majority" in c.withheld
    assert c.shared_teacher


def test_reported_retention_comes_from_the_same_table():
    rows = load(ROOT / "results" / "reported.csv")
    own = {(r.system, r.task): r.number for r in rows if r.where.startswith("Table 2 (") and r.paper == "theseus"}
    student, teacher = own["BERT-of-Theseus", "rte"], own["BERT-base (predecessor)", "rte"]
    c = cell_of(three())
    assert c.reported_retention == pytest.approx(100 * student / teacher)
    assert c.reported_above == pytest.approx(100 * (student - 52.7) / (teacher - 52.7))


def test_retention_over_tasks_uses_the_same_tasks_on_both_sides():
    rows = load(ROOT / "results" / "reported.csv")
    records = three() + three(task="cola", majority=0.0) + three(task="sst2", majority=90.0)  # sst2: not clear
    cells = [comparison.cell(rows, records, "theseus", t) for t in ("cola", "rte", "sst2")]
    o = comparison.overall(cells)
    assert o.tasks == ("cola", "rte")
    own = {(r.system, r.task): r.number for r in rows if r.where.startswith("Table 2 (") and r.paper == "theseus"}
    s = sum(own["BERT-of-Theseus", t] for t in o.tasks)
    t = sum(own["BERT-base (predecessor)", t] for t in o.tasks)
    assert o.reported == pytest.approx(100 * s / t)
    assert o.reported_above == pytest.approx(100 * (s - 52.7) / (t - 52.7))
    assert o.ours == pytest.approx(100 * (61 + 61) / (66.1 + 66.1))
    assert o.above == pytest.approx(100 * (122 - 52.7) / (132.2 - 52.7))


def test_a_printed_number_of_another_metric_or_split_says_so(folder):
    put(*three(task="mrpc", majority=40.0))
    cells = row_of(fragments(folder)["comparison"], "Method by task", "TinyBERT")
    assert cells[0].startswith("score: 86.4 F1, test retention")
    assert cells[1].startswith("score: not run")


# --- what is written


def test_results_csv_holds_committed_records_only_and_as_they_are(folder):
    put(*three(), record(profile="demo", task="movies"), record(profile="ci", task="movies"))
    fragments(folder)
    frame = pd.read_csv(folder / "results" / "results.csv")
    assert list(frame.score) == [60.0, 61.0, 62.0]
    assert list(frame.teacher_score) == [66.0, 66.1, 66.2]
    assert set(frame.profile) == {"glue"}
    assert set(pd.read_csv(folder / "book" / "_generated" / "demo.csv").profile) == {"demo", "ci"}
    for path in frame.record:
        assert (folder / "results" / path).is_file()


def test_without_a_record_everything_says_not_run(folder):
    html = fragments(folder)
    assert "No run is committed yet" in html["comparison"]
    assert "No demo was run" in html["comparison-demo"]
    assert "0: none run yet" in html["glance"]
    assert not (folder / "results" / "comparison.svg").exists()


def test_committed_runs_are_shown_beside_a_demo_and_never_mixed(folder):
    put(*three(), record(profile="demo", task="movies", score=71.5, teacher=80.0))
    html = fragments(folder)
    assert "Movie sentences" not in html["comparison"]
    assert "Movie sentences" in html["comparison-demo"]
    assert row_of(html["comparison-demo"], "Movie sentences", "BERT-of-Theseus")[1].startswith("71.5")
    assert "Movie" not in (folder / "results" / "comparison.svg").read_text()


def test_every_method_has_its_row_and_no_cell_is_blank(folder):
    put(*three(), *three(method="truncated"))
    html = fragments(folder)["comparison"]
    cells = row_of(html, "RTE, profile glue", "BERT-of-Theseus")
    assert cells[0] == "68.2 accuracy, dev"
    assert cells[1].startswith("61.0 ± 2.5 accuracy 3 runs")
    assert cells[2] == "median 61.0, 3 seeds"
    assert row_of(html, "RTE, profile glue", "DistilBERT")[1:] == ["not run"] * 5
    assert row_of(html, "RTE, profile glue", "Majority class")[1] == "52.7"
    assert "backbone saw related data" in html
    assert not re.search(r"<td>\s*</td>", html)


def test_the_papers_way_of_selecting_stands_in_its_own_column(folder):
    put(*three())
    cells = row_of(fragments(folder)["comparison"], "RTE, profile glue", "BERT-of-Theseus")
    assert cells[4] == "62.0 ± 2.5"  # best_on_scored_split is one point higher in the made-up records
    assert cells[5] == "80.0, 70.0"


def test_bad_files_are_named_and_skipped(folder, capsys):
    put(*three())
    runs = folder / "results" / "runs" / "glue"
    (runs / "cut.json").write_text('{"schema_version": 1,')
    (runs / "foreign.json").write_text("[1, 2]")
    (runs / "moved.json").write_text(results.path_of(record()).read_text())
    html = fragments(folder)
    said = capsys.readouterr().err
    assert "3 files skipped" in html["glance"]
    for name in ("cut.json", "foreign.json", "moved.json"):
        assert name in html["glance"]
        assert name in said
    assert "61.0" in html["comparison"]


def test_a_bad_reported_csv_stops_the_report_in_one_line(folder, capsys):
    path = folder / "results" / "reported.csv"
    path.chmod(0o644)
    path.write_text(path.read_text().replace(",dev,", ",,", 1))
    assert report.main() == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "line 2: split" in err


def test_stale_records_are_marked_and_counted_and_still_shown(folder):
    put(*three(code_hash="other"))
    html = fragments(folder)
    assert row_of(html["glance"], "At a glance", "Stale records")[0].startswith("3 of 3")
    assert "3 stale" in row_of(html["comparison"], "RTE, profile glue", "BERT-of-Theseus")[1]
    assert html["runs"].count("stale") >= 3
    put(*three())
    assert "stale" not in fragments(folder)["comparison"]


def test_seeds_that_share_a_teacher_say_so(folder):
    shared = [r.model_copy(update={"teacher": three()[0].teacher}) for r in three()]
    put(*shared)
    assert "shared teacher" in fragments(folder)["comparison"]
    put(*three())
    assert "shared teacher" not in fragments(folder)["comparison"]


def test_training_hours_count_a_shared_teacher_once():
    runs = [r.model_copy(update={"teacher": three()[0].teacher}) for r in three()]  # 36 s each, teacher 18 s
    assert hours(runs) == pytest.approx((3 * 36 + 18) / 3600)
    assert hours(three()) == pytest.approx(3 * (36 + 18) / 3600)
    own = results.Artefact(kind="teacher", key=runs[0].teacher.artefact, seconds=18.0, tokens=1)
    assert hours([*runs, record("bert", artefacts=[own])]) == hours(runs)  # that run made the teacher


def test_text_from_users_is_escaped(folder):
    evil = "<script>alert(1)</script>"
    data = results.Data(source=evil, sha256={evil: "a" * 64}, rows={"train": 1})
    put(record(task="own", data=data, scale=evil, command=evil, headline="accuracy",
               environment=record().environment.model_copy(update={"processor": evil})))  # fmt: skip
    (folder / "results" / "runs" / "<script>.json").write_text("{}")
    html = fragments(folder)
    assert "&lt;script&gt;alert" in html["runs"]
    for name, text in html.items():
        assert "<script" not in text, name
    assert "<script" not in report.ours_table("theseus")


def test_reports_of_the_same_records_are_the_same_bytes(folder):
    put(*three(), *three(method="truncated"))
    first = fragments(folder)
    stamp = {p: p.stat().st_mtime_ns for p in (folder / "book" / "_generated").iterdir()}
    assert fragments(folder) == first
    assert stamp == {p: p.stat().st_mtime_ns for p in stamp}  # an unchanged page is not built again
    assert "<svg" in first["picture"]
    assert 'aria-label="Score retained' in first["picture"]


def test_provenance_holds_every_run_with_what_makes_it_again(folder):
    put(*three())
    html = fragments(folder)["runs"]
    for r in three():
        assert f'id="run-glue-minilm-l6-rte-theseus-{r.seed}"' in html
        assert r.command in html
        assert f"results/runs/glue/minilm-l6/rte/theseus/seed-{r.seed}.json" in html
    assert 'href="provenance.html#run-glue-minilm-l6-rte-theseus-0"' in fragments(folder)["comparison"]


def test_every_reported_number_is_listed_with_its_source(folder):
    html = fragments(folder)["sources"]
    rows = load(ROOT / "results" / "reported.csv")
    unverified = sum(not r.verified for r in rows)
    assert f"All {len(rows)} reported numbers" in html
    assert html.count('<span class="bc-flag" title="unverified">') == unverified
    assert html.count('data-verified="no"') == unverified


def test_a_table_refuses_blank_cells_and_no_rows():
    with pytest.raises(ValueError, match="blank"):
        tables.table("t", ["a", "b"], [["x", " "]])
    with pytest.raises(ValueError, match="no rows"):
        tables.table("t", ["a"], [])
    with pytest.raises(ValueError, match="1 cells for 2"):
        tables.table("t", ["a", "b"], [["x"]])
    html = tables.table("t & u", ["a", "b"], [["x", "<b>"]])
    assert '<caption>t &amp; u</caption>' in html
    assert '<th scope="col">a</th>' in html
    assert "&lt;b&gt;" in html


# --- what notebooks call


def test_beside_puts_a_papers_row_beside_ours(folder):
    put(*three())
    html = str(report.beside("theseus", "theseus", "Table 2"))
    cells = row_of(html, "BERT-of-Theseus Table 2", "RTE")
    assert cells[0] == "68.2 accuracy, dev"
    assert cells[1] == "61.0 ± 2.5"
    assert cells[3].startswith("retention: 95.9 | 92.")
    assert "scaled down, minilm-l6" in cells[3]
    assert "not run" in report.beside("theseus", "kd", "Table 2")
    with pytest.raises(InputError, match="Table 99"):
        report.beside("theseus", "theseus", "Table 99")
    with pytest.raises(InputError, match="method"):
        report.beside("theseus", "theseos", "Table 2")
    with pytest.raises(InputError, match="those of tinybert"):
        report.beside("theseus", "tinybert", "Table 2")


def test_variants_stand_beside_the_papers_ablation(folder):
    systems = {"theseus": "Theseus curriculum", "theseus-constant": "Theseus constant rate", "theseus-own": None}
    assert "not run: BERT-of-Theseus, " in report.variants_beside("theseus", "Table 6", systems)
    put(*three())
    alone = report.variants_beside("theseus", "Table 6", systems)
    assert "not run: BERT-of-Theseus (constant), BERT-of-Theseus (own)." in alone  # and nothing false of the plain one
    put(*three(variant="constant", scores=(58.0, 59.0, 60.0)))
    html = str(report.variants_beside("theseus", "Table 6", systems))
    (cell,) = row_of(html, "BERT-of-Theseus Table 6", "BERT-of-Theseus (constant)")
    assert cell == "66.4 | 59.0 ± 2.5 median 59.0, 3 seeds to the first line: -1.8 | -2.0"
    assert row_of(html, "BERT-of-Theseus Table 6", "BERT-of-Theseus (own)") == ["not printed | not run"]
    with pytest.raises(InputError, match="row"):
        report.variants_beside("theseus", "Table 6", {"theseus": "Nobody"})


def test_the_theseus_page_holds_every_study_that_was_run(folder):
    html = fragments(folder)["theseus"]
    assert html.count("Ours: not run") == 6
    assert "-r study layers" in html  # and how to run it
    assert "Table 7 as printed" in html
    studies = {"module1": 63.0, "module10": 62.0, "module2": 61.0, "layers2": 55.0, "rate0.5": 60.0,
               "rate0.5-equivalent": 60.5, "init-highest": 58.0, "code": 62.5, "constant": 59.0}  # fmt: skip
    put(*three(), *(r for v, s in studies.items() for r in three(variant=v, scores=(s, s, s))))
    put(*(record("bert", seed=i, score=66.0) for i in range(3)))
    html = fragments(folder)["theseus"]
    assert html.count("Ours: not run") == 1
    assert "Ours: not run: BERT-of-Theseus (transfer)." in html
    assert row_of(html, "Table 5: ours", "BERT-of-Theseus (module1)")[0].endswith("to the first line: -3.0")
    assert html.index("(module2)") < html.index("(module10)")
    assert row_of(html, "Table 7: ours", "BERT-of-Theseus (layers2)")[0].startswith("55.0 ± 0.0")
    assert "60.5" in row_of(html, "Figure 3: ours", "BERT-of-Theseus (rate0.5-equivalent)")[0]
    assert "58.0" in row_of(html, "Section 3: ours", "BERT-of-Theseus (init-highest)")[0]
    cell = row_of(html, "BERT-of-Theseus Table 6", "BERT-of-Theseus")[0]
    assert cell == "68.2 | 61.0 ± 2.5 median 61.0, 3 seeds to the first line: +1.8 | +2.0"


def test_module_impact_is_the_difference_to_the_predecessor(folder):
    assert "not run" in report.module_impact()
    impacts = [{"none": 70.0 + i, "1": 66.0 + i, "2": 69.5 + i} for i in range(3)]
    put(*(r.model_copy(update={"study": {"module_impact": m}}) for r, m in zip(three(), impacts, strict=True)))
    html = str(report.module_impact())
    assert row_of(html, "one module replaced", "module 1") == ["-4.0 ± 0.0 median -4.0, 3 seeds"]
    assert row_of(html, "one module replaced", "module 2") == ["-0.5 ± 0.0 median -0.5, 3 seeds"]


def test_variants_are_no_rows_of_the_matrix_but_of_their_tasks_table(folder):
    put(*three(), *three(variant="code"))
    html = fragments(folder)["comparison"]
    matrix, _, rest = html.partition("</table>")
    assert "(code)" not in matrix
    assert "(code)" in rest
    assert load_study().committed[0].label == "theseus"


def test_the_report_needs_no_torch():
    code = "import sys, lib.report, lib.book; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
