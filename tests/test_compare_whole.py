"""One comparison, made once: what it leaves, that it continues, and the page that it writes."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
import torch
from compare_runs import ask, hasten, in_process
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from lib import compare
from lib.compare import request as compare_plan

HOSTILE = "<script>alert('x')</script>&\"quoted\".csv".replace("/", "")  # a file name may hold anything but "/"


@pytest.fixture(scope="module")
def done(tmp_path_factory, backbone):
    """One comparison of a file with a hostile name, made once: where it lies, how it was asked for, what was run."""
    folder = tmp_path_factory.mktemp("compare")
    hostile = [(t, "<b>yes</b>" if c == "positive" else "no & never") for t, c, _ in tiny.rows(200)]
    task = tiny.write_csv(folder / HOSTILE, ("text", "label"), hostile)
    with pytest.MonkeyPatch.context() as mp:
        mp.setenv("BERT_BUILD", str(folder / "build"))
        mp.setenv("BERT_RESULTS", str(folder / "elsewhere"))
        ran = hasten(mp)
        words = ask(task, backbone=backbone, output=folder / "out")
        assert compare.main(words) == 0
        yield SimpleNamespace(folder=folder, out=folder / "out", words=words, ran=ran, build=folder / "build")


def page_of(done) -> str:
    return (done.out / "index.html").read_text()


# What it leaves, and that it continues


def test_everything_is_left_where_it_should_be(done):
    assert done.ran == ["bert", "truncated", "theseus"]
    assert not (done.folder / "elsewhere").exists()
    teachers = [json.loads(p.read_text()) for p in (done.build / "artefacts" / "teacher").glob("*/artefact.json")]
    assert [t["configuration"]["seed"] for t in teachers].count(0) == 1  # once, and shared
    assert [t["configuration"]["seed"] for t in teachers].count(1000) == 3  # one a rate of the grid, shared by trials
    found = sorted(p.parent.name for p in (done.out / "results").rglob("seed-0.json"))
    assert found == ["bert", "theseus", "truncated"]
    assert {p.name for p in (done.out / "students").iterdir()} == {"truncated", "theseus"}


def test_budgets_are_equal_and_kept_to(done):
    made = json.loads((done.out / "plan.json").read_text())
    assert made["grid"] == list(compare_plan.GRID)
    for path in (done.out / "results").rglob("seed-0.json"):
        r = json.loads(path.read_text())
        assert r["hyperparameters"]["max_tokens"] == made["budget"]
        assert 0 < r["tokens"] <= made["budget"]
        assert [s["lr"] for s in r["selection"]["scores"]] == made["grid"]  # the same effort for every method
        assert 0 < r["selection"]["tuning_tokens"] <= 3 * compare_plan.TRIAL * made["budget"]
        assert r["hyperparameters"]["lr"] in made["grid"]
        assert r["best_on_scored_split"] is None  # the scored rows were not watched
        assert r["teacher"] is None or r["teacher"]["artefact"]


def test_students_open_by_transformers_and_answer_as_they_were_scored(done):
    for m in ("truncated", "theseus"):
        folder = done.out / "students" / m
        model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        assert set(model.config.id2label.values()) == {"<b>yes</b>", "no & never"}
        text = tiny.rows(200)[0][0]
        batch = AutoTokenizer.from_pretrained(folder)([text], return_tensors="pt")
        with torch.no_grad():
            assert model(**batch).logits.shape == (1, 2)


def test_run_again_it_trains_nothing_and_without_a_student_only_that(done, capsys):
    done.ran.clear()
    before = (done.out / "plan.json").read_text()
    assert compare.main(done.words) == 0
    assert done.ran == []
    assert "done before" in capsys.readouterr().out
    for f in (done.out / "students" / "theseus").iterdir():
        f.unlink()
    record = next((done.out / "results").rglob("truncated/seed-0.json"))
    record.write_text(record.read_text()[:100])  # half a record
    assert compare.main(done.words) == 0
    assert done.ran == ["truncated", "theseus"]
    assert "not a readable JSON file" in capsys.readouterr().err
    assert (done.out / "plan.json").read_text() == before


def test_a_method_joins_at_the_same_budget(done):
    with pytest.MonkeyPatch.context() as mp:
        out = done.folder / "join"
        ran = []
        mp.setattr(compare, "run", lambda c, e: (ran.append(Path(c[3]).stem), in_process(c, e))[1])
        words = [*done.words, "--output", str(out), "--lr", "1e-3"]
        assert compare.main([*words, "--methods", "truncated"]) == 0
        budget = json.loads((out / "plan.json").read_text())["budget"]
        assert compare.main([*words, "--methods", "truncated theseus"]) == 0
        assert ran == ["bert", "truncated", "theseus"]
        made = json.loads((out / "plan.json").read_text())
        assert made["budget"] == budget
        assert set(made["costs"]) == {"bert", "truncated", "theseus"}


def test_another_comparison_in_the_folder_is_refused(done, films, capsys):
    for change, name in ((["--minutes", "31"], "MINUTES"), (["--seed", "1"], "seed"), (["--lr", "1e-3"], "lr"),
                         (["--task", films], "rows"), (["--max-length", "16"], "max_length")):
        assert compare.main([*done.words, *change]) == 2
        assert f"holds a comparison with another {name}" in capsys.readouterr().err
    kept = (done.out / "plan.json").read_text()
    (done.out / "plan.json").write_text("[]")
    assert compare.main(done.words) == 2
    assert "is not the plan of a comparison" in capsys.readouterr().err
    (done.out / "plan.json").write_text(kept)


def test_a_method_that_fails_is_on_the_page_and_is_tried_again(done, capsys):
    out, ran = done.folder / "fails", []

    def run(command, executed):
        ran.append(Path(command[3]).stem)
        return "ValueError: <i>boom</i>" if ran[-1] == "truncated" and ran.count("truncated") == 1 else \
            in_process(command, executed)

    with pytest.MonkeyPatch.context() as mp:
        mp.setattr(compare, "run", run)
        words = [*done.words, "--output", str(out), "--lr", "1e-3"]
        assert compare.main(words) == 1
        assert "truncated failed: ValueError: <i>boom</i>" in capsys.readouterr().err
        text = (out / "index.html").read_text()
        assert "ValueError: &lt;i&gt;boom&lt;/i&gt;" in text
        assert compare.main(words) == 0
        assert ran == ["bert", "truncated", "theseus", "truncated"]
        assert "boom" not in (out / "index.html").read_text()


# The page


class Reader(HTMLParser):
    """Tags with attributes, and for each table: caption, header cells with their scope, body cells."""

    def __init__(self):
        super().__init__()
        self.tags, self.tables, self.cell, self.text = [], [], None, []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "table":
            self.tables.append({"caption": "", "heads": [], "cells": []})
        if tag in ("caption", "th", "td"):
            self.cell = [tag, dict(attributes), ""]

    def handle_data(self, data):
        self.text.append(data)
        if self.cell:
            self.cell[2] += data

    def handle_endtag(self, tag):
        if tag in ("caption", "th", "td"):
            kind, attributes, text = self.cell
            t = self.tables[-1]
            if kind == "caption":
                t["caption"] = text
            else:
                t["heads" if kind == "th" else "cells"].append((attributes.get("scope"), text))
            self.cell = None


def read(text: str) -> Reader:
    r = Reader()
    r.feed(text)
    return r


def test_the_page_asks_nothing_of_the_network_and_runs_nothing(done):
    text = page_of(done)
    r = read(text)
    assert not {"script", "link", "iframe", "object", "embed", "base", "form"} & {t for t, _ in r.tags}
    for tag, attributes in r.tags:
        for name, value in attributes.items():
            if name in ("src", "href", "xlink:href", "srcset", "data", "action", "poster"):
                assert value.startswith("#"), (tag, name, value)
            assert not name.startswith("on"), (tag, name)
    assert not re.search(r"url\((?!#)|@import", text)
    policy = next(a["content"] for t, a in r.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


def test_text_of_the_user_is_shown_not_obeyed(done):
    text = page_of(done)
    assert "<script" not in text
    assert "<b>yes" not in text
    assert "Which method for <script>alert('x')<script>" in "".join(read(text).text)


def test_tables_can_be_read_by_a_screen_reader(done):
    tables = read(page_of(done)).tables
    assert len(tables) == 4
    for t in tables:
        assert t["caption"]
        assert {scope for scope, _ in t["heads"]} == {"col", "row"}
        assert all(text.strip() for _, text in t["heads"] + t["cells"])
    rows = [text for scope, text in tables[0]["heads"] if scope == "row"]
    assert rows == ["always the commonest class", "Teacher: BERT, fine-tuned", "Truncated, fine-tuned",
                    "BERT-of-Theseus"]


def test_the_page_says_what_it_must(done):
    text = " ".join("".join(read(page_of(done)).text).split())
    for words in ("scored once", "held-out rows", "chose which state of each training is kept", "interleaved rounds",
                  "AutoModelForSequenceClassification.from_pretrained(", "python -m lib.compare --task",
                  "rows were scored", "one seed", "peak training memory", "with the teacher's", "IQR", "percentile"):
        assert words in text, words
    assert "name=\"viewport\"" in page_of(done)
    assert "prefers-color-scheme: dark" in page_of(done)


def test_numbers_of_the_page_are_those_of_the_records(done):
    tables = read(page_of(done)).tables
    width = 4
    cells = [text for _, text in tables[0]["cells"]]
    by_name = {name: cells[i * width:(i + 1) * width] for i, name in enumerate(
        text for scope, text in tables[0]["heads"] if scope == "row")}
    for path in (done.out / "results").rglob("seed-0.json"):
        r = json.loads(path.read_text())
        shown = by_name[compare.title_of(r["method"])]
        assert shown[0].startswith(f"{r['score']:.1f} (")
        assert by_name["always the commonest class"][0] == f"{r['majority']:.1f}"
        if r["method"] != "bert":
            assert shown[1].startswith(f"{r['score'] - r['teacher']['score']:+.1f} (")
