"""The pages made from records: papers, ablations, guide, overview, how to reproduce. Numbers are computed by hand."""

from __future__ import annotations

import re

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from markdown_it import MarkdownIt
from matplotlib.transforms import Bbox
from synthetic_records import put, record, results_folder

from lib import claims
from lib.claims import verdicts
from lib.paths import ROOT
from lib.reporting import ablations, coverage, guide, overview, paper_pages, reproduce, tradeoff
from lib.reporting.pages import Study, load_study
from lib.reporting.reported import load
from lib.results import Artefact
from lib.systems import BY_NAME

REPORTED = load(ROOT / "results" / "reported.csv")


def study(*records):
    return Study(tuple(records), (), REPORTED)


def three(method="theseus", scores=(60.0, 61.0, 62.0), **changes):
    return [record(method, seed=i, score=s, teacher=66.0 + i / 10, **changes) for i, s in enumerate(scores)]


def text(html) -> str:
    return re.sub(r"\s+", " ", BeautifulSoup(str(html), "html.parser").get_text(" ")).replace("\u00a0", " ")


def row(html, caption, head) -> list[str]:
    soup = BeautifulSoup(str(html), "html.parser")
    table = next(t for t in soup.find_all("table") if caption in t.caption.get_text())
    found = next(r for r in table.tbody.find_all("tr") if r.th.get_text(" ", strip=True) == head)
    return [text(c).strip() for c in found.find_all("td")]


def rows_of(html, caption) -> list[list[str]]:
    soup = BeautifulSoup(str(html), "html.parser")
    table = next(t for t in soup.find_all("table") if caption in t.caption.get_text())
    return [[text(c).strip() for c in r.find_all("td")] for r in table.tbody.find_all("tr")]


@pytest.mark.parametrize("paper", paper_pages.PAGES)
def test_every_method_has_a_page_with_idea_differences_and_its_printed_tables(paper):
    idea = paper_pages.idea(paper)
    assert "$$" in idea
    assert "here |" in idea  # the table of differences
    assert not idea.lstrip().startswith("# ")
    html = paper_pages.page(paper, study())
    printed = [s for s in paper_pages.PAGES[paper] if s.where]
    assert html.count("as printed</summary>") == len(printed) > 0
    assert "not run" in text(html.split("## Our runs")[1])
    assert re.findall(r"^## (.*)", html, flags=re.M) == [*(s.title for s in paper_pages.PAGES[paper]), "Our runs"]
    assert (ROOT / "book" / f"{paper}.md").read_text().count(f"_generated/{paper}") == 2


def test_every_study_of_a_page_is_one_that_its_notebook_takes():
    import importlib

    for method, sections in paper_pages.PAGES.items():
        for s in sections:
            if s.study:
                for place in (f"lib.methods.{method}_studies", f"lib.methods.{method}"):
                    try:
                        studies = importlib.import_module(place).STUDIES
                    except (ModuleNotFoundError, AttributeError):
                        continue
                    break
                assert s.study in studies, (method, s.study)
                named = [c.get("variant") for c in studies[s.study] if c.get("variant")]
                for variant in named:
                    label = f"{method}-{variant}"
                    assert any(label in o.rows or re.fullmatch(o.pattern, label) for o in sections), label


def test_our_runs_stand_on_the_page_of_their_method_alone():
    runs = [*three(), *three("distilbert", variant="no-ce")]
    html = paper_pages.page("distilbert", study(*runs))
    assert row(html, "Runs of DistilBERT", "distilbert-no-ce glue, minilm-l6")[:2] == ["RTE", "0"]
    assert "theseus" not in text(html.split("## Our runs")[1])


def test_our_runs_withhold_retention_as_every_other_page_does():
    html = paper_pages.page("theseus", study(*three(), *three(task="sst2", majority=65.95)))
    shown = {r[0]: r[3] for r in rows_of(html, "Runs of BERT-of-Theseus")}
    assert shown["RTE"] in {f"{100 * s / t:.1f}" for s, t in ((60, 66), (61, 66.1), (62, 66.2))}
    assert shown["SST-2"].startswith("withheld: teacher's 95% interval")


def test_every_question_asked_of_variants_has_a_command():
    for method, sections in paper_pages.PAGES.items():
        for s in (s for s in sections if s.rows or s.pattern):
            assert bool(s.study) != bool(s.words), (method, s.title)
    truncated = next(s for s in paper_pages.PAGES["truncated"] if s.pattern)
    assert paper_pages.study_command("truncated", truncated).endswith("-r task mrpc -p layers 2 -p variant layers2")
    assert re.fullmatch(truncated.pattern, "truncated-layers2")


def test_no_text_of_a_record_ends_the_block_that_its_table_stands_in():
    html = paper_pages.page("theseus", study(*three(command="run\n`````\n\n# heading")))
    tokens = MarkdownIt().parse(html)
    assert not [t for t in tokens if t.type == "heading_open" and t.tag == "h1"]
    assert len([t for t in tokens if t.type == "fence"]) == 2 * len(paper_pages.PAGES["theseus"]) + 1


def test_a_baseline_stands_beside_its_row_in_the_theseus_paper():
    html = paper_pages.page("kd", study(*three("kd")))
    cells = row(html, "BERT-of-Theseus Table 2: reported | ours, Vanilla KD", "RTE")
    assert cells[0].startswith("64.9")
    assert cells[1].startswith("61.0 ± 2.5")
    for paper in paper_pages.BASELINES:
        assert 'id="table-2-of-bert-of-theseus"' in paper_pages.page(paper, study()), paper


def test_sections_of_a_page_have_places_of_their_own():
    for method, sections in paper_pages.PAGES.items():
        places = [s.anchor for s in sections]
        assert len(set(places)) == len(places), method


def test_an_ablation_is_the_mean_of_paired_differences():
    plain, changed = three("layerdrop"), three("layerdrop", scores=(58.0, 60.0, 61.5), variant="rate0.2")
    html = ablations.page(study(*plain, *changed, record("layerdrop", task="cola", variant="rate0.2")))
    cells = row(html, "Studies", "Rate: of dropping layers")
    assert cells[2] == "1"
    # differences -2, -1, -0.5: mean -1.17, t(2) * sd / sqrt(3) = 4.303 * 0.764 / 1.732 = 1.90; cola has no partner
    assert cells[3].startswith("rate0.2: -1.2 ± 1.9 RTE; 3 pairs; glue, minilm-l6")
    assert 'href="layerdrop.html#rate"' in html  # its table stands on the method's page
    assert row(html, "Studies", "Arms: pre-train, distil, fine-tune")[3] == "not run"
    assert "-r study arms" in row(html, "Studies", "Arms: pre-train, distil, fine-tune")[4]


def test_plain_runs_alone_are_no_study():
    html = ablations.page(study(*three(), *three("truncated")))
    every = [s for found in paper_pages.PAGES.values() for s in found if s.rows or s.pattern]
    assert f"None of the {len(every)} studies below was run" in text(html)
    pkd = row(html, "Studies", "Choices: paper and official code, and which layers are compared")
    assert "-p variant code" in pkd[4]
    one = ablations.page(study(*three("kd"), *three("kd", variant="code")))
    assert f"or a part of their variants: 1 of {len(every)}." in text(one)
    assert row(html, "Studies", "Table 7: how many layers are left")[3] == "not run"


def test_the_first_printed_row_is_the_reference():
    html = ablations.page(study(*three(), *three(scores=(58.0, 59.0, 60.0), variant="constant")))
    assert row(html, "Studies", "Table 6: which replacement strategy")[3].startswith("theseus: +2.0 ± 0.0")


# --- guide


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
        "TinyBERT (mean score 66.0) not told apart from it: Truncated, fine-tuned, BERT-of-Theseus"]  # fmt: skip
    assert row(html, need, "Little time to train")[0].startswith("Truncated, fine-tuned (1.0 minutes")
    assert row(html, need, "The fewest parameters") == ["TinyBERT (mean score 66.0) 4.0M"]
    assert row(html, need, "The best score at half the size or less")[0].startswith("TinyBERT")
    # 3, 3, 3.5 above truncated: its interval does not hold zero, so truncated is told apart
    assert row(html, need, "No unlabelled text") == ["BERT-of-Theseus (mean score 65.2)"]
    assert row(html, need, "No teacher for the task")[0].startswith("Truncated")
    numbers = row(html, "The numbers behind it", "TinyBERT")
    assert numbers[:3] == ["66.0", "+4.0 ± 5.0", "4.0M 20% of the teacher"]
    assert numbers[4] == "10.0"
    assert row(html, "The numbers behind it", "MobileBERT")[0] == "not run"


def test_the_guide_uses_tasks_that_all_its_methods_were_run_on():
    runs = [*three(), *three("truncated"), *three(task="cola"), *three("kd", task="cola"), *three("truncated",
            task="cola"), *three(task="mrpc")]  # fmt: skip
    assert guide.chosen(runs) == (["truncated", "kd", "theseus"], ["cola"])


def test_with_one_seed_nothing_is_told_apart():
    runs = [record("truncated", score=50.0), record("theseus", score=90.0)]
    html = text(guide.page(study(*runs)))
    assert ("without an interval, so neither told apart nor not: Truncated, fine-tuned (mean score 50.0; fewer than "
            "two common seeds on RTE)") in html
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


# --- overview


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

    found = [V(verdict=w, claim=V(paper=p)) for w, p in (("undecided", "theseus"), ("holds", "theseus"),
                                                         ("holds", "theseus"), ("holds", "tinybert"))]  # fmt: skip
    html = overview.papers(study(), found)
    assert "BERT-of-Theseus : no committed run. Its claims : holds 2, undecided 1." in text(html)
    assert text(html).count("Its claims") == 2


# --- score retained against speed-up


def ours_and_printed(shown) -> list[tradeoff.Point]:
    return tradeoff.points(shown, tradeoff.speeds_of_ours()[0])


@pytest.fixture
def untimed(tmp_path, monkeypatch):
    """A results folder of made-up operations, in which one system alone was timed."""
    monkeypatch.setenv("BERT_RESULTS", str(tmp_path))
    (tmp_path / "sizes.csv").write_text('system,flops_128\nBERT-base,100\n"BERT, 6 layers",40\n')
    timings(["BERT, 6 layers"]).to_csv(tmp_path / "efficiency.csv", index=False)
    return tmp_path


def timings(systems) -> pd.DataFrame:
    same = {"backend": "sdpa", "batch": 1, "length": 128, "processor": "made up", "threads": 2, "date": "2026-01-01"}
    return pd.DataFrame([{"system": s, "speedup_vs_bert_base": 3.5, **same} for s in systems])


def test_ours_are_timed_speeds_once_all_shapes_are_timed(untimed):
    assert "FLOPs" in tradeoff.speeds_of_ours()[1]  # one alone is not mixed with predictions
    timings(set(tradeoff.SHAPES.values())).to_csv(untimed / "efficiency.csv", index=False)
    found = {(p.method, p.ours): p for p in ours_and_printed(study(*three()))}
    assert found["theseus", True].speedup == 3.5
    assert found["theseus", False].speedup == 1.94
    assert "timed at the paper's shape" in tradeoff.picture(study(*three()))


def test_the_picture_holds_what_is_printed_of_both_and_ours_at_the_papers_shape(untimed):
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


def test_retention_that_is_withheld_is_no_point(untimed):
    assert not any(p.ours for p in ours_and_printed(study(*three(majority=65.95))))


def test_the_filled_marks_are_means_over_the_same_tasks(untimed):
    both = [r for m in ("theseus", "truncated") for task in ("rte", "mrpc") for r in three(m, task=task)]
    runs = [*both, *three("kd", task="mrpc", scores=(64.0, 65.0, 66.0)), *three("pkd", task="cola"),
            *three(task="sst2", majority=65.95), *three("layerdrop", task="sst2", majority=65.95)]
    over = tradeoff.ours_over(study(*runs))
    assert over.tasks == ("mrpc",)  # three methods; two on RTE, one on CoLA
    assert set(over.cells) == {"truncated", "kd", "theseus"}
    found = {p.method: p.retained for p in ours_and_printed(study(*runs)) if p.ours}
    assert set(found) == set(over.cells)
    assert found["kd"] == pytest.approx(100 * 65 / 66.1)
    said = text(tradeoff.caption(study(*runs)))
    assert "mean over MRPC" in said
    assert "without a filled mark: BERT-PKD, LayerDrop." in said
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
    figure = tradeoff._plot(found, "timed")
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
    close = [tradeoff.Point(m, ours, 2.0, 90 + i / 10) for ours in (True, False) for i, m in enumerate(tradeoff.SHAPES)]
    assert overlaps(close) == []  # all on one spot
    low = [tradeoff.Point(m, True, 2.0, 50 + i / 10) for i, m in enumerate(tradeoff.SHAPES)]
    assert overlaps([*low, tradeoff.Point("kd", False, 2.0, 99.9)]) == []  # at the foot, and on the line of 100%


# --- what was measured


def test_the_first_table_says_what_was_run_and_what_was_not():
    runs = [*three(), *three(task="mrpc"), *three(variant="constant"), *three("kd", profile="demo")]
    sizes = pd.DataFrame({"system": ["BERT, 6 layers"]}).set_index("system")
    html = coverage.page(study(*runs), verdicts.judge(claims.load(rows=REPORTED), []), sizes, None)
    assert "9 of 9 committed runs are small" in text(html)
    assert "No run is at a paper's scale." in text(html)
    line = row(html, "Measured, and not", "BERT-of-Theseus")
    assert line[:4] == ["MRPC (3), RTE (3)", "1, 3 runs", "counted BERT, 6 layers", "not timed"]
    assert re.fullmatch(r"2 of \d+", line[4])  # of printed numbers and of sizes
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


# --- how to reproduce


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


def test_the_pages_are_made_by_the_report(tmp_path, monkeypatch):
    from lib import report

    monkeypatch.setenv("BERT_RESULTS", str(results_folder(tmp_path / "results")))
    monkeypatch.setenv("BERT_BOOK", str(tmp_path / "book"))
    put(*three(), *three("truncated"))
    assert len(load_study().records) == 6
    assert report.main() == 0
    for name in ("papers.html", "guide.html", "ablations.html", "reproduce.html",
                 *(f"{paper}.md" for paper in paper_pages.PAGES)):
        assert (tmp_path / "book" / "_generated" / name).stat().st_size > 100, name
