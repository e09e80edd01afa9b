"""Result records: checked on write and on read, whole or not there, each at its own place, none silently dropped."""

from __future__ import annotations

import json
import math
import os
import warnings

import pandas as pd
import pytest
from synthetic_records import put, record

from lib import results
from lib.errors import InputError
from lib.paths import as_path, build_dir, check_space, component, results_dir, slug, write_atomic


def skipped_lines() -> list[str]:
    records, skipped = results.load_all()
    assert all("\n" not in s for s in skipped)
    return skipped


# --- write and read


def test_a_record_comes_back_as_it_was(places):
    r = record(variant="code", study={"module_impact": {"none": 66.0}}, notes=["a note"])
    path, = put(r)
    assert path.relative_to(results_dir()).parts == ("runs", "glue", "minilm-l6", "rte", "theseus-code", "seed-0.json")
    assert results.read(path) == r
    assert results.load_all() == ([r], [])
    frame = pd.read_parquet(path.with_suffix(".parquet"))
    assert list(frame.columns) == ["idx", "label", "logit_0"]
    assert sorted(p.name for p in path.parent.iterdir()) == ["seed-0.json", "seed-0.parquet"]


def test_the_teachers_predictions_stand_beside_the_students(places):
    student, teacher = (pd.DataFrame({"idx": [4, 7], "label": [0, 1], "logit_0": [0.1 + x, 0.2], "logit_1": [0.3, x]})
                        for x in (0.0, 5.0))
    made = record(rows=2)
    results.write(made, results.with_teacher(student, teacher))
    frame = results.predictions(made, 2)
    for of, wanted in (("student", student), ("teacher", teacher)):
        assert results.logits(frame, of).tolist() == wanted[["logit_0", "logit_1"]].to_numpy().tolist()
    assert results.logits(student, "teacher") is None
    with pytest.raises(RuntimeError, match="not to the rows"):
        results.with_teacher(student, teacher.iloc[::-1].reset_index())
    path = results.path_of(made).with_suffix(".parquet")
    for bad, words in ((frame.drop(columns="teacher_logit_1"), "have columns"),
                       (frame.assign(teacher_logit_0=math.nan), "hold in teacher_logit_0")):
        bad.to_parquet(path, index=False)
        with pytest.raises(InputError, match=words):
            results.predictions(made, 2)
    frame.to_parquet(path, index=False)
    with pytest.raises(InputError, match="have columns"):  # a teacher has none beside it
        results.predictions(made.model_copy(update={"teacher": None}), 2)


def test_records_are_sorted_and_rewriting_replaces(places):
    put(record(seed=2), record(seed=0), record(task="cola"), record(seed=2, score=50.0))
    records, skipped = results.load_all()
    assert [(r.task, r.seed) for r in records] == [("cola", 0), ("rte", 0), ("rte", 2)]
    assert records[-1].score == 50.0
    assert not skipped


def test_no_results_yet(places):
    assert results.load_all() == ([], [])


@pytest.mark.parametrize("changes", [
    {"score": math.nan}, {"metrics": {"accuracy": math.inf}}, {"rows": 0}, {"seed": -1}, {"steps": -1},
    {"padding_share": 1.5}, {"curve": {"loss": [[1, math.nan]]}}, {"schema_version": 2},
    {"parameters": None}, {"headline": None}, {"teacher": {"score": 1.0}}, {"layers": "many"}, {"selection": {}},
    {"task": "../../etc"}, {"profile": "a/b"}, {"method": ".."}, {"backbone": ""}, {"variant": "/x"},
    {"task": ".hidden"},
])
def test_records_that_are_refused_on_write(places, changes):
    with pytest.raises(ValueError):
        put(record(**changes))
    with warnings.catch_warnings():  # pydantic warns of the value before it refuses it
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError):
            put(record().model_copy(update=changes))
    assert not list(places.rglob("*.json"))


def test_record_is_written_last_and_never_half(places, monkeypatch):
    """Without room for the record there are predictions and no record: the run is not complete."""
    fsync, calls = os.fsync, []

    def full(fd):
        calls.append(fd)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"cannot write .*seed-0.json: No space left on device; free some space"):
        put(record())
    monkeypatch.undo()
    monkeypatch.setenv("BERT_RESULTS", str(places / "results"))
    assert [p.suffix for p in places.rglob("seed-0*")] == [".parquet"]
    assert not list(places.rglob("*.tmp"))


# --- files that are no records


BAD = {
    "empty": b"", "half": b'{"method": "theseus", "seed', "list": b"[1, 2]", "number": b"3", "null": b"null",
    "bytes": b"\xff\xfe\x00", "deep": b"[" * 100_000, "digits": b'{"seed": ' + b"9" * 5000 + b"}", "object": b"{}",
    "nested": json.dumps({"method": {"a": ["\n"]}}).encode(),
}


@pytest.mark.parametrize("name", BAD)
def test_corrupt_or_foreign_json_is_named_and_skipped(places, name):
    good, = put(record())
    bad = good.with_name("seed-1.json")
    bad.write_bytes(BAD[name])
    records, skipped = results.load_all()
    assert [r.seed for r in records] == [0]
    line, = skipped
    assert str(bad) in line
    assert "\n" not in line
    assert len(line) < len(str(bad)) + 400
    with pytest.raises(InputError, match="seed-1"):
        results.read(bad)


def test_things_that_are_no_files_are_named(places):
    good, = put(record())
    good.with_name("seed-1.json").mkdir()
    good.with_name("seed-2.json").symlink_to(places / "nowhere")
    assert len(results.load_all()[0]) == 1
    assert len(skipped_lines()) == 2


def test_one_changed_value_is_found(places):
    path, = put(record())
    data = json.loads(path.read_text())
    for change in ({"rows": 0}, {"score": None}, {"seed": "x"}, {"unknown": 1}):
        path.write_text(json.dumps(data | change))
        line, = skipped_lines()
        assert "not a result record" in line
        assert next(iter(change)) in line
    path.write_text(json.dumps(data).replace("60.0", "NaN", 1))
    assert len(skipped_lines()) == 1


def test_a_record_lies_at_its_own_place(places):
    """A copy elsewhere would be counted twice; another seed's file would be another run's."""
    path, = put(record())
    runs = results_dir() / "runs"
    for place in (path.with_name("seed-1.json"), runs / "seed-0.json", runs / "backup" / path.relative_to(runs),
                  runs / "glue" / "minilm-l6" / "rte" / "truncated" / "seed-0.json",
                  runs / "demo" / path.relative_to(runs / "glue")):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())
        line, = skipped_lines()
        assert str(place) in line
        assert "at its own place" in line
        with pytest.raises(InputError):
            results.read(place)
        place.unlink()
    assert skipped_lines() == []


def test_a_record_whose_name_points_elsewhere(places):
    path, = put(record())
    data = json.loads(path.read_text())
    for field in ("task", "profile", "backbone", "method", "variant"):
        path.write_text(json.dumps(data | {field: "../" * 8 + "etc"}))
        assert len(skipped_lines()) == 1


def test_stale_is_decided_by_the_code(places):
    assert not results.is_stale(record())
    assert results.is_stale(record(code_hash="0" * 16))


# --- places


@pytest.mark.parametrize("value", ["..", ".", "", "a/b", "a\\b", "/abs", "a\0", "a\n", "a b", "-x", "_x", "é",
                                   "x" * 121, "a..b", ".x", "a:b", "~", "$HOME", "*"])
def test_components_cannot_climb_out(value):
    with pytest.raises(InputError, match="cannot name a folder"):
        component("profile", value)
    with pytest.raises(InputError):
        results.record_path(value, "b", "t", "m", "", 0)


@pytest.mark.parametrize("value", ["a", "glue", "minilm-l6", "rate0.5-equivalent", "x=1", "a+b", "x" * 120])
def test_components_that_may_stand(value):
    assert component("profile", value) == value


@pytest.mark.parametrize("text", ["", "..", "../../x", "a/b", "\u4e00", "x" * 500, "a...b", "-._+", "_x", "+1",
                                  ".hidden", "my file (2)", "a\nb", "x" * 59 + "..y"])
def test_slugs_are_components(text):
    assert component("task", slug(text)) == slug(text)
    assert len(slug(text)) <= 60


def test_folders_come_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("BERT_RESULTS", str(tmp_path / "r"))
    monkeypatch.setenv("BERT_BUILD", str(tmp_path / "b"))
    assert (results_dir(), build_dir()) == (tmp_path / "r", tmp_path / "b")
    monkeypatch.delenv("BERT_RESULTS")
    monkeypatch.delenv("BERT_BUILD")
    assert (results_dir().name, build_dir().name) == ("results", "build")


def test_writing_is_all_or_nothing(tmp_path, monkeypatch):
    path = tmp_path / "a" / "x.bin"
    write_atomic(path, b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="No space left on device"):
        write_atomic(path, b"new" * 1000)
    assert path.read_bytes() == b"old"
    assert [p.name for p in path.parent.iterdir()] == ["x.bin"]


def test_places_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "file" / "x", tmp_path / "file" / "deeper" / "x"):
        with pytest.raises(InputError, match="cannot write"):
            write_atomic(place, b"x")
    with pytest.raises(InputError, match="cannot write"):
        check_space(tmp_path / "file")
    check_space(tmp_path / "new" / "folder")
    assert not list((tmp_path / "new" / "folder").iterdir())


@pytest.mark.parametrize("text", ["x" * 5000, "~\0/x"])
def test_paths_that_cannot_be(text):
    with pytest.raises(InputError, match=r"output: .* cannot be a path"):
        as_path(text, "output")
