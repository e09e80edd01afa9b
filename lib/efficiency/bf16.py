"""The same network in bfloat16 and in float32, both with fused attention, in the same rounds: what precision gains.

The table of `speed` cannot say it: its back ends are timed one after the other, and a shared machine drifts between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from lib.efficiency import table, timing
from lib.efficiency.backends import BACKENDS, Skipped
from lib.errors import InputError
from lib.paths import write_atomic

POINTS = ((1, 128), (1, 32), (1, 384), (8, 128), (32, 128))  # (batch, tokens)
KEY = ["system", "batch", "length", "threads", "processor"]


def measure(subject: table.Subject, points: Sequence[tuple[int, int]], *, rounds: int = 15, seconds: float = 20.0,
            fewest: int = 5) -> list[dict]:
    """A row for each (batch, length): medians in ms, and the ratio float32 / bf16 inside the rounds with its quartiles.

    `seconds`: cap of a point, but at least `fewest` rounds. Raises `InputError` where the processor has no bf16.
    """
    try:
        ready = {name: BACKENDS[name](subject.make, Path()) for name in ("sdpa", "bf16")}
    except Skipped as e:
        raise InputError(f"{subject.name} in bf16: {e}") from e
    rows = []
    for point in points:
        times = timing.interleaved({n: table.call(r, point) for n, r in ready.items()}, rounds=rounds, warmup=2,
                                   fewest=fewest, seconds=seconds)
        gain = timing.speedup(times["sdpa"], times["bf16"])
        rows.append({"system": subject.name, "batch": point[0], "length": point[1],
                     "fp32_ms": round(timing.summary(1000 * times["sdpa"]).median, 4),
                     "bf16_ms": round(timing.summary(1000 * times["bf16"]).median, 4), "gain": round(gain.median, 4),
                     "gain_low": round(gain.low, 4), "gain_high": round(gain.high, 4), "rounds": len(times["sdpa"]),
                     **timing.stamp()})
    return rows


def write(subjects: Sequence[table.Subject], path: Path, minutes: float, say: Callable[[str], object],
          points: Sequence[tuple[int, int]] = POINTS) -> int:
    """Measure what `path` lacks of this machine until `minutes` are over, system by system; the number of rows added.

    A system timed beside other programs is left out, and said.
    """
    have = pd.read_csv(path).to_dict("records") if path.exists() else []
    here, added, deadline = timing.stamp(), 0, time.monotonic() + 60 * minutes
    done = {tuple(r[k] for k in KEY) for r in have}
    for s in subjects:
        missing = [p for p in points if (s.name, *p, here["threads"], here["processor"]) not in done]
        if not missing:
            continue
        if time.monotonic() > deadline:
            say("the time is over, run again for the rest")
            break
        rows = measure(s, missing)
        if why := timing.busy(max(r["load"] for r in rows), here["threads"]):
            say(f"{s.name}: {why}")
            continue
        have += rows
        added += len(rows)
        write_atomic(path, pd.DataFrame(have).to_csv(index=False, lineterminator="\n").encode())
        say(f"{s.name}: {', '.join(format(r['gain'], '.2f') for r in rows)} times faster in bf16")
    return added
