"""The record of a run and what lies beside it: numbers that follow from the predictions, the student, the teacher."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tiny
import torch

from lib import artefacts, evaluation, layers, models, results
from lib.methods import bert, theseus, truncated

# --- one finished run


@pytest.fixture(scope="module")
def done(films, backbone, tmp_path_factory):
    """A finished Theseus run: (folder, run, student, record)."""
    folder = tmp_path_factory.mktemp("done")
    with pytest.MonkeyPatch.context() as m:
        m.setenv("BERT_RESULTS", str(folder / "results"))
        m.setenv("BERT_BUILD", str(folder / "build"))
        run = tiny.run("theseus", theseus.Config, films, backbone, epochs=3, max_rows=0, score_curve=True,
                       evaluations=3)
        student, record = tiny.finish(run, theseus.compress)
    return folder, run, student, record


def test_numbers_follow_from_the_predictions_beside_the_record(done):
    folder, run, student, record = done
    frame = pd.read_parquet(folder / "results/runs/test/tiny-bert/films/theseus/seed-0.parquet")
    z, y = frame[["logit_0", "logit_1"]].to_numpy(), frame["label"].to_numpy()
    assert len(frame) == record.rows == len(run.data.scored)
    assert y.tolist() == run.data.scored["label"]
    assert frame["idx"].tolist() == run.data.scored["idx"]
    assert record.metrics == {"accuracy": pytest.approx((z.argmax(1) == y).mean())}
    assert record.score == pytest.approx(100 * record.metrics["accuracy"])
    labels = np.array(run.data.train["label"])
    assert record.majority == pytest.approx(100 * (y == np.bincount(labels).argmax()).mean())
    teacher = evaluation.predict(run.teacher().model, run.sets["scored"])
    assert record.teacher.score == pytest.approx(100 * (teacher.argmax(1) == y).mean())
    assert record.loyalty.label == pytest.approx(100 * (teacher.argmax(1) == z.argmax(1)).mean())
    assert record.retention == pytest.approx(100 * record.score / record.teacher.score)
    above = record.teacher.score - record.majority
    expected = 100 * (record.score - record.majority) / above if above > 0 else None
    assert record.retention_above_majority == (expected if expected is None else pytest.approx(expected))
    np.testing.assert_allclose(evaluation.predict(student, run.sets["scored"]), z, atol=1e-6)
    np.testing.assert_array_equal(frame[["teacher_logit_0", "teacher_logit_1"]], teacher)


def test_record_says_what_was_run(done):
    folder, run, student, record = done
    assert (record.profile, record.backbone, record.task, record.method, record.variant, record.seed) == (
        "test", "tiny-bert", "films", "theseus", "", 0)
    assert (record.split, record.headline, record.layers, record.paper) == ("test", "accuracy", 2, "theseus")
    assert record.data.rows == run.data.rows
    assert record.data.sha256 == run.data.hashes
    assert record.data.source == "own file films.csv"
    assert record.parameters == sum(p.numel() for p in student.parameters())
    assert record.parameters_without_embeddings < record.parameters
    assert record.hyperparameters["lr"] == 3e-3
    assert record.hyperparameters["base_rate"] == 0.3
    assert record.environment.precision == "fp32"
    assert record.environment.threads == torch.get_num_threads()
    per_epoch = math.ceil(len(run.train) / 16)
    assert record.steps == 3 * per_epoch
    assert record.tokens == 3 * int(run.train.lengths.sum())
    assert record.wall_seconds > 0
    assert record.tokens_per_second == pytest.approx(record.tokens / record.wall_seconds)
    assert 0 < record.padding_share < 0.5
    assert {"loss", "held_out", "scored", "replacing_rate"} <= record.curve.keys()
    assert len(record.curve["held_out"]) == 3
    assert record.best_on_scored_split == max(v for _, v in record.curve["scored"])
    assert record.selection.step in [s for s, _ in record.curve["held_out"]]
    assert record.selection.held_out_score == dict(map(tuple, record.curve["held_out"]))[record.selection.step]
    assert [a.kind for a in record.artefacts] == ["teacher"]
    assert record.teacher.artefact == record.artefacts[0].key
    assert record.teacher.tokens > 0
    assert "scaled down" in record.scale
    assert record.initial_checkpoint.startswith("tiny-bert (")
    assert results.Record.model_validate(json.loads(json.dumps(record.model_dump()))) == record


def test_student_lies_there_and_the_checkpoints_are_gone(done):
    folder, run, student, record = done
    place = folder / "build/runs/test/tiny-bert/films/theseus/seed-0"
    again = models.load_classifier(str(place / "student"), run.task)
    np.testing.assert_allclose(evaluation.predict(again, run.sets["scored"]),
                               evaluation.predict(student, run.sets["scored"]), atol=1e-6)
    assert not list(folder.rglob("step-*"))


def test_training_rows_are_none_of_the_others(done):
    _, run, _, _ = done
    parts = [set(getattr(run.data, n)["text"]) for n in ("train", "held_out", "scored")]
    assert len(set.union(*parts)) == sum(map(len, parts))


def test_kept_state_is_chosen_by_held_out_and_scored_is_only_watched(done):
    _, run, student, record = done
    values = evaluation.metrics(run.task, evaluation.predict(student, run.sets["held_out"]),
                                run.sets["held_out"].labels)
    assert record.selection.held_out_score == pytest.approx(100 * values["accuracy"], abs=100 / len(
        run.sets["held_out"]) + 1e-6)
    assert "scored" not in record.selection.model_dump()


# --- other runs


def test_output_goes_where_asked(places, films, backbone):
    run = tiny.run("truncated", truncated.Config, films, backbone, output=str(places / "my" / "student"))
    tiny.finish(run, truncated.compress)
    assert (places / "my" / "student" / "model.safetensors").exists()
    assert not (run.folder / "student").exists()


def test_a_second_run_says_that_it_replaces(places, films, backbone, capsys):
    tiny.finish(tiny.run("truncated", truncated.Config, films, backbone), truncated.compress)
    capsys.readouterr()
    tiny.run("truncated", truncated.Config, films, backbone)
    said = capsys.readouterr().out
    assert "a record exists" in said
    assert "other rows" not in said
    other = places / "elsewhere" / Path(films).name
    other.parent.mkdir()
    other.write_text(Path(films).read_text().replace("good", "great"))
    tiny.run("truncated", truncated.Config, str(other), backbone)
    assert "made from other rows: give another `profile` or rename" in capsys.readouterr().out


def test_same_parameters_same_record(places, films, backbone, monkeypatch):
    texts = []
    for name in ("a", "b"):
        monkeypatch.setenv("BERT_RESULTS", str(places / name))
        monkeypatch.setenv("BERT_BUILD", str(places / f"build-{name}"))
        _, record = tiny.finish(tiny.run("theseus", theseus.Config, films, backbone), theseus.compress)
        texts.append(tiny.record_without_times(record.model_dump()))
    assert texts[0] == texts[1]


def test_teachers_own_record(places, films, backbone):
    run = tiny.run("bert", bert.Config, films, backbone, epochs=2)
    model, history = bert.from_artefact(run)
    record = run.finish(model, history)
    assert (record.teacher, record.retention, record.loyalty) == (None, None, None)
    assert (record.layers, record.paper) == (tiny.LAYERS, "bert")
    again = tiny.run("bert", bert.Config, films, backbone, epochs=2)  # out of the artefact: nothing is trained
    model, history = bert.from_artefact(again)
    assert tiny.record_without_times(again.finish(model, history).model_dump()) == tiny.record_without_times(
        record.model_dump())


def test_a_brought_teacher_is_used_and_named(places, films):
    folder = tiny.save_classifier(places / "mine", ["positive", "negative"])
    run = tiny.run("theseus", theseus.Config, films, "", teacher=str(folder))
    student, record = tiny.finish(run, theseus.compress)
    assert record.backbone == "mine"
    assert (record.teacher.artefact, record.teacher.source) == (None, "own checkpoint mine")
    assert (record.teacher.seconds, record.artefacts) == (0, [])
    stored = models.load_classifier(str(folder), run.task)
    assert torch.equal(student.classifier.weight, stored.classifier.weight)
    assert student.config.id2label == {0: "negative", 1: "positive"}


def test_a_student_of_nan_leaves_no_record(places, films, backbone):
    run = tiny.run("truncated", truncated.Config, films, backbone)
    student, history = run.compress(truncated.compress)
    with torch.no_grad():
        layers.output_layer(student).bias.fill_(math.nan)
    with pytest.raises(RuntimeError, match="not finite, so there is no record"):
        run.finish(student, history)
    assert not run.record_path.exists()
    assert not run.output.exists()


def test_a_student_of_a_stage_that_diverged_leaves_no_record(places, films, backbone):
    """Such a student may have finite outputs, and a score that says nothing of its method."""
    run = tiny.run("truncated", truncated.Config, films, backbone)
    student, history = run.compress(truncated.compress)
    meta = {"mlm": {"diverged": "the loss is not finite (step 7, lr 1)"}}
    run.artefacts.append(artefacts.Artefact("pdbert", "0" * 16, places, meta))
    with pytest.raises(RuntimeError, match=r"the stage before the task diverged \(the loss is not finite"):
        run.finish(student, history)
    assert not run.record_path.exists()
    run.artefacts.pop()
    assert run.finish(student, history).score > 0
