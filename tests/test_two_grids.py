"""Two whole grids at once on one results folder, as from two terminals: nothing is made twice or lost. Slow."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

from lib.paths import ROOT

pytestmark = pytest.mark.slow

EXTRA = {"precision": "fp32", "max_rows": 64, "max_tokens": 0, "teacher_tokens": 0, "max_length": 32, "batch_size": 16}


def start(folder: Path, backbone: str, tasks: str, methods: str) -> subprocess.Popen:
    """A grid of the ci profile on a tiny backbone; both streams come as one."""
    words = " ".join(f"-p {k} {v}" for k, v in EXTRA.items())
    config = f"--config given_backbone={shlex.quote(backbone)} backbone=tiny-bert extra={shlex.quote(words)}"
    env = os.environ | {"BERT_RESULTS": str(folder / "results"), "BERT_BUILD": str(folder / "build")}
    command = [sys.executable, "-m", "lib.grid", "--profile", "ci", "--tasks", tasks, "--methods", methods, "--seeds",
               "0", "--cores", "1", "--snakemake", config]
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(*grids: subprocess.Popen) -> list[str]:
    """What each grid said, when all have ended well."""
    try:
        said = [g.communicate(timeout=1800)[0] for g in grids]
    finally:
        for g in grids:
            g.kill()
    for g, words in zip(grids, said, strict=True):
        assert g.returncode == 0, words[-3000:]
    return said


def outcome(folder: Path) -> dict:
    """Every record without its times, every prediction and every model, by path."""
    out = {}
    for path in sorted((folder / "results" / "runs").rglob("*.json")):
        name = str(path.relative_to(folder))
        out[name] = tiny.record_without_times(json.loads(path.read_text()))
        out[name + " predictions"] = path.with_suffix(".parquet").read_bytes()
    for path in sorted((folder / "build").rglob("*.safetensors")):
        out[str(path.relative_to(folder))] = path.read_bytes()
    return out


def same(found: dict, wanted: dict) -> None:
    assert found.keys() == wanted.keys()
    assert [k for k in wanted if found[k] != wanted[k]] == []


def free(lock: Path) -> bool:
    """Whether no process holds the lock. The file itself stays: deleting it would let two holders in."""
    with open(lock) as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


def nothing_half(folder: Path) -> None:
    """No half file, no checkpoint, no lock that is held."""
    files = [p for p in folder.rglob("*") if p.is_file()]
    assert [p for p in files if re.search(r"\.tmp|\.partial|step-|/\.", str(p.relative_to(folder)))] == []
    locks = [p for p in files if p.suffix == ".lock" or p.parent.name == "locks"]
    assert locks
    assert [p for p in locks if not free(p)] == []


def test_overlapping_cells_are_made_once(tmp_path, films, backbone):
    """The teacher and theseus are wanted by both grids, truncated by one."""
    alone, both = tmp_path / "alone", tmp_path / "both"
    ended(start(alone, backbone, films, "truncated theseus"))
    wanted = outcome(alone)
    assert sum(name.endswith(".json") for name in wanted) == 3
    said = ended(*[start(both, backbone, films, words) for words in ("truncated theseus", "theseus")])
    same(outcome(both), wanted)
    whole = "".join(said)
    assert re.findall(r"building (teacher\S*)", whole) == ["teacher", "teacher-scored"]
    assert len(list((both / "build" / "artefacts" / "teacher").glob("*/artefact.json"))) == 1
    made = re.findall(r"record: \S*/films/(\w+)/seed-0\.json", whole)
    assert sorted(made) == ["bert", "theseus", "truncated"]
    assert whole.count("waiting for another grid, which makes records of films") == 1
    nothing_half(both)
