"""SQuAD v1.1 and v2.0: rows, splits and the scores of the official scripts.

Rajpurkar et al. 2016 (arXiv 1606.05250) and 2018 (arXiv 1806.03822). A row is a question (`text`) on a paragraph
(`text_2`); `answers` are the accepted answers, none where v2.0 has no answer, `starts` the characters they begin at.
Held-out rows are whole articles: questions on one paragraph are too alike to stand on both sides.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import string
from collections import Counter
from pathlib import Path

import datasets
import pandas as pd

from lib import hub, userdata
from lib.errors import InputError
from lib.provenance import hash_share
from lib.tasks import Task

FILES = {"squad1": ("v1.1", "rajpurkar/squad"), "squad2": ("v2.0", "rajpurkar/squad_v2")}
COLUMNS = ("id", "title", "context", "question", "answers")


def normalise(answer: str) -> str:
    """Lower case, without punctuation, the words a, an, the, and superfluous spaces (official `normalize_answer`)."""
    kept = "".join(c for c in answer.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


def exact(prediction: str, answer: str) -> float:
    """1 where both are equal once normalised, else 0."""
    return float(normalise(prediction) == normalise(answer))


def f1(prediction: str, answer: str) -> float:
    """F1 of the bags of normalised words; where one of both is empty, 1 if both are (v2.0's rule)."""
    p, a = normalise(prediction).split(), normalise(answer).split()
    if not p or not a:
        return float(p == a)
    same = sum((Counter(p) & Counter(a)).values())
    return 2 * same / (len(p) + len(a))  # 2PR / (P + R) with P = same / |p|, R = same / |a|


def score(prediction: str, answers: list[str]) -> tuple[float, float]:
    """(exact match, F1) of a prediction, each the best over the accepted answers; no answer counts as ""."""
    golds = [a for a in answers if normalise(a)] or [""]
    return max(exact(prediction, a) for a in golds), max(f1(prediction, a) for a in golds)


def _frame(raw: pd.DataFrame, what: str) -> pd.DataFrame:
    for c in COLUMNS:
        if c not in raw.columns:
            raise InputError(f"{what}: has no column {c!r}; it has {', '.join(raw.columns)}")
    out = pd.DataFrame({"idx": range(len(raw)), "id": raw["id"].tolist(), "title": raw["title"].tolist(),
                        "text": [q.strip() for q in raw["question"]], "text_2": raw["context"].tolist()})
    out["answers"] = [[str(t) for t in a["text"]] for a in raw["answers"]]
    out["starts"] = [[int(s) for s in a["answer_start"]] for a in raw["answers"]]
    for row in out.itertuples():
        for text, start in zip(row.answers, row.starts, strict=True):
            if row.text_2[start : start + len(text)] != text:
                raise InputError(f"{what}: question {row.id}: its answer does not stand at character {start}")
    return out


def _read(task: Task, split: str) -> tuple[pd.DataFrame | None, str]:
    """(rows or None where a local folder has no such split, where they come from)."""
    version, name = FILES[task.name]
    folder = os.environ.get("SQUAD_DIR")
    if folder:
        for stem in (split, f"{split}_part"):
            path = Path(folder).expanduser() / version / f"{stem}.parquet"
            if path.exists():
                return _frame(userdata.read_file(path, f"SQUAD_DIR file {path}"), str(path)), f"SQUAD_DIR {stem}"
        return None, ""
    hub.reachable()
    try:
        return _frame(datasets.load_dataset(name, split=split).to_pandas(), name), f"{name} {split}"
    except InputError:
        raise
    except Exception as e:  # the hub's client raises many kinds of errors, all of which mean "not to be had"
        raise InputError(f"task {task.name}: the Hugging Face hub cannot be reached ({type(e).__name__}); set "
                         f"SQUAD_DIR to a folder with {version}/(train, validation).parquet") from None


def by_article(frame: pd.DataFrame, salt: str, part: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(rest, part): about `part` of the articles, those with the lowest hash, at least one on each side."""
    titles = sorted(frame["title"].unique(), key=lambda t: hash_share(t, salt))
    if len(titles) < 2:
        raise InputError(f"SQuAD rows of {len(titles)} article cannot be split; at least 2 are needed")
    chosen = set(titles[: max(1, round(part * len(titles)))])
    inside = frame["title"].isin(chosen)
    return frame[~inside], frame[inside]


def content_hash(frame: pd.DataFrame) -> str:
    """Hash of ids, questions, paragraphs and answers."""
    digest = hashlib.sha256()
    for row in frame.itertuples():
        digest.update(json.dumps([row.id, row.text, row.text_2, row.answers, row.starts]).encode() + b"\n")
    return digest.hexdigest()


def load(task: Task, max_rows: int = 0) -> tuple[dict[str, pd.DataFrame], str, dict[str, str]]:
    """(rows of "train", "held_out" and "validation", source, hashes). `max_rows` caps the training rows, by hash.

    Where a local folder has no training file, 70% of the articles of its validation file take that place, and the
    source says so. Raises `InputError` where neither is there.
    """
    validation, source = _read(task, "validation")
    if validation is None:
        raise InputError(f"SQUAD_DIR={os.environ.get('SQUAD_DIR')}: has no {FILES[task.name][0]}/validation.parquet "
                         "and no validation_part.parquet")
    train, also = _read(task, "train")
    if train is None:
        train, validation = by_article(validation, "no-train", 0.3)
        source = f"{source}, split by article: 70% train, 30% scored, because there is no training file"
    else:
        source = f"{also}, {source}"
    hashes = {"train": content_hash(train), "validation": content_hash(validation)}
    train, held_out = by_article(train, "held-out", 0.1)
    if max_rows and len(train) > max_rows:
        train = train.loc[sorted(sorted(train.index, key=lambda i: hash_share(train["id"][i], "cap"))[:max_rows])]
        hashes["train"] = content_hash(train)
    return {"train": train, "held_out": held_out, "validation": validation}, source, hashes
