"""Hostile input, drawn by Hypothesis: every outcome is a result or one line that can be printed anywhere."""

from __future__ import annotations

import csv
import io
import json
import pickle
import shutil
import tempfile
from pathlib import Path

import pandas as pd
import pytest
import tiny
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from synthetic_records import record

from lib import batches, grid, models, paths, results, run, text
from lib.data import load
from lib.errors import InputError
from lib.grid import methods
from lib.parameters import Parameters, read, validate
from lib.paths import component, results_dir, slug
from lib.tasks import TASKS, own_label

# The same examples on every machine and in every run: a test must not fail by luck.
HOSTILE = settings(max_examples=25, deadline=None, derandomize=True, database=None,
                   suppress_health_check=list(HealthCheck))
NASTY = ["\0", "\n", "\r", "\r\n", "\x0b", "\x1a", "\x85", "\u2028", "\ufeff", '"', '""', "'", ",", "\t", "\\", "#",
         "\U0001f642", "\u202e", "\u05e9\u05dc\u05d5\u05dd", "e\u0301", "\u200d", "../", "$HOME", "{}", "%s",
         "<script>", ";", "NA", "null", "nan", "-", "=1+1", " "]
WORDS = st.lists(st.one_of(st.sampled_from(NASTY), st.text(max_size=6), st.sampled_from(tiny.GOOD)), max_size=6)
TEXT = WORDS.map("".join)
CELL = st.one_of(TEXT, st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(["1", "1.0", "1e999"]))
NAME = st.one_of(st.sampled_from(["text", "label", "sentence2", "", "Unnamed: 0", "text.1", "LABEL", " label"]), TEXT)
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "latin-1", "cp1252", "shift-jis")
SUFFIXES = ("csv", "tsv", "jsonl", "parquet")


def encodable(value: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in value)


def told(function) -> str | None:
    """The message of the `InputError` that `function` raises: one short line of printable characters. None without."""
    try:
        function()
    except InputError as e:
        message = str(e)
        assert message
        assert message.isprintable(), message
        assert len(message) < 5000
        return message
    return None


def tokenised(data) -> None:
    """Whatever was taken can also be tokenised and batched."""
    for part in (data.train, data.held_out, data.scored):
        encoded = batches.encode(part, tiny.tokenizer(), 16)
        for _ in batches.in_order(encoded, 8):
            pass


def look(folder: Path, name: str, content: bytes, **columns) -> str | None:
    path = folder / name
    path.write_bytes(content)
    return told(lambda: tokenised(load(str(path), **columns)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hostile")


# --- task files


@st.composite
def tables(draw):
    """(header, rows): as often as not a usable text and label column among what else there is."""
    header = draw(st.lists(NAME, min_size=1, max_size=4))
    rows = draw(st.lists(st.lists(CELL, min_size=len(header), max_size=len(header) + draw(st.integers(0, 1))),
                         max_size=6))
    if draw(st.booleans()):
        good = tiny.rows(draw(st.sampled_from([1, 2, 60])))
        label = draw(CELL)
        rows = [[t, c if i % 3 else label, *(draw(CELL) if i < 3 else "x" for _ in header)]
                for i, (t, c, _) in enumerate(good)]
        header = ["text", "label", *header]
    return header, rows


def written(header, rows, suffix, encoding) -> bytes:
    if suffix == "jsonl":
        lines = [json.dumps({str(k): v for k, v in zip(header, r, strict=False)}) for r in rows]
        return "\n".join(lines).encode()
    if suffix == "parquet":
        columns = {str(k): pd.Series([r[i] if i < len(r) else None for r in rows], dtype=object)
                   for i, k in enumerate(header)}
        out = io.BytesIO()
        try:
            pd.DataFrame(columns).to_parquet(out)
        except Exception:  # noqa: BLE001 - values of unlike types, which parquet cannot hold: text then
            out = io.BytesIO()
            text_only = {k: v.map(lambda x: str(x).encode("utf-8", "replace").decode()) for k, v in columns.items()}
            pd.DataFrame({k.encode("utf-8", "replace").decode(): v for k, v in text_only.items()}).to_parquet(out)
        return out.getvalue()
    out = io.StringIO()
    csv.writer(out, delimiter="\t" if suffix == "tsv" else ",").writerows([header, *rows])
    return out.getvalue().encode(encoding, "replace")


@HOSTILE
@given(tables(), st.sampled_from(SUFFIXES), st.sampled_from(ENCODINGS))
def test_any_table(folder, table, suffix, encoding):
    look(folder, f"x.{suffix}", written(*table, suffix, encoding))


@HOSTILE
@given(st.lists(st.one_of(st.sampled_from([b"text,label\n", b"good film,1\n", b"bad film,0\n", b'"', b"\0", b"\xff\xfe",
                                           b"\xef\xbb\xbf", b'{"text": "a", "label": 1}\n', b"[", b"PAR1", b"\n"]),
                          st.binary(max_size=8)), max_size=12).map(b"".join), st.sampled_from(SUFFIXES))
def test_any_bytes(folder, content, suffix):
    look(folder, f"y.{suffix}", content)


@HOSTILE
@given(st.lists(TEXT.filter(lambda t: encodable(t) and t.strip()), min_size=1, max_size=8), TEXT.filter(encodable),
       st.sampled_from(SUFFIXES))
def test_what_is_read_is_what_was_written(folder, texts, label, suffix):
    """No cell is cut, joined or dropped: the texts and classes of all parts are those of the file."""
    assume(label.strip() and label != "other")
    lines = [(t, label if i % 2 else "other") for i, t in enumerate(f"{t} {i}" for i in range(12) for t in texts)]
    content = written(["text", "label"], lines, suffix, "utf-8")
    path = folder / f"z.{suffix}"
    path.write_bytes(content)
    data = None

    def take():
        nonlocal data
        data = load(str(path))
        tokenised(data)

    message = told(take)
    if message is None:
        parts = (data.train, data.held_out, data.scored)
        found = [(t, data.task.labels[k]) for p in parts for t, k in zip(p["text"], p["label"], strict=True)]
        assert sorted(found) == sorted(lines)
    else:  # few rows may fall on one side; and a NUL no CSV reader takes
        assert "rows are left" in message or "one class only" in message or "\0" in content.decode("utf-8", "replace")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_large_cells_many_classes_and_one_row(folder, suffix):
    rows = tiny.rows(40)
    big = [["x" * 1_000_000 + " " + t if i == 7 else t, c] for i, (t, c, _) in enumerate(rows)]
    assert look(folder, f"big.{suffix}", written(["text", "label"], big, suffix, "utf-8")) is None
    named = [[t, "class " + "x" * 100_000 if i % 2 else c] for i, (t, c, _) in enumerate(rows)]
    look(folder, f"named.{suffix}", written(["text", "label"], named, suffix, "utf-8"))
    many = [[f"row {i}", f"class {i}"] for i in range(10_000)]
    message = look(folder, f"many.{suffix}", written(["text", "label"], many, suffix, "utf-8"))
    assert "10000 classes" in message
    message = look(folder, f"one.{suffix}", written(["text", "label"], [["good", "yes"]], suffix, "utf-8"))
    assert "one class only" in message
    wide = [[t, c, *range(2000)] for t, c, _ in rows]
    head = ["a", "b", *(f"column {i}" for i in range(2000))]
    content = written(head, wide, suffix, "utf-8")
    message = look(folder, f"wide.{suffix}", content)
    assert "no label column" in message
    assert "and 1992 more" in message
    assert len(message) < 1000
    message = look(folder, f"wide.{suffix}", content, label_column="b", text_column="x\ny")
    assert "column 'x\\ny' is missing" in message


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_mixed_labels(folder, suffix):
    """1, 1.0 and "1" are one class; a word among numbers makes all of them words."""
    rows = tiny.rows(60)
    lines = [[t, ("1", "word", "2")[i % 3]] for i, (t, _, _) in enumerate(rows)]
    assert look(folder, f"m.{suffix}", written(["text", "label"], lines, suffix, "utf-8")) is None
    assert load(str(folder / f"m.{suffix}")).task.labels == ("1", "2", "word")


@HOSTILE
@given(st.binary(max_size=60), st.sampled_from(["txt", "jsonl", "parquet"]))
def test_any_text_to_pre_train_on(folder, content, suffix):
    path = folder / f"t.{suffix}"
    path.write_bytes(content)
    told(lambda: text.load(str(path), tiny.tokenizer(), 16, 1000))


# --- model folders


class Evil:
    def __reduce__(self):
        return Path.touch, (Path(tempfile.gettempdir()) / "bert-study-evil",)


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """Path that code out of a model folder would create."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / "bert-study-evil"


def copied(backbone, folder, **changes) -> Path:
    shutil.copytree(backbone, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


@pytest.mark.parametrize("kind", ["bert", "evil"])
def test_code_that_a_folder_brings_is_not_run(backbone, tmp_path, evil, kind):
    """Of a known architecture the library's own class is taken; an unknown one is refused."""
    folder = copied(backbone, tmp_path / "m", model_type=kind, auto_map={
        k: "evil.E" for k in ("AutoConfig", "AutoModel", "AutoModelForSequenceClassification", "AutoTokenizer")})
    (folder / "evil.py").write_text(f"import pathlib\npathlib.Path({str(evil)!r}).touch()\nclass E: pass\n")
    message = told(lambda: (models.load_tokenizer(str(folder)), models.load_backbone(str(folder), tiny.FILMS, 0)))
    assert (message is None) == (kind == "bert"), message
    assert not evil.exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors", "model.pt"])
def test_pickles_are_not_opened(backbone, tmp_path, evil, name):
    folder = copied(backbone, tmp_path / "m")
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Evil()))
    message = told(lambda: models.load_backbone(str(folder), tiny.FILMS, 0))
    assert "backbone" in message
    if name != "model.safetensors":
        assert f"only {name}, a pickle, which can run code when opened" in message
    assert not evil.exists()
    pickle.loads((folder / name).read_bytes())  # the trap itself works
    assert evil.exists()


# --- parameters, profiles, notebooks

VALUE = st.one_of(CELL, st.binary(max_size=4), st.dates(), st.lists(CELL, max_size=3),
                  st.dictionaries(TEXT, CELL, max_size=2))
FIELD = st.one_of(st.sampled_from(sorted(Parameters.model_fields)), TEXT)


@HOSTILE
@given(st.dictionaries(FIELD, VALUE, max_size=4))
def test_any_parameters(values):
    message = told(lambda: validate(Parameters, values))
    if message:
        assert message.startswith("parameter")
    told(lambda: read(Parameters, dict(values)))


@HOSTILE
@given(st.one_of(TEXT, st.dictionaries(FIELD, VALUE, max_size=3).map(yaml.safe_dump)))
def test_any_profile_file(folder, content):
    assume(encodable(content))
    path = folder / "profile.yaml"
    path.write_bytes(content.encode())
    told(lambda: run.parameters_of([str(path)]))


@settings(HOSTILE, max_examples=8)
@given(st.lists(st.tuples(st.sampled_from(["-p", "-r", "-y", "-f"]), TEXT, TEXT)
                .map(lambda w: w[: 2 if w[0] in ("-y", "-f") else 3]), max_size=2))
def test_any_words_of_a_notebook(words):
    """Only the preparing is tried: a task that is valid would be trained."""
    message = told(lambda: run.cells("truncated", [w for part in words for w in part]))
    assert message is None or message.startswith(("usage: ", "parameter file "))


# --- names


@HOSTILE
@given(st.one_of(TEXT, st.lists(st.sampled_from(["..", "/", ".", "\0", "a", "~", "\\", "-", "C:", "con"]), max_size=6)
                 .map("".join)))
def test_no_name_leaves_the_results(name):
    root = results_dir() / "runs"
    for i in range(5):
        parts = ["glue", "minilm-l6", "rte", "theseus", ""]
        parts[i] = name

        def inside(parts=parts):
            path = results.record_path(*parts, 0)
            assert path.resolve().is_relative_to(root)
            assert len(path.relative_to(root).parts) == 5

        told(inside)
    for made in (slug(name), own_label(name)):
        assert component("task", made) == made
        assert made not in TASKS
    told(lambda: grid.plan("glue", tasks=name))
    assert told(lambda: grid.plan("glue", "rte", method_names=name)) or set(name.split()) <= set(methods())


# --- records

KEYS = st.sampled_from(sorted(results.Record.model_fields))


@HOSTILE
@given(st.lists(st.tuples(KEYS, VALUE), min_size=1, max_size=3), st.booleans())
def test_any_record(monkeypatch, changes, nested):
    with tempfile.TemporaryDirectory() as place:
        monkeypatch.setenv("BERT_RESULTS", place)
        fields = record().model_dump()
        for key, value in changes:
            (fields["environment"] if nested else fields)[key] = value
        path = results.record_path("glue", "minilm-l6", "rte", "theseus", "", 0)
        paths.write_atomic(path, json.dumps(fields, default=str).encode())
        records, skipped = results.load_all()
        assert len(records) + len(skipped) == 1  # never silently dropped
        assert all(s.isprintable() for s in skipped)


@HOSTILE
@given(st.one_of(st.binary(max_size=40), st.recursive(CELL, lambda x: st.lists(x, max_size=3), max_leaves=8).map(
    lambda v: json.dumps(v).encode())))
def test_any_bytes_in_a_record_s_place(monkeypatch, content):
    with tempfile.TemporaryDirectory() as place:
        monkeypatch.setenv("BERT_RESULTS", place)
        paths.write_atomic(results.record_path("glue", "minilm-l6", "rte", "theseus", "", 0), content)
        records, skipped = results.load_all()
        assert (len(records), len(skipped)) == (0, 1)
        assert skipped[0].isprintable()
