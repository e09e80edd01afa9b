"""The grid: names are checked before Snakemake starts; existence of a record decides what is run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import yaml
from synthetic_records import put, record

from lib import grid
from lib.errors import InputError
from lib.paths import ROOT, results_dir


def test_plan_of_words(places):
    p = grid.plan("glue", "rte mrpc", "truncated theseus", "0 1 2")
    assert p["tasks"] == {"rte": "rte", "mrpc": "mrpc"}
    assert len(p["jobs"]) == 12
    assert [t for t in p["jobs"] if t[0] == "rte"][:2] == [["rte", "truncated", 0], ["rte", "theseus", 0]]
    assert (p["profile"], p["backbone"], p["given_backbone"]) == ("glue", "minilm-l6", "minilm-l6")
    assert p["records"] == str(results_dir() / "runs")


@pytest.mark.parametrize("name", ["demo", "ci", "glue"])
def test_profiles_have_grids_of_their_own(name):
    own = yaml.safe_load((ROOT / "notebooks" / "profiles" / "grid.yaml").read_text())[name]
    p = grid.plan(name)
    assert list(p["tasks"]) == own["tasks"]
    assert len(p["jobs"]) == len(own["tasks"]) * len(own["methods"]) * len(own["seeds"])
    assert set(own["methods"]) <= set(grid.methods())
    assert {"bert", "truncated", "theseus"} <= set(grid.methods())


def newest(places) -> Path:
    """The configuration that the last grid wrote."""
    return max((places / "build" / "grids").glob("*.json"), key=lambda p: p.stat().st_mtime_ns)


def configuration(places) -> dict:
    return json.loads(newest(places).read_text())


def test_two_grids_of_one_profile_do_not_take_each_others_configuration(places, monkeypatch):
    """They did: a second grid overwrote the file that the first one's Snakemake was about to read."""
    monkeypatch.setattr(subprocess, "call", lambda *a, **k: 0)
    for task in ("mrpc", "rte", "mrpc"):
        grid.main(["--profile", "glue", "--tasks", task])
        assert list(configuration(places)["tasks"]) == [task]
    assert len(list((places / "build" / "grids").glob("*.json"))) == 2


def test_the_spine_is_reported_on_glue_with_three_seeds():
    own = yaml.safe_load((ROOT / "notebooks" / "profiles" / "grid.yaml").read_text())["glue"]
    assert {"mrpc", "rte", "cola", "stsb"} <= set(own["tasks"])
    assert len(own["seeds"]) >= 3


def test_a_declared_task_brings_its_profile_file_and_a_users_file_of_that_name_does_not(places):
    own = places / "squad1.csv"
    own.write_text("text,label\ngood,a\nbad,b\n")
    said = []
    for task in ("squad1", str(own)):
        done = subprocess.run([sys.executable, "-m", "lib.grid", "--profile", "glue", "--tasks", task, "--methods",
                               "bert", "--seeds", "0", "--dry-run"], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        file = configuration(places)
        said.append(file["settings"][f"{next(iter(file['tasks']))}/bert"])
    assert said == ["-f notebooks/profiles/glue.yaml -f notebooks/profiles/glue-squad1.yaml",
                    "-f notebooks/profiles/glue.yaml"]


@pytest.mark.parametrize(("words", "message"), [
    (("gleu", "rte", "bert", "0"), r"PROFILE: 'gleu' is unknown \(did you mean 'glue'\?\)"),
    (("grid", "rte", "bert", "0"), "PROFILE: 'grid' is unknown"),
    (("../glue", "rte", "bert", "0"), "PROFILE"),
    (("glue", "rtee", "bert", "0"), r"TASKS: 'rtee' is unknown \(did you mean 'rte'\?\)"),
    (("glue", "/nowhere/x.csv", "bert", "0"), "TASKS: '/nowhere/x.csv' is unknown"),
    (("glue", "rte", "theesus", "0"), r"METHODS: 'theesus' is unknown \(did you mean 'theseus'\?\)"),
    (("glue", "rte", "../bert", "0"), "METHODS"),
    (("glue", "rte", "bert", "x"), "SEEDS: 'x' is not a whole number"),
    (("glue", "rte", "bert", "-1"), "SEEDS: '-1'"),
    (("glue", "rte", "bert", "1.5"), "SEEDS: '1.5'"),
    (("glue", "rte", "bert", "\u00b2"), "SEEDS"),
    (("glue", "x" * 5000, "bert", "0"), "TASKS"),
])
def test_names_that_are_wrong(words, message):
    with pytest.raises(InputError, match=message) as e:
        grid.plan(*words)
    assert "\n" not in str(e.value)
    assert len(str(e.value)) < 700


def test_own_files(tmp_path):
    a, b = tiny.films(tmp_path / "a" / "films.csv"), tiny.films(tmp_path / "b" / "films.csv")
    assert grid.plan("glue", str(a), "bert", "0")["tasks"] == {"films": str(a)}
    assert grid.plan("glue", f"{a} {a}", "bert", "0")["tasks"] == {"films": str(a)}
    with pytest.raises(InputError, match="would leave their records in the same place"):
        grid.plan("glue", f"{a} {b}", "bert", "0")
    rte = tiny.films(tmp_path / "rte.csv")
    assert grid.plan("glue", f"{rte} rte", "bert", "0")["tasks"] == {"own-rte": str(rte), "rte": "rte"}


def test_wrong_names_end_before_snakemake(monkeypatch, capsys):
    monkeypatch.setattr(subprocess, "call", lambda *a, **k: pytest.fail("snakemake was started"))
    assert grid.main(["--profile", "gleu"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: PROFILE: 'gleu'")
    assert error.count("\n") == 1


@pytest.mark.parametrize(("words", "message"), [
    (("--threads", "two"), "--threads: 'two' is not a whole number of 0"), (("--cores", "0"), "--cores: '0'"),
    (("--threads", "-1"), "--threads: '-1'")])
def test_numbers_of_cores_and_threads_are_checked(monkeypatch, capsys, words, message):
    monkeypatch.setattr(subprocess, "call", lambda *a, **k: pytest.fail("snakemake was started"))
    assert grid.main(["--profile", "glue", *words]) == 2
    assert message in capsys.readouterr().err


def test_runs_of_one_thread_go_side_by_side(places, monkeypatch):
    """`threads` of a run: what is asked for, never more than there are cores; 0 is all of them."""
    monkeypatch.setattr(subprocess, "call", lambda *a, **k: 0)
    for asked, cores, given in (("1", "2", 1), ("8", "2", 2), ("0", "2", 2)):
        grid.main(["--profile", "glue", "--threads", asked, "--cores", cores])
        assert configuration(places)["threads"] == configuration(places)["teacher_threads"] == given


def test_two_runs_of_the_book_share_the_cores_after_their_teacher(places, monkeypatch):
    monkeypatch.setattr(subprocess, "call", lambda *a, **k: 0)
    monkeypatch.setattr(grid, "_make_room", lambda *a: None)
    for asked, cores, given in (("0", "2", 1), ("0", "1", 1), ("0", "16", 8), ("3", "4", 3)):
        grid.main(["--profile", "ci", "--pages", "--threads", asked, "--cores", cores])
        assert (configuration(places)["threads"], configuration(places)["teacher_threads"]) == (given, int(cores))
    out = Path(sys.executable).parent / "snakemake"
    listed = subprocess.run([out, "--snakefile", "Snakefile", "--configfile", str(newest(places)), "--cores", "4",
                             "--dry-run", "--quiet", "progress"], cwd=ROOT, capture_output=True, text=True)
    assert "threads: 4" in listed.stdout + listed.stderr  # the teacher's
    assert "threads: 3" in listed.stdout + listed.stderr


def planned(places, *words: str) -> list[str]:
    """Records that Snakemake would make, `<method>/seed-<n>`, sorted."""
    grid.main(["--profile", "glue", "--dry-run", "--cores", "1", *words])  # writes the configuration
    command = ["snakemake", "--snakefile", "Snakefile", "--configfile", str(newest(places)),
               "--cores", "1", "--rerun-incomplete", "--rerun-triggers", "mtime", "--dry-run"]
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=300,
                          env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    return sorted(re.findall(r"output: \S*/rte/(\S+)\.json", done.stdout + done.stderr))


def test_a_run_whose_record_exists_is_not_run_again(places):
    """Whatever the modification times say: a fresh clone has new ones."""
    words = ("--tasks", "rte", "--methods", "truncated theseus", "--seeds", "0 1")
    both = [f"{m}/seed-{s}" for m in ("bert", "theseus", "truncated") for s in (0, 1)]
    assert planned(places, *words) == both  # the teacher's record comes first, unasked
    paths = put(*[record(method=m, task="rte", seed=s) for m in ("truncated", "theseus") for s in (0, 1)])
    for p in paths:
        os.utime(p, (0, 0))
    assert planned(places, *words) == []
    paths[0].unlink()
    assert planned(places, *words) == ["bert/seed-0", "truncated/seed-0"]  # the one that is missing, and its teacher
    put(record(method="bert", task="rte", teacher=None))
    assert planned(places, *words) == ["truncated/seed-0"]


def test_configuration_is_plain_json(places):
    assert json.loads(json.dumps(grid.plan("ci"))) == grid.plan("ci")


CLAIM = """
import sys, time
from lib import grid
held = grid._claim({"profile": "p", "backbone": "b", "tasks": dict.fromkeys(sys.argv[1].split(","))})
print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""


def claims(tasks, seconds):
    return subprocess.Popen([sys.executable, "-c", CLAIM, tasks, str(seconds)], cwd=ROOT, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, env=dict(os.environ))


def test_a_grid_waits_for_another_with_its_tasks_and_a_killed_one_leaves_no_lock(places):
    first = claims("rte,mrpc", 60)
    assert first.stdout.readline() == "held\n"
    second, third = claims("cola,rte", 0), claims("sst2", 0)
    assert "waiting for another grid, which makes records of rte" in second.stderr.readline()
    assert second.poll() is None
    assert third.communicate(timeout=60) == ("held\n", "")  # nothing in common
    assert second.poll() is None
    first.kill()
    assert second.communicate(timeout=60)[0] == "held\n"


def test_snakemake_inherits_the_locks(places, monkeypatch):
    """Where only `python -m lib.grid` is killed, Snakemake works on, and so must the locks; they end with its call."""
    seen = {}

    def call(command, **k):
        seen.update(k, command=command)
        for fd in k["pass_fds"]:
            os.fstat(fd)  # open
        return 0

    monkeypatch.setattr(subprocess, "call", call)
    for _ in range(2):  # a second grid in the same process need not wait for the first
        assert grid.main(["--tasks", "rte mrpc", "--methods", "bert", "--seeds", "0"]) == 0
    assert len(seen["pass_fds"]) == 2
    assert "--nolock" in seen["command"]  # its own lock would outlive a killed grid
    for fd in seen["pass_fds"]:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
