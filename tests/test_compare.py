"""`lib.compare`: what it refuses, how it shares out the minutes, that it continues, and what its page says."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
import yaml
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from lib import artefacts, batches, compare, evaluation, results, runs, stats, training
from lib.compare import cost
from lib.compare import page as compare_page
from lib.compare import request as compare_plan
from lib.compare import rows as compare_rows
from lib.compare.cost import Cost
from lib.compare.rows import Interval, Row
from lib.efficiency.timing import Size, Summary
from lib.errors import InputError
from lib.methods import bert
from lib.parameters import validate
from lib.paths import ROOT
from lib.tasks import TASKS

HOSTILE = "<script>alert('x')</script>&\"quoted\".csv".replace("/", "")  # a file name may hold anything but "/"

RUN = compare.run  # fixtures put another in its place


def ask(task, *more, methods="truncated theseus", minutes="30", backbone="", output=""):
    return ["--task", str(task), "--methods", methods, "--minutes", minutes,
            *(("--backbone", str(backbone)) if backbone else ()), *(("--output", str(output)) if output else ()), *more]


def in_process(command, executed):
    """What papermill would do with this command, without a kernel: the notebook's cells, in this process."""
    method, values, i = Path(command[3]).stem, {}, 7
    assert command[1:3] == ["-m", "papermill"]
    while i < len(command):
        if command[i] == "-f":
            values |= yaml.safe_load(Path(command[i + 1]).read_text())
            i += 2
        elif command[i] == "-y":
            values |= yaml.safe_load(command[i + 1])
            i += 2
        else:
            assert command[i] in ("-r", "-p")
            values[command[i + 1]] = command[i + 2]
            i += 3
    module = cost.module(method)
    run = runs.start(method, validate(module.Config, values))
    made = bert.from_artefact(run) if method == "bert" else run.compress(module.compress)
    run.finish(*made)
    return ""


def hasten(monkeypatch):
    """Runs happen in this process and few rounds are timed; the list of methods that were run."""
    ran = []
    monkeypatch.setattr(compare, "run", lambda c, e: (ran.append(Path(c[3]).stem), in_process(c, e))[1])
    monkeypatch.setattr(cost, "SECONDS", 0.05)
    monkeypatch.setattr(compare_rows, "DRAWS", 100)
    real = compare_rows.timing.latency
    monkeypatch.setattr(compare_rows.timing, "latency", lambda *a, **k: real(*a, **{**k, "rounds": 5}))
    return ran


@pytest.fixture
def quick(monkeypatch):
    return hasten(monkeypatch)


# What is refused


@pytest.mark.parametrize(("words", "message"), [
    (["--methods", "truncatd"], "METHODS: 'truncatd' is unknown (did you mean 'truncated'?)"),
    (["--methods", ""], "METHODS: '' names no student"),
    (["--methods", "bert"], "METHODS: 'bert' names no student"),
    (["--minutes", "soon"], "MINUTES: 'soon' must be a number of minutes above 0"),
    (["--minutes", "0"], "MINUTES: '0' must be"), (["--minutes", "-3"], "MINUTES: '-3' must be"),
    (["--minutes", "nan"], "MINUTES: 'nan' must be"), (["--minutes", "inf"], "MINUTES: 'inf' must be"),
    (["--task", " "], "TASK: is empty"), (["--speed", "1"], "unrecognized arguments: --speed 1"),
])
def test_words_that_are_refused(words, message, capsys):
    assert compare.main([*ask("movies"), *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1


def test_empty_words_of_make_take_their_defaults():
    r = compare_plan.arguments(["--task", "my.csv", "--teacher", "", "--methods", "theseus,truncated bert theseus",
                                "--minutes", ""])
    assert (r.methods, r.minutes, r.needed) == (("theseus", "truncated"), 60, ("bert", "theseus", "truncated"))
    assert compare_plan.arguments(ask("my.csv", "--teacher", "folder")).needed == ("truncated", "theseus")


def bad_tasks(folder, backbone):
    one = tiny.write_csv(folder / "one.csv", ("text", "label"), [(f"good film {i}", "yes") for i in range(50)])
    good = tiny.films(folder / "good.csv")
    other = tiny.save_classifier(folder / "other", ["red", "green"])
    three = tiny.save_classifier(folder / "three", ["negative", "positive", "none"])
    empty = folder / "hollow"
    empty.mkdir()
    (empty / "config.json").write_text("{}")
    taken = folder / "taken"
    taken.mkdir()
    (taken / "diary.txt").write_text("mine")
    b = ("--backbone", backbone)
    return [
        (ask(folder / "none.csv", *b), "none.csv"), (ask(one, *b), "one class only"),
        (ask(good, "--text-column", "words", *b), "text_column: column 'words' is missing"),
        (ask(good, "--kind", "ranking", *b), "kind"), (ask(good, "--max-length", "4", *b), "max_length"),
        (ask(good, "--seed", "x", *b), "seed"), (ask(good, "--lr", "2", *b), "lr"),
        (ask(good, "--seed", "1000", *b), "seed: 1000 is the seed with which"),
        (ask(good, "--teacher", str(other)), "are not those of task good"),
        (ask(good, "--teacher", str(three)), "has 3 outputs"), (ask(good, "--teacher", str(empty)), "no weights"),
        (ask(good, "--backbone", str(folder / "nowhere")), "no such folder"),
        (ask(good, *b, output=taken), "is not empty and holds no comparison"),
        (ask(good, *b, output=good), "is no folder that can be written to"),
        (ask(good, *b, output=good / "below"), "is no folder that can be written to"),
        (ask(good, *b, minutes="0.0001"), "MINUTES: 0.0001 is too short"),
    ]


def test_bad_input_is_one_line_code_2_and_leaves_nothing(places, backbone, quick, capsys):
    for words, message in bad_tasks(places, backbone):
        assert compare.main(words) == 2, words
        said = capsys.readouterr().err.strip().splitlines()
        assert message in said[-1], (words, said)
        assert said[-1].startswith("error: ")
        assert not (places / "results").exists(), words
    assert quick == []


def test_a_method_that_cannot_take_the_backbone_is_found_before_training(places, films, quick, capsys):
    odd = tiny.save_encoder(places / "odd", layers=5)  # two modules of equal size cannot be made of five layers
    assert compare.main(ask(films, backbone=odd)) == 2
    assert "does not divide the backbone's 5 layers" in capsys.readouterr().err
    assert quick == []
    assert not (places / "results").exists()


def test_a_method_that_breaks_while_measured_is_named(places, films, backbone, quick, capsys, monkeypatch):
    from lib.methods import truncated

    monkeypatch.setattr(truncated, "compress", lambda run, teacher: 1 / 0)
    assert compare.main(ask(films, backbone=backbone)) == 2
    assert "METHODS: truncated failed in its first steps on these rows (ZeroDivisionError: 'division by zero')" in \
        capsys.readouterr().err
    assert quick == []


# How the minutes are shared out


COSTS = {"a": Cost(8, 2, 0.001), "b": Cost(15, 5, 0.003)}


def at(least=1000, choosing=2000, largest=10**9):
    return compare_plan.Limits(least, choosing, largest)


def test_one_rate_given_the_budget_fills_the_minutes_equally():
    got, grid = compare_plan.budget(COSTS, 10, 60, at(), False)
    expected = (0.85 * 600 - 60 - 30) / 0.004
    assert grid == []
    assert 0 <= expected - got < 1000
    assert sum(c.seconds(got) for c in COSTS.values()) + 60 <= 0.85 * 600
    # more passes over the rows are of no use
    assert compare_plan.budget(COSTS, 10, 60, at(largest=5432), False) == (5432, [])


def test_choosing_rates_takes_its_share_of_the_minutes():
    got, grid = compare_plan.budget(COSTS, 10, 60, at(), True)
    # three trials of half the budget and the run itself: four starts of training, two and a half budgets
    expected = (0.85 * 600 - 60 - (8 + 15) - 4 * (2 + 5)) / (2.5 * 0.004)
    assert grid == [3e-5, 1e-4, 3e-4]
    assert 0 <= expected - got < 1000


def test_where_there_is_no_time_to_choose_it_is_said(capsys):
    got, grid = compare_plan.budget(COSTS, 10, 60, at(choosing=10**6), True)
    assert (got, grid) == compare_plan.budget(COSTS, 10, 60, at(), False)
    said = capsys.readouterr().out
    need = float(re.search(r"about ([\d.]+) would", said)[1])
    assert "leave no time to choose a learning rate" in said
    assert compare_plan.budget(COSTS, need, 60, at(choosing=10**6), True)[1]
    assert not compare_plan.budget(COSTS, need - 0.2, 60, at(choosing=10**6), True)[1]


def test_budget_refuses_and_says_what_would_do():
    few = at(10_000, 20_000)
    with pytest.raises(InputError, match="MINUTES: 1 is too short; a, b on the least budget") as e:
        compare_plan.budget(COSTS, 1, 15, few, True)
    need = float(re.search(r"about ([\d.]+) minutes", str(e.value))[1])
    assert compare_plan.budget(COSTS, need, 15, few, True)[0] >= 10_000
    with pytest.raises(InputError):
        compare_plan.budget(COSTS, need - 0.2, 15, few, True)


@pytest.fixture
def meter(monkeypatch):
    """`meter()`: a meter under a clock of its own whose training takes 0.01 s a token, with its training rows."""
    clock = [0.0]
    monkeypatch.setattr(cost.time, "perf_counter", lambda: clock[0])

    def train(model, loss, rows, s, *, evaluate=None, parameters=None):
        plan = batches.plan(rows.lengths, s.batch_size * s.accumulation, s.seed, s.epochs, s.max_tokens)
        tokens, began = sum(int(rows.lengths[b].sum()) for b in plan), clock[0]
        clock[0] += 0.01 * tokens
        for _ in range(s.evaluations if evaluate else 0):
            evaluate(model)
        return training.History(steps=len(plan), tokens=tokens, seconds=clock[0] - began)

    def make():
        data, held_out = tiny.encoded(400, seed=1), tiny.encoded(20, seed=2)
        full = {"train": data, "held_out": SimpleNamespace(lengths=np.repeat(held_out.lengths, 5))}
        m = cost._Meter({"train": data, "held_out": held_out}, full, 1000, Path("/nowhere"))
        m.originals = (train, *m.originals[1:])
        m.wait = lambda seconds: clock.__setitem__(0, clock[0] + seconds)
        return m, data

    return make


def test_a_stage_under_the_budget_costs_its_share_of_every_token(meter):
    m, data = meter()
    m.train(None, None, data, training.Settings(max_tokens=1000, batch_size=8, epochs=9))
    assert m.per_token == pytest.approx(0.01)
    assert (m.once, m.each) == (0, 0)
    m.train(None, None, data, training.Settings(max_tokens=250, batch_size=8, epochs=9))
    assert m.per_token == pytest.approx(0.01 + 0.0025)


def test_a_stage_of_its_own_and_evaluations_are_fixed_costs(meter):
    m, data = meter()
    m.train(None, None, data, training.Settings(batch_size=8, epochs=2))
    assert m.each == pytest.approx(0.01 * 2 * data.lengths.sum())
    assert (m.once, m.per_token) == (0, 0)
    m, data = meter()
    m.train(None, None, data, training.Settings(max_tokens=1000, batch_size=8, evaluations=7),
            evaluate=lambda model: m.wait(0.02))
    assert m.each == pytest.approx(0.02 * 7 * 5)  # the full held-out set is five times this one
    assert m.per_token == pytest.approx(0.01)


def test_a_stage_of_few_steps_is_not_stretched(meter):
    m, data = meter()
    seen = []
    m.train(None, None, data, training.Settings(batch_size=8, epochs=0.04, evaluations=2),
            evaluate=lambda model: (seen.append(1), m.wait(0.02)))
    assert len(seen) == 2
    assert m.each == pytest.approx(2 * 0.02 * 5 + 0.01 * sum(
        data.lengths[b].sum() for b in batches.plan(data.lengths, 8, 0, 0.04, 0)))


def test_an_artefact_that_exists_costs_nothing_and_a_missing_one_its_whole_stage(meter, places):
    m, data = meter()
    m.build = places / "build"

    def make(folder):
        m.wait(4.0)  # reading text, say
        m.train(None, None, data, training.Settings(max_tokens=300, batch_size=8, epochs=3))
        return {"seconds": 0, "tokens": 0}

    m.make("head", {"a": 1}, make)
    plan = batches.plan(data.lengths, 8, 0, 3, 300)
    assert m.once == pytest.approx(4.0 + 0.01 * sum(data.lengths[b].sum() for b in plan))
    assert m.built == pytest.approx(4.0)
    assert (m.each, m.per_token) == (0, 0)
    artefacts.build("head", {"a": 2}, lambda folder: {"seconds": 1, "tokens": 1})
    before = m.once
    assert m.make("head", {"a": 2}, lambda folder: pytest.fail("built again")).meta["seconds"] == 1
    assert m.once == before


def test_answers_of_the_teacher_are_charged_for_the_rows_left_out(meter, places):
    m, _ = meter()
    m.rows = 4.0  # the full training set holds four times the tokens

    def make(folder):
        m.wait(2.0)
        return {}

    m.make("teacher-answers", {"a": 1}, make)
    assert m.each == pytest.approx(2.0 * 3)


def test_span_tasks_are_refused_before_anything_is_read(places, backbone):
    with pytest.raises(InputError, match="task squad1: answers with spans"):
        compare_plan.check(compare_plan.arguments(ask("squad1", backbone=backbone)))


def test_measuring_leaves_everything_as_it_was(places, films, backbone, monkeypatch):
    monkeypatch.setattr(cost, "SECONDS", 0.05)
    request = compare_plan.arguments(ask(films, backbone=backbone))
    base = compare_plan.check(request)
    before = (training.train, artefacts.build, evaluation.predict, dict(os.environ))
    state = tiny.state(teacher := bert.compress(base.with_parameters(epochs=0.1))[0])
    for m in ("truncated", "theseus"):
        found, model = cost.measure(base, m, compare_plan.parameters(request, m, max_tokens=5000), 1.0, teacher)
        assert found.per_token > 0
        assert found.once > 1.0
        assert found.each > 0
        assert model.config.num_hidden_layers == 2
    with pytest.raises(InputError):
        cost.measure(base, "theseus", compare_plan.parameters(request, "theseus", max_tokens=5000).model_copy(
            update={"layers": 3}), 1.0, teacher)
    assert before == (training.train, artefacts.build, evaluation.predict, dict(os.environ))
    assert tiny.same(state, tiny.state(teacher))
    assert not (places / "results").exists()


# The whole way, in this process


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


def test_two_at_once_are_refused(tmp_path, places):
    with compare.alone(tmp_path / "out"):
        with pytest.raises(InputError, match="another comparison is working on it"), compare.alone(tmp_path / "out"):
            pass
        with compare.alone(tmp_path / "other"):
            pass
    with compare.alone(tmp_path / "out"):  # and released
        pass


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


def test_the_users_own_teacher_is_scored_not_trained(places, films, quick, capsys):
    teacher = tiny.save_classifier(places / "mine", ["positive", "negative"])  # in the other order
    assert compare.main(ask(films, "--teacher", str(teacher), "--lr", "1e-3", output=places / "out")) == 0
    assert quick == ["truncated", "theseus"]
    path = next((places / "out").rglob("theseus/seed-0.json"))
    record = json.loads(path.read_text())
    assert record["teacher"]["artefact"] is None
    text = (places / "out" / "index.html").read_text()
    shown = re.search(r"Teacher: BERT, fine-tuned</th><td>([\d.]+) \(", text)[1]
    assert float(shown) == pytest.approx(record["teacher"]["score"], abs=0.051)
    assert "brought by you" in text
    assert "Teacher is yours and was not trained" in text or "The teacher is yours and was not trained" in text


def test_regression(places, ratings, backbone, quick):
    assert compare.main(ask(ratings, "--lr", "1e-3", backbone=backbone, methods="truncated",
                            output=places / "out")) == 0
    text = (places / "out" / "index.html").read_text()
    assert "All methods used the learning rate 0.001. It was not tuned" in text
    assert "mean of pearson and spearman, percent (95% interval)" in text
    assert "always the mean" in text


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


# Numbers


def test_scorer_gives_what_evaluation_gives():
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 60, 60)
    for task, logits, labels in (
            (TASKS["mrpc"], rng.normal(size=(60, 2)), rng.integers(0, 2, 60)),
            (TASKS["cola"], rng.normal(size=(60, 2)), rng.integers(0, 2, 60)),
            (TASKS["stsb"], rng.normal(size=(60, 1)), rng.normal(size=60)),
            (tiny.TRIPLE, rng.normal(size=(60, 3)), rng.integers(0, 3, 60))):
        expected = evaluation.headline(task, evaluation.metrics(task, logits[rows], labels[rows]))
        assert compare_rows.scorer(task, logits, labels)(rows) == pytest.approx(expected)


def test_bootstrap_is_paired_seeded_and_as_wide_as_theory_says():
    right = np.repeat([1.0, 0.0], [300, 100])
    other = right.copy()
    other[:20] = 0  # twenty rows worse, on the same rows

    def score(values):
        return lambda rows: 100 * values[rows].mean()

    draws = stats.bootstrap({"a": score(right), "b": score(other), "c": score(right)}, 400, 2000, seed=3)
    assert np.array_equal(draws["a"], draws["c"])
    again = stats.bootstrap({"a": score(right)}, 400, 2000, seed=3)
    assert np.array_equal(draws["a"], again["a"])
    assert not np.array_equal(draws["a"], stats.bootstrap({"a": score(right)}, 400, 2000, seed=4)["a"])
    low, high = stats.percentile_interval(draws["a"])
    assert high - low == pytest.approx(2 * 1.96 * 100 * np.sqrt(0.75 * 0.25 / 400), rel=0.1)
    low, high = stats.percentile_interval(draws["a"] - draws["b"])
    share = 20 / 400  # the difference is a proportion of its own, much narrower than the two scores apart
    assert high - low == pytest.approx(2 * 1.96 * 100 * np.sqrt(share * (1 - share) / 400), rel=0.15)


def row(method, score, half=1.0, parameters=10, speed=2.0, seed=0):
    draws = score + half / 1.96 * np.random.default_rng(seed).standard_normal(1000)
    return Row(method, compare.title_of(method), "/x", "", None, Interval(score, score - half, score + half), draws,
               None, Size(parameters, parameters, parameters / 10), 2, {}, {b: Summary(speed, speed - 0.1, speed + 0.1)
                                                                            for b in (1, 32)})


def found(*rows, majority=50.0, scored=500):
    return SimpleNamespace(rows=list(rows), teacher=rows[0], students=list(rows[1:]), majority=majority, scored=scored,
                           clear=rows[0].score.low > majority, regression=False, failed={})


def test_verdict_names_ties_and_withholds_what_cannot_be_said():
    text = " ".join(compare_page.verdict(found(row("bert", 90, parameters=20), row("theseus", 85, seed=1),
                                               row("truncated", 84.8, seed=2), row("kd", 60, seed=3, speed=2.05))))
    assert "Best student by score: BERT-of-Theseus, 85.0" in text
    assert "Not told apart from it by these 500 rows: Truncated, fine-tuned." in text
    assert "Behind it by more than the chance of these rows: Vanilla KD." in text
    assert "Smallest: BERT-of-Theseus, Truncated, fine-tuned and Vanilla KD" in text
    assert "busy" not in text
    text = " ".join(compare_page.verdict(found(row("bert", 50.5), row("theseus", 85, speed=0.3))))
    assert "The machine was busy while the models were timed: the middle half of one speed-up runs from 0.20 to 0.40" \
        in text
    assert "does not clear the majority (50.0)" in text
    assert "Best student" not in text


def test_few_rows_and_perfect_scores_are_explained():
    text = " ".join(compare_page.rows_mean(found(row("bert", 100, half=0), scored=30)))
    assert "30 rows are few" in text
    assert "up to about 10 percent of new rows may still be wrong" in text
    assert "few" not in " ".join(compare_page.rows_mean(found(row("bert", 90), scored=1000)))


def test_reason_of_a_failed_notebook(tmp_path):
    path = tmp_path / "x.ipynb"
    path.write_text(json.dumps({"cells": [{"outputs": [{"output_type": "error", "ename": "InputError",
                                                        "evalue": "layers:\n no"}]}]}))
    assert compare._reason(path) == "InputError: layers: no"
    path.write_text("{")
    assert compare._reason(path) == ""


def test_a_failing_process_is_told_with_its_log(tmp_path):
    why = RUN([sys.executable, "-c", "print('hello'); raise SystemExit(3)"], tmp_path / "e" / "m.ipynb")
    assert "ended with code 3" in why
    assert (tmp_path / "e" / "m.log").read_text() == "hello\n"


# Real notebooks and kills


def alive(text: str) -> list[int]:
    out = []
    for p in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text in p.read_bytes().decode(errors="replace"):
                out.append(int(p.parent.name))
        except OSError:
            continue
    return out


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the death signal of a parent is Linux's")
def test_killed_while_a_notebook_runs_it_ends_and_goes_on(places, films, backbone):
    out = places / "out"
    command = [sys.executable, "-m", "lib.compare", *ask(films, backbone=backbone, methods="truncated", output=out)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.time() + 600
        while not list(out.rglob("bert/seed-0.json")) and time.time() < deadline:
            time.sleep(0.2)
        while not alive(str(out / "executed" / "truncated.ipynb")) and time.time() < deadline:
            time.sleep(0.1)
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    end = time.time() + 20
    while alive(str(out / "executed")) and time.time() < end:
        time.sleep(0.2)
    assert alive(str(out / "executed")) == []  # the notebook did not go on unseen
    first = next(out.rglob("bert/seed-0.json"))
    before = first.stat().st_mtime_ns
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Teacher: BERT, fine-tuned: done before" in done.stdout
    assert first.stat().st_mtime_ns == before
    assert (out / "index.html").exists()
    assert (out / "students" / "truncated" / "model.safetensors").exists()
    with compare.records_in(out):
        assert results.read(next(out.rglob("truncated/seed-0.json"))).peak_memory_mb > 0
