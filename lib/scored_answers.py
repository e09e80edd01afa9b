"""What a teacher answers to the scored rows: asked once, for the records of all its students.

Valid as the cached answers to training rows are (`lib.teacher_cache`), and found by the weights as they are when the
student's training is over: a teacher that a method had changed would be asked anew, and the record would show it.
"""

from __future__ import annotations

import time
from pathlib import Path

import pandas as pd
from torch import nn

from lib import artefacts, teacher_cache
from lib.provenance import modules_hash

FORMAT = 1  # raised when the same teacher and rows would be written otherwise


def of(run, teacher: nn.Module) -> tuple[dict[str, float], pd.DataFrame]:
    """Metrics as fractions and one line a row, as `Run.answers` gives them for the scored split in fp32."""
    inputs = {name: teacher_cache.inputs_hash(run.sets[name]) for name in ("scored", "held_out")}
    key = {"format": FORMAT, "teacher": teacher_cache.teacher_hash(teacher), "data": run.data.key, **inputs,
           "spans": modules_hash("spans")}  # the code that `Run.answers` calls; `runs` itself counts for nothing

    def make(folder: Path) -> dict:
        began = time.perf_counter()
        metrics, frame = run.answers(teacher, "scored")
        frame.to_parquet(folder / "answers.parquet")
        return {"seconds": time.perf_counter() - began, "metrics": metrics}

    artefact = artefacts.build("teacher-scored", key, make)
    return artefact.meta["metrics"], pd.read_parquet(artefact.folder / "answers.parquet")
