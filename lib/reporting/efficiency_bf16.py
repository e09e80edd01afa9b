"""What bfloat16 gains over float32 on the same network, from results/bf16.csv."""

from __future__ import annotations

import pandas as pd
from markupsafe import Markup

from lib.reporting.efficiency_parts import NOT_YET
from lib.reporting.tables import count, lines, small, table


def bf16(measured: pd.DataFrame | None) -> Markup:
    """A table for each machine: systems by batch and length, the gain with the quartiles over the rounds."""
    if measured is None or measured.empty:
        return Markup("<p>bf16 beside float32: {}. <code>make bf16</code> times both on a processor that computes in "
                      "bf16.</p>").format(NOT_YET)
    return Markup("").join(_machine(rows) for _, rows in measured.groupby(["processor", "threads"]))


def _machine(rows: pd.DataFrame) -> Markup:
    one = rows.iloc[0]
    slower, faster = (rows.gain_high < 1).sum(), (rows.gain_low > 1).sum()
    said = (f"{one.processor}, {count(int(one.threads), 'thread')}, {rows.date.min()} to {rows.date.max()}, "
            f"{rows.versions.iloc[-1]}. Of {count(len(rows), 'timing')} bf16 was faster in {faster}, slower in "
            f"{slower} and not told apart by the quartiles in {len(rows) - faster - slower}; the fewest rounds were "
            f"{rows.rounds.min()}.")
    points = sorted(set(zip(rows.batch, rows.length, strict=True)))
    body = []
    for name, of in rows.groupby("system", sort=False):
        at = {(m.batch, m.length): _cell(m) for m in of.itertuples()}
        body.append([name, *(at.get(p, Markup('<span class="bc-none">none</span>')) for p in points)])
    head = ["System", *(f"batch {b}, {n} tokens" for b, n in points)]
    return Markup("<p>{}</p>").format(said) + table("Times faster in bf16 than in float32", head, body)


def _cell(m) -> Markup:
    return lines(f"{m.gain:.2f} ({m.gain_low:.2f} to {m.gain_high:.2f})",
                 small(f"{m.fp32_ms:.1f} ms, {m.bf16_ms:.1f} ms"))
