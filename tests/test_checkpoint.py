"""Checkpoints: whole or passed over, own ones only, the last two kept."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from lib.checkpoint import Checkpoints
from lib.errors import InputError


def tensors(seed: int) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"model.w": torch.randn(5, 3, generator=g), "adam.0.step": torch.tensor(float(seed)),
            "mask": torch.tensor([True, False]), "half": torch.randn(4, generator=g).bfloat16(),
            "ids": torch.arange(3), "empty": torch.empty(0)}


def equal(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) and a[k].dtype == b[k].dtype for k in a)


@pytest.fixture
def saved(tmp_path):
    c = Checkpoints(tmp_path / "c", "mine")
    for step in (10, 20, 30):
        c.save(step, tensors(step), {"step": step, "history": {"curve": {"loss": [[1, 0.1]]}}})
    return c


def files(c) -> list:
    return sorted(c.folder.glob("*.safetensors"))


def test_newest_comes_back_as_it_was(saved):
    found, state = saved.load()
    assert equal(found, tensors(30))
    assert state == {"step": 30, "history": {"curve": {"loss": [[1, 0.1]]}}}


def test_last_two_are_kept_and_nothing_else_is_left(saved):
    assert ["00000020" in files(saved)[0].name, "00000030" in files(saved)[1].name] == [True, True]
    assert len(list(saved.folder.iterdir())) == 2


def test_nothing_yet(tmp_path):
    assert Checkpoints(tmp_path / "none", "x").load() is None
    Checkpoints(tmp_path / "none", "x").clear()


def damage(path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "empty":
        data = b""
    elif how == "cut":
        data = data[: len(data) // 2]
    elif how == "header":
        data[3] ^= 0xFF
    elif how == "flip":
        data[-9] ^= 0x01  # one bit of one weight
    elif how == "other":
        data = b"not a checkpoint at all"
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("how", ["empty", "cut", "header", "flip", "other", "directory"])
def test_damaged_newest_is_named_and_the_one_before_used(saved, how, capsys):
    newest = files(saved)[-1]
    if how == "directory":
        newest.unlink()
        newest.mkdir()
    else:
        damage(newest, how)
    found, state = saved.load()
    assert state["step"] == 20
    assert equal(found, tensors(20))
    assert newest.name in capsys.readouterr().err


def test_both_damaged_is_none(saved):
    for path in files(saved):
        damage(path, "flip")
    assert saved.load() is None


def test_a_file_without_our_metadata_is_passed_over(saved):
    newest = files(saved)[-1]
    save_file(load_file(newest), newest)
    assert saved.load()[1]["step"] == 20


def test_another_configurations_are_not_taken_up(saved):
    assert Checkpoints(saved.folder, "yours").load() is None
    # not even under the own name
    newest = files(saved)[-1]
    newest.rename(newest.with_name(newest.name.replace("mine", "yours")))
    assert Checkpoints(saved.folder, "yours").load() is None


def test_another_configurations_do_not_push_out_the_own(saved):
    yours = Checkpoints(saved.folder, "yours")
    yours.save(1, tensors(1), {"step": 1})
    assert yours.load()[1]["step"] == 1
    yours.save(2, tensors(2), {"step": 2})
    yours.save(3, tensors(3), {"step": 3})
    assert (yours.load()[1]["step"], saved.load()[1]["step"]) == (3, 30)
    assert len(files(saved)) == 4


def test_clearing_takes_all_with_what_a_kill_left(saved):
    (saved.folder / ".step-00000040.mine.safetensors.123.tmp").write_bytes(b"half")
    (saved.folder / "keep.txt").write_text("x")
    Checkpoints(saved.folder, "").clear()
    assert [p.name for p in saved.folder.iterdir()] == ["keep.txt"]


def test_a_full_disk_is_one_line_and_leaves_the_old_ones(saved, monkeypatch):
    import os

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"No space left on device; free some space"):
        saved.save(40, tensors(40), {"step": 40})
    monkeypatch.undo()
    assert saved.load()[1]["step"] == 30
    assert len(list(saved.folder.iterdir())) == 2


def test_state_is_plain_json(saved):
    from safetensors import safe_open

    with safe_open(files(saved)[-1], "pt") as f:
        assert json.loads(f.metadata()["state"])["step"] == 30
