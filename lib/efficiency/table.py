"""The timed table: systems x back ends x batch x length in interleaved rounds, row by row, resumable.

In each round every system of a group runs once, BERT-base among them, on the same back end; a speed-up is the median
of the ratios inside the rounds. Knows no architecture: systems come as names with a way to build them.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import nn

from lib.efficiency import memory as efficiency_memory
from lib.efficiency import timing
from lib.efficiency.backends import BACKENDS, Ready, Skipped
from lib.errors import InputError
from lib.paths import slug, write_atomic

COLUMNS = [
    "system", "paper", "variant", "layers", "params_m", "params_no_embeddings_m", "flops_g", "backend", "precision",
    "batch", "length", "threads", "latency_ms", "latency_iqr_ms", "tokens_per_second", "speedup_vs_bert_base",
    "speedup_low", "speedup_high", "peak_memory_mb", "file_mb", "rounds", "load", "processor", "date", "versions",
]
KEY = ["system", "backend", "batch", "length", "threads", "processor"]
# Where a budget of minutes ends early, the rows that most readers look for are there.
POINTS = ((1, 128), (1, 32), (1, 384), (8, 128), (8, 32), (32, 32), (32, 128), (8, 384), (32, 384))


@dataclass(frozen=True)
class Subject:
    """What is timed. `make(attention)`: the model in float32; `facts`: the row's columns that no timing changes."""

    name: str
    make: Callable[[str], nn.Module]
    facts: Mapping[str, object]
    megabytes: float  # float32 weights
    key: str = ""  # folder of its ONNX files; must differ where the network does


@dataclass
class Skips:
    """Back ends that could not run: (subject, back end) -> reason. Shown, never filled in."""

    reasons: dict[tuple[str, str], str]


def load(path: Path) -> pd.DataFrame:
    """The rows of a table, none where there is no file. `InputError` where it is another table."""
    if not path.exists():
        return pd.DataFrame(columns=COLUMNS)
    try:
        frame = pd.read_csv(path)
    except (OSError, ValueError) as e:
        raise InputError(f"{path}: cannot be read ({e})") from e
    if list(frame.columns) != COLUMNS:
        raise InputError(f"{path}: columns are {', '.join(map(str, frame.columns))[:200]}; wanted {', '.join(COLUMNS)}")
    return frame


def append(path: Path, rows: Sequence[dict]) -> None:
    """Add rows to the file; after a kill it holds either all of them or none."""
    frame = pd.DataFrame(rows, columns=COLUMNS)
    old = path.read_text() if path.exists() else ",".join(COLUMNS) + "\n"
    write_atomic(path, (old + frame.to_csv(index=False, header=False, lineterminator="\n")).encode())


def groups(subjects: Sequence[Subject], base: Subject, megabytes: float, most: int) -> list[list[Subject]]:
    """Subjects without `base` in groups that fit in memory together with it; never an empty group."""
    out: list[list[Subject]] = [[]]
    for s in subjects:
        if s.name == base.name:
            continue
        held = base.megabytes + sum(o.megabytes for o in out[-1])
        if out[-1] and (held + s.megabytes > megabytes or len(out[-1]) >= most):
            out.append([])
        out[-1].append(s)
    return out


def measure(subjects: Sequence[Subject], base: Subject, backends: Sequence[str], points: Sequence[tuple[int, int]], *,
            folder: Path, done: set[tuple] = frozenset(), deadline: float = float("inf"), rounds: int = 15,
            seconds: float = 30.0, warmup: int = 2, fewest: int = 5, megabytes: float = 4000, most: int = 8,
            skips: Skips | None = None, say: Callable[[str], object] = lambda line: None) -> Iterator[list[dict]]:
    """Rows (columns `COLUMNS`), one list for each back end, group and (batch, length) point.

    `done`: keys (columns `KEY`) that need no row. `deadline`: of `time.monotonic()`; no point begins after it.
    `seconds`: cap of a point, but at least `fewest` rounds. `folder`: keeps ONNX files by subject. Peak memory is that
    of the first call at each point: weights and everything that the call holds, without the interpreter and the others
    (ONNX Runtime keeps what its largest call so far took, and so it counts).
    Raises `ValueError` without a warm-up round.
    """
    if warmup < 1:
        raise ValueError(f"warmup: {warmup}; at least one round that is not counted is needed before timing")
    skips = Skips({}) if skips is None else skips
    here = timing.stamp()

    def key(subject: Subject, backend: str, point: tuple[int, int]) -> tuple:
        return subject.name, backend, *point, here["threads"], here["processor"]

    done = set(done)
    for backend in backends:
        for group in groups(subjects, base, megabytes, most):
            wanted = {p: [s for s in (base, *group) if key(s, backend, p) not in done] for p in points}
            wanted = {p: found for p, found in wanted.items() if found}
            if not wanted:
                continue
            if time.monotonic() > deadline:
                return
            ready, held = _build([base, *group], backend, folder, skips, say)
            if base.name not in ready:
                continue
            for point, missing in wanted.items():
                missing = [s for s in missing if s.name in ready]
                if not missing:
                    continue
                if time.monotonic() > deadline:
                    return
                running = {n: ready[n] for n in dict.fromkeys([base.name, *(s.name for s in missing)])}
                memory = {n: _peak(n, r, held, point) for n, r in running.items()}
                times = timing.interleaved(
                    {n: call(r, point) for n, r in running.items()}, rounds=rounds, warmup=warmup, fewest=fewest,
                    seconds=min(seconds, max(0.0, deadline - time.monotonic())))
                rows = [_row(s, base, backend, ready[s.name], point, times, memory) for s in missing]
                done |= {key(s, backend, point) for s in missing}
                say(f"{backend}, batch {point[0]}, length {point[1]}: {', '.join(s.name for s in missing)}")
                yield rows
            del ready


def across(subject: Subject, backends: Sequence[str], points: Sequence[tuple[int, int]], *, folder: Path,
           rounds: int = 15, seconds: float = 30.0, warmup: int = 2, fewest: int = 5,
           skips: Skips | None = None, say: Callable[[str], object] = lambda line: None) -> pd.DataFrame:
    """One model on several back ends, in the same rounds. Columns: batch, length, back end, precision, latency in ms
    (median, quartiles), speed-up over the first back end, peak memory and file in MB, rounds.

    Raises `ValueError` without a warm-up round or where no back end runs.
    """
    if warmup < 1:
        raise ValueError(f"warmup: {warmup}; at least one round that is not counted is needed before timing")
    skips = Skips({}) if skips is None else skips
    ready, held = {}, {}
    for backend in backends:
        one, memory = _build([subject], backend, folder, skips, say)
        if one:
            ready[backend], held[backend] = one[subject.name], memory[subject.name]
    if not ready:
        raise ValueError(f"{subject.name}: no back end of {', '.join(backends)} runs here")
    rows = []
    for point in points:
        memory = {b: _peak(b, r, held, point) for b, r in ready.items()}
        times = timing.interleaved({b: call(r, point) for b, r in ready.items()}, rounds=rounds, warmup=warmup,
                                       fewest=fewest, seconds=seconds)
        first = next(iter(times))
        for b, r in ready.items():
            ms, ratio = timing.summary(1000 * times[b]), timing.speedup(times[first], times[b])
            rows.append({"batch": point[0], "length": point[1], "back end": b, "precision": r.precision,
                         "latency, ms": round(ms.median, 2), "quartiles, ms": f"{ms.low:.2f} to {ms.high:.2f}",
                         f"times faster than {first}": round(ratio.median, 2),
                         "peak memory, MB": "not known here" if memory[b] is None else f"{memory[b]:.0f}",
                         "file, MB": round(r.file_mb, 1), "rounds": len(times[b])})
    return pd.DataFrame(rows)


def _inputs(point: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Random ids of words that every vocabulary of the study has, and a full mask."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 60, point, generator=generator)
    return ids, torch.ones_like(ids)


def call(ready: Ready, point: tuple[int, int]) -> Callable[[], object]:
    """A pass of `ready` over random ids (batch, length) = `point`, none of them padding."""
    ids, mask = _inputs(point)
    return lambda: ready.run(ids, mask)


def _build(subjects: Sequence[Subject], backend: str, folder: Path, skips: Skips, say) -> tuple[dict, dict]:
    """(name -> ready model, name -> MB that it holds once built); what cannot run is in `skips` with the reason."""
    gc.collect()
    ready: dict[str, Ready] = {}
    held: dict[str, float] = {}
    for s in subjects:
        before = efficiency_memory.resident()
        try:
            ready[s.name] = BACKENDS[backend](s.make, folder / (s.key or slug(s.name)))
        except Skipped as e:
            skips.reasons[s.name, backend] = str(e)
            say(f"{s.name} on {backend}: skipped, {e}")
            continue
        held[s.name] = efficiency_memory.resident() - before
    return ready, held


def _peak(name: str, ready: Ready, held: dict[str, float], point: tuple[int, int]) -> float | None:
    """MB that a model holds and its first call at a point takes beside it; `held` learns what the call left behind."""
    before = efficiency_memory.resident()
    if ready.lazy:  # what its compiler takes is not what the model takes
        call(ready, point)()
        before = efficiency_memory.resident()
    highest = efficiency_memory.peak(call(ready, point))
    own = held[name]
    held[name] += efficiency_memory.resident() - before
    return None if highest is None else own + highest - before


def _row(s: Subject, base: Subject, backend: str, ready: Ready, point, times, memory) -> dict:
    ms = timing.summary(1000 * times[s.name])
    ratio = timing.speedup(times[base.name], times[s.name])
    peak = memory[s.name]
    return {
        "system": s.name, **s.facts, "backend": backend, "precision": ready.precision,
        "batch": point[0], "length": point[1], "latency_ms": round(ms.median, 4), "latency_iqr_ms": round(ms.iqr, 4),
        "tokens_per_second": round(point[0] * point[1] / ms.median * 1000, 1),
        "speedup_vs_bert_base": round(ratio.median, 4), "speedup_low": round(ratio.low, 4),
        "speedup_high": round(ratio.high, 4), "peak_memory_mb": None if peak is None else round(peak, 1),
        "file_mb": round(ready.file_mb, 2), "rounds": len(times[s.name]), **timing.stamp(),
    }
