"""A submission to the GLUE server, from student folders.

    make submission STUDENTS="cola=path/to/student rte=path/to/another"

writes `build/submission.zip`: one file a task, `index<TAB>prediction` with a header, in the names and labels that the
server takes. Nothing is trained or scored: test sets of GLUE have no public labels (MRPC's are; they are not read).
"""

from __future__ import annotations

import argparse
import io
import shlex
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import datasets
import numpy as np

from lib import batches, data, evaluation, models
from lib.errors import InputError, one_line, one_of
from lib.paths import as_path, build_dir, write_atomic
from lib.tasks import TASKS, Task


@dataclass(frozen=True)
class File:
    """One file of the zip: which rows it answers, how many the server counts, and the words for the classes."""

    name: str
    task: str  # whose student answers
    split: str
    rows: int
    words: tuple[str, ...] = ("0", "1")  # by class number; empty: a number
    folder: str = ""  # of the rows where it is not the task's


_NLI = ("entailment", "neutral", "contradiction")
_TWO = ("entailment", "not_entailment")
# Names, words and rows as on gluebenchmark.com and in the test sets of the hub; WNLI takes numbers, RTE words.
FILES = (
    File("CoLA.tsv", "cola", "test", 1063),
    File("SST-2.tsv", "sst2", "test", 1821),
    File("MRPC.tsv", "mrpc", "test", 1725),
    File("STS-B.tsv", "stsb", "test", 1379, ()),
    File("QQP.tsv", "qqp", "test", 390965),
    File("MNLI-m.tsv", "mnli", "test_matched", 9796, _NLI),
    File("MNLI-mm.tsv", "mnli", "test_mismatched", 9847, _NLI),
    File("QNLI.tsv", "qnli", "test", 5463, _TWO),
    File("RTE.tsv", "rte", "test", 3000, _TWO),
    File("WNLI.tsv", "wnli", "test", 146),
    File("AX.tsv", "mnli", "test", 1104, _NLI, folder="ax"),
)
NAMES = tuple(dict.fromkeys(f.task for f in FILES))


def parse(text: str) -> dict[str, str]:
    """`task=folder` for each student, separated by spaces (quotes keep a space); `InputError` for anything else."""
    try:
        words = shlex.split(text)
    except ValueError as e:
        raise InputError(f"STUDENTS: {e}") from None
    out: dict[str, str] = {}
    for word in words:
        task, equals, folder = word.partition("=")
        if not equals or not folder:
            raise InputError(f"STUDENTS: {word!r} is not task=folder, such as rte=path/to/student")
        one_of("STUDENTS: task", task, NAMES)
        if task in out:
            raise InputError(f"STUDENTS: {task} is given twice")
        out[task] = folder
    if not out:
        raise InputError(f"STUDENTS: is empty; allowed: task=folder for any of {', '.join(NAMES)}")
    return out


def rows_of(file: File) -> datasets.Dataset:
    """The rows that a file answers, columns as in `lib.data`, in the order of the server's index.

    Raises `InputError` where the split is not to be had, has another number of rows than the server counts, or an idx
    that is not 0, 1, 2 ... in order.
    """
    task = TASKS[file.task]
    source = replace(task, name=file.folder or task.name)
    frame = data.glue_split(source, file.split)
    missing = [c for c in (*task.text, "idx") if c not in frame]
    if missing:
        raise InputError(f"{file.name}: split {file.split} of {source.name} has no column {missing[0]!r}")
    if len(frame) != file.rows:
        raise InputError(f"{file.name}: split {file.split} of {source.name} has {len(frame)} rows; the server counts "
                         f"{file.rows}")
    if (frame["idx"].to_numpy() != np.arange(len(frame))).any():
        raise InputError(f"{file.name}: idx of {source.name} is not 0, 1, 2 ... in order, as the server counts")
    first, second = (*task.text, None)[:2]
    return datasets.Dataset.from_dict({
        "idx": list(range(len(frame))), "text": frame[first].astype(str).tolist(),
        "text_2": [""] * len(frame) if second is None else frame[second].astype(str).tolist(),
        "label": [0] * len(frame),
    })  # fmt: skip


def answers(file: File, logits: np.ndarray, task: Task) -> str:
    """The text of a file. logits: (rows, classes), or (rows, 1) for STS-B, which is clipped to its range 0 to 5.

    Raises `InputError` for outputs that are not finite.
    """
    if not np.isfinite(logits).all():
        raise InputError(f"{file.name}: the student's outputs are not finite")
    if task.regression:
        words = [f"{x:.3f}" for x in np.clip(logits[:, 0], *task.range)]
    else:
        words = [file.words[i] for i in logits.argmax(-1)]
    return "index\tprediction\n" + "".join(f"{i}\t{w}\n" for i, w in enumerate(words))


def predict(file: File, rows: datasets.Dataset, folder: str, max_length: int) -> str:
    """The text of a file by the student in `folder`; its class names must be the task's."""
    task = TASKS[file.task]
    model = models.load_classifier(folder, task, "student")
    encoded = batches.encode(rows, models.load_tokenizer(folder, "student"), max_length)
    return answers(file, evaluation.predict(model.eval(), encoded), task)


def zipped(texts: dict[str, str]) -> bytes:
    """The zip, flat, the same bytes for the same texts."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as z:
        for name, text in texts.items():
            z.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), text, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def make(students: dict[str, str], output: Path, max_length: int = 128) -> list[str]:
    """Write the zip; returns the names of the server's files that are not in it.

    The diagnostic AX is answered by the MNLI student where its rows are at hand. Nothing is made up for a missing task.
    """
    texts = {}
    for file in FILES:
        if file.task not in students:
            continue
        try:
            rows = rows_of(file)
        except InputError as e:
            if not file.folder:
                raise
            print(f"{file.name}: left out: {e}", file=sys.stderr)
            continue
        texts[file.name] = predict(file, rows, students[file.task], max_length)
        print(f"{file.name}: {file.rows} predictions by {students[file.task]}")
    write_atomic(output, zipped(texts))
    return [f.name for f in FILES if f.name not in texts]


@one_line("submission")
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lib.submission", description="A zip for the GLUE server.")
    parser.add_argument("--students", required=True, help='task=folder ..., such as "cola=a/student rte=b/student"')
    parser.add_argument("--output", default="", help="the zip; default: build/submission.zip")
    parser.add_argument("--max-length", type=int, default=128, help="tokens, as the students were trained with")
    given = parser.parse_args(arguments)
    if not 8 <= given.max_length <= 8192:
        raise InputError(f"max-length: {given.max_length} is not between 8 and 8192")
    models.quiet()
    output = as_path(given.output, "output") if given.output else build_dir() / "submission.zip"
    missing = make(parse(given.students), output, given.max_length)
    print(f"submission: {output}")
    if missing:
        print(f"submission: the server scores whole submissions; this one lacks {', '.join(missing)}. Train students "
              "for them, or add the server's sample files by hand: no answers were made up here.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
