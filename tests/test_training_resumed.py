"""The same again: equal under one seed, resumed bit for bit, and undisturbed by whoever watches."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch
from training_runs import Line, run, settings, told

from lib.checkpoint import Checkpoints
from lib.methods import bert
from lib.training import train


def test_same_seed_same_result_another_seed_another():
    torch.manual_seed(1)
    a, ha = run()
    torch.manual_seed(2)  # the state of the global generator does not matter
    np.random.seed(5)
    b, hb = run()
    c, _ = run(seed=1)
    assert tiny.same(a, b)
    assert told(ha) == told(hb)
    assert not tiny.same(a, c)


def test_dropout_differs_between_steps_and_micro_batches():
    seen = []

    def loss(m, batch, step):
        seen.append((step.index, step.micro, float(torch.rand(())), float(step.random().random()),
                     float(step.random(1).random())))
        return bert.supervised(m, batch, step)

    run(loss=loss, batch_size=4, accumulation=2, evaluate=False)
    assert len(seen) == len({s[:2] for s in seen}) == 20
    run(loss=loss, batch_size=4, accumulation=2, evaluate=False, seed=1)
    for column in (2, 3, 4):  # between seeds too
        assert len({s[column] for s in seen}) == 40


@pytest.mark.parametrize("stop_at", [(1, 0), (3, 0), (4, 0), (9, 0)])
def test_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path, stop_at):
    """10 steps, evaluations after steps 3, 7 and 10; stopped before, at and after a best state was kept."""
    wanted, history = run(checkpoints=None)
    with pytest.raises(KeyboardInterrupt):
        run(checkpoints=Checkpoints(tmp_path, "x"), stop_at=stop_at)
    left = {1: [50, 70, 60], 3: [70, 60], 4: [70, 60], 9: [60]}[stop_at[0]]
    got, resumed = run(checkpoints=Checkpoints(tmp_path, "x"), scores=left, model=tiny.classifier(
        seed=99, layers=2, dropout=0.1))  # whatever the model was: the checkpoint holds it all
    assert tiny.same(got, wanted)
    assert told(resumed) == told(history)
    assert (resumed.kept_step, resumed.kept_score) == (7, 70)


def test_resumed_under_accumulation_and_interrupted_twice(tmp_path):
    extra = {"batch_size": 3, "accumulation": 2, "evaluate": False}
    wanted, history = run(**extra)
    for stop_at in ((2, 1), (9, 0)):
        with pytest.raises(KeyboardInterrupt):
            run(checkpoints=Checkpoints(tmp_path, "x"), stop_at=stop_at, **extra)
    got, resumed = run(checkpoints=Checkpoints(tmp_path, "x"), **extra)
    assert tiny.same(got, wanted)
    assert told(resumed) == told(history)


def test_curve_of_a_long_run_is_the_same_after_resuming(tmp_path):
    """Over 100 steps a point of the curve is a mean over several steps."""
    extra = {"batch_size": 2, "epochs": 12, "evaluate": False, "model": None}
    make = lambda: Line()  # noqa: E731
    loss = lambda m, b, s: m.loss(b)  # noqa: E731
    _, history = run(**{**extra, "model": make()}, loss=loss)
    assert history.steps == 240
    assert [p[0] for p in history.curve["loss"]] == [*range(2, 241, 2)]
    for stop in (101, 200):
        with pytest.raises(KeyboardInterrupt):
            run(**{**extra, "model": make()}, loss=loss, checkpoints=Checkpoints(tmp_path, "x"), stop_at=(stop, 0))
    _, resumed = run(**{**extra, "model": make()}, loss=loss, checkpoints=Checkpoints(tmp_path, "x"))
    assert told(resumed) == told(history)


@pytest.mark.parametrize("damaged", [1, 2])
def test_damaged_newest_checkpoint_costs_steps_and_nothing_else(tmp_path, damaged, capsys):
    wanted, history = run()
    with pytest.raises(KeyboardInterrupt):
        run(checkpoints=Checkpoints(tmp_path, "x"), stop_at=(6, 0))
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) == 2
    for path in files[-damaged:]:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))
    left = [70, 60] if damaged == 1 else [50, 70, 60]
    got, resumed = run(checkpoints=Checkpoints(tmp_path, "x"), scores=left)
    said = capsys.readouterr().err
    assert "does not match its checksum" in said
    assert ("going on from step 5" in said) == (damaged == 1)
    assert tiny.same(got, wanted)
    assert told(resumed) == told(history)


def test_checkpoint_of_another_configuration_is_not_taken_up(tmp_path):
    wanted, _ = run()
    with pytest.raises(KeyboardInterrupt):
        run(checkpoints=Checkpoints(tmp_path, "other"), stop_at=(6, 0))
    got, _ = run(checkpoints=Checkpoints(tmp_path, "x"))
    assert tiny.same(got, wanted)


def test_checkpoints_come_as_often_as_asked(tmp_path):
    run(checkpoints=Checkpoints(tmp_path / "a", "x"))
    assert [int(p.name[5:13]) for p in sorted((tmp_path / "a").iterdir())] == [8, 9]  # none after the last step
    train(tiny.classifier(layers=1), bert.supervised, tiny.encoded(40), settings(checkpoint_seconds=1e9),
          checkpoints=Checkpoints(tmp_path / "b", "x"))
    assert not (tmp_path / "b").exists()


def test_watching_changes_nothing():
    """With and without evaluation the same weights come out at the same step."""
    watched, h = run(scores=[1, 2, 3])
    blind, _ = run(evaluate=False)
    assert h.kept_step == h.steps == 10
    assert tiny.same(watched, blind)
