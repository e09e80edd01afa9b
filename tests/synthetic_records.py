"""Made-up records for tests of the report. They only ever live in a temporary folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import nbformat
import pandas as pd

from lib import results
from lib.paths import ROOT
from lib.provenance import code_hash
from lib.reporting import bookcheck
from lib.tasks import TASKS


def record(method="theseus", task="rte", seed=0, score=60.0, teacher=66.0, majority=52.7, **changes) -> results.Record:
    """A valid record; `teacher=None` for the teacher's own."""
    declared = TASKS.get(task)
    fields = {
        "created": "2025-01-01T00:00:00+00:00",
        "command": f"papermill notebooks/{method}.ipynb out.ipynb -p task {task} -p seed {seed}",
        "profile": "glue", "backbone": "minilm-l6", "task": task, "method": method, "seed": seed,
        "paper": method if method == "theseus" else None,
        "scale": "scaled down: minilm-l6, 6 layers to 3",
        "split": declared.scored if declared else "test", "rows": 277,
        "metrics": {"accuracy": score / 100},
        "headline": declared.headline_name if declared else "accuracy",
        "score": score, "majority": majority, "best_on_scored_split": score + 1,
        "teacher": None, "retention": None, "retention_above_majority": None, "loyalty": None,
        "parameters": 17_000_000, "parameters_without_embeddings": 5_000_000, "layers": 3,
        "hyperparameters": {"lr": 1e-4},
        "selection": results.Selection(rows="a tenth of train", step=10, held_out_score=score),
        "steps": 100, "tokens": 100_000, "wall_seconds": 36.0, "tokens_per_second": 2777.0, "padding_share": 0.05,
        "curve": {"loss": [[1, 0.7], [100, 0.5]]},
        "initial_checkpoint": "minilm-l6",
        "data": results.Data(source="synthetic", sha256={"train": "a" * 64}, rows={"train": 100}),
        "artefacts": [],
        "environment": results.Environment(
            git_commit="0" * 40, git_dirty=False, versions={"torch": "0"}, platform="Linux", processor="test",
            threads=1, precision="fp32",
        ),
        "config_hash": "0" * 16, "code_hash": code_hash(method),
    }  # fmt: skip
    if teacher is not None and method != "bert":
        fields |= {
            "teacher": results.Teacher(
                score=teacher, metrics={}, artefact=f"teacher-{task}-{seed}", source="built", seconds=18.0, tokens=1
            ),
            "retention": 100 * score / teacher,
            "retention_above_majority": 100 * (score - majority) / (teacher - majority),
            "loyalty": results.Loyalty(label=80.0, probability=70.0),
        }
    return results.Record(**(fields | changes))


def put(*records: results.Record) -> list[Path]:
    """Write records to `$BERT_RESULTS`, which the caller must have set to a temporary folder."""
    assert ROOT not in results.results_dir().parents, "synthetic records never go to the repository"
    return [results.write(r, pd.DataFrame({"idx": [0], "label": [0], "logit_0": [0.0]})) for r in records]


def results_folder(folder: Path) -> Path:
    """An empty results folder with the real reported numbers."""
    (folder / "runs").mkdir(parents=True)
    shutil.copy(ROOT / "results" / "reported.csv", folder / "reported.csv")
    return folder


def notebook(path: Path, *cells: tuple[str, list]) -> Path:
    """A notebook with a heading and executed code cells, each given as (source, outputs)."""
    nb = nbformat.v4.new_notebook()
    title = path.stem
    nb.cells.append(nbformat.v4.new_markdown_cell(f"# {title}\n\nThe loss is $L = -\\log p(y)$, as in the paper."))
    for i, (source, outputs) in enumerate(cells or [("1 + 1", [nbformat.v4.new_output("stream", text="2\n")])]):
        nb.cells.append(nbformat.v4.new_code_cell(source, outputs=outputs, execution_count=i + 1))
    nb.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nb, path)
    return path


def book_folder(folder: Path) -> Path:
    """A copy of the book's sources with small executed notebooks in it."""
    ignored = shutil.ignore_patterns("_build", "_generated", "executed")
    shutil.copytree(ROOT / "book", folder, ignore=ignored)
    for name in bookcheck.pages_of(folder):
        if name.startswith("executed/"):
            notebook(folder / f"{name}.ipynb")
    return folder
