"""A user's own file: what is guessed, and that every problem is one line that names it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import tiny

from lib.data import load
from lib.errors import InputError

ROWS = [(t, c) for t, c, _ in tiny.rows(80)]
HEAD = ("text", "label")


def csv(path, lines=ROWS, head=HEAD, sep=","):
    return str(tiny.write_csv(path, head, lines, sep))


def refused(path, *words: str, **columns) -> str:
    with pytest.raises(InputError) as e:
        load(str(path), **columns)
    text = str(e.value)
    assert "\n" not in text
    assert len(text) < 700
    for w in words:
        assert w in text, text
    return text


# --- what is guessed


@pytest.mark.parametrize(("head", "lines", "text", "label"), [
    (("label", "sentence"), [(c, t) for t, c in ROWS], ("sentence",), "label"),
    (("id", "review", "sentiment"), [(i, t, c) for i, (t, c) in enumerate(ROWS)], ("review",), "sentiment"),
    (("Question1", "question2", "y"), [(t, "or not", c) for t, c in ROWS], ("Question1", "question2"), "y"),
    (("words", "class"), ROWS, ("words",), "class"),  # the only text column beside the label
    (("premise", "hypothesis", "gold", "label"), [(t, "it is", 1, c) for t, c in ROWS], ("premise", "hypothesis"),
     "label"),
])
def test_columns_are_guessed_and_said(tmp_path, capsys, head, lines, text, label):
    task = load(csv(tmp_path / "x.csv", lines, head)).task
    assert (task.text, task.label) == (text, label)
    said = capsys.readouterr().out
    assert f"text={', '.join(text)}" in said
    assert f"label={label}" in said
    assert "classification" in said


def test_columns_that_are_named_win(tmp_path):
    lines = [(t, "other words", c, i % 3) for i, (t, c) in enumerate(ROWS)]
    path = csv(tmp_path / "x.csv", lines, ("text", "b", "label", "z"))
    task = load(path, text_column="b", text_column_2="text", label_column="z").task
    assert (task.text, task.label, task.labels) == (("b", "text"), "z", ("0", "1", "2"))


def test_pairs_reach_both_columns(tmp_path):
    d = load(csv(tmp_path / "x.csv", [(t, f"second {i}", c) for i, (t, c) in enumerate(ROWS)],
                 ("sentence1", "sentence2", "label")))
    assert all(s.startswith("second ") for s in d.train["text_2"])
    assert not any(s.startswith("second ") for s in d.train["text"])


def test_classes_stand_in_a_natural_order_and_get_their_numbers(tmp_path):
    names = ["10", "9", "b", "a"]
    d = load(csv(tmp_path / "x.csv", [(t, names[i % 4]) for i, (t, _) in enumerate(ROWS)]))
    assert d.task.labels == ("9", "10", "a", "b")
    wanted = {t: names[i % 4] for i, (t, _) in enumerate(ROWS)}
    for part in (d.train, d.held_out, d.scored):
        assert [d.task.labels[k] for k in part["label"]] == [wanted[t] for t in part["text"]]


def test_one_and_1_0_and_the_text_1_are_one_class(tmp_path):
    folder = tmp_path / "f"
    csv(folder / "train.csv", [(t, int(c == "positive")) for t, c in ROWS])
    csv(folder / "test.csv", [("a b", "1.0"), ("c d", "0.0"), ("e f", "1.0")])
    pd.DataFrame({"text": ["g", "h"], "label": ["1", "0"]}).to_parquet(folder / "dev.parquet")
    d = load(str(folder))
    assert d.task.labels == ("0", "1")
    assert list(d.scored["label"]) == [1, 0, 1]
    assert list(d.held_out["label"]) == [1, 0]


def test_words_that_pandas_takes_for_missing_are_words(tmp_path):
    lines = [(f"{w} {i}", ("NA", "null")[i % 2]) for i in range(60) for w in ("nan",)]
    d = load(csv(tmp_path / "x.csv", lines))
    assert d.task.labels == ("NA", "null")
    assert all(t.startswith("nan ") for t in d.train["text"])


def test_fractions_mean_regression_and_whole_numbers_classes(tmp_path, ratings):
    d = load(ratings)
    assert d.task.regression
    assert d.task.headline == ("pearson", "spearman")
    wanted = {t: r for t, _, r in tiny.rows(150)}
    assert list(d.scored["label"]) == pytest.approx([wanted[t] for t in d.scored["text"]])
    whole = csv(tmp_path / "x.csv", [(t, i % 5) for i, (t, _) in enumerate(ROWS)])
    assert load(whole).task.labels == ("0", "1", "2", "3", "4")
    assert load(whole, kind="regression").task.regression


def test_folders(tmp_path):
    folder = tmp_path / "films.v2"
    csv(folder / "train.tsv", ROWS, sep="\t")
    csv(folder / "valid.csv", [("x y", "positive"), ("z", "negative")])
    (folder / "README.md").write_text("not read")
    d = load(str(folder))
    assert d.task.scored == "validation"
    assert d.rows["validation"] == 2
    assert d.rows["train"] + d.rows["held_out"] == 80
    csv(folder / "test.csv", [("x y", "positive"), ("z", "negative"), ("w", "negative")])
    d = load(str(folder))
    assert d.task.scored == "test"
    assert d.rows == {"train": 80, "held_out": 2, "test": 3}  # a validation file of the user's is what it is for


def test_byte_order_mark_quotes_and_line_breaks_in_cells(tmp_path):
    lines = [(f'{t}, "so" it\nis {i}', c) for i, (t, c) in enumerate(ROWS)]
    path = csv(tmp_path / "x.csv", lines)
    data = (tmp_path / "x.csv").read_bytes()
    (tmp_path / "x.csv").write_bytes(b"\xef\xbb\xbf" + data)
    d = load(path)
    assert set(d.train["text"]) <= {t for t, _ in lines}


# --- what is refused


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.jsonl", "x.parquet"])
def test_empty_files(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    refused(tmp_path / name, name)


def test_header_without_rows(tmp_path):
    refused(csv(tmp_path / "x.csv", []), "x.csv", "no rows")


def test_unreadable_files(tmp_path):
    for name, content in (("a.parquet", b"PAR1junkPAR1"), ("b.jsonl", b'{"text": '), ("c.csv", b'text,label\n"a,1\n'),
                          ("d.csv", b"text,label\na,1\nb,0,7,8\n"), ("e.jsonl", b'{"text": "a", "label": 1}\n3\n')):
        (tmp_path / name).write_bytes(content)
        refused(tmp_path / name, name, "cannot be read as")
    (tmp_path / "latin.csv").write_bytes("text,label\nécole,1\n".encode("latin-1"))
    refused(tmp_path / "latin.csv", "not UTF-8")
    (tmp_path / "utf16.csv").write_bytes("text,label\na,1\n".encode("utf-16"))
    refused(tmp_path / "utf16.csv", "not UTF-8")
    (tmp_path / "dir.csv").mkdir()
    refused(tmp_path / "dir.csv", "needs a train file")


def test_unknown_formats(tmp_path):
    (tmp_path / "x.xlsx").write_bytes(b"x")
    refused(tmp_path / "x.xlsx", "'.xlsx'", ".csv, .tsv, .jsonl, .parquet")


@pytest.mark.parametrize(("columns", "words"), [
    ({"text_column": "body"}, ("text_column", "'body'", "text, label")),
    ({"label_column": "tag"}, ("label_column", "'tag'", "text, label")),
    ({"text_column_2": "b"}, ("text_column_2", "'b'")),
    ({"text_column": "label"}, ("must all be different",)),
    ({"text_column_2": "text"}, ("must all be different",)),
])
def test_columns_that_are_missing_or_the_same(tmp_path, columns, words):
    refused(csv(tmp_path / "x.csv"), *words, **columns)


def test_columns_that_cannot_be_guessed(tmp_path):
    refused(csv(tmp_path / "a.csv", ROWS, ("text", "foo")), "no label column", "text, foo", "label_column")
    refused(csv(tmp_path / "b.csv", [(t, t[::-1], c) for t, c in ROWS], ("one", "other", "label")), "no text column",
            "one, other", "text_column")
    refused(csv(tmp_path / "c.csv", [(i, i % 2) for i in range(60)], ("n", "label")), "no text column")
    refused(csv(tmp_path / "d.csv", ROWS, sep=";"), "no label column", "text;label")
    refused(csv(tmp_path / "e.csv", [(*r, 1) for r in ROWS], ("text", "label", "label")), "'label' appears twice")


def test_split_of_a_folder_that_lacks_a_column_is_named(tmp_path):
    csv(tmp_path / "f" / "train.csv")
    csv(tmp_path / "f" / "test.csv", ROWS, ("text", "answer"))
    refused(tmp_path / "f", "split test", "'label'")
    (tmp_path / "g").mkdir()
    csv(tmp_path / "g" / "test.csv")
    refused(tmp_path / "g", "needs a train file")
    csv(tmp_path / "h" / "train.csv")
    csv(tmp_path / "h" / "train.tsv", ROWS, sep="\t")
    refused(tmp_path / "h", "two files for train")


def test_labels_that_are_missing(tmp_path):
    refused(csv(tmp_path / "a.csv", [*ROWS, ("x", "")]), "row 80", "no label")
    frame = pd.DataFrame(ROWS, columns=HEAD)
    frame.loc[3, "label"] = None
    frame.to_parquet(tmp_path / "b.parquet")
    refused(tmp_path / "b.parquet", "row 3", "no label")
    refused(csv(tmp_path / "c.csv", [(t, r) for t, _, r in tiny.rows(60)] + [("x", "")]), "row 60", "no label")


def test_one_class_only(tmp_path):
    refused(csv(tmp_path / "a.csv", [(t, "yes") for t, _ in ROWS]), "one class only", "'yes'")
    refused(csv(tmp_path / "b.csv", [(t, 0.5) for t, _ in ROWS]), "one value only", "0.5")
    # one class is left in training, the other one's only row is elsewhere
    d = [(t, "yes") for t, _ in ROWS]
    csv(tmp_path / "f" / "train.csv", d)
    csv(tmp_path / "f" / "test.csv", [("a", "yes"), ("b", "no")])
    refused(tmp_path / "f", "one class only")


def test_labels_that_training_does_not_have(tmp_path):
    csv(tmp_path / "f" / "train.csv")
    csv(tmp_path / "f" / "test.csv", [("a", "positive"), ("b", "neutral")])
    refused(tmp_path / "f", "split test", "'neutral'", "not in the training set", "negative, positive")


def test_floats_for_classification(tmp_path, ratings):
    refused(ratings, "label", "fractional numbers", "kind=regression", kind="classification")


def test_words_for_regression(tmp_path):
    refused(csv(tmp_path / "x.csv"), "label", "regression needs numbers", kind="regression")


def test_regression_targets_of_other_splits_are_looked_at_too(tmp_path, ratings):
    lines = [(t, r) for t, _, r in tiny.rows(60)]
    for i, (bad, shown) in enumerate((("good", "'good'"), ("inf", "inf"), ("nan", "nan"))):
        folder = tmp_path / str(i)
        csv(folder / "train.csv", lines)
        csv(folder / "test.csv", [("a", 1.5), ("b", bad)])
        refused(folder, "split test", "row 1", shown, "not a finite number")
    refused(csv(tmp_path / "x.csv", [*lines, ("a", "inf")]), "infinite")


@pytest.mark.parametrize("empty", ["", "   ", "\t\n"])
def test_rows_of_empty_text(tmp_path, empty):
    refused(csv(tmp_path / "x.csv", [*ROWS[:5], (empty, "positive"), *ROWS[5:]]), "row 5", "text is empty")


def test_too_few_rows_and_too_many_classes(tmp_path):
    refused(csv(tmp_path / "a.csv", ROWS[:4]), "rows are left", "at least 2")
    refused(csv(tmp_path / "b.csv", [("the same", ("a", "b")[i % 2]) for i in range(50)]), "rows are left")
    refused(csv(tmp_path / "c.csv", [(f"t {i}", f"c{i}") for i in range(1500)]), "1500 classes", "right column")


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_whatever_bytes_a_file_holds_it_is_read_or_refused(tmp_path, suffix):
    """Damage to a good file: a cut, flipped bytes, doubled pieces. Never anything but a task or one line."""
    frame = pd.DataFrame(ROWS, columns=HEAD)
    path = tmp_path / f"x.{suffix}"
    if suffix == "parquet":
        frame.to_parquet(path)
    elif suffix == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_csv(path, index=False)
    good, rng = path.read_bytes(), np.random.default_rng(0)
    refusals = []
    for i in range(40):
        damaged = bytearray(good)
        if i % 3 == 0:
            damaged = damaged[: rng.integers(len(good))]
        elif i % 3 == 1:
            for place in rng.integers(0, len(good), 1 + i // 6):
                damaged[place] = rng.integers(256)
        else:
            a, b = sorted(rng.integers(0, len(good), 2))
            damaged[a:a] = damaged[a:b]
        path.write_bytes(bytes(damaged))
        try:
            assert len(load(str(path)).train) >= 2
        except InputError as e:
            refusals.append(str(e))
    assert refusals
    assert not [r for r in refusals if "\n" in r]
