"""Cells of the tables that other commands write, for claims about size and speed."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pandas as pd

from lib.claims.language import Call, Expression
from lib.efficiency import machines
from lib.errors import InputError
from lib.paths import results_dir
from lib.results import Record


class NotThere(InputError):
    """A table, row or column that a claim needs does not exist (yet)."""


@functools.lru_cache(maxsize=8)
def _read(path: Path, changed: int) -> pd.DataFrame:
    try:
        return pd.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as e:
        raise InputError(f"{path}: is no CSV table ({' '.join(str(e).split())[:160]})") from e


def cell(file: str, column: str, **where: object) -> float:
    """The number in `column` of the one row of `results/<file>` where each named column holds the given value.

    Raises `NotThere` where file, column or row is missing, `InputError` where several rows fit or it is no number.
    """
    path = results_dir() / file
    if not path.exists():
        raise NotThere(f"results/{file} does not exist yet")
    table = _read(path, path.stat().st_mtime_ns)
    for name in (column, *where):
        if name not in table:
            raise NotThere(f"results/{file} has no column {name!r}")
    found = table
    for name, value in where.items():
        found = found[found[name] == str(value)]
    words = ", ".join(f"{k} {v}" for k, v in where.items() if v != "")
    if found.empty:
        raise NotThere(f"results/{file} has no row of {words}")
    if len(found) > 1:
        raise InputError(f"results/{file} has {len(found)} rows of {words}; exactly one is needed")
    number = pd.to_numeric(found[column], errors="coerce").iloc[0]
    if pd.isna(number):
        raise InputError(f"results/{file}: {column} of {words} is {found[column].iloc[0]!r}, no number")
    return float(number)


def size(system: str, column: str) -> float:
    """A count of `results/sizes.csv` (`python -m lib.efficiency.run sizes`)."""
    return cell("sizes.csv", column, system=system)


def block(column: str, **where: object) -> float:
    """A count of `results/blocks.csv`: one BERT-base block, its attention and feed-forward parts, by length."""
    return cell("blocks.csv", column, **where)


def latency(system: str, speedup: str = "vs_bert_base", **where: object) -> float:
    """Time of a batch in milliseconds: BERT-base's median over the system's speed-up in `results/efficiency.csv`.

    A machine drifts, and two systems need not have been timed in the same rounds; BERT-base was in all of them. Of
    several machines' rows those of one count, the machine that the efficiency page shows (`make efficiency`).
    `speedup`: the median over rounds, or "low" or "high" for its quartiles.
    """
    path = results_dir() / "efficiency.csv"
    if path.exists() and not (table := _read(path, path.stat().st_mtime_ns)).empty:
        where = dict(zip(machines.MACHINE, machines.chosen(table), strict=True)) | where
    faster = cell("efficiency.csv", f"speedup_{speedup}", system=system, **where)
    return cell("efficiency.csv", "latency_ms", system="BERT-base", **where) / faster


# Of the claims' language: what reads a table of counts or timings
FUNCTIONS: dict[str, Callable[..., float]] = {"size": size, "block": block, "latency": latency}


def cells(calls: Iterable[Call]) -> list[tuple[Call, float]]:
    """Each different call of `FUNCTIONS` among `calls` and what it gives, in order; what cannot be read is left out."""
    out = []
    for call in dict.fromkeys(c for c in calls if c.name in FUNCTIONS):
        try:
            out.append((call, FUNCTIONS[call.name](*call.arguments, **dict(call.named))))
        except InputError:  # the verdict says why
            continue
    return out


def timed_range(expression: Expression, functions: Mapping[str, Callable], margin: float) -> tuple[float, float] | None:
    """Lowest and highest value of an expression where each latency in it may lie at either quartile of its speed-up.

    None where it holds no latency. A timing is one sitting on one machine, so this is no confidence interval: it says
    what the spread of the rounds leaves open. The quartiles of each system are combined in every way (2^k for k
    latencies), which is wider than quartiles of the expression itself would be.
    """
    calls = list(dict.fromkeys(c for c in expression.calls if c.name == "latency"))
    if not calls:
        return None
    values = []
    for ends in itertools.product(("low", "high"), repeat=len(calls)):
        at = dict(zip(calls, ends, strict=True))

        def one(system: str, at=at, **where: object) -> float:
            return latency(system, at[Call("latency", (system,), tuple(sorted(where.items())))], **where)

        values.append(float(expression.value({**functions, "latency": one}, margin)))
    return min(values), max(values)


def int8_drop(record: Record) -> float:
    """Score with eight-bit weights minus score, in points: `results/students.csv` (`lib.efficiency.run students`)."""
    key = ("profile", "backbone", "task", "method", "variant", "seed")
    return cell("students.csv", "drop_int8", **{k: getattr(record, k) for k in key})
