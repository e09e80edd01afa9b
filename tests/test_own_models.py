"""A user's own checkpoint, of five architectures, for every method: a student, or one sentence that says why not."""

from __future__ import annotations

import importlib

import pytest
import tiny
from transformers import AutoModelForSequenceClassification

from lib import evaluation, grid, parameters, results, runs
from lib.errors import InputError

KINDS = (*tiny.KINDS, "modernbert")
SCALE = {"epochs": 1, "batch_size": 16, "precision": "fp32", "lr": 1e-3, "evaluations": 1, "max_rows": 48,
         "max_length": 32, "profile": "test", "max_tokens": 300}
GENERAL = {"text_tokens": 1000, "text_length": 16, "general_batch_size": 16, "head_epochs": 0.2, "general_epochs": 1,
           "transfer_epochs": 1}
SEARCH = {"candidates": [1, 1, 1], "first_candidates": 1, "refit_interval": 1, "candidate_text_tokens": 100,
          "candidate_tokens": 100, "sizes_tokens": 100}
# Methods that do not take every architecture: which they take, and the sentence for the others.
LIMITED = {
    "distilbert": (("bert",), "distilbert: the backbone is a {kind}; it must be a BERT"),
    "mobilebert": (("bert",), "mobilebert: the backbone is a {kind}; its IB teacher is made of BERT's blocks"),
    "trimbert": (("bert",), "is {kind}; TrimBERT is cut out of BERT alone"),
    "theseus": (tiny.KINDS, "theseus: the layers of ModernBertForSequenceClassification take unlike inputs"),
    "tinybert": (tiny.KINDS, "{kind}: its layers are of unlike kinds; TinyBERT maps like to like"),
}
DEPTH = {"bert": 4, "mobilebert": 4, "trimbert": 4, "tinybert": 1}  # of the student; else half of the teacher's 4
QUICK = ("truncated", "theseus")  # the others take a minute and more together


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """`own(kind)`: a classifier of that architecture as a user would bring it."""
    folder = tmp_path_factory.mktemp("own")

    def make(kind: str) -> str:
        made = folder / kind
        return str(made if made.exists() else tiny.save_classifier(made, ["negative", "positive"], kind))

    return make


def started(method: str, kind: str, own, films: str, folder, **changes) -> tuple[runs.Run, object]:
    module = importlib.import_module(f"lib.methods.{method}")
    values = {**SCALE, **GENERAL, "text": str(folder / "text.txt"), **(SEARCH if method == "efficientbert" else {}),
              **changes}
    (folder / "text.txt").write_text("\n\n".join(t for t, _, _ in tiny.rows(1500, seed=5)))
    values = {k: v for k, v in values.items() if k in module.Config.model_fields}
    values |= {"task": films, "backbone" if method == "bert" else "teacher": own(kind)}
    return runs.start(method, parameters.validate(module.Config, values)), module


def takes(method: str, kind: str) -> bool:
    return kind in LIMITED.get(method, (KINDS, ""))[0]


TABLE = [(m, k) for m in grid.methods() for k in KINDS]


def test_the_table_is_whole():
    assert set(LIMITED) <= set(grid.methods())
    assert len(TABLE) == len(grid.methods()) * 5 >= 60
    for method, (kinds, _) in LIMITED.items():
        assert "bert" in kinds, method


@pytest.mark.parametrize(("method", "kind"), [c for c in TABLE if not takes(*c)])
def test_a_sentence(method, kind, own, films, places):
    def compress():
        run, module = started(method, kind, own, films, places)
        run.compress(module.compress)

    with pytest.raises(InputError) as e:
        compress()
    assert LIMITED[method][1].format(kind=kind) in str(e.value)
    assert str(e.value).isprintable()
    assert len(str(e.value)) < 400
    assert not list(places.glob("build/artefacts/*/*"))  # said before anything was trained


TEXTS = {"layerdrop": {"when": "pretraining"}}  # what makes a method read a text, where it need not


@pytest.mark.parametrize("method", grid.methods())
def test_a_text_with_scored_rows_is_refused(method, own, films, places):
    """By every method that reads one, before anything is made of it."""
    module = importlib.import_module(f"lib.methods.{method}")
    if not getattr(module.Config(**TEXTS.get(method, {})), "reads_text", False):
        assert method in ("bert", "truncated", "kd", "pkd", "theseus")
        return
    run, _ = started(method, "bert", own, films, places, **TEXTS.get(method, {}))
    with open(places / "text.txt", "a") as f:
        f.write("".join(f"\n\n{t}" for t in run.data.scored["text"]))
    with pytest.raises(InputError, match="text .*text.txt: holds .* of the rows that task films is scored on"):
        run.compress(module.compress)
    assert not list(places.glob("build/artefacts/*/*"))


def check(method, kind, own, films, places) -> None:
    run, module = started(method, kind, own, films, places)
    student, history = run.compress(module.compress)
    record = run.finish(student, history)
    assert results.read(run.record_path) == record
    assert record.layers == DEPTH.get(method, 2)
    if method != "bert":
        assert record.teacher.source == f"own checkpoint {kind}"
    again = AutoModelForSequenceClassification.from_pretrained(run.output, attn_implementation="eager").eval()
    assert again.config.id2label == {0: "negative", 1: "positive"}
    scored = run.sets["scored"]
    assert evaluation.predict(again, scored) == pytest.approx(evaluation.predict(student, scored), abs=1e-4)


@pytest.mark.parametrize(("method", "kind"), [c for c in TABLE if takes(*c) and c[0] in QUICK])
def test_a_student(method, kind, own, films, places):
    check(method, kind, own, films, places)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "kind"), [c for c in TABLE if takes(*c) and c[0] not in QUICK])
def test_a_student_of_the_other_methods(method, kind, own, films, places):
    check(method, kind, own, films, places)
