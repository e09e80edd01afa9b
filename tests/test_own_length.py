"""The table of runs as long as the papers': what was run, what need not be, what is missing."""

from __future__ import annotations

import pytest
from report_pages import row
from synthetic_records import record

from lib import profiles
from lib.reporting import own_length

CAPTION = "As long as the papers train"
SIZES = {"batch_size": 32, "accumulation": 1}


def runs(label, scores, steps=14, **changes):
    """One run a seed; 100 rows and batches of 32, so 14 steps are 4.5 passes."""
    method, _, variant = label.partition("-")
    return [record(method, variant=variant, seed=i, score=s, steps=steps, hyperparameters=SIZES, **changes)
            for i, s in enumerate(scores)]


def cells(records, method):
    return [c.replace("\u00a0", " ") for c in row(own_length.page(records), CAPTION, method)]


def test_passes_are_counted_from_steps_and_rows():
    assert own_length.passes(runs("theseus", [60])[0]) == pytest.approx(14 * 32 / 100)
    assert own_length.passes(record()) is None


def test_the_papers_lengths_are_those_of_its_profile():
    assert [own_length.papers_passes(m) for m in ("theseus", "kd", "truncated")] == [15, 4, 3]
    assert profiles.values("paper", "theseus")["epochs"] == 15


def test_longer_runs_are_set_against_the_main_view_and_the_plainest_way_seed_by_seed():
    found = [*runs("theseus", [60, 62, 64]), *runs("theseus-passes15", [65, 66, 67], steps=47),
             *runs("truncated", [55, 56, 57]), *runs("truncated-passes15", [58, 58, 58], steps=47)]  # fmt: skip
    length, main, longer = cells(found, "BERT-of-Theseus")
    assert length == "15 as in its paper"
    assert main == "62.0 ± 5.0 4.5 passes"
    # 5, 4, 3 and 7, 8, 9: t(2, 0.975) / sqrt(3) = 2.484 times a deviation of 1
    assert longer == "66.0 ± 2.5 +4.0 ± 2.5 to the main view +8.0 ± 2.5 to truncated, 15 passes"


def test_a_length_that_the_main_view_has_is_not_run_again_and_one_beyond_it_is_not_run():
    found = [*runs("theseus-passes15", [65]), *runs("kd", [60, 61]), *runs("tinybert", [50]), *runs("truncated", [55])]
    assert cells(found, "Vanilla KD")[1:] == ["60.5 ± 6.4 4.5 passes", "the main view is as long"]
    assert cells(found, "TinyBERT")[2] == "not run"
    assert cells(found, "BERT-PKD")[1:] == ["not run", "not run"]
    assert cells(found, "BERT-of-Theseus")[1:] == ["not run", "65.0, 1 seed, no interval"]


def test_a_length_that_is_no_papers_says_so():
    found = runs("truncated", [55, 56]) + runs("truncated-passes15", [58, 59])
    html = own_length.page(found)
    assert html.count("Truncated, fine-tuned") == 2
    assert "longer than its paper" in html


def test_where_nothing_was_learnt_no_difference_is_shown():
    low = [*runs("theseus", [50, 52]), *runs("theseus-passes15", [51, 52])]
    assert cells(low, "BERT-of-Theseus")[2] == "51.5 ± 6.4 neither clears the majority class"


def test_without_a_longer_run_it_says_so():
    assert "No longer run" in own_length.page([record()])
