"""Made-up runs with real predictions, for tests of verdicts. They only ever live in a temporary folder."""

import numpy as np
import pandas as pd
import synthetic_records

from lib import evaluation, results
from lib.paths import ROOT
from lib.tasks import TASKS

ROWS = {"rte": 400, "mrpc": 400, "cola": 400, "sst2": 400, "stsb": 300}


def labels_of(task):
    rng = np.random.default_rng(ROWS[task])
    if TASKS[task].regression:
        return np.round(rng.uniform(0, 5, ROWS[task]), 1)
    return (rng.random(ROWS[task]) < 0.6).astype(np.int64)


def predictions(task, quality, seed, labels=None):
    """Predictions that are right on a share `quality` of the rows; the easy rows are the same for every run."""
    labels = labels_of(task) if labels is None else labels
    easy = np.random.default_rng(1).random(len(labels))
    rng = np.random.default_rng(1000 + seed)
    if TASKS[task].regression:
        logits = (quality * labels + (1 - quality) * rng.uniform(0, 5, len(labels)))[:, None]
    else:
        right = easy * 0.8 + rng.random(len(labels)) * 0.2 < np.quantile(easy * 0.8 + 0.1, quality)
        logits = np.eye(2)[np.where(right, labels, 1 - labels)] * 4.0 - 2.0
    frame = pd.DataFrame({"idx": np.arange(len(labels)), "label": labels})
    for i in range(logits.shape[1]):
        frame[f"logit_{i}"] = logits[:, i].astype(np.float32)
    return frame


def put(label, task, seed, quality, teacher=90.0, frame=None, beside=None, **changes):
    """Write one run whose score is that of its predictions. Returns the record. `beside`: its teacher's predictions."""
    assert ROOT not in results.results_dir().parents, "synthetic records never go to the repository"
    declared = TASKS[task]
    frame = predictions(task, quality, seed + 7 * sum(map(ord, label))) if frame is None else frame
    logits = results.logits(frame)
    values = evaluation.metrics(declared, logits, frame["label"].to_numpy())
    method, _, variant = label.partition("-")
    record = synthetic_records.record(
        method, task, seed, evaluation.headline(declared, values), teacher, majority=changes.pop("majority", 50.0),
        variant=variant, rows=len(frame), metrics=values, **changes)
    results.write(record, frame if beside is None else results.with_teacher(frame, beside))
    return record
