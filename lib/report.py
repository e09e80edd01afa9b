"""Tables and figures of the book, made from the records and the reported numbers, and nothing else.

    python -m lib.report

writes `results/results.csv` (committed profiles), `results/comparison.svg`, and below `book/_generated/` the fragments
that the pages include and the tidy table of the demo. Notebooks call `reported_table` and `beside`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pandas as pd
from markupsafe import Markup

from lib import pages, results
from lib.cells import printed, runs_link, verdict
from lib.comparison import cell, groups, tasks_of
from lib.errors import InputError
from lib.pages import Study
from lib.paths import ROOT, results_dir, write_atomic
from lib.reported import TASK_TITLES, Reported, load, reported_table, select
from lib.results import Record
from lib.systems import BY_NAME, title_of
from lib.tables import NOT_RUN, table

__all__ = ["beside", "load_study", "ours_table", "reported_table", "study_records", "tidy", "write"]


def book_dir() -> Path:
    """Folder of the book's sources: `$BERT_BOOK`, else `book/` of the repository."""
    return Path(os.environ.get("BERT_BOOK") or ROOT / "book").resolve()


def load_study() -> Study:
    """Records and reported numbers. Raises `InputError` only for a bad `reported.csv`; bad records are skipped."""
    records, skipped = results.load_all()
    return Study(tuple(records), tuple(skipped), load())


COLUMNS = (
    "profile backbone task method variant seed paper scale split rows headline score majority best_on_scored_split "
    "teacher_score retention retention_above_majority label_loyalty probability_loyalty parameters "
    "parameters_without_embeddings layers steps tokens wall_seconds tokens_per_second peak_memory_mb precision "
    "processor threads study config_hash code_hash git_commit record metrics"
)


def tidy(records: list[Record] | tuple[Record, ...]) -> pd.DataFrame:
    """One line a run; every number as the record holds it. Columns: `COLUMNS`, then one a metric."""

    def line(r: Record) -> dict:
        own = r.model_dump(include=set(COLUMNS.split()) - {"metrics", "study"})
        e = r.environment
        return own | {
            "teacher_score": r.teacher.score if r.teacher else None,
            "label_loyalty": r.loyalty.label if r.loyalty else None,
            "probability_loyalty": r.loyalty.probability if r.loyalty else None,
            "precision": e.precision,
            "processor": e.processor,
            "threads": e.threads,
            "git_commit": e.git_commit,
            "study": (r.study or {}).get("kind"),
            "record": str(results.path_of(r).relative_to(results_dir())),
            **{f"metric_{k}": v for k, v in r.metrics.items()},
        }

    lines = [line(r) for r in records]
    metrics = sorted({k for one in lines for k in one if k.startswith("metric_")})
    return pd.DataFrame(lines, columns=[*COLUMNS.split()[:-1], *metrics])


def _csv(frame: pd.DataFrame) -> bytes:
    return frame.to_csv(index=False, lineterminator="\n").encode()


def write(study: Study) -> list[Path]:
    """Write everything generated; returns the paths."""
    generated = book_dir() / "_generated"
    fragments = {
        "glance": pages.glance(study),
        "picture": Markup('<div class="bc-picture">{}</div>').format(pages.picture(study)),
        "comparison": pages.comparison(study, local=False),
        "comparison-demo": pages.comparison(study, local=True),
        "runs": pages.provenance(study),
        "sources": pages.sources(study),
    }
    out = {generated / f"{name}.html": (html + "\n").encode() for name, html in fragments.items()}
    out[generated / "demo.csv"] = _csv(tidy(study.local))
    out[results_dir() / "results.csv"] = _csv(tidy(study.committed))
    # The README shows this one, on a page whose colours nobody knows: black on white. Never of the demo.
    readme = pages.picture(Study(tuple(study.committed), (), study.reported), ink="#000000", background="white")
    if readme.startswith("<svg"):
        out[results_dir() / "comparison.svg"] = (readme + "\n").encode()
    for path, data in out.items():
        if not path.exists() or path.read_bytes() != data:  # an unchanged page is not built again
            write_atomic(path, data)
    return list(out)


def ours_table(method: str, *, local: bool = False) -> Markup:
    """All runs of a method by task, variants included: what a paper's page says about our side. HTML."""
    study = load_study()
    runs = study.compared(study.local if local else study.committed)
    return _beside(study.reported, runs, method, f"{title_of(method)}, ours beside the paper") or _nothing(method)


def beside(paper: str, method: str, where_prefix: str) -> Markup:
    """Reported | ours of `method` beside one table of `paper`, one line a task, committed runs first, then the demo's.

    Ours carries its retention and says what was scaled down. A variant's label ("theseus-constant") is a method here.
    Raises `InputError` where the paper has no such table.
    """
    study = load_study()
    reported_table(paper, where_prefix, study.reported)  # names the tables that exist
    system = BY_NAME.get(method)
    names = (system.printed.system,) if system and system.printed.paper == paper else ()
    rows = [r for n in names for r in select(study.reported, paper, where_prefix, n)]
    if system and system.teacher and system.teacher.paper == paper:
        rows += select(study.reported, paper, where_prefix, system.teacher.system)
    out = Markup("")
    for what, records in (("committed runs", study.committed), ("demo on this machine", study.local)):
        caption = f"{paper} {where_prefix}: reported | ours, {title_of(method)}, {what}"
        out += _beside(rows, study.compared(records), method, caption)
    return out or _printed_only(rows, method, f"{paper} {where_prefix}, {title_of(method)}")


def _beside(rows: list[Reported], records: list[Record], method: str, caption: str) -> Markup:
    head = ["Task", "Reported", "Ours, mean ± 95% interval", "Difference, or retention: reported | ours"]
    out = Markup("")
    for (profile, backbone), runs in groups(records).items():
        cells = [cell(rows, runs, method, t) for t in tasks_of(runs)]
        body = [[TASK_TITLES.get(c.task, c.task), printed(c.reported, c), runs_link(c, linked=False), verdict(c)]
                for c in cells if c.runs]  # fmt: skip
        if body:
            out += table(f"{caption} (profile {profile}, backbone {backbone})", head, body)
    return out


def _printed_only(rows: list[Reported], method: str, caption: str) -> Markup:
    system = BY_NAME.get(method)
    own = [r for r in rows if system and r.system == system.printed.system]
    if not own:
        return _nothing(method)
    body = [[TASK_TITLES.get(r.task, r.task), r.value, NOT_RUN] for r in own]
    return table(caption, ["Task", "Reported", "Ours"], body)


def _nothing(method: str) -> Markup:
    return Markup("<p>{}: {}.</p>").format(title_of(method), NOT_RUN)


def study_records(kind: str, method: str = "theseus") -> list[Record]:
    """Records that carry a paper's own table of this kind, e.g. "module_impact", committed ones first."""
    study = load_study()
    every = [*study.committed, *study.local]
    return [r for r in every if r.method == method and (r.study or {}).get("kind") == kind]


def main() -> int:
    try:
        study = load_study()
        for line in study.skipped:
            print(f"skipped: {line}", file=sys.stderr)
        paths = write(study)
    except InputError as e:
        print(f"report: {e}", file=sys.stderr)
        return 2
    print(f"report: {len(study.committed)} committed and {len(study.local)} local records, {len(study.skipped)} "
          f"files skipped, {len(study.reported)} reported numbers, {len(paths)} files")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
