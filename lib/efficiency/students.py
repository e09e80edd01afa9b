"""Trained students: what int8 costs them in score, and their time. For records whose student is still there.

MobileBERT claims that quantisation costs it almost nothing; this measures it for every student that a grid has left.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from lib import batches, data, evaluation, models, results
from lib.efficiency import export, timing
from lib.errors import InputError
from lib.paths import results_dir, write_atomic

LENGTH = 128  # tokens of the latency, batch 1
KEY = ["profile", "backbone", "task", "method", "variant", "seed"]


def folder_of(record: results.Record, build: Path) -> Path:
    """Where a run leaves its student below a build folder."""
    inside = results.path_of(record).relative_to(results_dir() / "runs").with_suffix("")
    return build / "runs" / inside / "student"


def onnx_logits(path: Path, rows: batches.Encoded, size: int = 32) -> np.ndarray:
    """Logits (n, classes) of an ONNX file, rows in the order of `rows`."""
    runtime, out = export.session(path), None
    for index, batch in batches.in_order(rows, size):
        given = {"token_type_ids": torch.zeros_like(batch["input_ids"]), **batch}
        logits = runtime.run(["logits"], export.feeds(runtime, given))[0]
        if out is None:
            out = np.empty((len(rows), logits.shape[-1]), dtype=np.float32)
        out[index] = logits
    return out


def row(record: results.Record, folder: Path, scratch: Path, rounds: int = 40) -> dict:
    """Scores of a student in PyTorch, as ONNX and as int8, in percent, and its latency in ms, both in the same rounds.

    `drop_int8`: int8 minus ONNX, in points. Raises `InputError` where the student cannot be opened.
    """
    task_data = data.load(record.task, split=record.split) if record.task in data.TASKS else None
    if task_data is None:
        raise InputError(f"task {record.task}: is no declared task; its rows are not kept with the record")
    task = task_data.task
    tokenizer = models.load_tokenizer(str(folder), "student")
    rows = batches.encode(task_data.scored, tokenizer, record.hyperparameters.get("max_length", LENGTH))
    model = models.load_any(str(folder), "student")
    path = scratch / "model.onnx"
    export.export(model, path)
    small = export.quantise(path, scratch / "model-int8.onnx")

    def score(logits: np.ndarray) -> float:
        return evaluation.headline(task, evaluation.metrics(task, logits, rows.labels))

    scores = {"score_torch": score(evaluation.predict(model, rows)), "score_onnx": score(onnx_logits(path, rows)),
              "score_int8": score(onnx_logits(small, rows))}
    length = min(LENGTH, tokenizer.model_max_length)
    given = timing.inputs(model, 1, length)
    feeds = {"token_type_ids": torch.zeros_like(given["input_ids"]), **given}
    runtimes = {name: export.session(p) for name, p in (("onnx", path), ("int8", small))}
    calls = {"torch": lambda: model(**given),
             **{n: lambda r=r: r.run(None, export.feeds(r, feeds)) for n, r in runtimes.items()}}
    with torch.inference_mode():
        times = timing.interleaved(calls, rounds=rounds, warmup=3)
    ms = {n: timing.summary(1000 * t) for n, t in times.items()}
    return {
        **{k: getattr(record, k) for k in KEY}, "split": record.split, "rows": len(rows), "score": record.score,
        "teacher": record.teacher.score if record.teacher else None,
        **{k: round(v, 3) for k, v in scores.items()},
        "drop_int8": round(scores["score_int8"] - scores["score_onnx"], 3),
        "standard_error": round(evaluation.standard_error(task, record.score, len(rows)), 3),
        "parameters": record.parameters, "length": length,
        "latency_ms": round(ms["torch"].median, 4), "latency_iqr_ms": round(ms["torch"].iqr, 4),
        "latency_onnx_ms": round(ms["onnx"].median, 4), "latency_int8_ms": round(ms["int8"].median, 4),
        "speedup_int8": round(timing.speedup(times["torch"], times["int8"]).median, 4),
        "file_mb": round(path.stat().st_size / 1e6, 2), "file_int8_mb": round(small.stat().st_size / 1e6, 2),
        **timing.stamp(),
    }


def write(build: Path, threads: int = 0, say=print) -> Path:
    """students.csv below the results: one line for each record whose student lies below `build`; the rest are named.

    Lines that are there are kept. One that was timed beside other programs is left out, and said: a process on one of
    two cores made PyTorch some 18 times as slow and ONNX 4 times, so that the ratio was wrong too. Raises `InputError`
    where no record has its student.
    """
    if threads:
        torch.set_num_threads(threads)
    path = results_dir() / "students.csv"
    have = pd.read_csv(path, dtype={"variant": str}).fillna({"variant": ""}) if path.exists() else pd.DataFrame()
    done = set(have[KEY].itertuples(index=False, name=None)) if len(have) else set()
    records, _ = results.load_all()
    found = [(r, folder_of(r, build)) for r in records if (folder_of(r, build) / "config.json").exists()]
    if not found:
        raise InputError(f"--build {build}: none of the {len(records)} records has its student there "
                         f"(runs/<profile>/<backbone>/<task>/<method>/seed-<n>/student)")
    lines = have.to_dict("records")
    for r, folder in found:
        if tuple(getattr(r, k) for k in KEY) in done:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            try:
                line = row(r, folder, Path(scratch))
            except (InputError, ValueError) as e:
                say(f"{r.label} on {r.task}, seed {r.seed}: left out, {e}")
                continue
        if why := timing.busy(line["load"], line["threads"]):
            say(f"{r.label} on {r.task}, seed {r.seed}: {why}")
            continue
        lines.append(line)
        say(f"{r.label} on {r.task}, seed {r.seed}: {line['score_onnx']:.1f}, int8 {line['score_int8']:.1f}")
        write_atomic(path, pd.DataFrame(lines).to_csv(index=False, lineterminator="\n").encode())
    say(f"{len(lines)} students; {len(records) - len(found)} records have none below {build}")
    return path
