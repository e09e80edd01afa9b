"""One run on two processes is the run on one: the same curve, exact scores, the same student, one writer."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tiny
import torch
from safetensors.torch import load_file
from torch import nn

from lib import artefacts, batches, distributed, evaluation, run, training
from lib.checkpoint import Checkpoints
from lib.errors import InputError
from lib.paths import ROOT

SETTINGS = training.Settings(lr=3e-3, epochs=2, batch_size=4, accumulation=2, precision="fp32", seed=3,
                             checkpoint_seconds=0)
WORDS = ["-p", "precision", "fp32", "-p", "epochs", "2", "-p", "teacher_epochs", "1", "-p", "accumulation", "2", "-p",
         "batch_size", "8", "-p", "lr", "0.003", "-p", "teacher_lr", "0.003", "-p", "max_length", "32", "-p",
         "score_curve", "True", "-r", "profile", "test"]


def loss(model, batch, step):
    return nn.functional.cross_entropy(model(batch["input_ids"], batch["attention_mask"]).logits, batch["labels"])


def interrupted(model, batch, step):
    if step.index == 4:
        raise KeyboardInterrupt
    return loss(model, batch, step)


def trained(folder=None, loss_function=loss) -> list:
    """Curve of a tiny classifier with dropout, by the loop itself."""
    checkpoints = Checkpoints(folder, "x") if folder else None
    model = tiny.classifier(dropout=0.1)
    history = training.train(model, loss_function, tiny.encoded(44), SETTINGS, checkpoints=checkpoints,
                             evaluate=lambda m: {"held_out": float(distributed.predict(m, tiny.encoded(13), 4).sum())})
    return [history.curve, float(sum(p.detach().double().abs().sum() for p in model.parameters()))]


def refuses(function) -> str:
    try:
        function()
    except (InputError, RuntimeError) as e:
        return f"{type(e).__name__}: {e}"
    return "did not raise"


def child(folder, films, backbone) -> None:
    """What each of the two processes does; every one leaves its findings as JSON."""
    distributed.start()
    me = distributed.rank()

    def fail():
        raise InputError(f"raised by {me}")

    def make(place):
        (place / "who").write_text(str(me))
        (place / "sum").write_text(str(distributed.gather(nn.Linear(1, 1), False, 1.0 + me, {"a": 1.0})[1]))
        return {"seconds": 0.0, "tokens": 0, "who": me}

    data, model = tiny.encoded(13), tiny.classifier()
    one = tiny.encoded(1)
    found = {
        "rank": me, "main": distributed.main(), "processes": distributed.processes(),
        "from main": distributed.from_main(lambda: [me, distributed.active()]),
        "error": refuses(lambda: distributed.from_main(fail)),
        "check": [refuses(lambda: distributed.check(3)), refuses(lambda: distributed.check(4))],
        "share": distributed.share(range(5)),
        "predicted": distributed.predict(model, data, 4).tolist(), "one row": distributed.predict(model, one).tolist(),
        "curve": trained(),
    }
    first = artefacts.build("thing", {"a": 1}, make)
    again = artefacts.build("thing", {"a": 1}, make)
    kept = [(first.folder / name).read_text() for name in ("who", "sum")]
    found["artefact"] = [first.meta["who"], again.meta["who"], *kept]
    try:
        trained(folder / "checkpoints", interrupted)
    except KeyboardInterrupt:
        distributed.wait()
    found["files"] = len(list((folder / "checkpoints").glob("*")))
    found["resumed"] = trained(folder / "checkpoints")
    (folder / f"found-{me}.json").write_text(json.dumps(found))
    sys.exit(run.main(["truncated", "-r", "task", films, "-r", "backbone", backbone, *WORDS]))


@pytest.fixture(scope="module")
def two(tmp_path_factory, films, backbone):
    """(folder, findings of both processes, what they printed) of a torchrun with two processes."""
    folder = tmp_path_factory.mktemp("two")
    env = os.environ | {"BERT_RESULTS": str(folder / "results"), "BERT_BUILD": str(folder / "build"),
                        "PYTHONPATH": str(ROOT / "tests"), "OMP_NUM_THREADS": "1"}
    code = (f"import pathlib, test_distributed as t; t.child(pathlib.Path({str(folder)!r}), {films!r}, {backbone!r})")
    (folder / "child.py").write_text(code)
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                           str(folder / "child.py")], cwd=ROOT, env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, [json.loads((folder / f"found-{i}.json").read_text()) for i in (0, 1)], done.stdout


@pytest.mark.slow
def test_one_writes_and_both_know(two):
    _, (a, b), _ = two
    assert (a["rank"], a["main"], b["rank"], b["main"]) == (0, True, 1, False)
    assert a["processes"] == b["processes"] == 2
    assert a["from main"] == b["from main"] == [0, False]  # within, the main process is on its own
    assert a["error"] == b["error"] == "InputError: raised by 0"
    for found in (a, b):
        assert "accumulation: 3 is no multiple of the 2 processes" in found["check"][0]
        assert found["check"][1] == "did not raise"
    assert (a["share"], b["share"]) == ([0, 2, 4], [1, 3])


@pytest.mark.slow
def test_predictions_are_those_of_one_process_for_numbers_that_do_not_divide(two):
    _, findings, _ = two
    model = tiny.classifier()
    for found in findings:
        assert np.array_equal(np.float32(found["predicted"]), evaluation.predict(model, tiny.encoded(13), 4))
        assert np.array_equal(np.float32(found["one row"]), evaluation.predict(model, tiny.encoded(1)))


@pytest.mark.slow
def test_same_curve_as_one_process(two):
    _, findings, _ = two
    curve, weights = trained()
    assert len(curve["loss"]) == len(batches.plan(tiny.encoded(44).lengths, 8, 3, 2, 0))
    for found in findings:
        for name, points in curve.items():
            assert found["curve"][0][name] == [pytest.approx(p, abs=1e-5) for p in points], name
        assert found["curve"][1] == pytest.approx(weights, rel=1e-5)


@pytest.mark.slow
def test_interrupted_and_gone_on_with_from_the_main_process_s_checkpoint(two):
    _, findings, _ = two
    for found in findings:
        assert found["files"] == 2
        assert found["resumed"] == found["curve"]


@pytest.mark.slow
def test_artefact_is_made_by_all_and_kept_from_the_main_process(two):
    folder, (a, b), _ = two
    assert a["artefact"] == b["artefact"] == [0, 0, "0", "3.0"]
    assert {p.suffix for p in (folder / "build" / "artefacts" / "thing").iterdir()} == {"", ".lock"}


@pytest.mark.slow
def test_whole_run_is_that_of_one_process(two, places, films, backbone, capsys):
    folder, _, out = two
    assert run.main(["truncated", "-r", "task", films, "-r", "backbone", backbone, *WORDS]) == 0
    assert out.count("record:") == capsys.readouterr().out.count("record:") == 1
    name = "test/tiny-bert/films/truncated/seed-0"
    here, there = (json.loads((p / "results" / "runs" / f"{name}.json").read_text()) for p in (places, folder))
    assert there["notes"] == [*here["notes"], "trained by 2 processes: torchrun --nproc-per-node and lib.run in "
                                              "papermill's place"]
    for key in ("score", "metrics", "steps", "tokens", "config_hash", "code_hash", "selection", "padding_share"):
        assert there[key] == here[key], key
    for key, points in here["curve"].items():
        assert there["curve"][key] == [pytest.approx(p, abs=1e-5) for p in points]
    one, both = (load_file(p / "build" / "runs" / name / "student" / "model.safetensors") for p in (places, folder))
    assert one.keys() == both.keys()
    for key in one:
        torch.testing.assert_close(both[key], one[key], atol=1e-5, rtol=0)


# --- the entry without papermill's kernel


@pytest.mark.parametrize(("words", "said"), [
    (["nope"], "method: 'nope' is unknown"),
    (["theseus", "-p", "sede", "1"], "parameter sede: unknown (value 1); did you mean 'seed'?"),
    (["theseus", "-p", "seed"], "usage: python -m lib.run METHOD"),
    (["theseus", "--frobnicate"], "usage: python -m lib.run METHOD"),
    (["theseus", "-f", "no/such.yaml"], "no/such.yaml"),
])
def test_wrong_words_are_one_line(words, said, capsys):
    assert run.main(words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_without_words_it_says_how(capsys):
    assert run.main([]) == 2
    assert "usage: python -m lib.run METHOD" in capsys.readouterr().err
    assert run.main(["--help"]) == 0
    assert "torchrun" in capsys.readouterr().out
