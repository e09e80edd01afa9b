"""What made a number: hashes that see code and configuration and nothing else."""

from __future__ import annotations

import shutil

import pytest

from lib import provenance
from lib.paths import ROOT
from lib.provenance import code_hash, digest, environment, modules_hash
from lib.results import Environment


def test_digest_is_of_the_content():
    assert digest({"a": 1, "b": [1, 2.5, None]}) == digest({"b": [1, 2.5, None], "a": 1})
    others = [{"a": 1}, {"a": 2}, {"a": "1"}, {"b": 1}, [], {}, None, {"a": 1.5}, {"a": [1]}, {"a": True}]
    assert len({digest(o) for o in others}) == len(others)
    assert len(digest({})) == 16


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A copy of lib that code_hash looks at; returns a function that edits a file and gives the hash of a method."""
    shutil.copytree(ROOT / "lib", tmp_path / "lib", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(provenance, "ROOT", tmp_path)

    def after(name: str, edit, method: str = "theseus") -> str:
        path = tmp_path / "lib" / name
        before = path.read_text()
        path.write_text(edit(before))
        modules_hash.cache_clear()
        value = code_hash(method)
        path.write_text(before)
        modules_hash.cache_clear()
        return value

    yield after
    modules_hash.cache_clear()


def test_code_hash_sees_what_runs_and_nothing_else(copy):
    same = copy("training.py", lambda s: s)
    assert same == copy("training.py", lambda s: s + "\n\n# a comment\n")
    assert same == copy("training.py", lambda s: '"""Another docstring."""\n' + s[s.index("from __future__"):])
    assert same == copy("models.py", lambda s: s + "\nX = 1\n")  # loading has hashes of its own in a record
    assert same == copy("methods/truncated.py", lambda s: s + "\nX = 1\n")  # another method
    for name in ("training.py", "batches.py", "fast.py", "layers.py", "evaluation.py", "methods/theseus.py",
                 "methods/bert.py"):  # theseus imports bert
        assert copy(name, lambda s: s + "\nX = 1\n") != same, name
    assert copy("training.py", lambda s: s.replace("0.1", "0.2", 1)) != same
    own = copy("batches.py", lambda s: s, "truncated")
    assert copy("methods/theseus.py", lambda s: s + "\nX = 1\n", "truncated") == own


def test_methods_have_hashes_of_their_own():
    assert len({code_hash(m) for m in ("bert", "truncated", "theseus")}) == 3


def test_environment_fits_the_record():
    e = Environment(**environment("fp32", 1))
    assert e.versions["torch"]
    assert e.versions["transformers"]
    assert e.threads == 1
    assert e.git_commit is None or len(e.git_commit) == 40


def test_without_git_the_commit_is_unknown_and_not_made_up(monkeypatch, tmp_path):
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    found = environment("fp32", 1)
    assert (found["git_commit"], found["git_dirty"]) == (None, None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance._git("rev-parse", "HEAD") is None
