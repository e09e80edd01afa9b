"""What a run refuses, in one line, before training and without a record; and what it only cuts and says."""

from __future__ import annotations

import json
import shutil

import pytest
import tiny

from lib import training
from lib.errors import InputError
from lib.methods import theseus, theseus_studies, truncated
from lib.parameters import validate


@pytest.fixture
def no_training(monkeypatch):
    def fails(*_, **__):
        raise AssertionError("training has begun")

    monkeypatch.setattr(training, "train", fails)


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
    tiny.finish(run, truncated.compress)


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
