"""The comparison table: what each view of a cell says, what it sorts by, and what is marked."""

from __future__ import annotations

import pytest
import yaml
from bs4 import BeautifulSoup
from report_pages import row
from synthetic_records import put, record, results_folder

from lib import results
from lib.paths import ROOT
from lib.reporting import comparison, overview, rates, tables
from lib.reporting.cells import verdict
from lib.reporting.matrix import VIEWS, matrix
from lib.reporting.pages import Study
from lib.reporting.reported import load
from lib.tasks import TASKS

REPORTED = load(ROOT / "results" / "reported.csv")
PAPER = {"backbone": "bert-base", "scale": "paper"}


def three(method="theseus", scores=(60.0, 61.0, 62.0), **changes):
    return [record(method, seed=i, score=s, teacher=66.0 + i / 10, **changes) for i, s in enumerate(scores)]


def cells(records, method, task="rte"):
    """(reported, ours) of a method, as tags of the parsed table."""
    soup = BeautifulSoup(matrix(REPORTED, records, "c", "t"), "html.parser")
    from lib.systems import title_of

    row = next(r for r in soup.tbody.find_all("tr") if r.th.get_text() == title_of(method))
    return row.find_all("td", attrs={"data-group": task})


def shown(cell, name):
    return cell.find(attrs={"data-view": name}).get_text(" ", strip=True).replace("\u00a0", " ")


def test_scaled_down_runs_show_scores_without_a_difference_and_retentions_with_one():
    left, right = cells(three(), "theseus")
    assert shown(left, "absolute").endswith("68.2")
    assert "61.0 ± 2.5" in shown(right, "absolute")
    assert "reported" not in shown(right, "absolute")  # no mark: the scores may not be compared
    printed, ours = float(left["data-sort-retention"]), float(right["data-sort-retention"])
    c = comparison.cell(REPORTED, three(), "theseus", "rte")
    assert (printed, ours) == pytest.approx((c.reported_retention, c.retention.mean), rel=1e-5)
    assert float(right["data-sort-difference"]) == pytest.approx(ours - printed, abs=1e-3)
    assert "of retention, scaled down, minilm-l6" in shown(right, "difference")


def test_at_the_papers_scale_the_scores_are_subtracted():
    left, right = cells(three(**PAPER), "theseus")
    assert float(left["data-sort-difference"]) == 68.2
    assert float(right["data-sort-difference"]) == pytest.approx(61 - 68.2)
    assert shown(right, "difference").startswith(VIEWS["difference"] + ": -7.2 ± 2.5")


@pytest.mark.parametrize(
    ("scores", "mark"), [((70.0, 70.1, 70.2), "above"), ((60.0, 60.1, 60.2), "below"), ((66.0, 68.2, 70.4), "")]
)
def test_the_mark_is_there_only_where_the_interval_excludes_the_reported(scores, mark):
    records = three(scores=scores, **PAPER)
    c = comparison.cell(REPORTED, records, "theseus", "rte")
    assert c.excluded == mark
    _, right = cells(records, "theseus")
    found = right.find(attrs={"data-view": "absolute"}).select(".bc-above, .bc-below")
    assert [f.get_text() for f in found] == ([f"{'▲' if mark == 'above' else '▼'} {mark} reported"] if mark else [])


def test_it_says_which_methods_had_another_teacher():
    same = [r.model_copy(update={"method": m}) for m in ("truncated", "kd") for r in three()]
    assert "Not one teacher" not in matrix(REPORTED, same, "c", "t")
    other = three("pkd")[:1]
    other[0].teacher.score = 64.0
    assert ("<li>RTE: BERT-PKD: seed 0 64.0 (fp32) instead of 66.0 (fp32)</li>"
            in matrix(REPORTED, [*same, *other], "c", "t"))


def test_no_mark_with_one_seed_or_a_shared_teacher():
    assert comparison.cell(REPORTED, [record(score=10.0, **PAPER)], "theseus", "rte").excluded == ""
    shared = [r.model_copy(update={"teacher": three()[0].teacher}) for r in three(scores=(1, 1.1, 1.2), **PAPER)]
    assert comparison.cell(REPORTED, shared, "theseus", "rte").excluded == ""


def test_equal_tokens_are_compared_with_truncated_seed_by_seed():
    base = three("truncated", scores=(50.0, 55.0, 60.0))
    ours = three(scores=(52.0, 58.0, 61.0))
    _, right = cells(base + ours, "theseus")
    assert "+2.0 ± 2.5 to truncated" in shown(right, "tokens")  # of the differences 2, 3, 1
    dearer = [r.model_copy(update={"tokens": 103_000}) for r in ours]
    _, right = cells(base + dearer, "theseus")
    assert "not equal to the 100,000 of the others 103,000 tokens of the task" in shown(right, "tokens")
    assert right["data-sort-tokens"] == ""  # sorts last: it is no score at equal tokens
    rounded = [r.model_copy(update={"tokens": 101_900}) for r in ours]
    assert cells(base + rounded, "theseus")[1]["data-sort-tokens"] != ""


def test_stages_before_the_task_are_named_beside_equal_tokens():
    from lib.results import Artefact

    stage = [Artefact(kind="tinybert-general", key="k", seconds=1.0, tokens=5000),
             Artefact(kind="teacher", key="t", seconds=1.0, tokens=7000)]  # fmt: skip
    _, right = cells(three("truncated") + three("tinybert", artefacts=stage), "tinybert")
    assert "and 5,000 before it" in shown(right, "tokens")


def test_every_cell_of_ours_leads_to_its_records_and_commands(tmp_path, monkeypatch):
    monkeypatch.setenv("BERT_RESULTS", str(results_folder(tmp_path / "results")))
    monkeypatch.setenv("BERT_BOOK", str(tmp_path / "book"))
    put(*three())
    _, right = cells(three(), "theseus")
    assert [c.get_text() for c in right.select(".bc-command")] == [r.command for r in three()]
    links = [a["href"] for a in right.select("li a")]
    assert links[0] == "records/glue/minilm-l6/rte/theseus/seed-0.json"
    assert links[1] == "provenance.html#run-glue-minilm-l6-rte-theseus-0"
    from lib import report

    assert report.main() == 0
    copy, runs = tmp_path / "book" / "_generated" / "extra", tmp_path / "results" / "runs"
    for link in links[::2]:
        assert (copy / link).read_bytes() == (runs / link.removeprefix("records/")).read_bytes()
    (runs / "glue" / "minilm-l6" / "rte" / "theseus" / "seed-2.json").unlink()
    assert report.main() == 0
    assert not (copy / links[4]).exists()  # a record that is gone is not shown on


def test_the_heads_name_task_and_side_and_every_body_row_is_as_wide():
    soup = BeautifulSoup(matrix(REPORTED, three() + three(task="cola"), "c", "t"), "html.parser")
    first, second = soup.thead.find_all("tr")
    assert [(h.get_text(), h["scope"], h.get("colspan"), h.get("rowspan")) for h in first.find_all("th")][:2] == [
        ("Method", "col", None, "2"), ("CoLA", "colgroup", "2", None)]  # fmt: skip
    assert [h.get_text() for h in second.find_all("th")] == [
        "Reported, CoLA", "Ours, CoLA", "Reported, RTE", "Ours, RTE"]  # fmt: skip
    columns = sorted(int(h["data-column"]) for h in soup.thead.find_all("th", attrs={"data-column": True}))
    assert columns == list(range(6))
    assert {len(r.find_all(["td", "th"])) for r in soup.tbody.find_all("tr")} == {6}
    assert soup.tbody.find_all("tr")[-1]["class"] == ["bc-pinned"]


def test_names_from_users_are_text_in_heads_cells_fields_and_keys():
    evil = '"><script>x</script>'
    runs = [r.model_copy(update={"task": evil, "command": evil, "headline": evil}) for r in three()]
    fields = tables.controls("t", columns=("Task", {evil: evil}), search=evil)
    table = tables.table("c", [evil, "b"], [[evil, tables.Keyed(evil, 1)]], [evil], name=evil,
                         groups=[(evil, 2, evil)], data=[{"x": evil}])  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:  # such a record cannot lie on the disc; the table must not rely on it
        patch.setattr("lib.reporting.cells.record_page", lambda r: evil)
        for html in (fields, table, matrix(REPORTED, runs, evil, evil)):
            soup = BeautifulSoup(html, "html.parser")
            assert not soup.find("script")
            assert "&lt;script&gt;" in html


def test_the_last_column_sorts_by_a_mean_over_the_same_tasks_only():
    """Truncation keeps 50 of 66 on CoLA, which KD was not run on: over MRPC alone both keep the same."""
    both = [*three(task="mrpc", majority=40.0), *three("kd", task="mrpc", majority=40.0),
            *three("truncated", task="mrpc", majority=40.0)]
    more = [*three("truncated", task="cola", scores=(50.0, 50.0, 50.0), majority=0.0), *three("pkd", task="cola"),
            *three("kd", task="sst2", majority=65.95)]
    soup = BeautifulSoup(matrix(REPORTED, both + more, "c", "t"), "html.parser")
    assert soup.thead.find("th", attrs={"data-column": "7"}).get_text() == "Over MRPC: reported | ours"
    last = {r.th.get_text(): r.find_all("td")[-1] for r in soup.tbody.find_all("tr")}
    assert {last[m]["data-sort"] for m in ("Truncated, fine-tuned", "Vanilla KD")} == {f"{100 * 61 / 66.1:.6g}"}
    assert last["BERT-PKD"]["data-sort"] == ""  # sorts last
    assert last["BERT-PKD"].get_text() == "no number: not all of these tasks were run"
    said = soup.get_text()
    assert "the sum of the student's mean scores over MRPC, in percent of the sum of its teacher's" in said
    assert "Left out, because retention is withheld: SST-2." in said


def test_a_retention_over_the_base_of_another_paper_says_so():
    left, _ = cells(three("mobilebert"), "mobilebert")
    assert "divided by BERT-base of another paper: BERT, Original Table 1" in shown(left, "retention")
    assert "another paper" not in str(cells(three(), "theseus"))
    c = comparison.cell(REPORTED, three("mobilebert"), "mobilebert", "rte")
    assert "another paper: BERT" in verdict(c)
    assert "another paper: BERT" in overview.sentence("mobilebert", Study(tuple(three("mobilebert")), (), REPORTED))


def test_the_flag_of_related_data_says_what_the_card_says():
    soup = BeautifulSoup(matrix(REPORTED, three(), "c", "t"), "html.parser")
    assert "SNLI and MultiNLI" in soup.select_one("thead .bc-flag")["title"]
    other = [r.model_copy(update={"backbone": "bert-base"}) for r in three()]
    assert not BeautifulSoup(matrix(REPORTED, other, "c", "t"), "html.parser").select("thead .bc-flag")
    for task in TASKS.values():
        assert bool(task.related) == bool(task.card)


def test_what_only_this_book_calls_so_is_explained():
    page = (ROOT / "book" / "comparison.md").read_text()
    grid = yaml.safe_load((ROOT / "notebooks" / "profiles" / "grid.yaml").read_text())
    for name in ("Loyalty", *(TASKS[t].title for t in grid["demo"]["tasks"])):
        assert f"*{name}*" in page
    assert "`minilm-l6` is all-MiniLM-L6-v2" in (ROOT / "book" / "index.md").read_text()


def test_groups_must_cover_the_columns():
    with pytest.raises(ValueError, match="columns for 2"):
        tables.table("t", ["a", "b"], [["x", "y"]], groups=[("g", 1, "")])


def test_the_chosen_rates_are_shown_and_the_end_of_a_grid_is_named():
    def run(method, chosen, scores, **changes):
        selection = results.Selection(rows="a tenth", step=1, held_out_score=1.0, grid={"lr": [1e-4, 2e-4, 4e-4]},
                                      scores=[{"lr": 1e-4, "score": s} for s in scores], chosen={"lr": chosen})
        return record(method, selection=selection, **changes)

    html = rates.chosen([run("theseus", 4e-4, (60, 61, 70)), run("theseus", 4e-4, (60, 61, 70), seed=1),
                         run("kd", 2e-4, (0, 0, 0)), run("kd", 2e-4, (1, 2, 3), task="cola"), record("pkd"),
                         run("theseus", 1e-4, (1, 2, 3), variant="constant")])
    assert row(html, "Learning rates chosen", "BERT-of-Theseus") == ["not run", "0.0004 the highest of its grid"]
    assert row(html, "Learning rates chosen", "Vanilla KD") == ["0.0002", "0.0002 all rates scored alike: the default"]
    assert "BERT-PKD" not in html
    assert rates.chosen([record()]) == ""
