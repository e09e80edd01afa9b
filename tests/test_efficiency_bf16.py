"""bf16 against float32 of one network: what a row holds, that it resumes, what it refuses; times are not believed."""

from __future__ import annotations

import pandas as pd
import pytest
import tiny
import torch

from lib import training
from lib.efficiency import bf16, table, timing
from lib.efficiency import run as efficiency_run
from lib.errors import InputError

POINTS = ((1, 8), (2, 16))


def subject(name: str) -> table.Subject:
    return table.Subject(name, lambda attention: tiny.classifier(attention=attention, install=False), {}, 1.0)


@pytest.fixture
def has_bf16(monkeypatch):
    monkeypatch.setattr(training, "precision", lambda: "bf16")  # emulated where the processor has none


def test_both_precisions_take_turns_in_the_same_rounds(has_bf16, monkeypatch):
    seen, given = [], timing.interleaved

    def watched(calls, **settings):
        seen.append([calls[n]().logits.dtype for n in ("sdpa", "bf16")])
        times = given(calls, **settings)
        return {"sdpa": times["sdpa"] * 0 + [0.4, 0.2, 0.6], "bf16": times["bf16"] * 0 + [0.1, 0.1, 0.2]}

    monkeypatch.setattr(timing, "interleaved", watched)
    rows = bf16.measure(subject("one"), POINTS, rounds=3, fewest=3)
    assert seen == [[torch.float32, torch.bfloat16]] * 2
    assert [(r["system"], r["batch"], r["length"]) for r in rows] == [("one", 1, 8), ("one", 2, 16)]
    for r in rows:
        assert (r["fp32_ms"], r["bf16_ms"]) == (400.0, 100.0)
        # ratios inside the rounds are 4, 2 and 3: their median is not that of 400 over 100
        assert (r["gain"], r["gain_low"], r["gain_high"], r["rounds"]) == (3.0, 2.5, 3.5, 3)
        assert r["threads"] == torch.get_num_threads()


def test_a_processor_without_bf16_is_refused(monkeypatch):
    monkeypatch.setattr(training, "precision", lambda: "fp32")
    with pytest.raises(InputError, match="one in bf16: this processor has no bf16"):
        bf16.measure(subject("one"), POINTS)


def test_rows_of_this_machine_are_not_measured_again(has_bf16, tmp_path, monkeypatch):
    monkeypatch.setattr(timing, "busy", lambda load, threads: "")
    path, said = tmp_path / "bf16.csv", []
    short = {"minutes": 5, "say": said.append, "points": POINTS}
    assert bf16.write([subject("one")], path, **short) == 2
    before = path.read_text()
    assert bf16.write([subject("one"), subject("two")], path, **short) == 2
    assert path.read_text().startswith(before)
    assert set(pd.read_csv(path).system) == {"one", "two"}
    assert bf16.write([subject("one"), subject("two")], path, **short) == 0
    frame = pd.read_csv(path)
    frame.assign(processor="another").to_csv(path, index=False)
    assert bf16.write([subject("one")], path, **short) == 2


def test_what_ran_beside_other_programs_or_has_no_time_left_adds_no_row(has_bf16, tmp_path, monkeypatch):
    path, said = tmp_path / "bf16.csv", []
    assert bf16.write([subject("one")], path, minutes=-1, say=said.append) == 0
    assert said == ["the time is over, run again for the rest"]
    monkeypatch.setattr(timing, "busy", lambda load, threads: "left out, busy")
    monkeypatch.setattr(bf16, "measure", lambda s, points: [{"load": 9.0}])
    assert bf16.write([subject("one")], path, minutes=5, say=said.append) == 0
    assert said[1:] == ["one: left out, busy"]
    assert not path.exists()


def test_the_command_times_the_systems_that_it_names(places, monkeypatch):
    got = {}
    monkeypatch.setattr(bf16, "write", lambda some, path, minutes, say: got.update(
        names=[s.name for s in some], path=path, minutes=minutes) or 0)
    assert efficiency_run.main(["bf16", "--systems", "DistilBERT; TinyBERT4", "--minutes", "3"]) == 0
    assert got == {"names": ["DistilBERT", "TinyBERT4"], "path": places / "results" / "bf16.csv", "minutes": 3}
    assert efficiency_run.main(["bf16", "--systems", "NoBERT"]) == 2
