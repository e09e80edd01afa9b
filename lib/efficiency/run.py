"""Sizes and speeds of every system at its paper's own shape.

    python -m lib.efficiency.run sizes                     counts: results/sizes.csv and results/blocks.csv, no timing
    python -m lib.efficiency.run speed --minutes 60        timings: results/efficiency.csv, on a quiet machine
    python -m lib.efficiency.run bf16 --minutes 30         one network in bf16 and in float32: results/bf16.csv
    python -m lib.efficiency.run stsb                      the pass over STS-B at batch 1: results/stsb_pass.csv
    python -m lib.efficiency.run students --build build    int8 scores and latency of trained students: students.csv

Counting is deterministic. Timing goes on where it stopped: rows that are there are not measured again.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Annotated

import pandas as pd
import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator

from lib import models, parameters
from lib.efficiency import bf16, block, counts, shapes, timing
from lib.efficiency import table as efficiency_table
from lib.efficiency.backends import BACKENDS
from lib.efficiency.table import Subject
from lib.errors import one_line, one_of
from lib.parameters import Float, Int, Ints, Str, Strs
from lib.paths import as_path, build_dir, results_dir, slug, write_atomic
from lib.provenance import digest

LENGTHS = (32, 128, 256, 384, 512, 1024)  # of the FLOPs in sizes.csv; positions are added where a model has fewer
LONG = (256, 512, 1024)  # for the systems of TrimBERT's Fig. 6, at batch 1


class Config(BaseModel):
    """Parameters of `notebooks/efficiency.ipynb`."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    model: Str = ""  # your own model: a folder or hub id; empty: the systems alone
    systems: Strs = [shapes.BASE, "BERT, 6 layers", "DistilBERT", "TinyBERT4", "MobileBERT-TINY", "EfficientBERT"]
    backends: Strs = ["eager", "sdpa", "onnx", "onnx-int8"]  # of `BACKENDS`
    lengths: Ints = [128]  # tokens
    batches: Ints = [1]
    threads: Annotated[Int, Field(ge=0, le=1024)] = 0  # 0: as torch chooses
    minutes: Annotated[Float, Field(gt=0, le=100000)] = 1.5  # for timing; no point begins after that
    rounds: Annotated[Int, Field(ge=3, le=10000)] = 15

    @field_validator("systems", mode="before")
    @classmethod
    def _names_with_commas(cls, value):
        """Names hold spaces and commas, so text is cut at semicolons only."""
        return [w.strip() for w in value.split(";") if w.strip()] if isinstance(value, str) else value

    @field_validator("systems")
    @classmethod
    def _systems(cls, value):
        for name in value:
            one_of("systems", name, shapes.BY_NAME)
        return value

    @field_validator("backends")
    @classmethod
    def _backends(cls, value):
        for name in value:
            one_of("backends", name, BACKENDS)
        if not value:
            raise ValueError(f"must name at least one of {', '.join(BACKENDS)}")
        return value

    @field_validator("lengths", "batches")
    @classmethod
    def _positive(cls, value):
        if not value or min(value) < 1:
            raise ValueError("must be whole numbers of 1 or more")
        return value


def size_row(system: shapes.System) -> dict:
    """One line of sizes.csv: parameters by part, FLOPs at `LENGTHS` (batch 1, a multiply-add is two), MB of weights.

    `flops_128_dense`: with one more linear layer of the model's width over all 128 tokens, see the page.
    """
    config = system.config()
    c = counts.counts(config)
    config.max_position_embeddings = max(*LENGTHS, config.max_position_embeddings)
    skeleton = counts.skeleton(config)
    work = {n: counts.flops_by_module(skeleton, 1, n)["Global"] for n in LENGTHS}
    return {
        "system": system.name, "papers": system.papers, "variant": system.variant, "layers": system.layers,
        "parameters": c.parameters, "embeddings": c.embeddings, "pooler": c.pooler, "pretraining": c.pretraining,
        "extra": system.extra[0] or "none", "extra_parameters": system.extra[1],
        **{f"flops_{n}": v for n, v in work.items()},
        "flops_128_dense": work[128] + 2 * 128 * config.hidden_size**2,
        "file_mb": round(c.file_mb, 2), "file_int8_mb": round(c.file_int8_mb, 2),
    }


def write_sizes() -> list[Path]:
    """Write sizes.csv and blocks.csv below the results."""
    sizes = pd.DataFrame([size_row(s) for s in shapes.SYSTEMS])
    sizes["pretraining"] = sizes["pretraining"].astype("Int64")
    out = {"sizes.csv": sizes, "blocks.csv": pd.DataFrame([block.row(n) for n in block.LENGTHS])}
    for name, frame in out.items():
        write_atomic(results_dir() / name, frame.to_csv(index=False, lineterminator="\n").encode())
    return [results_dir() / name for name in out]


def subject(system: shapes.System, length: int = 512) -> Subject:
    """A system for timing, with positions for `length`."""
    config = system.config()
    c = counts.counts(config)
    facts = {"paper": system.papers, "variant": system.variant, "layers": system.layers,
             "params_m": round(c.parameters / 1e6, 3), "params_no_embeddings_m": round(c.without_embeddings / 1e6, 3),
             "flops_g": round(counts.flops(config) / 1e9, 3)}
    return Subject(system.name, lambda attention: shapes.build(system, attention, length), facts, c.file_mb,
                   f"{slug(system.name)}-{digest([config.to_dict(), length])}")


def own_subject(name: str) -> Subject:
    """The user's own model for timing. Raises `InputError` where it cannot be opened."""
    model = models.load_any(name)
    total, outside = models.count_parameters(model)
    skeleton = counts.skeleton(model.config, type(model)._from_config)
    work = counts.flops_by_module(skeleton, 1, own_length(model.config))["Global"]
    facts = {"paper": "own", "variant": type(model).__name__,
             "layers": getattr(model.config, "num_hidden_layers", None), "params_m": round(total / 1e6, 3),
             "params_no_embeddings_m": round(outside / 1e6, 3), "flops_g": round(work / 1e9, 3)}
    return Subject(Path(name).name, lambda attention: models.load_any(name, attention=attention), facts,
                   4 * total / 1e6, f"own-{digest(models.content_hash(models.resolve(name, 'model')))}")


def own_length(config) -> int:
    """128 tokens, or as many as the model has positions for."""
    limit = getattr(config, "max_position_embeddings", None) or 128
    return min(128, limit - 2 if limit <= 130 else limit)


def onnx_folder() -> Path:
    """Where ONNX files are kept between runs."""
    return build_dir() / "onnx"


class Printer:
    """A line with the minutes since the start."""

    def __init__(self):
        self.began = time.monotonic()

    def __call__(self, line: str) -> None:
        print(f"{(time.monotonic() - self.began) / 60:6.1f} min  {line}", flush=True)


def time_systems(p: Config, skips: efficiency_table.Skips) -> pd.DataFrame:
    """The notebook's small table, in memory. Threads are set for the whole process."""
    if p.threads:
        torch.set_num_threads(p.threads)
    longest = max(p.lengths)
    subjects = [subject(shapes.get(n), longest) for n in p.systems]
    base = subject(shapes.get(shapes.BASE), longest)
    points = [(b, n) for b in p.batches for n in p.lengths]
    rows: list[dict] = []
    for found in efficiency_table.measure(
            [base, *subjects], base, p.backends, points, folder=onnx_folder(), rounds=p.rounds,
            deadline=time.monotonic() + 60 * p.minutes, seconds=60 * p.minutes / len(p.backends) / len(points) / 2,
            skips=skips, say=Printer()):
        rows += found
    return pd.DataFrame(rows, columns=efficiency_table.COLUMNS)


def speed(minutes: float, systems: list[str], backends: list[str], threads: int, path: Path) -> int:
    """Time what is missing in `path` until `minutes` are over; the number of rows added. No systems: all.

    First FFN and attention of one block (blocks_time.csv). Then batch 1 on every back end; the longer lengths of the
    Fig. 6 systems; batches of 8, then of 32, in fewer rounds. A group timed beside other programs is left out and said.
    """
    if threads:
        torch.set_num_threads(threads)
    say = Printer()
    have = efficiency_table.load(path)
    done = set(have[efficiency_table.KEY].itertuples(index=False, name=None))
    deadline, added, left_out = time.monotonic() + 60 * minutes, 0, 0
    chosen = [shapes.get(n) for n in systems or shapes.BY_NAME]
    points = efficiency_table.POINTS
    if not systems and not (path.parent / "blocks_time.csv").exists():
        frame = pd.concat([block.times(block.LENGTHS, 60, 20.0, a) for a in ("eager", "sdpa")])
        write_atomic(path.parent / "blocks_time.csv", frame.to_csv(index=False, lineterminator="\n").encode())
        say(f"FFN and attention of a block: {path.parent / 'blocks_time.csv'}")
    long = [s for s in chosen if s.long]
    # systems, points, positions, rounds not counted, fewest rounds that are
    passes = [(chosen, [q for q in points if q[0] == 1], 512, 2, 5), (long, [(1, n) for n in LONG], max(LONG), 2, 5),
              *((chosen, [q for q in points if q[0] == batch], 512, 1, 3) for batch in (8, 32))]
    skips = efficiency_table.Skips({})
    for some, where, length, warmup, fewest in passes:
        subjects = [subject(s, length) for s in some]
        base = subject(shapes.get(shapes.BASE), length)
        for rows in efficiency_table.measure([base, *subjects], base, backends, where, deadline=deadline, done=done,
                                             folder=onnx_folder(), skips=skips, say=say, warmup=warmup,
                                             fewest=fewest):
            if why := timing.busy(max(row["load"] for row in rows), rows[0]["threads"]):
                say(f"{len(rows)} rows {why}")
                left_out += len(rows)
                continue
            efficiency_table.append(path, rows)
            added += len(rows)
    say(f"{added} rows added to {path}, {len(have) + added} in all"
        + ("; the time is over, run again for the rest" if time.monotonic() > deadline else
           f"; {left_out} left out, run again for them" if left_out else "; complete"))
    return added


@one_line()
def main(arguments: list[str] | None = None) -> int:
    """Exit code 2 and one line for bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("sizes", "speed", "bf16", "stsb", "students"))
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--systems", default="", help="names separated by semicolons; empty: all")
    parser.add_argument("--backends", default="", help="separated by spaces; empty: all")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--build", default="", help="of `students`: folder that the runs were built in; empty: build/")
    a = parser.parse_args(arguments)
    if a.what == "sizes":
        for path in write_sizes():
            print(path)
    elif a.what == "stsb":
        from lib.efficiency import stsb

        print(stsb.write(a.threads))
    elif a.what == "students":
        from lib.efficiency import students

        print(students.write(as_path(a.build, "--build") if a.build else build_dir(), a.threads))
    else:
        given = {k: v for k, v in (("systems", a.systems), ("backends", a.backends)) if v}
        p = parameters.validate(Config, {**given, "minutes": a.minutes, "threads": a.threads})
        if a.what == "bf16":
            if p.threads:
                torch.set_num_threads(p.threads)
            some = [subject(shapes.get(n)) for n in (p.systems if a.systems else shapes.BY_NAME)]
            print(bf16.write(some, results_dir() / "bf16.csv", p.minutes, Printer()), "rows added")
            return 0
        speed(a.minutes, p.systems if a.systems else [], p.backends if a.backends else list(BACKENDS), a.threads,
              results_dir() / "efficiency.csv")
    return 0


if __name__ == "__main__":
    sys.exit(main())
