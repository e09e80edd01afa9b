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
    return _rows(frame, *chosen(frame))


def of_others(frame: pd.DataFrame) -> list[pd.DataFrame]:
    """The rows of each other machine than the `chosen` one, by processor and threads."""
    if frame.empty:
        return []
    every = sorted(set(frame.astype({k: str for k in MACHINE})[MACHINE].itertuples(index=False, name=None)))
    return [_rows(frame, *machine) for machine in every if machine != tuple(chosen(frame))]


def _rows(frame: pd.DataFrame, processor: str, threads: str) -> pd.DataFrame:
    return frame[(frame.processor == processor) & (frame.threads.astype(str) == threads)]
