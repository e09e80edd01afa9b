"""A record made again by its own command: equal to the bit, and what its line in the table is good for."""

import json
import shlex
import subprocess
import sys

import pandas as pd
import pytest
import synthetic_records
from synthetic_records import record

from lib import reproduce, results
from lib.errors import InputError
from lib.paths import ROOT
from lib.provenance import code_hash
from lib.reporting import made_again, pages

NOW = code_hash("theseus")
NUMBERS = {"epochs": 1, "teacher_epochs": 1, "batch_size": 8, "lr": 0.003, "teacher_lr": 0.003, "max_length": 32,
           "seed": 1}
WORDS = ["-r", "profile", "test", "-r", "precision", "fp32",
         *(w for k, v in NUMBERS.items() for w in ("-p", k, str(v)))]


def line(**changes) -> dict:
    old = record(code_hash="a" * 16)
    frame = pd.DataFrame({"idx": [0, 1], "label": [0, 1], "logit_0": [0.5, 1.0]})
    made = reproduce.compare(old, frame, record(code_hash=NOW), frame.copy())
    return made | changes


def keep(*lines: dict) -> None:
    for i, one in enumerate(lines):
        reproduce.keep(one if "record" in one and one["record"] != line()["record"] else one | {"record": f"runs/{i}"})


def test_a_run_made_again_is_equal_to_the_bit(places, films, backbone, capfd):
    command = [sys.executable, "-m", "lib.run", "truncated", "-r", "task", films, "-r", "backbone", backbone, *WORDS]
    subprocess.run(command, check=True, cwd=ROOT)
    path, = (places / "results" / "runs").rglob("truncated/seed-1.json")
    before = path.read_bytes(), path.with_suffix(".parquet").read_bytes()
    assert shlex.split(json.loads(before[0])["command"])[0] == "papermill"
    assert reproduce.main([str(path)]) == 0
    assert "equal to the bit" in capfd.readouterr().out
    # another number in the record is found, and the record is left as it is
    answers = pd.read_parquet(path.with_suffix(".parquet"))
    answers.loc[0, "logit_0"] += 0.25
    answers.to_parquet(path.with_suffix(".parquet"), index=False)
    assert reproduce.main([str(path)]) == 0
    out = capfd.readouterr().out
    assert "not equal" in out
    assert "difference of a prediction 0.25; same processor" in out
    assert path.read_bytes() == before[0]
    found, = reproduce.load().to_dict("records")  # one line a record, code and processor
    assert (found["equal"], found["score"]) == (False, found["score_then"])
    assert "0.25" in str(made_again.page())


@pytest.mark.parametrize(("name", "value"), [
    ("score", 61.0), ("metrics", {"accuracy": 0.61}), ("steps", 99), ("curve", {"loss": [[1, 0.7], [100, 0.6]]}),
    ("selection", results.Selection(rows="a tenth of train", step=20, held_out_score=60.0))])
def test_a_record_that_differs_is_not_equal(places, name, value):
    frame = pd.DataFrame({"idx": [0], "label": [0], "logit_0": [0.5]})
    assert reproduce.compare(record(), frame, record(), frame)["equal"]
    assert reproduce.compare(record(), frame, record(wall_seconds=1.0), frame)["equal"]
    assert not reproduce.compare(record(), frame, record(**{name: value}), frame)["equal"]


def test_predictions_of_other_rows_have_no_difference(places):
    frame = pd.DataFrame({"idx": [0, 1], "label": [0, 1], "logit_0": [0.5, 1.0]})
    for other in (frame.iloc[:1], frame.assign(idx=[1, 0])):
        made = reproduce.compare(record(), frame, record(), other)
        assert not made["equal"]
        assert pd.isna(made["largest_difference"])
    extra = frame.assign(teacher_logit_0=0.0)  # the first records had none
    assert reproduce.compare(record(), frame, record(), extra)["equal"]
    assert not reproduce.compare(record(), extra, record(), frame)["equal"]


def test_two_equal_records_make_the_old_code_as_good_as_the_new(places):
    old = record(code_hash="a" * 16)
    synthetic_records.put(old)
    assert results.is_stale(old)
    keep(line())
    assert results.is_stale(old)  # one is not enough
    reproduce.keep(line() | {"record": "runs/0"})  # nor the same one twice
    assert results.is_stale(old)
    keep(line(), line())
    assert not results.is_stale(old)
    assert results.is_stale(record(code_hash="b" * 16))
    assert results.is_stale(record(method="kd", teacher=66.0, code_hash="a" * 16))
    assert "makes the same numbers" in str(pages._same_numbers(old))
    assert not pages._same_numbers(record())


def test_one_unequal_record_undoes_it_unless_another_machine_explains_it(places):
    old = record(code_hash="a" * 16)
    keep(line(), line(), line(equal=False, processor="another"), line(equal=False, threads=2),
         line(equal=False, precision="bf16"))
    assert not results.is_stale(old)
    reproduce.keep(line(equal=False) | {"record": "runs/9"})
    assert results.is_stale(old)


def test_equal_on_unlike_machines_shows_nothing(places):
    keep(line(processor="another"), line(processor="another"))
    assert results.is_stale(record(code_hash="a" * 16))


def test_steps_between_count(places):
    keep(line(code="c" * 16), line(code="c" * 16))
    assert results.is_stale(record(code_hash="a" * 16))
    for i in (3, 4):
        reproduce.keep(line(code_then="c" * 16) | {"record": f"runs/{i}"})
    assert not results.is_stale(record(code_hash="a" * 16))
    assert not reproduce.same_numbers("theseus", NOW, "a" * 16)  # not backwards


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", ",".join(reproduce.COLUMNS) + "\n" + "1," * 15 + "x,1\n", "\xff\0"])
def test_a_bad_table_is_named(places, text):
    (places / "results").mkdir()
    reproduce.table().write_text(text)
    with pytest.raises(InputError, match="reproduced.csv"):
        reproduce.load()


def test_bad_records_are_one_line_before_anything_runs(places, capsys, monkeypatch):
    path, = synthetic_records.put(record(command="make something"))
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("ran"))
    for bad, words in ((path, "no call of papermill"), (path.with_name("seed-9.json"), "not a readable"),
                       (ROOT / "README.md", "README.md")):
        assert reproduce.main([str(bad)]) == 2
        err = capsys.readouterr().err
        assert err.startswith("error: ")
        assert words in err


def test_committed_lines_belong_to_committed_records():
    for one in reproduce.load().to_dict("records"):
        old = results.read(results.results_dir() / one["record"])
        assert one["method"] == old.method
        assert one["score_then"] == old.score
        assert one["code_then"] == old.code_hash
        assert one["commit_then"] == old.environment.git_commit
        assert "changed" not in one["commit"]
        assert not one["equal"] or (one["score"] == old.score and one["largest_difference"] == 0)
