"""Which method for my data?

    python -m lib.compare --task my.csv --teacher folder --methods "truncated theseus" --minutes 60

Checks everything, measures what a few training steps of each method cost here, gives every method the same budget of
tokens, trains each by its notebook in a process of its own, and leaves the students and one HTML page. Killed and
started again it goes on; a method whose record exists is not run again.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from filelock import FileLock, Timeout

from lib import models, profiles, results, runs
from lib.backbones import label
from lib.compare import page as compare_page
from lib.compare import rows
from lib.compare.request import (
    PROFILE,
    Request,
    arguments,
    budgeted,
    check,
    check_folder,
    plan,
    show,
    timing_seconds,
)
from lib.errors import InputError
from lib.paths import ROOT, build_dir, results_dir, write_atomic
from lib.provenance import digest
from lib.systems import title_of

PROGRESS = re.compile(r"\d%\|.*step/s|\d%\|.*s/step")
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def model_folder(folder: Path, method: str) -> Path:
    """Where a run leaves its model."""
    return folder / "teacher" if method == "bert" else folder / "students" / method


def finished(base: runs.Run, folder: Path, method: str, made: dict) -> results.Record | None:
    """The record of a method that is done: readable, made under this plan, with its student beside it."""
    path = results.record_path(PROFILE, label(base.p.backbone), base.task_label, method, "", base.p.seed)
    if not path.exists():
        return None
    try:
        record = results.read(path)
    except InputError as e:
        print(f"{e}; {method} is run again", file=sys.stderr)
        return None
    h = record.hyperparameters
    whole = h.get("max_tokens") == made["budget"] and h.get("lr_grid") == made["grid"] and \
        path.with_suffix(".parquet").exists() and (model_folder(folder, method) / "config.json").exists()
    return record if whole else None


def papermill(request: Request, method: str, made: dict, folder: Path) -> list[str]:
    """The command of a run."""
    p = budgeted(request, method, made, output=str(model_folder(folder, method)))
    words = [sys.executable, "-m", "papermill", str(ROOT / "notebooks" / f"{method}.ipynb"),
             str(folder / "executed" / f"{method}.ipynb"), "--log-output", "--no-progress-bar"]
    for f in profiles.files(PROFILE, method):
        words += ["-f", str(f)]
    own = {"max_tokens", "teacher_tokens", "output", "backbone", *request.values}
    own |= {"lr_grid", "teacher_lr_grid", "tuning_tokens"} if made["grid"] else set()
    for k, v in p.model_dump(include=own).items():
        words += ["-y", f"{k}: {v}"] if isinstance(v, list) else ["-r" if isinstance(v, str) else "-p", k, str(v)]
    return words


def run(command: list[str], executed: Path) -> str:
    """Run a notebook in a process that ends when this one does. "" where it worked, else the reason in a line.

    What it says goes to a .log file beside the executed notebook; only the training's progress is shown.
    """
    executed.parent.mkdir(parents=True, exist_ok=True)
    executed.unlink(missing_ok=True)
    with open(executed.with_suffix(".log"), "w", encoding="utf-8") as log, subprocess.Popen(
            command, env={"BERT_PROGRESS_SECONDS": "20", **os.environ}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, encoding="utf-8", errors="replace",
            preexec_fn=_end_with_parent if _LIBC else None) as process:
        for line in process.stdout:  # a progress bar's carriage return ends a line, too
            log.write(line)
            log.flush()
            if PROGRESS.search(line):
                print("  " + line.strip(), file=sys.stderr, flush=True)
    return "" if process.returncode == 0 else _reason(executed) or (
        f"its process ended with code {process.returncode}, see {executed.with_suffix('.log')}")


def _end_with_parent() -> None:
    _LIBC.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: no run goes on unseen when the comparison was killed


def _reason(executed: Path) -> str:
    """The error in an executed notebook."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        for cell in json.loads(executed.read_text())["cells"]:
            for out in cell.get("outputs", []):
                if out["output_type"] == "error":
                    return " ".join(f"{out['ename']}: {out['evalue']}".split())
    return ""


@contextlib.contextmanager
def records_in(folder: Path):
    """Within, records lie below `folder`/results, in this process and in those that it starts."""
    before = os.environ.get("BERT_RESULTS")
    os.environ["BERT_RESULTS"] = str(folder / "results")
    try:
        yield
    finally:
        os.environ.pop("BERT_RESULTS") if before is None else os.environ.__setitem__("BERT_RESULTS", before)


@contextlib.contextmanager
def alone(folder: Path):
    """Only one comparison works on a folder; the system releases the lock when its holder dies."""
    path = build_dir() / "locks" / f"compare-{digest(str(folder))}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(f"output {folder}: another comparison is working on it") from None
    try:
        yield
    finally:
        lock.release()


def train(request: Request, base: runs.Run, folder: Path, made: dict) -> tuple[dict, dict[str, str]]:
    """Run what is not finished. (record by method that is done, reason by method that failed)."""
    records, failed = {}, {}
    for i, method in enumerate(request.needed, 1):
        record, why = finished(base, folder, method, made), ""
        print(f"[{i}/{len(request.needed)}] {title_of(method)}{': done before' if record else ''}", flush=True)
        if not record:
            why = run(papermill(request, method, made, folder), folder / "executed" / f"{method}.ipynb")
            record = finished(base, folder, method, made)
        if record:
            records[method] = record
            continue
        failed[method] = why or "it left no record"
        print(f"{method} failed: {failed[method]}", file=sys.stderr)
        if method == "bert":
            break  # without a teacher there is nothing to compare with
    return records, failed


def compare(request: Request, began: float) -> int:
    """The whole comparison. 0 where every method is done, 1 where one failed: the page says which and why."""
    base = check(request)
    folder = (request.output or results_dir() / "compare" / base.task_label).resolve()
    check_folder(folder)
    with alone(folder), records_in(folder):
        made = plan(request, base, folder, began)
        estimate = show(made, request)
        records, failed = train(request, base, folder, made)
        if "bert" in failed:
            return 1
        folders = {m: model_folder(folder, m) for m in records}
        found = rows.collect(base, records, failed, folders, timing_seconds(request.minutes) / 3)
        page = folder / "index.html"
        write_atomic(page, compare_page.page(found, request, made, estimate).encode())
    print(f"took {(time.perf_counter() - began) / 60:.1f} minutes\npage: {page}")
    return 1 if failed else 0


def main(given: list[str] | None = None, began: float | None = None) -> int:
    """Exit code of the command: 2 where something given is wrong, 130 where it was interrupted."""
    began = time.perf_counter() if began is None else began
    models.quiet()
    try:
        return compare(arguments(given), began)
    except InputError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130
