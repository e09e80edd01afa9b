"""Other comparisons run: the user's own teacher, a regression, two at once, notebooks that fail, and a kill."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny
from compare_runs import ask

from lib import compare, results
from lib.errors import InputError
from lib.paths import ROOT

# In this process


def test_the_users_own_teacher_is_scored_not_trained(places, films, hasty, capsys):
    teacher = tiny.save_classifier(places / "mine", ["positive", "negative"])  # in the other order
    assert compare.main(ask(films, "--teacher", str(teacher), "--lr", "1e-3", output=places / "out")) == 0
    assert hasty == ["truncated", "theseus"]
    path = next((places / "out").rglob("theseus/seed-0.json"))
    record = json.loads(path.read_text())
    assert record["teacher"]["artefact"] is None
    text = (places / "out" / "index.html").read_text()
    shown = re.search(r"Teacher: BERT, fine-tuned</th><td>([\d.]+) \(", text)[1]
    assert float(shown) == pytest.approx(record["teacher"]["score"], abs=0.051)
    assert "brought by you" in text
    assert "Teacher is yours and was not trained" in text or "The teacher is yours and was not trained" in text


def test_regression(places, ratings, backbone, hasty):
    assert compare.main(ask(ratings, "--lr", "1e-3", backbone=backbone, methods="truncated",
                            output=places / "out")) == 0
    text = (places / "out" / "index.html").read_text()
    assert "All methods used the learning rate 0.001. It was not tuned" in text
    assert "mean of pearson and spearman, percent (95% interval)" in text
    assert "always the mean" in text


def test_two_at_once_are_refused(tmp_path, places):
    with compare.alone(tmp_path / "out"):
        with pytest.raises(InputError, match="another comparison is working on it"), compare.alone(tmp_path / "out"):
            pass
        with compare.alone(tmp_path / "other"):
            pass
    with compare.alone(tmp_path / "out"):  # and released
        pass


# Notebooks and kills


def test_reason_of_a_failed_notebook(tmp_path):
    path = tmp_path / "x.ipynb"
    path.write_text(json.dumps({"cells": [{"outputs": [{"output_type": "error", "ename": "InputError",
                                                        "evalue": "layers:\n no"}]}]}))
    assert compare._reason(path) == "InputError: layers: no"
    path.write_text("{")
    assert compare._reason(path) == ""


def test_a_failing_process_is_told_with_its_log(tmp_path):
    why = compare.run([sys.executable, "-c", "print('hello'); raise SystemExit(3)"], tmp_path / "e" / "m.ipynb")
    assert "ended with code 3" in why
    assert (tmp_path / "e" / "m.log").read_text() == "hello\n"


def alive(text: str) -> list[int]:
    out = []
    for p in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text in p.read_bytes().decode(errors="replace"):
                out.append(int(p.parent.name))
        except OSError:
            continue
    return out


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the death signal of a parent is Linux's")
def test_killed_while_a_notebook_runs_it_ends_and_goes_on(places, films, backbone):
    out = places / "out"
    command = [sys.executable, "-m", "lib.compare", *ask(films, backbone=backbone, methods="truncated", output=out)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.time() + 600
        while not list(out.rglob("bert/seed-0.json")) and time.time() < deadline:
            time.sleep(0.2)
        while not alive(str(out / "executed" / "truncated.ipynb")) and time.time() < deadline:
            time.sleep(0.1)
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    end = time.time() + 20
    while alive(str(out / "executed")) and time.time() < end:
        time.sleep(0.2)
    assert alive(str(out / "executed")) == []  # the notebook did not go on unseen
    first = next(out.rglob("bert/seed-0.json"))
    before = first.stat().st_mtime_ns
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Teacher: BERT, fine-tuned: done before" in done.stdout
    assert first.stat().st_mtime_ns == before
    assert (out / "index.html").exists()
    assert (out / "students" / "truncated" / "model.safetensors").exists()
    with compare.records_in(out):
        assert results.read(next(out.rglob("truncated/seed-0.json"))).peak_memory_mb > 0
