"""The zip for the GLUE server: names, header, labels, ranges, and that the student's own answers are in it."""

import io
import os
import zipfile
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import tiny
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from lib import submission
from lib.errors import InputError
from lib.tasks import TASKS

ROWS = 20


def put(folder, name, split, columns, rows=ROWS, idx=None):
    rng = np.random.default_rng(len(name))
    frame = pd.DataFrame({c: [" ".join(rng.choice(tiny.FILLER + tiny.GOOD, 6)) for _ in range(rows)] for c in columns})
    frame["label"] = -1
    frame["idx"] = np.arange(rows, dtype=np.int32) if idx is None else idx
    path = folder / name / f"{split}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.to_parquet(path)
    return frame


@pytest.fixture
def glue(places, monkeypatch):
    """A small made-up GLUE folder, and a server that counts as few rows."""
    folder = places / "glue"
    for f in submission.FILES:
        put(folder, f.folder or f.task, f.split, TASKS[f.task].text)
    monkeypatch.setenv("GLUE_DIR", str(folder))
    monkeypatch.setattr(submission, "FILES", tuple(replace(f, rows=ROWS) for f in submission.FILES))
    return folder


@pytest.fixture(scope="module")
def student(shelf):
    def make(task):
        declared = TASKS[task]
        folder = shelf / f"submission-{task}"
        if not folder.exists():
            tiny.save_classifier(folder, list(declared.labels) if declared.labels else 1, dropout=0.0)
            centre(folder, len(declared.text))
        return str(folder)

    return make


def centre(folder, parts):
    """Shift the outputs of a random classifier by their means over made-up rows, so that it gives every answer."""
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder).eval(), tiny.tokenizer()
    rng = np.random.default_rng(0)
    texts = [[" ".join(rng.choice(tiny.FILLER + tiny.GOOD, 6)) for _ in range(40)] for _ in range(parts)]
    with torch.no_grad():
        model.classifier.bias -= model(**tokenizer(*texts, padding=True, return_tensors="pt")).logits.mean(0)
    model.save_pretrained(folder)


def read(path):
    with zipfile.ZipFile(path) as z:
        return {n: z.read(n).decode() for n in z.namelist()}


def lines(text):
    return pd.read_csv(io.StringIO(text), sep="\t", dtype=str, keep_default_na=False)


def test_a_whole_submission(glue, student, places, capsys):
    given = " ".join(f"{t}={student(t)}" for t in submission.NAMES)
    assert submission.main(["--students", given]) == 0
    texts = read(places / "build" / "submission.zip")
    assert set(texts) == {"CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "STS-B.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "QNLI.tsv",
                          "QQP.tsv", "RTE.tsv", "WNLI.tsv", "AX.tsv"}
    words = {"MNLI-m.tsv": submission._NLI, "MNLI-mm.tsv": submission._NLI, "AX.tsv": submission._NLI,
             "QNLI.tsv": submission._TWO, "RTE.tsv": submission._TWO}
    for name, text in texts.items():
        frame = lines(text)
        assert list(frame.columns) == ["index", "prediction"]
        assert list(frame["index"]) == [str(i) for i in range(ROWS)]
        assert text.endswith("\n")
        if name != "STS-B.tsv":
            assert set(frame["prediction"]) <= set(words.get(name, ("0", "1")))
    numbers = lines(texts["STS-B.tsv"])["prediction"].astype(float)
    assert numbers.between(0, 5).all()
    assert "lacks" not in capsys.readouterr().err


def test_the_answers_are_the_students(glue, student, places):
    """Row by row, through transformers alone."""
    submission.make({"rte": student("rte"), "mrpc": student("mrpc")}, places / "out.zip", max_length=64)
    texts = read(places / "out.zip")
    for task, name, words in (("rte", "RTE.tsv", submission._TWO), ("mrpc", "MRPC.tsv", ("0", "1"))):
        model = AutoModelForSequenceClassification.from_pretrained(student(task)).eval()
        tokenizer = AutoTokenizer.from_pretrained(student(task))
        frame = pd.read_parquet(glue / task / "test.parquet")
        with torch.inference_mode():
            got = [words[model(**tokenizer(a, b, return_tensors="pt")).logits.argmax().item()]
                   for a, b in zip(frame["sentence1"], frame["sentence2"], strict=True)]
        assert list(lines(texts[name])["prediction"]) == got
        assert len(set(got)) == 2


def test_classes_are_matched_by_name_not_by_place(glue, shelf, places):
    straight = tiny.save_classifier(shelf / "straight", ["entailment", "not_entailment"], seed=5)
    model = AutoModelForSequenceClassification.from_pretrained(straight)
    turned = shelf / "turned"
    model.config.id2label, model.config.label2id = {0: "not_entailment", 1: "entailment"}, {
        "not_entailment": 0, "entailment": 1}
    head = model.classifier
    with torch.no_grad():
        head.weight.copy_(head.weight.flip(0).clone())
        head.bias.copy_(head.bias.flip(0).clone())
    model.save_pretrained(turned)
    tiny.save_tokenizer(turned)
    for folder, out in ((straight, "a.zip"), (turned, "b.zip")):
        submission.make({"rte": str(folder)}, places / out)
    assert (places / "a.zip").read_bytes() == (places / "b.zip").read_bytes()


def test_similarities_are_clipped_and_rounded():
    file = next(f for f in submission.FILES if f.name == "STS-B.tsv")
    text = submission.answers(file, np.array([[-0.7], [2.34567], [5.2], [4.9996]]), TASKS["stsb"])
    assert text == "index\tprediction\n0\t0.000\n1\t2.346\n2\t5.000\n3\t5.000\n"
    with pytest.raises(InputError, match=r"STS-B.tsv: the student's outputs are not finite"):
        submission.answers(file, np.array([[np.nan]]), TASKS["stsb"])


def test_what_is_missing_is_said_and_nothing_made_up(glue, student, places, capsys):
    (glue / "ax" / "test.parquet").unlink()
    assert submission.main(["--students", f"mnli={student('mnli')}", "--output", str(places / "x" / "s.zip")]) == 0
    assert set(read(places / "x" / "s.zip")) == {"MNLI-m.tsv", "MNLI-mm.tsv"}
    err = capsys.readouterr().err
    assert "AX.tsv: left out: GLUE_DIR" in err
    assert "lacks CoLA.tsv, SST-2.tsv" in err


@pytest.mark.parametrize(("given", "words"), [
    ("", "is empty"), ("rte", "is not task=folder"), ("rte=", "is not task=folder"), ("rt=a", "did you mean 'rte'"),
    ("rte=a rte=b", "given twice"), ("rte='a", "No closing quotation"), ("movies=a", "'movies' is unknown"),
    ("rte=/no/such/folder", "no such folder"),
])  # fmt: skip
def test_students_that_are_none(glue, given, words, capsys):
    assert submission.main(["--students", given]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.startswith("submission: ")
    assert err.count("\n") == 1


def test_a_student_of_another_task_is_refused(glue, student, places):
    with pytest.raises(InputError, match="its classes"):
        submission.make({"rte": student("cola")}, places / "x.zip")
    with pytest.raises(InputError, match="outputs"):
        submission.make({"stsb": student("cola")}, places / "x.zip")
    assert not (places / "x.zip").exists()


def test_rows_that_the_server_would_count_otherwise_are_refused(glue, student, places):
    columns = TASKS["wnli"].text
    put(glue, "wnli", "test", columns, rows=ROWS - 1)
    with pytest.raises(InputError, match="has 19 rows; the server counts 20"):
        submission.make({"wnli": student("wnli")}, places / "x.zip")
    put(glue, "wnli", "test", columns, idx=np.arange(ROWS)[::-1])
    with pytest.raises(InputError, match="idx of wnli"):
        submission.make({"wnli": student("wnli")}, places / "x.zip")
    put(glue, "wnli", "test", columns[:1])
    with pytest.raises(InputError, match="no column 'sentence2'"):
        submission.make({"wnli": student("wnli")}, places / "x.zip")


def test_a_folder_with_a_space_and_an_equals_sign():
    assert submission.parse("rte='my students/a=b' cola=c") == {"rte": "my students/a=b", "cola": "c"}


def test_the_same_students_make_the_same_zip(glue, student, places):
    for name in ("a.zip", "b.zip"):
        submission.make({"cola": student("cola")}, places / name)
    assert (places / "a.zip").read_bytes() == (places / "b.zip").read_bytes()


@pytest.mark.skipif(not os.environ.get("GLUE_DIR"), reason="GLUE_DIR is not set")
def test_the_real_test_set_of_wnli(student, places):
    submission.make({"wnli": student("wnli")}, places / "real.zip")
    assert len(lines(read(places / "real.zip")["WNLI.tsv"])) == 146
