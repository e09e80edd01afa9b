"""Artefacts: built once under a lock, keyed by configuration, whole or not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from lib import artefacts, provenance
from lib.errors import InputError
from lib.paths import ROOT


def maker(calls, **meta):
    def make(folder):
        calls.append(folder)
        (folder / "weights").write_text("w")
        return {"seconds": 2.0, "tokens": 7, **meta}

    return make


def test_built_once_and_found_again(places, capsys):
    calls = []
    first = artefacts.build("teacher", {"lr": 1e-4, "data": "x"}, maker(calls, lr=1e-4))
    again = artefacts.build("teacher", {"data": "x", "lr": 1e-4}, maker(calls))  # the order of names does not matter
    assert len(calls) == 1
    assert again == first
    assert first.record() == {"kind": "teacher", "key": first.key, "seconds": 2.0, "tokens": 7}
    assert {k: first.meta["configuration"][k] for k in ("lr", "data")} == {"lr": 1e-4, "data": "x"}
    assert (first.folder / "weights").read_text() == "w"
    assert first.folder == places / "build" / "artefacts" / "teacher" / first.key
    assert capsys.readouterr().err.count(f"building teacher {first.key}") == 1


def test_other_code_behind_it_is_another_artefact(places, monkeypatch):
    """A stage whose loss was mended must not be taken up as the old code left it, by its kind or by its module."""
    calls, real = [], provenance._code

    def build(kind, module):
        make = maker(calls)
        make.__module__ = module
        return artefacts.build(kind, {"a": 1}, make).key

    def changed(name):
        provenance.modules_hash.cache_clear()
        monkeypatch.setattr(provenance, "_code", lambda path: real(path) + ("# x" if path.stem == name else ""))

    made = [("pdbert", "lib.pretrain"), ("mlm-head", "lib.mlm")]
    first = [build(*m) for m in made]
    changed("pdbert")
    assert [build(*m) == k for m, k in zip(made, first, strict=True)] == [False, True]
    changed("mlm")  # both read it
    assert [build(*m) == k for m, k in zip(made, first, strict=True)] == [False, False]
    changed("none")
    assert [build(*m) for m in made] == first
    provenance.modules_hash.cache_clear()


def test_another_configuration_or_kind_is_another_artefact(places):
    calls = []
    keys = [artefacts.build(k, c, maker(calls)).folder for k, c in
            (("teacher", {"lr": 1e-4}), ("teacher", {"lr": 2e-4}), ("supernet", {"lr": 1e-4}))]
    assert len(set(keys)) == len(calls) == 3


def test_a_failed_attempt_leaves_no_artefact_and_its_checkpoints(places):
    def fails(folder):
        (folder / "checkpoints").mkdir()
        (folder / "checkpoints" / "step-1").write_text("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        artefacts.build("teacher", {"a": 1}, fails)
    assert not list(places.rglob("artefact.json"))
    found = []

    def make(folder):
        found.extend(p.name for p in (folder / "checkpoints").iterdir())
        return {"seconds": 0.0, "tokens": 0}

    done = artefacts.build("teacher", {"a": 1}, make)
    assert found == ["step-1"]  # what the killed attempt had done is not done again
    assert [p.name for p in done.folder.iterdir()] == ["artefact.json"]


def test_killed_between_renaming_and_the_last_file(places):
    calls = []
    done = artefacts.build("teacher", {"a": 1}, maker(calls))
    (done.folder / "artefact.json").unlink()
    (done.folder / "old").write_text("x")
    again = artefacts.build("teacher", {"a": 1}, maker(calls))
    assert len(calls) == 2
    assert sorted(p.name for p in again.folder.iterdir()) == ["artefact.json", "weights"]


def test_a_damaged_artefact_is_named(places):
    done = artefacts.build("teacher", {"a": 1}, maker([]))
    (done.folder / "artefact.json").write_text("{")
    with pytest.raises(InputError, match=r"artefact .*artefact.json: cannot be read .*delete its folder") as e:
        artefacts.build("teacher", {"a": 1}, maker([]))
    assert "\n" not in str(e.value)


def test_kinds_cannot_climb_out(places):
    with pytest.raises(InputError):
        artefacts.build("../../x", {}, maker([]))


CHILD = """
import sys, time, pathlib
from lib import artefacts, provenance
def make(folder):
    log = pathlib.Path(sys.argv[1])
    log.open("a").write("begin\\n")
    if sys.argv[2] == "hang": time.sleep(60)
    time.sleep(0.5)
    log.open("a").write("end\\n")
    return {"seconds": 1.0, "tokens": 1}
print(artefacts.build("teacher", {"a": 1}, make).key)
"""


def child(log, how="work"):
    return subprocess.Popen([sys.executable, "-c", CHILD, str(log), how], cwd=ROOT, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, env=dict(os.environ))


def test_processes_that_need_the_same_wait_for_one(places):
    log = places / "log"
    children = [child(log) for _ in range(3)]
    outs = [c.communicate(timeout=120) for c in children]
    assert [c.returncode for c in children] == [0, 0, 0]
    assert log.read_text() == "begin\nend\n"
    assert len({o for o, _ in outs}) == 1


def test_a_builder_that_is_killed_does_not_lock_out_the_next(places):
    log = places / "log"
    first = child(log, "hang")
    while not log.exists():
        time.sleep(0.05)
        assert first.poll() is None
    second = child(log)
    time.sleep(0.3)
    first.kill()
    first.wait()
    out, err = second.communicate(timeout=120)
    assert second.returncode == 0, err
    assert log.read_text() == "begin\nbegin\nend\n"
    done = places / "build" / "artefacts" / "teacher" / out.strip() / "artefact.json"
    assert json.loads(done.read_text())["tokens"] == 1
