"""SQuAD: the official scores by hand, windows that hold the answer, decoding against brute force, whole runs."""

from __future__ import annotations

import copy
import json
import math
import os
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pytest
import tiny
import torch
from transformers import AutoModelForQuestionAnswering

from lib import data, layers, models, results, runs, spans, squad
from lib.errors import InputError
from lib.methods import bert, kd, layerdrop, theseus, truncated
from lib.parameters import validate
from lib.tasks import TASKS

# --- the official scores


@pytest.mark.parametrize(("prediction", "answer", "em", "f1"), [
    ("The Normans.", "normans", 1, 1), ("a  red, fox", "red fox", 1, 1), ("red fox", "the red dog", 0, 2 * 1 / 4),
    ("one two two", "two two three", 0, 2 * 2 / 6), ("the", "", 1, 1), ("", "fox", 0, 0), ("fox", "", 0, 0),
    ("theatre", "atre", 0, 0),  # an article is a word, not letters
])
def test_scores_by_hand(prediction, answer, em, f1):
    assert squad.score(prediction, [answer]) == (em, pytest.approx(f1))


def test_the_best_accepted_answer_counts_and_no_answer_is_empty():
    assert squad.score("red fox", ["blue dog", "red fox jumps", "red"]) == (0, pytest.approx(0.8))
    assert squad.score("", []) == (1, 1)
    assert squad.score("fox", []) == (0, 0)
    assert squad.score("", ["the", "fox"]) == (0, 0)  # an answer of articles alone is none, another one remains


# --- rows


def row(i, title, context, question, *answers):
    return {"id": f"q{i}", "title": title, "context": context, "question": question,
            "answers": {"text": list(answers), "answer_start": [context.index(a) for a in answers]}}


def made(articles=8, each=6, unanswerable=False):
    """Questions on the word after a cue, in paragraphs of filler."""
    rng, rows = np.random.default_rng(0), []
    for a in range(articles):
        for q in range(each):
            words = list(rng.choice(tiny.FILLER, 20 + 3 * q))
            target, place = str(rng.choice(tiny.GOOD)), int(rng.integers(0, len(words)))
            words[place:place] = ["bad", target]
            context = " ".join(words)
            answers = [] if unanswerable and q % 3 == 0 else [target]
            rows.append(row(len(rows), f"Article {a}", context, "what is it", *answers))
    return pd.DataFrame(rows)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for version, frame in (("v1.1", made()), ("v2.0", made(unanswerable=True))):
        (tmp_path / "squad" / version).mkdir(parents=True)
        frame.to_parquet(tmp_path / "squad" / version / "validation.parquet")
    made(12).to_parquet(tmp_path / "squad" / "v1.1" / "train_part.parquet")
    monkeypatch.setenv("SQUAD_DIR", str(tmp_path / "squad"))
    monkeypatch.setenv("BERT_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("BERT_BUILD", str(tmp_path / "build"))
    return tmp_path / "squad"


def test_articles_stand_on_one_side_only(folder):
    for name in ("squad1", "squad2"):
        found = data.load(name)
        titles = [set(getattr(found, part)["title"]) for part in ("train", "held_out", "scored")]
        pairs = [(titles[0], titles[1])] + ([(titles[0] | titles[1], titles[2])] if name == "squad2" else [])
        assert all(not a & b for a, b in pairs)
    assert found.source == ("SQUAD_DIR validation, split by article: 70% train, 30% scored, because there is no "
                            "training file")
    assert found.rows["train"] + found.rows["held_out"] + found.rows["validation"] == 48
    assert len(data.load("squad1", max_rows=10).train) == 10
    assert data.load("squad1", max_rows=10).key != data.load("squad1").key


def test_files_that_do_not_serve(folder, monkeypatch):
    frame = made()
    frame.at[3, "answers"] = {"text": ["lovely"], "answer_start": [1]}
    frame.to_parquet(folder / "v1.1" / "validation.parquet")
    with pytest.raises(InputError, match="question q3: its answer does not stand at character 1"):
        data.load("squad1")
    frame.drop(columns="title").to_parquet(folder / "v1.1" / "validation.parquet")
    with pytest.raises(InputError, match="no column 'title'"):
        data.load("squad1")
    with pytest.raises(InputError, match="split 'test'|split.*test"):
        data.load("squad1", split="test")
    monkeypatch.setenv("SQUAD_DIR", str(folder / "nowhere"))
    with pytest.raises(InputError, match="has no v2.0/validation.parquet"):
        data.load("squad2")


# --- windows


def rows_of(*items):
    return datasets.Dataset.from_list([
        {"idx": i, "id": f"q{i}", "title": "t", "text": q, "text_2": c, "answers": list(a),
         "starts": [c.index(x) for x in a]} for i, (q, c, *a) in enumerate(items)])


def long_rows():
    words = [w for _ in range(4) for w in tiny.FILLER]
    words[60] = "lovely"
    return rows_of(("who saw it", " ".join(words), "lovely"), ("what", "the good film", "good film"),
                   ("what", "a plot"))


def test_windows_cover_the_paragraph_and_mark_the_answer(monkeypatch):
    monkeypatch.setattr(spans, "QUESTION", 8)
    rows, tokenizer = long_rows(), tiny.tokenizer()
    found = spans.encode(rows, tokenizer, 48, 10)
    assert found.index.tolist().count(0) > 2
    assert found.index.tolist()[-2:] == [1, 2]
    assert found.lengths.max() <= 48
    covered: dict[int, set[int]] = {}
    for i, owner in enumerate(found.index):
        context, (first, last) = rows["text_2"][owner], found.labels[i]
        for a, b in found.offsets[i]:
            covered.setdefault(owner, set()).update(range(a, b) if a >= 0 else ())
        text = context[found.offsets[i][first][0] : found.offsets[i][last][1]]
        whole = bool(rows["answers"][owner]) and any(
            a == context.index(rows["answers"][owner][0]) for a, _ in found.offsets[i])
        assert text == rows["answers"][owner][0] if whole else (first, last) == (0, 0)
    for owner, characters in covered.items():
        assert {k for k, c in enumerate(rows["text_2"][owner]) if c != " "} <= characters
    assert sum((found.labels[found.index == 0] > 0).all(1)) >= 1


def test_long_questions_are_cut_and_windows_without_room_refused():
    rows = rows_of((" ".join(["film"] * 90), "the good film", "good film"))
    found = spans.encode(rows, type("T", (), {"__call__": lambda s, *a, **k: tiny.tokenizer()(*a, **k),
                                               "model_max_length": 100, "pad_token_id": 0})(), 100, 10)
    assert found.inputs["input_ids"][0].count(tiny.VOCABULARY.index("film")) == spans.QUESTION + 1
    with pytest.raises(InputError, match="stride: 60 is too large for windows of 64 tokens"):
        spans.encode(rows, tiny.tokenizer(), 64, 60)


# --- decoding


def test_best_span_is_the_best_of_all():
    rng = np.random.default_rng(3)
    for _ in range(20):
        n = 50
        start, end = rng.normal(size=(2, n))
        offsets = np.stack([np.arange(n) * 5, np.arange(n) * 5 + 4], -1)
        offsets[:7] = -1
        offsets[45:] = -1
        best = max((start[i] + end[j], 5 * i, 5 * j + 4) for i in range(7, 45) for j in range(i, min(45, i + 30)))
        assert spans.best_span(start, end, offsets) == pytest.approx(best)
    assert spans.best_span(start, end, np.full((n, 2), -1))[0] == -np.inf


class Oracle(torch.nn.Module):
    """Logits from a table by the row numbers in the batch."""

    def __init__(self, table):
        super().__init__()
        self.table, self.one = table, torch.nn.Parameter(torch.zeros(1))
        self.config = type("C", (), {"num_hidden_layers": 0})()

    @property
    def base_model(self):
        return self

    def forward(self, input_ids, **_):
        return spans.Output(logits=self.table[: len(input_ids), : input_ids.shape[1]])


def test_a_question_takes_the_best_window_and_the_lowest_no_answer(monkeypatch):
    monkeypatch.setattr(spans, "QUESTION", 8)
    rows = long_rows()
    found = spans.encode(rows, tiny.tokenizer(), 48, 10)
    order = np.argsort(-found.lengths, kind="stable")
    table = torch.from_numpy(np.random.default_rng(0).normal(size=(len(found), 48, 2)).astype(np.float32))
    got = spans.predict(Oracle(table), found)
    for q in range(3):
        windows = [(found.offsets[w], table[list(order).index(w), : found.lengths[w]].numpy())
                   for w in range(len(found)) if found.index[w] == q]
        scores = [spans.best_span(v[:, 0], v[:, 1], o) for o, v in windows]
        assert got["score"][q] == pytest.approx(max(scores)[0])
        assert got["answer"][q] == rows["text_2"][q][max(scores)[1] : max(scores)[2]]
        assert got["none"][q] == pytest.approx(min(v[0].sum() for _, v in windows))
    table[list(order).index(0), 3, 0] = math.nan
    bad = spans.marked(spans.predict(Oracle(table), found), rows, None)
    assert np.isnan(bad["f1"]).tolist() == [True, False, False]


def test_threshold_is_the_best_on_its_rows():
    rng = np.random.default_rng(1)
    rows = rows_of(*[("q", "red fox dog", *(["red fox"] if i % 2 else [])) for i in range(40)])
    for _ in range(4):
        found = pd.DataFrame({"idx": range(40), "answer": rng.choice(["red", "red fox", "dog"], 40),
                              "score": rng.normal(size=40), "none": rng.normal(size=40)})
        chosen = spans.best_threshold(found, rows)
        value = spans.marked(found, rows, chosen)["f1"].mean()
        every = [spans.marked(found, rows, t)["f1"].mean() for t in np.linspace(-6, 6, 80)]
        assert value >= max(every) - 1e-12


# --- the model


def model_of(kind="bert", **changes):
    torch.manual_seed(0)
    return spans.install(AutoModelForQuestionAnswering.from_config(tiny.config(kind, **changes)).eval())


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
def test_logits_are_the_librarys_and_padding_changes_none(kind):
    model = model_of(kind)
    plain = copy.deepcopy(model)
    plain.__class__ = type(model).__mro__[2]
    ids = torch.randint(5, tiny.SIZE, (2, 9))
    mask = torch.ones_like(ids)
    with torch.no_grad():
        out, theirs = model(input_ids=ids, attention_mask=mask), plain(input_ids=ids, attention_mask=mask)
        torch.testing.assert_close(out.logits, torch.stack([theirs.start_logits, theirs.end_logits], -1))
        wide = torch.nn.functional.pad(ids, (0, 6)), torch.nn.functional.pad(mask, (0, 6))
        padded = model(input_ids=wide[0], attention_mask=wide[1]).logits
    torch.testing.assert_close(padded[:, :9], out.logits, atol=1e-5, rtol=1e-5)
    labels = torch.tensor([[1, 3], [0, 0]])
    torch.testing.assert_close(bert.task_loss(padded, labels), bert.task_loss(out.logits, labels))
    assert spans.install(model) is model


def test_the_task_loss_is_the_mean_of_start_and_end():
    logits = np.random.default_rng(0).normal(size=(3, 7, 2))
    labels = np.array([[1, 2], [0, 0], [6, 6]])
    log = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    expected = -np.mean([log[i, labels[i, k], k] for i in range(3) for k in range(2)])
    got = bert.task_loss(torch.from_numpy(logits), torch.from_numpy(labels))
    assert float(got) == pytest.approx(expected, rel=1e-6)


# --- whole runs


def run_of(method, config, backbone, task="squad1", **changes):
    p = validate(config, {"task": task, "backbone": str(backbone), "max_length": 64, "stride": 16, "epochs": 1,
                          "batch_size": 8, "precision": "fp32", "evaluations": 2, "teacher_epochs": 1, **changes})
    return runs.start(method, p)


@pytest.fixture
def small_questions(monkeypatch):
    monkeypatch.setattr(spans, "QUESTION", 8)


@pytest.mark.parametrize(("method", "module"), [("truncated", truncated), ("theseus", theseus),
                                                ("layerdrop", layerdrop)])
@pytest.mark.parametrize("task", ["squad1", "squad2"])
def test_a_run_leaves_a_record_and_a_student_that_the_library_opens(folder, tmp_path, small_questions, method, module,
                                                                     task):
    backbone = tiny.save_encoder(tmp_path / "backbone")
    run = run_of(method, module.Config, backbone, task)
    student, history = run.compress(module.compress)
    record = run.finish(student, history)
    assert set(record.metrics) == {"em", "f1"}
    assert record.score == pytest.approx(100 * record.metrics["f1"])
    assert record.rows == len(run.data.scored)
    assert record.hyperparameters["stride"] == 16
    frame = pd.read_parquet(results.path_of(record).with_suffix(".parquet"))
    assert frame["f1"].mean() == pytest.approx(record.metrics["f1"])
    assert record.majority == (0.0 if task == "squad1" else pytest.approx(
        100 * np.mean([not a for a in run.data.scored["answers"]])))
    again = AutoModelForQuestionAnswering.from_pretrained(run.output)
    assert json.loads((run.output / "config.json").read_text())["architectures"] == ["BertForQuestionAnswering"]
    batch = run.sets["scored"].batch(np.arange(4))
    with torch.no_grad():
        ours = layers.classify(student.eval(), batch)
        theirs = again(**{k: batch[k] for k in layers.INPUTS if k in batch})
    seen = batch["attention_mask"].bool()
    torch.testing.assert_close(ours[seen], torch.stack([theirs.start_logits, theirs.end_logits], -1)[seen],
                               atol=1e-5, rtol=1e-4)


def test_a_student_learns_where_answers_stand(folder, tmp_path, small_questions):
    made(24, 8).to_parquet(folder / "v1.1" / "train_part.parquet")
    backbone = tiny.save_encoder(tmp_path / "backbone", initializer_range=0.1)
    run = run_of("bert", bert.Config, backbone, epochs=14, lr=2e-3)
    model, _ = run.compress(lambda r, t: bert.from_artefact(r))
    assert run.metrics(model, "scored")["em"] > 0.6


def test_methods_and_classes_that_do_not_fit_are_refused(folder, tmp_path):
    backbone = tiny.save_encoder(tmp_path / "backbone")
    with pytest.raises(InputError, match="task squad1: kd does not answer with spans; allowed: bert, truncated"):
        run_of("kd", kd.Config, backbone)
    with pytest.raises(InputError, match="stride: 40 is too large"):
        run_of("bert", bert.Config, backbone, stride=40)
    classifier = tiny.save_classifier(tmp_path / "classifier", ["a", "b"])
    with pytest.raises(InputError, match="teacher .*: is no fine-tuned"):
        models.load_classifier(str(classifier), TASKS["squad1"])


@pytest.mark.skipif(not (Path(os.environ.get("SQUAD_DIR", "")) / "v1.1").is_dir(), reason="SQUAD_DIR is not set")
def test_the_real_rows_are_read():
    found = data.load("squad1")
    assert found.rows == {"train": found.rows["train"], "held_out": found.rows["held_out"], "validation": 10570}
