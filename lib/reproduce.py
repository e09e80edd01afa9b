"""Make runs again by the commands in their records, and compare bit for bit: `make reproduce RECORD=results/runs/...`.

A run made again leaves a line in `results/reproduced.csv`: which record, code and processor then and now, both scores,
the largest difference of a prediction, and whether everything is equal. Bits can only be equal on the same kind of
processor with as many threads; elsewhere the line tells how far apart two machines are.

The lines have one more use. A change to the code that must not move any number (a new parameter whose default is the
old behaviour) gives the method another hash, and its records would be stale for ever. They are not while records of
the old code, at least `ENOUGH` of them, have come out equal to the bit under the new one, and none has not.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from filelock import FileLock

from lib import results
from lib.errors import InputError, one_line, shorten
from lib.paths import ROOT, as_path, build_dir, results_dir, write_atomic
from lib.results import Record

ENOUGH = 2
COLUMNS = (
    "record", "method", "code_then", "code", "commit_then", "commit", "processor_then", "processor", "threads_then",
    "threads", "precision_then", "precision", "score_then", "score", "largest_difference", "equal", "date",
)  # fmt: skip
# What must be equal beside the predictions; times and memory are a machine's
SAME = ("metrics", "score", "best_on_scored_split", "parameters", "selection", "steps", "tokens", "curve")


def table() -> Path:
    """`results/reproduced.csv`."""
    return results_dir() / "reproduced.csv"


def load() -> pd.DataFrame:
    """The lines so far, `COLUMNS`; empty without a file. `InputError` for a file with other columns or values."""
    path = table()
    return _load(path, path.stat().st_mtime_ns) if path.exists() else pd.DataFrame(columns=list(COLUMNS))


@functools.lru_cache(maxsize=4)
def _load(path: Path, _written: int) -> pd.DataFrame:
    try:
        found = pd.read_csv(path, dtype={"code_then": str, "code": str}, keep_default_na=False, na_values=[""])
    except (OSError, ValueError) as e:
        raise InputError(f"{path}: cannot be read as CSV ({shorten(str(e), 200)})") from e
    if tuple(found.columns) != COLUMNS or not set(found["equal"]) <= {True, False}:
        raise InputError(f"{path}: needs the columns {' '.join(COLUMNS)}, with True or False in `equal`")
    return found


def same_numbers(method: str, then: str, now: str) -> bool:
    """Whether two code hashes of a method are shown to make the same numbers, directly or over hashes between them."""
    lines = load()
    fair = lines[lines["method"] == method]
    for name in ("processor", "threads", "precision"):  # with others nobody can ask for equal bits
        fair = fair[fair[f"{name}_then"] == fair[name]]
    shown = {pair for pair, part in fair.groupby(["code_then", "code"])
             if part["equal"].all() and part["record"].nunique() >= ENOUGH}
    reached, grown = {then}, True
    while grown:
        grown = {b for a, b in shown if a in reached} - reached
        reached |= grown
    return now in reached


def compare(old: Record, old_answers: pd.DataFrame, new: Record, new_answers: pd.DataFrame) -> dict:
    """One line of the table. The difference is the largest of a prediction, in units of the logits; no value where
    other rows were scored or one of them is not finite."""
    theirs, ours = (f.filter(regex="^logit_").to_numpy() for f in (old_answers, new_answers))
    comparable = theirs.shape == ours.shape and old_answers["idx"].equals(new_answers["idx"]) and theirs.size
    difference = float(np.abs(theirs - ours).max()) if comparable else float("nan")
    # The first records hold no answers of the teacher
    shared = [c for c in old_answers.columns if c in new_answers.columns]
    equal = shared == list(old_answers.columns) and old_answers.equals(new_answers[shared]) and all(
        getattr(old, k) == getattr(new, k) for k in SAME)
    then, now = old.environment, new.environment
    return {
        "record": str(results.path_of(old).relative_to(results_dir())), "method": old.method,
        "code_then": old.code_hash, "code": new.code_hash,
        "commit_then": then.git_commit, "commit": (now.git_commit or "") + "-changed" * bool(now.git_dirty),
        "processor_then": then.processor, "processor": now.processor, "threads_then": then.threads,
        "threads": now.threads, "precision_then": then.precision, "precision": now.precision,
        "score_then": old.score, "score": new.score, "largest_difference": difference, "equal": bool(equal),
        "date": datetime.date.today().isoformat(),
    }  # fmt: skip


def keep(line: dict) -> None:
    """Add a line, in the place of an older one of the same record, code and processor."""
    key = ["record", "code", "processor"]
    lock = build_dir() / "locks" / "reproduced"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(str(lock)):
        others = [old for old in load().to_dict("records") if any(old[k] != line[k] for k in key)]
        frame = pd.DataFrame([*others, line], columns=list(COLUMNS)).sort_values(key)
        write_atomic(table(), frame.to_csv(index=False, lineterminator="\n").encode())


def again(path: Path) -> dict:
    """Run a record's command, its results in a folder below `build/`, and compare. The record itself stays as it is.

    Artefacts that lie in `build/` and fit are used; an empty `BERT_BUILD` makes the teacher and earlier stages again
    too. Raises `InputError` for what is no record, and for a run that fails.
    """
    old = results.read(path)
    words = shlex.split(old.command)
    if words[:1] != ["papermill"] or len(words) < 3:
        raise InputError(f"{path}: its command is no call of papermill: {shorten(old.command, 120)}")
    answers = pd.read_parquet(path.with_suffix(".parquet"))
    place = build_dir() / "reproduced" / path.relative_to(results_dir() / "runs").with_suffix("")
    place.mkdir(parents=True, exist_ok=True)
    print(f"making {path.relative_to(results_dir())} again: {old.wall_seconds / 60:.1f} minutes of training then, "
          f"without its teacher and earlier stages; {old.environment.processor}, threads {old.environment.threads}")
    environment = os.environ | {"BERT_RESULTS": str(place / "results"),
                                "OMP_NUM_THREADS": str(old.environment.threads)}
    done = subprocess.run([sys.executable, "-m", "papermill", words[1], str(place / "executed.ipynb"), *words[3:],
                           "-r", "output", str(place / "student")], env=environment, cwd=ROOT, check=False)
    made = place / "results" / path.relative_to(results_dir())
    if done.returncode or not made.exists():
        raise InputError(f"{path}: its command ended with {done.returncode} and left no record; see "
                         f"{place / 'executed.ipynb'}")
    new = Record.model_validate_json(made.read_bytes())
    line = compare(old, answers, new, pd.read_parquet(made.with_suffix(".parquet")))
    keep(line)
    return line


def in_words(line: dict) -> str:
    """What came out, in one sentence."""
    if line["equal"]:
        return f"{line['record']}: equal to the bit, score {line['score']:.2f}"
    why = [f"{name} {line[f'{name}_then']} then, {line[name]} now"
           for name in ("processor", "threads", "precision", "code") if line[f"{name}_then"] != line[name]]
    return (f"{line['record']}: not equal; score {line['score_then']:.2f} then, {line['score']:.2f} now; largest "
            f"difference of a prediction {line['largest_difference']:.3g}; "
            + ("; ".join(why) or "same processor, threads, precision and code"))


@one_line()
def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 whether or not the numbers are equal: both are answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", help="paths of records (results/runs/.../seed-0.json)")
    paths = [as_path(r, "RECORD").resolve() for r in parser.parse_args(arguments).records]
    for path in paths:  # before the first of them runs for minutes
        results.read(path)
    for path in paths:
        print(in_words(again(path)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
