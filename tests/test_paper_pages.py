"""Pages of the methods and of the ablations: made from records, numbers computed by hand."""

from __future__ import annotations

import re

import pytest
from markdown_it import MarkdownIt
from report_pages import row, rows_of, study, text, three
from synthetic_records import put, record, results_folder

from lib.paths import ROOT
from lib.reporting import ablations, paper_pages
from lib.reporting.pages import load_study


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


def test_a_change_is_counted_over_the_seeds_that_both_have():
    runs = [*three(scores=(60.0, 62.0, 70.0)), record("theseus", seed=0, score=61.0, variant="constant")]
    html = paper_pages.page("theseus", study(*runs))
    assert "to the first line" in row(html, "BERT-of-Theseus Table 6", "BERT-of-Theseus")[-1]
    # not of the means
    assert row(html, "BERT-of-Theseus Table 6", "BERT-of-Theseus")[-1].endswith("| -1.0 over 1 common seed")


def test_another_methods_variant_is_named_whole():
    runs = [*three(), *three("theseus", variant="layers2"), *three("truncated", variant="layers2")]
    cell = row(ablations.page(study(*runs)), "Studies", "Table 7: how many layers are left")[3]
    assert "truncated-layers2: " in cell
    assert "layers2: " in cell.replace("truncated-layers2: ", "")


def scratch(variant, *scores, accuracy=0.125, loss=6.5, blocks=6):
    report = {"before": {"loss": 7.25}, "after": {"accuracy": accuracy, "loss": loss}, "tokens": 2_000_000}
    return [record("trimbert", task="sst2", seed=i, score=s, variant=variant,
                   study={"mlm": report, "intermediate_blocks": blocks}) for i, s in enumerate(scores)]


def test_trimbert_from_scratch_is_set_against_its_own_n_1():
    runs = [*scratch("scratch-n1", 80.0, 82.0), *scratch("scratch-n2", 79.0, 80.0, loss=6.625, blocks=3)]
    cells = row(ablations.page(study(*runs)), "Studies", "Blocks: how many, from scratch")
    assert cells[3].startswith("scratch-n2: -1.5 ± 6.4 SST-2; 2 pairs")  # 12.706 * 0.707 / sqrt(2)
    assert "-f notebooks/profiles/glue-trimbert-scratch.yaml -r task sst2 -r study blocks" in cells[4]
    html = paper_pages.page("trimbert", study(*runs, *three("trimbert")))
    assert row(html, "Blocks: ours", "TrimBERT (scratch-n2)")[0].endswith("to the first line: -1.5")


def test_language_modelling_stands_beside_the_score():
    runs = [*scratch("scratch-n1", 80.0, 82.0), *scratch("scratch-n2", 79.0, loss=None, accuracy=None, blocks=3)]
    html = paper_pages.page("trimbert", study(*runs))
    caption = "Blocks: language modelling on held-out text"
    cells = row(html, caption, "TrimBERT (scratch-n1)")
    assert (cells[0], *cells[2:6]) == ("6", "2,000,000", "7.25", "6.50", "12.5")
    assert cells[6].startswith("81.0")
    assert row(html, caption, "TrimBERT (scratch-n2)")[3:] == ["7.25", "not finite", "not finite", "79.0 1 seed"]
    assert "language modelling" not in text(paper_pages.page("kd", study(*three("kd"))))


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


def test_a_study_leaves_out_tasks_on_which_nothing_is_told():
    """As the claims do: a teacher that does not clear the majority class, or two students neither of which does."""
    low = [r for v in ("", "constant") for r in three(task="mrpc", majority=61.5, variant=v)]
    unlearnt = [r for v in ("", "constant") for r in three(task="cola", majority=66.05, variant=v)]
    clear = [*three(), *three(scores=(58.0, 59.0, 60.0), variant="constant")]
    cell = row(ablations.page(study(*clear, *low, *unlearnt)), "Studies", "Table 6: which replacement strategy")[3]
    assert cell.startswith("theseus: +2.0")
    assert "RTE; 3 pairs" in cell
    assert "MRPC left out: neither clears the majority class" in cell
    assert "CoLA left out: its teacher does not clear the majority class" in cell
    cell = row(ablations.page(study(*low)), "Studies", "Table 6: which replacement strategy")[3]
    assert cell == "theseus MRPC left out: neither clears the majority class"
