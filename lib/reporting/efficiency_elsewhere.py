"""Timings of the processors that the page's main tables are not about, each machine for itself."""

from __future__ import annotations

import pandas as pd
from markupsafe import Markup

from lib.reporting import efficiency_times as times
from lib.reporting.tables import lines, table

AT = 128  # tokens of the table by batch


def elsewhere(machines: list[pd.DataFrame], sizes: pd.DataFrame) -> Markup:
    """A part for each of `machines` (rows of results/efficiency.csv); a sentence where there is none."""
    if not machines:
        return Markup("<p>Nothing was timed on another processor or at another number of threads.</p>")
    out = []
    for rows in machines:
        name = f"{rows.processor.iloc[0]}, threads: {rows.threads.iloc[0]}"
        out += [Markup("<h3>{}</h3>").format(name), times.machine(rows), times.timed(rows, sizes), by_batch(rows),
                times.whole(rows)]
    return Markup("").join(out)


def by_batch(rows: pd.DataFrame) -> Markup:
    """Speed-up over BERT-base on the same back end at `AT` tokens, a column for each batch size."""
    own = rows[(rows.length == AT) & (rows.system != "BERT-base")]
    if own.empty:
        return Markup("")
    batches = sorted(own.batch.unique())
    body = [[name, *(_speedups(of[of.batch == b]) for b in batches)] for name, of in own.groupby("system", sort=False)]
    return table(f"Speed-up over BERT-base at {AT} tokens, by batch", ["System", *(f"batch {b}" for b in batches)],
                 body)


def _speedups(of: pd.DataFrame) -> Markup | str:
    cells = [f"{m.backend} {m.speedup_vs_bert_base:.2f} ({m.speedup_low:.2f} to {m.speedup_high:.2f})"
             for backend in times.SHOWN for m in of[of.backend == backend].itertuples()]
    return lines(*cells) if cells else _none()


def _none() -> Markup:
    return Markup('<span class="bc-none">none</span>')
