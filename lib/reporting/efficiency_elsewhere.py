"""Timings of the processors that the page's main tables are not about, each machine for itself."""

from __future__ import annotations

import pandas as pd
from markupsafe import Markup

from lib.reporting import efficiency_times as times
from lib.reporting.tables import lines, small, table

AT = 128  # tokens of the table by batch


def elsewhere(machines: list[pd.DataFrame], sizes: pd.DataFrame) -> Markup:
    """A part for each of `machines` (rows of results/efficiency.csv); a sentence where there is none."""
    if not machines:
        return Markup("<p>Nothing was timed on another processor or at another number of threads.</p>")
    out = []
    for rows in machines:
        name = f"{rows.processor.iloc[0]}, threads: {rows.threads.iloc[0]}"
        out += [Markup("<h3>{}</h3>").format(name), times.machine(rows), times.timed(rows, sizes), by_batch(rows),
                bf16_gain(rows), times.whole(rows)]
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


def bf16_gain(rows: pd.DataFrame) -> Markup:
    """How many times faster the same network ran in bf16 than in float32, both with fused attention.

    The two back ends are timed one after the other, so this is a ratio of medians of different rounds.
    """
    key = ["system", "batch", "length"]
    both = rows[rows.backend == "sdpa"].merge(rows[rows.backend == "bf16"], on=key, suffixes=("_fp32", "_bf16"))
    if both.empty:
        return Markup("")
    both["gain"] = both.latency_ms_fp32 / both.latency_ms_bf16
    points = sorted(set(zip(both.batch, both.length, strict=True)))
    body = []
    for name, of in both.groupby("system", sort=False):
        at = {(m.batch, m.length): m for m in of.itertuples()}
        body.append([name, *(
            lines(f"{m.gain:.2f}", small(f"{m.latency_ms_fp32:.0f} ms, {m.latency_ms_bf16:.0f} ms")) if m else _none()
            for m in map(at.get, points))])
    said = (f"Of {len(both)} pairs of medians, bf16 was slower in {(both.gain < 1).sum()}; the median gain is "
            f"{both.gain.median():.2f} times. The back ends were timed one after the other, not in the same rounds.")
    head = ["System", *(f"batch {b}, {n} tokens" for b, n in points)]
    return Markup("<p>{}</p>").format(said) + table("bf16 beside float32, fused attention: times faster", head, body)


def _none() -> Markup:
    return Markup('<span class="bc-none">none</span>')
