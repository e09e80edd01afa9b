"""The printed numbers: what the loader takes, what it refuses, and that the table of systems points at real rows."""

from __future__ import annotations

import csv

import pytest

from lib.errors import InputError
from lib.paths import ROOT
from lib.reporting import reported
from lib.systems import SYSTEMS, order_of, title_of

FILE = ROOT / "results" / "reported.csv"
GOOD = {
    "paper": "theseus", "arxiv_id": "2002.02925", "system": "S", "task": "rte", "split": "dev", "metric": "accuracy",
    "value": "68.2", "unit": "percent", "where": "Table 2", "hardware": "", "source": "paper", "verified": "yes",
}  # fmt: skip


def write(path, *rows, header=reported.COLUMNS):
    with open(path, "w", newline="") as f:
        out = csv.writer(f)
        out.writerow(header)
        out.writerows([r.values() if isinstance(r, dict) else r for r in rows])
    return path


def test_the_file_of_the_study_loads_whole():
    rows = reported.load(FILE)
    with open(FILE, newline="") as f:
        raw = list(csv.DictReader(f))
    assert len(rows) == len(raw) > 1000
    assert [r.value for r in rows] == [r["value"] for r in raw]
    assert sum(not r.verified for r in rows) == sum(r["verified"] == "no" for r in raw) > 0


@pytest.mark.parametrize("column", ["metric", "split", "where", "source"])
@pytest.mark.parametrize("value", ["", "  ", "-"])
def test_no_value_without_metric_split_table_and_source(tmp_path, column, value):
    path = write(tmp_path / "r.csv", GOOD, GOOD | {"task": "mrpc", column: value})
    with pytest.raises(InputError, match=rf"r\.csv, line 3: {column}") as e:
        reported.load(path)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"value": "nan"}, "value"),
        ({"value": "about 5"}, "value"),
        ({"value": ""}, "value"),
        ({"metric": "acuracy"}, "did you mean 'accuracy'"),
        ({"split": "validation"}, "split"),
        ({"metric": "params_m", "split": "dev"}, "split"),
        ({"verified": "maybe"}, "verified"),
        ({"paper": ""}, "paper"),
    ],
)
def test_a_bad_value_is_named_with_its_line(tmp_path, change, says):
    with pytest.raises(InputError, match="line 2") as e:
        reported.load(write(tmp_path / "r.csv", GOOD | change))
    assert says in str(e.value)


@pytest.mark.parametrize("value", ["68.2", "-3.37", "<0.5", ">96.8", "2-3", "1e-4"])
def test_bounds_and_ranges_are_numbers_as_printed(tmp_path, value):
    (row,) = reported.load(write(tmp_path / "r.csv", GOOD | {"value": value}))
    assert row.value == value
    assert (row.number is None) == (value in ("<0.5", ">96.8", "2-3"))


def test_a_ragged_row_a_repeat_a_wrong_header_and_a_missing_file(tmp_path):
    with pytest.raises(InputError, match="line 2: has more or fewer"):
        reported.load(write(tmp_path / "a.csv", list(GOOD.values())[:-1]))
    with pytest.raises(InputError, match="line 2: has more or fewer"):
        reported.load(write(tmp_path / "b.csv", [*GOOD.values(), "more"]))
    with pytest.raises(InputError, match="line 3: repeats .* of line 2"):
        reported.load(write(tmp_path / "c.csv", GOOD, GOOD))
    with pytest.raises(InputError, match="line 1: columns"):
        reported.load(write(tmp_path / "d.csv", header=["paper", "value"]))
    with pytest.raises(InputError, match="holds no reported number"):
        reported.load(write(tmp_path / "e.csv"))
    with pytest.raises(InputError, match="cannot be read"):
        reported.load(tmp_path / "none.csv")
    (tmp_path / "f.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="UTF-8"):
        reported.load(tmp_path / "f.csv")


def test_a_table_is_not_its_neighbour():
    assert reported.in_table("Table 1 (dev)", "Table 1")
    assert reported.in_table("Table 1", "Table 1")
    assert not reported.in_table("Table 10", "Table 1")
    assert not reported.in_table("Table 2 header", "Table 2")


def test_a_papers_table_in_its_own_layout():
    frame = reported.reported_table("theseus", "Table 2", reported.load(FILE))
    assert list(frame.columns)[-1] == "Average, mean of 8 tasks"
    assert frame.attrs["split"] == "dev"
    with open(FILE, newline="") as f:
        wanted = [
            r["value"] for r in csv.DictReader(f)
            if r["paper"] == "theseus" and r["where"].startswith("Table 2 (") and r["system"] == "BERT-of-Theseus"
        ]  # fmt: skip
    assert list(frame.loc["BERT-of-Theseus"]) == wanted
    assert frame.loc["PD-BERT", "CoLA, Matthews"] == "-"  # the paper prints none
    with pytest.raises(InputError, match="tables: .*Table 2"):
        reported.reported_table("theseus", "Table 99", reported.load(FILE))


def test_unverified_numbers_say_so():
    rows = [reported.Reported(**(GOOD | {"verified": False}))]
    assert reported.reported_table("theseus", "Table 2", rows).iloc[0, 0] == "68.2 (unverified)"


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda s: s.name)
def test_every_system_points_at_rows_that_exist(system):
    rows = reported.load(FILE)
    for p in filter(None, (system.printed, system.teacher)):
        assert reported.select(rows, p.paper, p.where, p.system), p


def test_methods_differ_in_colour_and_in_mark():
    assert len({s.colour for s in SYSTEMS}) == len({s.mark for s in SYSTEMS}) == len({s.title for s in SYSTEMS}) == 12
    assert title_of("theseus-code") == "BERT-of-Theseus (code)"
    assert sorted(["zzz", "theseus-a", "theseus", "bert"], key=order_of) == ["bert", "theseus", "theseus-a", "zzz"]


def test_every_metric_and_every_paper_has_a_name_for_readers():
    assert set(reported.METRIC_TITLES) == reported.SCORES | reported.PROPERTIES
    assert {r.paper for r in reported.load(FILE)} == set(reported.PAPER_TITLES)
    names = [*reported.METRIC_TITLES.values(), *reported.PAPER_TITLES.values()]
    assert not [n for n in names if "_" in n]
    for paper, where in (("trimbert", "Results text"), ("mobilebert", "Table 1"), ("distilbert", "Table 4")):
        assert not [c for c in reported.reported_table(paper, where).columns if "_" in c or "delta" in c]
