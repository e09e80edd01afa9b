"""Which method for which need: answers follow from the records, and gaps are named."""

from __future__ import annotations

from report_pages import row, study, text, three
from synthetic_records import record

from lib.reporting import guide
from lib.results import Artefact
from lib.systems import BY_NAME


def test_without_runs_the_guide_says_so_and_names_what_is_missing():
    html = text(guide.page(study()))
    assert "No guide yet" in html
    assert "TrimBERT" in html


def test_the_guide_answers_from_the_records():
    text_stage = [Artefact(kind="tinybert-general", key="k", seconds=600.0, tokens=1)]
    runs = [
        *three("bert", scores=(80.0, 80.0, 80.0), parameters=20_000_000),
        *three("truncated", scores=(60.0, 62.0, 64.0), parameters=12_000_000, wall_seconds=60.0),
        *three("theseus", scores=(63.0, 65.0, 67.5), parameters=12_000_000, wall_seconds=120.0),
        *three("tinybert", scores=(62.0, 66.0, 70.0), parameters=4_000_000, artefacts=text_stage),
    ]
    html = guide.page(study(*runs))
    need = "Need and method"
    assert row(html, need, "The best score after compression") == [
        "TinyBERT (mean score 66.0) not told apart from it: Truncated, fine-tuned, BERT-of-Theseus of these Truncated, "
        "fine-tuned takes least work: 1.0 minutes against 10.9 minutes"]
    assert row(html, need, "Little time to train") == [
        "Truncated, fine-tuned (mean score 62.0) 1.0 minutes, with the teacher and the stages before the task, where "
        "there are any"]
    assert row(html, need, "The fewest parameters") == ["TinyBERT (mean score 66.0) 4.0M"]
    assert row(html, need, "The best score at half the size or less")[0].startswith("TinyBERT")
    # 3, 3, 3.5 above truncated: its interval does not hold zero, so truncated is told apart
    assert row(html, need, "No unlabelled text") == ["BERT-of-Theseus (mean score 65.2)"]
    assert row(html, need, "No teacher for the task")[0].startswith("Truncated")
    numbers = row(html, "The numbers behind it", "TinyBERT")
    assert numbers[:3] == ["66.0 3 seeds a task", "+4.0 ± 5.0", "4.0M 20% of the teacher"]
    assert numbers[4:6] == ["0.3", "10.0"]  # its teacher, its stage
    assert row(html, "The numbers behind it", "MobileBERT")[0] == "not run"


def test_the_guide_uses_tasks_that_all_its_methods_were_run_on():
    runs = [*three(), *three("truncated"), *three(task="cola"), *three("kd", task="cola"), *three("truncated",
            task="cola"), *three(task="mrpc")]  # fmt: skip
    # Four cells of two methods, rather than three of the task that has one method more
    assert guide.chosen(runs) == (["truncated", "theseus"], ["cola", "rte"])
    assert "Not run on all of these tasks, so never an answer: Vanilla KD" in text(guide.page(study(*runs)))
    assert guide.chosen([*runs, *three("kd")]) == (["truncated", "kd", "theseus"], ["cola", "rte"])


def test_with_one_seed_nothing_is_told_apart():
    runs = [record("truncated", score=50.0), record("theseus", score=90.0)]
    html = text(guide.page(study(*runs)))
    assert html.count("nothing says whether chance sets them apart: Truncated, fine-tuned (fewer than two common seeds "
                      "on RTE).") == 1
    assert "+40.0 no interval: fewer than two common seeds on RTE" in html
    assert "not told apart from it" not in html
    assert "no difference of scores is told from chance" in html


def test_equally_few_parameters_are_named_together():
    runs = [*three("truncated", scores=(60.0, 62.0, 64.0), parameters=17_400_000),
            *three("theseus", scores=(70.0, 72.0, 74.5), parameters=17_400_000),
            *three("distilbert", scores=(50.0, 52.0, 54.0), parameters=17_399_232),
            *three("trimbert", scores=(80.0, 80.1, 80.2), parameters=19_200_000)]
    (said,) = row(guide.page(study(*runs)), "Need and method", "The fewest parameters")
    assert said == ("BERT-of-Theseus (mean score 72.2) 17.4M, within 1% of each other: Truncated, fine-tuned, "
                    "BERT-of-Theseus, DistilBERT")


def test_tasks_that_lie_apart_do_not_hide_a_difference():
    """20 and 2 points ahead, each with little noise: of these two tasks it is ahead, whatever another would give."""
    runs = [r for m, by in (("theseus", (80.0, 62.0)), ("truncated", (60.0, 60.0)))
            for task, score in zip(("rte", "mrpc"), by, strict=True)
            for r in three(m, task=task, scores=(score, score + (m == "theseus") / 10, score))]  # fmt: skip
    html = guide.page(study(*runs))
    assert "not told apart" not in row(html, "Need and method", "The best score after compression")[0]
    gain = row(html, "The numbers behind it", "BERT-of-Theseus")[1]
    # two tasks of variance 0.1**2 / 3 over three seeds: se = 0.1/3/sqrt(2), 4 degrees of freedom
    assert gain == f"+11.0 ± {2.7764 * 0.1 / 3 / 2**0.5:.1f}"


def test_every_method_says_what_it_asks_for():
    assert set(guide.ASKS) == set(BY_NAME) - {"bert"}


def test_a_teacher_counts_as_work_of_the_method_that_needs_it():
    runs = [*three("truncated", wall_seconds=180.0), *three("theseus", wall_seconds=170.0)]  # teachers: 18 seconds
    (said,) = row(guide.page(study(*runs)), "Need and method", "Little time to train")
    assert said.startswith("Truncated, fine-tuned (mean score 61.0) 3.0 minutes")
    runs = [*three("truncated", wall_seconds=180.0), *three("theseus", wall_seconds=163.0)]
    (said,) = row(guide.page(study(*runs)), "Need and method", "Little time to train")
    assert said.startswith("Truncated, fine-tuned (mean score 61.0) BERT-of-Theseus (mean score 61.0) 3.0 minutes")
