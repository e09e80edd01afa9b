"""Timings of several machines in one table: what is compared comes from one of them."""

from __future__ import annotations

import pandas as pd

MACHINE = ["processor", "threads"]


def chosen(frame: pd.DataFrame) -> tuple[str, str]:
    """(processor, threads) as text, of the machine with most rows; of equal ones the one that was timed last.

    frame: rows of results/efficiency.csv, at least one. Their number decides, never a time.
    """
    groups = frame.astype({k: str for k in MACHINE}).groupby(MACHINE).date.agg(["size", "max"])
    return groups.sort_values(["size", "max"]).index[-1]


def of_one(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of the machine `chosen`; an empty table stays as it is."""
    if frame.empty:
        return frame
    processor, threads = chosen(frame)
    return frame[(frame.processor == processor) & (frame.threads.astype(str) == threads)]
