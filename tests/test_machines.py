"""The page "More than one machine": hours are those of the dry run, and its commands start what they say."""

from __future__ import annotations

import re
import shlex

import pytest
import yaml
from bs4 import BeautifulSoup

from lib import dryrun
from lib.paths import ROOT
from lib.reporting import bookcheck, machines, reported


@pytest.fixture(scope="module")
def tables():
    soup = BeautifulSoup(machines.page(reported.load()), "html.parser")
    return [[[c.get_text(" ", strip=True) for c in row.find_all(["th", "td"])] for row in t.find_all("tr")]
            for t in soup.find_all("table")]


def test_the_page_is_in_the_book_and_holds_what_is_made():
    assert "machines" in bookcheck.pages_of(ROOT / "book")
    page = (ROOT / "book" / "machines.md").read_text()
    assert page.startswith("# More than one machine\n")
    assert ":file: _generated/machines.html" in page
    assert "## What was not tried" in page


def test_every_stage_has_the_hours_of_the_dry_run(tables):
    head, *rows = tables[0]
    assert [(r[0], r[1]) for r in rows] == [
        ("DistilBERT", "general"), ("TinyBERT", "general"), ("MobileBERT", "ib"), ("MobileBERT", "transfer"),
        ("MobileBERT", "general"), ("TrimBERT", "general"), ("PD-BERT", "general"), ("EfficientBERT", "supernet"),
        ("EfficientBERT", "general")]
    line = dryrun.describe("paper", "rte", "trimbert", dryrun.KEPT)  # another task: the same stage
    hours = line["hours"]["general stage"]
    trim = dict(zip(head, rows[5], strict=True))
    assert trim["GPU-hours"] == f"{hours:,.0f}"
    assert trim["Steps"] == "900,000"  # arXiv 2202.12411, section 3
    assert float(trim["Days on 8"]) == pytest.approx(hours / 24 / 8, rel=0.05)
    assert float(trim["Operations"]) == pytest.approx(hours * 3600 * dryrun.KEPT * 1e12, rel=0.05)


def test_commands_take_the_same_steps_and_are_valid(tables):
    for _, step, text in tables[1][1:]:
        words = shlex.split(text)
        method = words[words.index("lib.run") + 1]
        files = [words[i + 1] for i, w in enumerate(words) if w == "-f"]
        assert all((ROOT / f).is_file() for f in files)
        given = {words[i + 1]: yaml.safe_load(words[i + 2]) for i, w in enumerate(words) if w in ("-p", "-r")}
        own, _ = dryrun.parameters("paper", "mnli", method)
        p, _ = dryrun.parameters("paper", method=method, **{**given, "text": own.text})
        processes = int(words[words.index("--nproc-per-node") + 1])
        for batch, accumulation in (("general_batch_size", "general_accumulation"), ("batch_size", "accumulation")):
            assert getattr(p, accumulation) % processes == 0
            assert getattr(p, batch) * getattr(p, accumulation) == getattr(own, batch) * getattr(own, accumulation)
        assert int(re.sub(",", "", step.split()[0])) == p.general_batch_size * p.general_accumulation
        assert p.general_batch_size <= own.general_batch_size


def test_printed_hours_stand_beside_the_estimate(tables):
    head, *rows = tables[0]
    found = {(r[0], r[1]): dict(zip(head, r, strict=True)) for r in rows}
    assert found["DistilBERT", "general"]["Printed"] == "720 8x NVIDIA V100 16GB; derived: 8 GPUs x 90 h"
    assert found["TrimBERT", "general"]["Printed"] == "none found"
    assert "upper bound" not in (ROOT / "book" / "machines.md").read_text()


def test_no_number_has_an_exponent_or_a_wrong_plural(tables):
    head, *rows = tables[0]
    days = [c for row in rows for name, c in zip(head, row, strict=True) if name.startswith("Days")]
    assert len(days) == 27
    assert not [d for d in days if "e" in d]
    assert machines._days(160.4) == "160"
    assert machines._days(0.0876) == "0.088"
    steps = " ".join(row[1] for row in tables[1][1:])
    assert "1 micro-batch of 256;" in steps
    assert "1 micro-batches" not in steps


@pytest.mark.parametrize(("given", "found"), [((4000, 32, 8), (25, 160)), ((2048, 32, 8), (32, 64)),
                                              ((256, 256, 1), (256, 1)), ((6, 4, 3), (2, 3))])
def test_micro_batches_are_dealt_out(given, found):
    assert machines.dealt(*given) == found


def test_a_step_that_cannot_be_dealt_out():
    with pytest.raises(ValueError, match="7 rows cannot be dealt out over 2"):
        machines.dealt(7, 7, 2)


def test_memory_of_a_token_is_that_of_lists():
    assert 40 < machines.bytes_a_token() < 48  # two pointers and a number
