"""Students scored after quantisation, and the pass over STS-B: on tiny models and made-up rows."""

from __future__ import annotations

from types import SimpleNamespace

import datasets
import numpy as np
import pandas as pd
import pytest
import tiny
import torch
from synthetic_records import put, record

from lib import batches, data, evaluation, models
from lib.efficiency import export, stsb, students, timing
from lib.efficiency import run as efficiency_run
from lib.errors import InputError
from lib.tasks import Task

PAIRS = Task("rte", ("text", "text_2"), "label", ("entailment", "not_entailment"), ("accuracy",))


@pytest.fixture
def rows(monkeypatch):
    """Forty made-up pairs under the name of RTE."""
    words = tiny.rows(40)
    frame = pd.DataFrame({"idx": range(40), "text": [w[0] for w in words], "text_2": [w[0][::-1] for w in words],
                          "label": [int(w[1] == "positive") for w in words]})
    loaded = SimpleNamespace(task=PAIRS, scored=datasets.Dataset.from_pandas(frame))
    monkeypatch.setattr(data, "load", lambda name, **k: loaded)
    return loaded


def student(places, seed: int = 0, method: str = "theseus"):
    """A record and its tiny student where a run leaves it."""
    made = record(method=method, task="rte", seed=seed, teacher=66.0, hyperparameters={"lr": 1e-4, "max_length": 40})
    put(made)
    folder = students.folder_of(made, places / "build")
    tiny.save_classifier(folder, list(PAIRS.labels), seed=seed)
    return made, folder


def test_onnx_logits_are_torchs_in_the_order_of_the_rows(places, rows, tmp_path):
    pytest.importorskip("onnxruntime")
    _, folder = student(places)
    model = models.load_any(str(folder))
    encoded = batches.encode(rows.scored, models.load_tokenizer(str(folder)), 40)
    assert len(set(encoded.lengths)) > 5
    assert any(1 in types for types in encoded.inputs["token_type_ids"])
    export.export(model, tmp_path / "model.onnx")
    got = students.onnx_logits(tmp_path / "model.onnx", encoded, size=7)
    np.testing.assert_allclose(got, evaluation.predict(model, encoded), atol=1e-4)


def test_a_line_for_each_student_that_is_there_and_none_twice(places, rows, monkeypatch):
    pytest.importorskip("onnxruntime")
    with pytest.raises(InputError, match="none of the 0 records has its student there"):
        students.write(places / "build")
    made, _ = student(places)
    put(record(method="truncated", task="rte"))  # its student is gone
    said = []
    load = torch.get_num_threads() + 2.0
    monkeypatch.setattr(timing.os, "getloadavg", lambda: (load, 0.0, 0.0))
    path = students.write(places / "build", say=said.append)
    assert f"left out, load {load}" in said[0]  # timed beside other programs
    assert not path.exists()
    load = 1.0
    students.write(places / "build", say=said.append)
    frame = pd.read_csv(path)
    assert path == places / "results" / "students.csv"
    assert list(frame.method) == ["theseus"]
    line = frame.iloc[0]
    assert line.rows == 40
    assert line.score_torch == line.score_onnx
    assert line.drop_int8 == pytest.approx(line.score_int8 - line.score_onnx)
    assert line.file_int8_mb < line.file_mb
    assert min(line.latency_ms, line.latency_onnx_ms, line.latency_int8_ms) > 0
    assert said[-1] == f"1 students; 1 records have none below {places / 'build'}"
    before = path.read_bytes()
    students.write(places / "build", say=said.append)
    assert path.read_bytes() == before
    assert made.label == "theseus"


def test_the_pass_over_stsb_takes_every_pair_once_in_each_round(monkeypatch):
    seen = {}

    class Counter(torch.nn.Module):
        def __init__(self, name):
            super().__init__()
            self.name = name

        def forward(self, input_ids, attention_mask):
            assert input_ids.shape == attention_mask.shape
            assert attention_mask.all()
            seen.setdefault(self.name, []).append(input_ids.shape[1])

    given = [torch.ones(1, n, dtype=torch.long) for n in (4, 9, 6)]
    found = stsb.measure(given, "eager", 2, build=lambda s, attention: Counter(s.name))
    assert seen == dict.fromkeys(stsb.SYSTEMS, [4, 9, 6] * 3)  # one pass that is not counted, two that are
    assert [(r["system"], r["pairs"], r["tokens"], r["passes"]) for r in found] == [
        ("BERT-base", 3, 19, 2), ("DistilBERT", 3, 19, 2)]
    assert found[0]["ratio"] == 1.0


def test_a_pass_that_was_cut_off_goes_on_with_the_attention_that_is_missing(places, monkeypatch):
    asked, here = [], stsb.timing.stamp()

    def measure(batches, attention, passes):
        asked.append(attention)
        if attention == "sdpa" and len(asked) == 2:
            raise KeyboardInterrupt
        return [{"system": s, "backend": attention, "seconds": 1.0, **here} for s in stsb.SYSTEMS]

    monkeypatch.setattr(stsb, "pairs", list)
    monkeypatch.setattr(stsb, "measure", measure)
    (places / "results").mkdir(exist_ok=True)
    other = pd.DataFrame([{"system": "BERT-base", "backend": "sdpa", **here, "processor": "another"}])
    other.to_csv(places / "results" / "stsb_pass.csv", index=False)
    with pytest.raises(KeyboardInterrupt):
        stsb.write()
    frame = pd.read_csv(stsb.write())
    assert asked == ["eager", "sdpa", "sdpa"]
    assert list(frame.backend) == ["eager", "eager", "sdpa", "sdpa"]
    assert set(frame.processor) == {here["processor"]}


def test_pairs_of_stsb_are_those_of_the_task(rows):
    found = stsb.pairs()
    assert len(found) == 40
    assert all(p.shape[0] == 1 and p[0, 0] == 101 and (p == 102).sum() == 2 for p in found)  # [CLS] a [SEP] b [SEP]


def test_students_that_are_nowhere_are_one_line(places, capsys):
    (places / "results" / "runs").mkdir(parents=True)
    assert efficiency_run.main(["students", "--build", str(places / "nothing")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --build ")
    assert error.count("\n") == 1
