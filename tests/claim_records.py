"""Made-up runs with real predictions, and claims over them. They only ever live in a temporary folder."""

import numpy as np
import pandas as pd
import synthetic_records

from lib import claims, evaluation, results
from lib.claims import verdicts
from lib.paths import ROOT
from lib.reporting import reported
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


HEAD = "schema: 1\ngroup: {profile: glue, backbone: minilm-l6}\nclaims:\n"
PRINTED = reported.load()
BETTER = ("better", "score(theseus) - score(truncated) > 0")


def declare(folder, *parts):
    """Claims from (id, test, tasks and more)."""
    text = HEAD
    for name, test, *more in parts:
        text += f"- id: {name}\n  paper: theseus\n  claim: Something is so and so.\n  where: Table 2\n"
        text += f"  testable: scaled\n  test: {test}\n" + "".join(f"  {m}\n" for m in more or ["tasks: [rte]"])
    file = folder / "claims.yaml"
    file.write_text(text, encoding="utf-8")
    return claims.load(file, PRINTED)


def judge(folder, *parts, draws=200):
    """Verdicts on claims declared as for `declare`, from the records that lie there."""
    records, skipped = results.load_all()
    assert not skipped
    return verdicts.judge(declare(folder, *parts), records, draws)


def runs(label, task, quality, seeds=(0, 1, 2), **changes):
    """`put` for several seeds."""
    for s in seeds:
        put(label, task, s, quality, **changes)
