"""Speed of training as ratios, from results/bench.csv."""

from __future__ import annotations

import pandas as pd
from markupsafe import Markup

from lib.errors import InputError
from lib.reporting.efficiency_parts import NOT_YET
from lib.reporting.tables import table

# What the names of results/bench.csv stand for (lib/bench.py); another name is shown as it is.
COMPARED = {
    "ours vs trainer best": "the study's loop | transformers' Trainer, rows grouped by length",
    "ours vs bare loop": "the study's loop | a plain loop over the same batches",
    "bf16 vs fp32": "the study's loop in bf16 | the same in fp32",
    "cached vs uncached teacher": "distillation with the teacher's outputs kept | with the teacher run on every batch",
    "two runs of one thread vs one run of two": "two runs at once, a thread each | one run of two threads",
    "ours vs matrix peak (TFLOP/s)": "the study's loop | the fastest matrix product on the machine, 10¹² operations a "
                                     "second",
}


def compared(name: str) -> str:
    """The two sides of a row of bench.csv in words."""
    if name.startswith("ours vs trainer pad "):
        return f"the study's loop | transformers' Trainer, every row padded to {name.rsplit(' ', 1)[1]} tokens"
    return COMPARED.get(name, name)


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def training(bench: pd.DataFrame | None) -> Markup:
    """Rates of training and their ratios, as `make bench` measured them; one sentence where it was not run."""
    if bench is None or bench.empty:
        return Markup("<p>Training speed: {}: <code>make bench</code> does it in 20 minutes on a quiet machine. Until "
                      "then this book does not say what any part of the loop gains.</p>").format(NOT_YET)
    missing = [c for c in ("comparison", "ours", "other", "ratio", "low", "high", "machine", "date") if c not in bench]
    if missing:
        raise InputError(f"results/bench.csv: lacks the columns {', '.join(missing)}; `make bench` writes it anew")
    return Markup("").join(_of_machine(where, rows) for where, rows in bench.groupby("machine", sort=True))


def _of_machine(where: str, rows: pd.DataFrame) -> Markup:
    body = [[compared(b.comparison), _rate(b.ours), _rate(b.other), f"{b.ratio:.2f}",
             f"{b.low:.2f} to {b.high:.2f}" + (", holds 1" if b.low <= 1 <= b.high else "")]
            for b in rows.itertuples()]
    head = ["First side | second side", "First", "Second", "First / second", "95% interval"]
    days = " and ".join(sorted(set(rows.date)))
    return Markup("<p>Measured on {}, {}.</p>").format(where, days) + table(
        "Speed of training, real tokens a second unless the row says otherwise", head, body)
