"""Tables and figures of the book, made from the records and the reported numbers, and nothing else.

    python -m lib.report

writes `results/results.csv` (committed profiles), `results/verdicts.csv`, `results/comparison.svg`, and below
`book/_generated/` the fragments that the pages include and the tidy table of the demo. Notebooks call `reported_table`
and `beside`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pandas as pd
from markupsafe import Markup

from lib import claims, results
from lib.claims import verdicts
from lib.efficiency import match
from lib.errors import one_line
from lib.paths import ROOT, results_dir, write_atomic
from lib.reporting import (
    ablations,
    claims_page,
    coverage,
    efficiency_page,
    efficiency_parts,
    guide,
    machines,
    made_again,
    overview,
    own_length,
    pages,
    paper_pages,
    reproduce,
    tradeoff,
)
from lib.reporting.beside import beside, module_impact, ours_table, variants_beside
from lib.reporting.cells import record_page
from lib.reporting.pages import Study, load_study
from lib.reporting.reported import reported_table
from lib.results import Record, path_of

__all__ = ["beside", "module_impact", "ours_table", "reported_table", "variants_beside"]


def book_dir() -> Path:
    """Folder of the book's sources: `$BERT_BOOK`, else `book/` of the repository."""
    return Path(os.environ.get("BERT_BOOK") or ROOT / "book").resolve()


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
            "study": " ".join(sorted(r.study or {})),
            "record": str(results.path_of(r).relative_to(results_dir())),
            **{f"metric_{k}": v for k, v in r.metrics.items()},
        }

    lines = [line(r) for r in records]
    metrics = sorted({k for one in lines for k in one if k.startswith("metric_")})
    return pd.DataFrame(lines, columns=[*COLUMNS.split()[:-1], *metrics])


def _csv(frame: pd.DataFrame) -> bytes:
    return frame.to_csv(index=False, lineterminator="\n").encode()


def _scrolled(name: str, picture: Markup) -> Markup:
    """A picture that is wider than a phone: it scrolls by keyboard too, and so has a name."""
    return Markup('<div class="bc-picture" role="region" tabindex="0" aria-label="{}">{}</div>').format(name, picture)


def write(study: Study) -> list[Path]:
    """Write everything generated; returns the paths."""
    generated = book_dir() / "_generated"
    found = verdicts.judge(claims.load(rows=study.reported), study.records)
    fragments = {
        "coverage": coverage.page(study, found, match.sizes(), efficiency_parts.csv("efficiency.csv")),
        "glance": pages.glance(study),
        "tradeoff": _scrolled("Score retained against speed-up", tradeoff.picture(study)),
        "picture": _scrolled("Score retained, task by task", pages.picture(study)),
        "comparison": pages.comparison(study, local=False),
        "comparison-demo": pages.comparison(study, local=True),
        "own-length": own_length.page(study.committed),
        "papers": overview.papers(study, found),
        "ablations": ablations.page(study),
        "guide": guide.page(study),
        "reproduce": reproduce.page(study),
        "made-again": made_again.page(),
        "machines": machines.page(study.reported),
        "claims": claims_page.page(found),
        "runs": pages.provenance(study),
        "sources": pages.sources(study),
        **efficiency_page.fragments(study.reported),
    }
    out = {generated / f"{name}.html": (html + "\n").encode() for name, html in fragments.items()}
    for paper in paper_pages.PAGES:
        out[generated / f"{paper}-idea.md"] = paper_pages.idea(paper).encode()
        out[generated / f"{paper}.md"] = paper_pages.page(paper, study).encode()
    out[generated / "demo.csv"] = _csv(tidy(study.local))
    out[results_dir() / "results.csv"] = _csv(tidy(study.committed))
    out[results_dir() / "verdicts.csv"] = verdicts.as_csv(found)
    # The README shows this one, on a page whose colours nobody knows: black on white. Never of the demo.
    readme = pages.picture(Study(tuple(study.committed), (), study.reported), ink="#000000", background="white")
    if readme.startswith("<svg"):
        out[results_dir() / "comparison.svg"] = (readme + "\n").encode()
    copies = generated / "extra"  # what Sphinx lays beside the pages as it is
    out |= {copies / record_page(r): path_of(r).read_bytes() for r in study.records}
    out[copies / "records" / "README.txt"] = b"Copies of results/runs, for the links of the book.\n"
    for old in copies.rglob("*.json"):
        if old not in out:
            old.unlink()  # of a record that is gone
    for path, data in out.items():
        if not path.exists() or path.read_bytes() != data:  # an unchanged page is not built again
            write_atomic(path, data)
    return list(out)


@one_line("report")
def main() -> int:
    study = load_study()
    for line in study.skipped:
        print(f"skipped: {line}", file=sys.stderr)
    paths = write(study)
    print(f"report: {len(study.committed)} committed and {len(study.local)} local records, {len(study.skipped)} "
          f"files skipped, {len(study.reported)} reported numbers, {len(paths)} files")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
