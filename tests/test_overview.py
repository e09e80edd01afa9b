"""The first page in words, what was measured, and how to reproduce it."""

from __future__ import annotations

import re

import pandas as pd
import pytest
from report_pages import REPORTED, row, study, text, three
from synthetic_records import record

from lib import claims
from lib.claims import verdicts
from lib.reporting import coverage, overview, pages, reproduce


def test_a_paper_without_committed_runs_says_whether_the_demo_ran_it():
    assert text(overview.papers(study())).count(": no committed run.") == 6
    demo = overview.sentence("theseus", study(*three(profile="demo")))
    assert demo == "no committed run (the demo on this machine ran it)."  # it proves nothing


@pytest.mark.parametrize(
    ("scores", "says"), [((62.0, 64.1, 66.2), "ahead on RTE (+4.1)"), ((56.0, 58.1, 60.0), "behind on RTE (-2.0)"),
                         ((54.0, 64.0, 62.0), "not told apart on RTE (+0.0)")]
)  # fmt: skip
def test_a_sentence_sets_a_paper_against_truncation(scores, says):
    runs = three("truncated", scores=(58.0, 60.0, 62.0)) + three(scores=scores)
    sentence = overview.sentence("theseus", study(*runs))
    assert says in sentence
    assert "reported at BERT-base: 95.9%" in sentence


def test_one_seed_and_unequal_tokens_decide_nothing():
    one = [record("truncated", score=50.0), record(score=60.0)]
    assert "one seed alone on RTE (+10.0)" in overview.sentence("theseus", study(*one))
    more = [one[0], one[1].model_copy(update={"tokens": 200_000})]
    assert "not run beside truncated fine-tuning at equal tokens" in overview.sentence("theseus", study(*more))


def test_the_claims_of_a_paper_are_counted_by_verdict():
    from types import SimpleNamespace as V

    found = [V(verdict=w, claim=V(paper=p, of_training=t)) for w, p, t in (
        ("undecided", "theseus", True), ("holds", "theseus", True), ("holds", "theseus", True),
        ("holds", "theseus", False), ("holds", "tinybert", False))]
    html = overview.papers(study(), found)
    assert ("BERT-of-Theseus : no committed run. Its claims of training: holds 2, undecided 1; "
            "of printed numbers, counts or timings: holds 1.") in text(html)
    assert text(html).count("Its claims") == 2


def test_the_first_table_says_what_was_run_and_what_was_not():
    runs = [*three(), *three(task="mrpc"), *three(variant="constant"), *three("kd", profile="demo")]
    sizes = pd.DataFrame({"system": ["BERT, 6 layers"]}).set_index("system")
    html = coverage.page(study(*runs), verdicts.judge(claims.load(rows=REPORTED), []), sizes, None)
    assert "9 of 9 committed runs are small" in text(html)
    assert "No run is at a paper's scale." in text(html)
    line = row(html, "Measured, and not", "BERT-of-Theseus")
    assert line[:4] == ["MRPC (3), RTE (3)", "1, 3 runs", "counted BERT, 6 layers", "not timed"]
    assert re.fullmatch(r"3 of \d+", line[4])  # of printed numbers, of sizes and of times
    assert row(html, "Measured, and not", "Vanilla KD") == [
        "not run", "not run", "counted BERT, 6 layers", "not timed", "with BERT-PKD"]  # the demo proves nothing
    assert row(html, "Measured, and not", "TinyBERT")[:4] == ["not run", "not run", "not counted", "not timed"]
    timed = pd.DataFrame({"system": ["TinyBERT4"]})
    assert row(coverage.page(study(), [], sizes, timed), "Measured, and not", "TinyBERT")[3] == "timed TinyBERT4"
    assert "No run is committed yet" in text(coverage.page(study(), [], sizes, None))


def test_an_undecided_claim_is_not_counted_as_decided():
    from types import SimpleNamespace as V

    found = [V(verdict=w, claim=V(paper="theseus")) for w in verdicts.WORDS]
    sizes = pd.DataFrame({"system": ["BERT, 6 layers"]}).set_index("system")
    html = coverage.page(study(), found, sizes, None)
    assert row(html, "Measured, and not", "BERT-of-Theseus")[4] == "3 of 5"
    assert "Claims decided" in text(html)


def test_every_profile_has_its_command_and_what_was_measured():
    html = reproduce.page(study(*three(wall_seconds=600.0), *three("kd", wall_seconds=60.0)))
    glue = row(html, "Profiles", "glue")
    assert glue[0].startswith("make grid PROFILE=glue TASKS=")
    assert glue[3] == "6"
    assert "For example: this makes 3 of the 6 runs counted here." in glue[0]  # kd is in no grid of the profile
    assert "For example" not in row(reproduce.page(study(*three(task="rte"))), "Profiles", "glue")[0]
    assert glue[5] == "test, 1 thread"
    assert float(glue[4]) == pytest.approx((3 * 600 + 3 * 60 + 3 * 18) / 3600, abs=0.005)  # three teachers of 18 s
    assert row(html, "Profiles", "paper")[3:] == ["not run", "not known: not run by us", "not run"]
    assert row(html, "Cost of a run at profile glue", "BERT-of-Theseus")[:2] == ["3", "10.0"]


def test_runs_of_another_protocol_than_the_papers_say_so():
    plain, cut = three("trimbert"), three("trimbert", study={"origin": "backbone"})
    assert "cut out of the pre-trained backbone" not in overview.sentence("trimbert", study(*plain))
    assert overview.sentence("trimbert", study(*cut)).startswith("cut out of the pre-trained backbone, not trained")
    html = pages.comparison(study(*cut), local=False)
    assert text(html).count("cut out of the pre-trained backbone") == 1
