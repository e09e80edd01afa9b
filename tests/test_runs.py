"""One run from parameters to record: bad input before training, honest numbers, selection without scored rows."""

from __future__ import annotations

import json
import math
import shlex
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tiny
import torch
import yaml

from lib import evaluation, layers, models, results, runs, training, tuning
from lib.command import command
from lib.errors import InputError
from lib.methods import bert, theseus, theseus_studies, truncated
from lib.parameters import Parameters, validate
from lib.paths import ROOT


@pytest.fixture
def no_training(monkeypatch):
    def fails(*_, **__):
        raise AssertionError("training has begun")

    monkeypatch.setattr(training, "train", fails)


def finish(run, method=truncated.compress):
    student, history = run.compress(method)
    return student, run.finish(student, history)


# --- bad input: one line, before training, no record


@pytest.mark.parametrize(("changes", "words"), [
    ({"task": "rtee"}, ("task", "'rtee'", "did you mean 'rte'")),
    ({"task": "/nowhere/x.csv"}, ("task", "/nowhere/x.csv")),
    ({"backbone": "/nowhere/model"}, ("backbone", "/nowhere/model", "minilm-l6")),
    ({"backbone": "no/such-model"}, ("backbone", "hub", "local folder")),
    ({"teacher": "/nowhere/teacher"}, ("teacher", "/nowhere/teacher")),
    ({"profile": "../up"}, ("profile", "'../up'", "allowed")),
    ({"variant": "a/b"}, ("variant", "'a/b'", "allowed")),
    ({"label_column": "nope"}, ("label_column", "'nope'", "text, label")),
    ({"text_column": "nope"}, ("text_column", "'nope'")),
    ({"kind": "regression"}, ("regression needs numbers",)),
    ({"split": "test"}, ("split",)),
    ({"output": "FILE"}, ("output", "no folder that can be used")),
    ({"output": "FULL"}, ("output", "not empty")),
])
def test_bad_input(places, films, backbone, no_training, changes, words):
    (places / "file").write_text("x")
    (places / "full").mkdir()
    (places / "full" / "thesis.tex").write_text("x")
    changes = {k: {"FILE": str(places / "file"), "FULL": str(places / "full")}.get(v, v) for k, v in changes.items()}
    with pytest.raises(InputError) as e:
        tiny.run("truncated", truncated.Config, **{"task": films, "backbone": backbone, **changes})
    assert "\n" not in str(e.value)
    for w in words:
        assert w in str(e.value), str(e.value)
    assert not list(places.rglob("*.json"))
    assert not list(places.rglob("*.parquet"))


def test_teacher_that_does_not_fit_is_refused_at_the_start(places, films, backbone, no_training):
    three = tiny.save_classifier(places / "three", ["a", "b", "c"])
    named = tiny.save_classifier(places / "named", ["spam", "ham"])
    for folder, words in ((three, "has 3 outputs, task films needs 2"), (named, "spam, ham")):
        with pytest.raises(InputError, match=words):
            tiny.run("theseus", theseus.Config, films, "", teacher=str(folder))
    with pytest.raises(InputError, match="no fine-tuned classifier"):
        tiny.run("theseus", theseus.Config, films, "", teacher=backbone)
    other = tiny.save_classifier(places / "other", ["negative", "positive"])
    settings = json.loads((other / "tokenizer.json").read_text())
    settings["model"]["vocab"]["extra"] = len(settings["model"]["vocab"])
    (other / "tokenizer.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match="its vocabulary is not that of backbone"):
        tiny.run("theseus", theseus.Config, films, backbone, teacher=str(other))


def test_no_room_for_the_record_shows_before_training(places, films, backbone, no_training, monkeypatch):
    (places / "blocked").write_text("x")
    monkeypatch.setenv("BERT_RESULTS", str(places / "blocked"))
    with pytest.raises(InputError, match="cannot write"):
        tiny.run("truncated", truncated.Config, films, backbone)

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("BERT_RESULTS", str(places / "results"))
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match=r"No space left on device; free some space or set BERT_RESULTS/BERT_BUILD"):
        tiny.run("truncated", truncated.Config, films, backbone)


def test_tokens_without_an_embedding(places, films, backbone):
    folder = places / "small"
    shutil.copytree(backbone, folder)
    settings = json.loads((folder / "tokenizer.json").read_text())
    words = settings["model"]["vocab"]
    film = words.pop("film")
    words |= {"film": len(words) + 1, "unused": film}
    (folder / "tokenizer.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match=rf"gives token {tiny.SIZE}, it has {tiny.SIZE} embeddings"):
        tiny.run("truncated", truncated.Config, films, str(folder))


def test_longer_rows_than_positions_are_cut_and_it_is_said(places, backbone, capsys):
    lines = [(" ".join([t] * 20), c) for t, c, _ in tiny.rows(60)]
    task = tiny.write_csv(places / "long.csv", ("text", "label"), lines)
    run = tiny.run("truncated", truncated.Config, str(task), backbone, max_length=512)
    assert run.train.lengths.max() == tiny.POSITIONS
    assert f"takes {tiny.POSITIONS} tokens at most" in capsys.readouterr().out
    finish(run)


def test_a_seed_for_tuning_is_none_of_the_reported(places, films, backbone, no_training):
    run = tiny.run("truncated", truncated.Config, films, backbone, lr_grid=[1e-3], seed=4, tuning_seed=4)
    with pytest.raises(InputError, match="tuning_seed: 4 is also the run's seed"):
        run.compress(truncated.compress)


@pytest.mark.parametrize(("check", "changes"), [
    (lambda p: truncated.plan(p), {"layers": 9}), (theseus_studies.variants, {"modules": [1, 1]}),
    (theseus_studies.variants, {"only_module": 7}),
])
def test_what_does_not_fit_the_depth_is_found_from_configurations_alone(films, backbone, check, changes):
    config = truncated.Config if "layers" in changes else theseus_studies.Config
    with pytest.raises(InputError):
        check(validate(config, {"task": films, "backbone": backbone, **changes}))


# --- the record


@pytest.fixture(scope="module")
def done(films, backbone, tmp_path_factory):
    """A finished Theseus run: (folder, run, student, record)."""
    folder = tmp_path_factory.mktemp("done")
    with pytest.MonkeyPatch.context() as m:
        m.setenv("BERT_RESULTS", str(folder / "results"))
        m.setenv("BERT_BUILD", str(folder / "build"))
        run = tiny.run("theseus", theseus.Config, films, backbone, epochs=3, max_rows=0, score_curve=True,
                       evaluations=3)
        student, record = finish(run, theseus.compress)
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


def test_output_goes_where_asked(places, films, backbone):
    run = tiny.run("truncated", truncated.Config, films, backbone, output=str(places / "my" / "student"))
    finish(run)
    assert (places / "my" / "student" / "model.safetensors").exists()
    assert not (run.folder / "student").exists()


def test_a_second_run_says_that_it_replaces(places, films, backbone, capsys):
    finish(tiny.run("truncated", truncated.Config, films, backbone))
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
        _, record = finish(tiny.run("theseus", theseus.Config, films, backbone), theseus.compress)
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
    student, record = finish(run, theseus.compress)
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


# --- the command


def told(command: str) -> dict:
    """Parameters as papermill would hand them over from a command line."""
    words, values = shlex.split(command), {}
    assert words[0] == "papermill"
    notebook = ROOT / words[1]
    assert notebook.exists()
    files, rest, i = [], {}, 3
    while i < len(words):
        if words[i] == "-f":
            files.append(yaml.safe_load((ROOT / words[i + 1]).read_text()))
            i += 2
        elif words[i] == "-y":
            rest |= yaml.safe_load(words[i + 1])
            i += 2
        else:
            rest[words[i + 1]] = words[i + 2] if words[i] == "-r" else yaml.safe_load(words[i + 2])
            i += 3
    for f in files:
        values |= f
    return values | rest


@pytest.mark.parametrize(("method", "cls", "changes"), [
    ("bert", bert.Config, {}),
    ("truncated", truncated.Config, {"layers": 3, "text_column": "my text", "seed": 5, "warmup": 0.0}),
    ("theseus", theseus_studies.Config, {"schedule": "constant", "variant": "constant", "equivalent_lr": True}),
    ("theseus", theseus_studies.Config, {"modules": [1, 3], "lr_grid": [1e-4, 2e-4], "epochs": 0.5}),
    ("theseus", theseus_studies.Config, {"task": "/a b/it's.csv", "teacher": "/t", "output": "/o"}),
    ("theseus", theseus_studies.Config, {"profile": "glue", "task": "rte", "seed": 2}),
    ("theseus", theseus_studies.Config, {"profile": "glue", "epochs": 1, "max_tokens": 0, "score_curve": False}),
    ("truncated", truncated.Config, {"profile": "demo", "batch_size": 8}),
    ("theseus", theseus_studies.Config, {"profile": "glue", "task": "squad1", "stride": 40}),
    ("bert", bert.Config, {"profile": "no-such-profile", "lr": 5e-5}),
])
def test_command_makes_the_same_parameters_again(method, cls, changes):
    profile = ROOT / "notebooks" / "profiles" / f"{changes.get('profile', 'custom')}.yaml"
    task = changes.get("task", "movies").replace("/", "")
    own = [profile.with_name(f"{profile.stem}-{name}.yaml") for name in (method, task)]
    files = {k: v for f in (profile, *own) if f.exists() for k, v in yaml.safe_load(f.read_text()).items()}
    p = validate(cls, {**files, **changes})
    run = runs.Run(method, p, None, None, {})
    again = validate(cls, told(command(run.method, run.p)))
    chosen = {"lr": p.lr} if p.lr_grid else {}  # the grid decides
    assert again.model_copy(update={"output": p.output, **chosen}) == p


def test_command_of_a_run_of_a_study_can_be_run(monkeypatch):
    """A study's run has its changes and a variant's name; with both again the notebook would refuse."""
    monkeypatch.setattr(models, "depth", lambda name: 6)
    for study in theseus_studies.STUDIES:
        for p in theseus_studies.variants(validate(theseus_studies.Config, {"study": study})):
            again = validate(theseus_studies.Config, told(command("theseus", p)))
            one, = theseus_studies.variants(again)
            assert one == p.model_copy(update={"study": "none"})


# --- identity


def test_identity_sees_what_is_computed_and_not_what_it_is_called(places, films, backbone):
    def key(**changes):
        run = tiny.run("truncated", truncated.Config, **{"task": films, "backbone": backbone, **changes})
        return json.dumps(run.identity, sort_keys=True)

    first = key()
    assert key(profile="other") == key(output=str(places / "o")) == first
    study = [json.dumps(tiny.run("theseus", theseus_studies.Config, films, backbone, study=s).identity)
             for s in ("none", "strategy")]
    assert study[0] == study[1]  # the plain run of a study is the plain run
    assert len({first, key(seed=1), key(lr=1e-4), key(epochs=2), key(max_rows=20), key(layers=3), key(variant="x"),
                key(backbone=str(tiny.save_encoder(places / "b", seed=9)))}) == 8


def test_two_configurations_in_one_place_do_not_take_up_each_other(places, films, backbone, monkeypatch):
    settings = runs.Run.settings
    monkeypatch.setattr(runs.Run, "settings", lambda self, **k: settings(self, **{"checkpoint_seconds": 0.0, **k}))
    wanted, _ = truncated.compress(tiny.run("truncated", truncated.Config, films, backbone, epochs=2))
    shutil.rmtree(places / "build")
    supervised = bert.supervised

    def failing(model, batch, step):
        if step.index == 5:
            raise KeyboardInterrupt
        return supervised(model, batch, step)

    with monkeypatch.context() as m:
        m.setattr(bert, "supervised", failing)
        with pytest.raises(KeyboardInterrupt):
            truncated.compress(tiny.run("truncated", truncated.Config, films, backbone, epochs=2, lr=1e-4))
    assert len(list(places.rglob("step-*"))) == 2
    got, _ = truncated.compress(tiny.run("truncated", truncated.Config, films, backbone, epochs=2))
    assert tiny.same(tiny.state(got), tiny.state(wanted))


# --- selection


def test_scored_rows_decide_nothing(places, backbone):
    """Two folders that differ in the labels of the scored rows only: the same student, bit for bit."""
    students = []
    for i in range(2):
        folder = places / f"{i}" / "films"
        lines = tiny.rows(120)
        tiny.write_csv(folder / "train.csv", ("text", "label"), [(t, c) for t, c, _ in lines[:100]])
        flipped = [(t, c if i == 0 else {"positive": "negative", "negative": "positive"}[c]) for t, c, _ in lines[100:]]
        tiny.write_csv(folder / "test.csv", ("text", "label"), flipped)
        run = tiny.run("theseus", theseus.Config, str(folder), backbone, epochs=2, score_curve=True,
                       lr_grid=[1e-3, 3e-3])
        student, record = finish(run, theseus.compress)
        students.append((tiny.state(student), record))
    (a, ra), (b, rb) = students
    assert tiny.same(a, b)
    assert ra.score == pytest.approx(100 - rb.score)
    assert ra.selection == rb.selection


def scored_by_lr(scores: dict, tokens=10):
    """A method whose held-out score is decided by its learning rate."""
    def method(run, teacher):
        model = run.backbone()
        score = scores[run.p.lr]
        if score == "diverges":
            raise RuntimeError("x: the loss was not finite for 10 steps in a row (step 12, lr 1); lower lr")
        return model, training.History(kept_score=score, tokens=tokens)

    return method


@pytest.mark.parametrize(("scores", "default", "chosen"), [
    ({1e-4: 60.0, 2e-4: 90.0, 4e-4: 70.0}, 1e-4, 2e-4),  # far better than the default
    ({1e-4: 80.0, 2e-4: 81.0, 4e-4: 70.0}, 1e-4, 1e-4),  # within one standard error of it
    ({1e-4: 80.0, 2e-4: 81.0, 4e-4: 70.0}, 3e-4, 2e-4),  # the default is not in the grid
    ({1e-4: "diverges", 2e-4: 55.0, 4e-4: None}, 1e-4, 2e-4),  # what diverged loses, and stops nothing
])
def test_rate_is_chosen_on_the_held_out_rows(places, films, backbone, scores, default, chosen):
    run = tiny.run("truncated", truncated.Config, films, backbone, lr=default, lr_grid=list(scores), tuning_tokens=100)
    run.teacher()
    picked = run.tuned(scored_by_lr(scores))
    assert picked.p.lr == chosen
    assert picked.p.seed == 0
    assert picked.selection["chosen"] == {"lr": chosen}
    assert picked.selection["grid"] == {"lr": list(scores)}
    assert [s["score"] for s in picked.selection["scores"]] == [
        tuning.DIVERGED if s in ("diverges", None) else s for s in scores.values()]
    assert picked.selection["tuning_seed"] == 1000


def test_an_error_that_is_no_divergence_stops_the_grid(places, films, backbone):
    run = tiny.run("truncated", truncated.Config, films, backbone, lr_grid=[1e-4])

    def broken(run, teacher):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1"):
        run.tuned(broken)


def test_trials_are_shared_by_all_seeds_and_use_the_tuning_seed(places, films, backbone, monkeypatch):
    seen = []

    def method(run, teacher):
        seen.append((run.p.seed, run.p.lr, run.p.max_tokens, run.trial, run.p.score_curve))
        return truncated.compress(run)

    chosen = set()
    for seed in (0, 1):
        run = tiny.run("truncated", truncated.Config, films, backbone, seed=seed, lr_grid=[1e-3, 3e-3],
                       tuning_tokens=300, score_curve=True)
        run.compress(method)
        chosen.add(run.p.lr)
    assert seen[:2] == [(1000, 1e-3, 300, True, False), (1000, 3e-3, 300, True, False)]
    assert [s[0] for s in seen[2:]] == [0, 1]
    assert len(chosen) == 1
    assert [s[3] for s in seen[2:]] == [False, False]
    monkeypatch.setattr(tuning, "code_hash", lambda method: "of mended code")
    tiny.run("truncated", truncated.Config, films, backbone, seed=0, lr_grid=[1e-3, 3e-3],
             tuning_tokens=300, score_curve=True).compress(method)
    assert [s[0] for s in seen[4:]] == [1000, 1000, 0]  # what other code found out is found out again


def test_kept_state_is_chosen_by_held_out_and_scored_is_only_watched(done):
    _, run, student, record = done
    values = evaluation.metrics(run.task, evaluation.predict(student, run.sets["held_out"]),
                                run.sets["held_out"].labels)
    assert record.selection.held_out_score == pytest.approx(100 * values["accuracy"], abs=100 / len(
        run.sets["held_out"]) + 1e-6)
    assert "scored" not in record.selection.model_dump()


def test_profile_parameters_reach_the_loop(places, films, backbone):
    run = tiny.run("truncated", truncated.Config, films, backbone, batch_size=4, accumulation=2, warmup=0.2,
                   weight_decay=0.01, max_grad_norm=0.5, adam_epsilon=1e-6, max_tokens=100, epochs=1.5, seed=3)
    s = run.settings()
    for name in ("batch_size", "accumulation", "warmup", "weight_decay", "max_grad_norm", "adam_epsilon", "max_tokens",
                 "epochs", "seed", "lr", "evaluations", "precision"):
        assert getattr(s, name) == getattr(run.p, name)


def test_every_setting_of_the_loop_that_is_a_parameter_is_passed_on():
    shared = set(training.Settings.__dataclass_fields__) & set(Parameters.model_fields)
    assert {"lr", "epochs", "max_tokens", "batch_size", "accumulation", "warmup", "weight_decay", "max_grad_norm",
            "adam_epsilon", "precision", "evaluations", "seed"} == shared
