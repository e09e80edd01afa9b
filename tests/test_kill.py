"""Killed with -9 while training, started again: the same record but for its times. Slow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import tiny

from lib.paths import ROOT

pytestmark = pytest.mark.slow

# A run that checkpoints at every step and tells where it is; `pause` makes a step slow enough to be hit.
DRIVER = """
import sys, time
sys.path.insert(0, "tests")
import tiny
from lib import runs
from lib.methods import bert, theseus
settings, supervised = runs.Run.settings, bert.supervised
runs.Run.settings = lambda self, **k: settings(self, **{"checkpoint_seconds": 0.0, **k})
def slow(model, batch, step):
    print("step", step.index, flush=True)
    time.sleep(float(sys.argv[3]))
    return supervised(model, batch, step)
bert.supervised = slow
run = tiny.run("theseus", theseus.Config, sys.argv[1], sys.argv[2], epochs=8, evaluations=8, score_curve=True,
               variant=sys.argv[4])
student, history = run.compress(theseus.compress)
run.finish(student, history)
print("whole", flush=True)
"""


def start(folder, films, backbone, pause, variant=""):
    env = os.environ | {"BERT_RESULTS": str(folder / "results"), "BERT_BUILD": str(folder / "build")}
    return subprocess.Popen([sys.executable, "-c", DRIVER, films, backbone, str(pause), variant], cwd=ROOT, env=env,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def until(child, count: int) -> None:
    """Read the child's output until it has begun `count` more steps."""
    seen = 0
    for line in child.stdout:
        seen += line.startswith("step")
        if seen == count:
            return
    raise AssertionError("the run ended before it could be killed")


def outcome(folder):
    path, = folder.glob("results/runs/test/tiny-bert/films/theseus*/seed-0.json")
    return tiny.record_without_times(json.loads(path.read_text())), path.with_suffix(".parquet").read_bytes()


@pytest.mark.parametrize("variant", ["", "code"])
def test_killed_while_training_and_resumed(tmp_path, films, backbone, variant):
    """Killed in the teacher's training, then twice in the student's."""
    whole = start(tmp_path / "whole", films, backbone, 0, variant)
    out, _ = whole.communicate(timeout=600)
    assert whole.returncode == 0
    assert out.strip().endswith("whole")
    killed = tmp_path / "killed"
    for steps in (3, 10, 11):
        child = start(killed, films, backbone, 0.05, variant)
        until(child, steps)
        time.sleep(0.1)
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert not list(killed.glob("results/**/*.json"))  # never half a run
    last = start(killed, films, backbone, 0, variant)
    out, _ = last.communicate(timeout=600)
    assert last.returncode == 0
    assert out.count("step") < 30  # what had been done was not done again
    (record, predictions), (wanted, wanted_predictions) = outcome(killed), outcome(tmp_path / "whole")
    assert record.splitlines() == wanted.splitlines()
    assert predictions == wanted_predictions


def kernel_of(papermill_pid: int) -> int | None:
    """Process id of the kernel that a papermill process has started."""
    done = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(papermill_pid)], capture_output=True, text=True)
    for line in done.stdout.splitlines():
        if "ipykernel" in line:
            return int(line.split()[0])
    return None


@pytest.mark.parametrize("victim", ["kernel", "papermill"])
def test_killed_notebook_leaves_no_record_and_runs_again(tmp_path, films, backbone, victim):
    """papermill marks the cells of a killed kernel completed: only the record says whether the run is whole."""
    words = ["-r", "task", films, "-r", "backbone", backbone, "-p", "epochs", "1000", "-r", "precision", "fp32", "-r",
             "profile", "test", "-p", "teacher_epochs", "1"]
    command = [sys.executable, "-m", "papermill", "notebooks/truncated.ipynb", str(tmp_path / "out.ipynb")]
    env = os.environ | {"BERT_RESULTS": str(tmp_path / "results"), "BERT_BUILD": str(tmp_path / "build")}
    child = subprocess.Popen([*command, *words], cwd=ROOT, env=env, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
    teacher = tmp_path / "build" / "artefacts" / "teacher"
    began = time.time()
    while not list(teacher.glob("*/artefact.json")):
        assert child.poll() is None
        assert time.time() - began < 300
        time.sleep(0.1)
    time.sleep(1)
    kernel = kernel_of(child.pid)
    assert kernel is not None
    os.kill(kernel if victim == "kernel" else child.pid, signal.SIGKILL)
    child.wait(timeout=120)
    assert child.returncode != 0
    if victim == "papermill":
        os.kill(kernel, signal.SIGKILL)
    assert not list(tmp_path.glob("results/**/*.json"))
    words[words.index("1000")] = "1"
    again = subprocess.run([*command, *words], cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)
    assert again.returncode == 0, again.stderr[-2000:]
    assert len(list(tmp_path.glob("results/**/*.json"))) == 1
    assert len(list(teacher.glob("*/artefact.json"))) == 1


def test_twenty_moments_in_two_runs_that_share_a_teacher(tmp_path, films, backbone):
    """In steps, half written checkpoints, records, predictions, students and artefacts; some checkpoints damaged too.

    After each the same two runs are started again; what they leave in the end is what runs leave that nobody killed.
    """
    env = os.environ | {"PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run([sys.executable, "tests/kills.py", str(tmp_path), films, backbone, "0"], cwd=ROOT, env=env,
                          capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert len(report["killed"]) == 20
    assert report["damaged"] > 0
    assert not report["unequal"]
    assert not report["left"]


@pytest.fixture
def small_disk(tmp_path):
    """`small_disk(kilobytes)`: a folder on a file system of that size; again to change the size."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = False

    def size(kilobytes: int):
        nonlocal mounted
        option = f"{'remount,' if mounted else ''}size={kilobytes}k"
        command = ["mount", "-t", "tmpfs", "-o", option, "tmpfs", str(place)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"needs root: a tmpfs cannot be mounted here ({done.stderr.strip()})")
        mounted = True
        return place

    yield size
    if mounted:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_full_disk_is_one_line_and_the_run_goes_on_with_more_room(tmp_path, films, backbone, small_disk):
    whole = start(tmp_path / "whole", films, backbone, 0)
    whole.communicate(timeout=600)
    folder = small_disk(1600)  # room for what is asked before training, not for a second checkpoint
    env = os.environ | {"BERT_RESULTS": str(folder / "results"), "BERT_BUILD": str(folder / "build")}
    full = subprocess.run([sys.executable, "-c", DRIVER, films, backbone, "0", ""], cwd=ROOT, env=env,
                          capture_output=True, text=True, timeout=600)
    assert full.returncode == 1
    said, = (x for x in full.stderr.splitlines() if x.startswith("lib.errors.InputError: "))
    assert "cannot write " in said
    assert "No space left on device" in said
    assert not list(folder.glob("results/**/*.json"))
    small_disk(64_000)
    again = start(folder, films, backbone, 0)
    out, _ = again.communicate(timeout=600)
    assert again.returncode == 0
    assert out.count("step") < 64  # of twice 32: it went on from the checkpoint that had been whole
    assert outcome(folder) == outcome(tmp_path / "whole")
    assert not [p for p in folder.rglob("*") if p.name.endswith(".tmp") and p.parent.name != "checkpoints"]


def test_full_disk_when_the_student_is_left(tmp_path, backbone, small_disk):
    from lib import models
    from lib.errors import InputError

    folder = small_disk(100)
    with pytest.raises(InputError, match="cannot be written .*No space left") as e:
        models.save_student(tiny.classifier(), tiny.tokenizer(), folder / "student")
    assert "\n" not in str(e.value)
