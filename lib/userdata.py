"""A user's own file as a task: columns guessed and printed, every problem named in one line."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pandas as pd

from lib.errors import InputError, listed, shorten
from lib.tasks import Task

LABEL_NAMES = ("label", "labels", "target", "class", "category", "y", "score", "rating", "sentiment", "intent")
TEXT_NAMES = ("sentence", "text", "sentence1", "question1", "premise", "question", "review", "title", "content",
              "utterance", "query")
SECOND_NAMES = ("sentence2", "question2", "hypothesis", "text2", "text_2", "answer", "passage", "context")
READERS = (".csv", ".tsv", ".jsonl", ".parquet")
MAX_CLASSES = 1000


def read_file(path: Path, what: str = "") -> pd.DataFrame:
    """The rows of one file, column names as text. `InputError` that calls it `what` where it is unreadable or empty."""
    what = what or f"task file {path}"
    try:
        if path.suffix == ".parquet":
            frame = pd.read_parquet(path)
        elif path.suffix == ".jsonl":
            frame = pd.read_json(path, lines=True, dtype=False, convert_dates=False)
        else:
            # "NA" and "null" are ordinary words in a sentence; only an empty cell is missing.
            frame = pd.read_csv(path, sep="\t" if path.suffix == ".tsv" else ",", keep_default_na=False,
                                na_values=[""], encoding="utf-8-sig", low_memory=False)
    except pd.errors.EmptyDataError:
        raise InputError(f"{what}: is empty") from None
    except UnicodeDecodeError as e:
        raise InputError(f"{what}: is not UTF-8 (byte {e.start}); save it as UTF-8") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, pd.errors.ParserError) as e:
        reason = str(e).splitlines()[0] if str(e) else type(e).__name__
        raise InputError(f"{what}: cannot be read as {path.suffix[1:]} ({shorten(reason, 200)})") from None
    except Exception as e:  # pyarrow has exceptions of its own that share no base with the ones above
        if type(e).__module__.startswith("pyarrow"):
            raise InputError(f"{what}: cannot be read as parquet ({shorten(str(e), 200)})") from None
        raise
    if not len(frame):
        raise InputError(f"{what}: has no rows")
    # pandas gives the second of two equal names a number, so the header itself is looked at
    columns = _header(path) or [str(c) for c in frame.columns]
    repeated = sorted({c for c in columns if columns.count(c) > 1})
    if repeated:
        raise InputError(f"{what}: column {shorten(repeated[0])} appears twice")
    frame.columns = [str(c) for c in frame.columns]
    return frame


def _header(path: Path) -> list[str]:
    """Column names as a CSV or TSV file states them; empty for other formats."""
    if path.suffix not in (".csv", ".tsv"):
        return []
    with open(path, encoding="utf-8-sig", newline="") as f:
        return next(csv.reader(f, delimiter="\t" if path.suffix == ".tsv" else ","), [])


def read_splits(path: Path) -> dict[str, pd.DataFrame]:
    """Rows of a file ("all") or of a folder that holds train, validation and test files in one of four formats.

    Raises `InputError` for a path that does not exist, an unknown suffix, an unreadable or empty file.
    """
    if path.is_dir():
        splits: dict[str, pd.DataFrame] = {}
        for file in sorted(path.iterdir()):
            name = "validation" if file.stem in ("dev", "valid", "val") else file.stem
            if file.suffix in READERS and name in ("train", "validation", "test"):
                if name in splits:
                    raise InputError(f"task folder {path}: holds two files for {name}; keep one")
                splits[name] = read_file(file)
        if "train" not in splits:
            raise InputError(f"task folder {path}: needs a train file ({', '.join('train' + s for s in READERS)}) "
                             "and may have validation (or dev) and test files")
        return splits
    if not path.exists():
        raise InputError(f"task: {shorten(str(path), 300)} is neither a declared task nor an existing file or folder")
    if path.suffix not in READERS:
        raise InputError(f"task file {path}: unknown format {path.suffix!r}; allowed: {', '.join(READERS)}")
    return {"all": read_file(path)}


def _column(frame: pd.DataFrame, given: str, names: tuple[str, ...], what: str, taken: set[str]) -> str | None:
    if given:
        if given not in frame.columns:
            raise InputError(f"{what}: column {shorten(given)} is missing; the file has: {listed(frame.columns)}")
        return given
    lowered = {c.lower().strip(): c for c in frame.columns}
    return next((lowered[n] for n in names if n in lowered and lowered[n] not in taken), None)


def _is_text(column: pd.Series) -> bool:
    return pd.api.types.is_string_dtype(column.dropna()) or column.dtype == object


def describe(path: Path, frames: dict[str, pd.DataFrame], *, text: str = "", text_2: str = "", label: str = "",
             kind: str = "auto") -> Task:
    """The task that a file holds: which columns are text and label, classification or regression, label names.

    Prints what it guessed. Raises `InputError` for a missing column, one class only, missing labels, labels that
    are fractional numbers although classification was asked for.
    """
    first = frames.get("train", next(iter(frames.values())))
    label_column = _column(first, label, LABEL_NAMES, "label_column", set())
    if label_column is None:
        raise InputError(f"task {path}: no label column found among {listed(first.columns)}; set label_column")
    text_column = _column(first, text, TEXT_NAMES, "text_column", {label_column})
    second = _column(first, text_2, SECOND_NAMES, "text_column_2", {label_column, text_column or ""})
    if text_column is None:
        others = [c for c in first.columns if c not in (label_column, second) and _is_text(first[c])]
        if len(others) != 1:
            raise InputError(f"task {path}: no text column found among {listed(first.columns)}; set text_column")
        text_column = others[0]
    columns = (text_column,) + ((second,) if second else ())
    if len({label_column, *columns}) <= len(columns):
        raise InputError(f"task {path}: text columns ({', '.join(columns)}) and label column ({label_column}) must all "
                         "be different")
    for split, frame in frames.items():
        for c in (*columns, label_column):
            if c not in frame.columns:
                raise InputError(f"task {path}: split {split} has no column {shorten(c)}")
        missing = frame[label_column].isna()
        if missing.any():
            raise InputError(f"task {path}: column {label_column}: row {int(missing.idxmax())} of {split} has no label")
    train = next(iter(frames.values())) if "train" not in frames else frames["train"]
    values = train[label_column]
    numeric = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    fractional = numeric and bool((values.astype(float) % 1 != 0).any())
    if numeric and not values.astype(float).map(math.isfinite).all():
        raise InputError(f"task {path}: column {label_column} holds an infinite value")
    if kind == "classification" and fractional:
        raise InputError(f"task {path}: column {label_column} holds fractional numbers such as "
                         f"{values[values % 1 != 0].iloc[0]}; classification needs classes (kind=regression fits)")
    if kind == "regression" and not numeric:
        raise InputError(f"task {path}: column {label_column} holds {shorten(values.iloc[0])}; regression needs "
                         "numbers")
    regression = kind == "regression" or (kind == "auto" and fractional)
    print(f"{path.name}: text={', '.join(columns)}; label={label_column}; "
          f"{'regression' if regression else 'classification'}")
    if regression:
        if values.nunique() < 2:
            raise InputError(f"task {path}: column {label_column} holds one value only ({values.iloc[0]})")
        return Task(path.stem, columns, label_column, None, ("pearson", "spearman"), source="own", scored="test")
    names = sorted({label_text(v) for v in values}, key=_natural)
    if len(names) < 2:
        raise InputError(f"task {path}: column {label_column} holds one class only ({shorten(names[0])})")
    if len(names) > MAX_CLASSES:
        raise InputError(f"task {path}: column {label_column} holds {len(names)} classes; at most {MAX_CLASSES} "
                         "are allowed (is it the right column?)")
    return Task(path.stem, columns, label_column, tuple(names), ("accuracy",), source="own", scored="test")


def label_text(value: object) -> str:
    """A class as text: 1 and 1.0 and "1" are one class."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _natural(name: str) -> tuple:
    """Sort order of class names: numbers by value before words."""
    try:
        return (0, float(name), name)
    except ValueError:
        return (1, 0.0, name)
