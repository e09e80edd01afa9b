"""Speed of training, as ratios measured in one run: `make bench` writes results/bench.csv. It wants a quiet machine.

Each comparison is written when it is done, and one that this machine has is not measured again (`--again` does). Rows
of other machines stay.

The two sides of a comparison take turns in blocks of a few steps, so that a change in the load of the machine meets
both; a block gives one rate for each, real (not padding) tokens a second, a pair of blocks one ratio. The interval is
Student's t over the logarithms of the ratios. The first steps of a block, which load kernels and memory, do not count.

Every side trains the same backbone on the same rows with the same batch size, dropout, AdamW, schedule and clipping.
transformers' Trainer needs `accelerate` (requirements-bench.txt).
"""

from __future__ import annotations

import argparse
import csv
import datetime
import io
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from lib import batches, layers, models, parameters, runs, teacher_cache, training
from lib.errors import InputError, one_line
from lib.methods import bert, kd
from lib.paths import ROOT, results_dir, write_atomic
from lib.provenance import processor
from lib.stats import spread

SKIPPED = 2  # first steps of a block that are not timed
FIELDS = ("comparison", "ours", "other", "ratio", "low", "high", "machine", "date")
Block = Callable[[int, int], float]  # (steps, number of the block) -> real tokens a second


class Stopwatch:
    """Rate between the same moment of two steps: `tick` is called where a step's loss begins."""

    def __init__(self):
        self.times: list[float] = []
        self.tokens: list[int] = []

    def tick(self, mask: torch.Tensor) -> None:
        """mask: (B, T), 1 at real tokens."""
        if mask.is_cuda:
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())
        self.tokens.append(int(mask.sum()))

    @property
    def rate(self) -> float:
        """Real tokens a second from the first step that counts to the beginning of the last."""
        return sum(self.tokens[SKIPPED:-1]) / (self.times[-1] - self.times[SKIPPED])


def _settings(run, steps: int, number: int, **changes) -> training.Settings:
    """Settings for exactly `SKIPPED + steps + 1` optimiser steps: the last one only ends the time of the one before."""
    per_epoch = -(-len(run.train) // (run.p.batch_size * run.p.accumulation))
    return run.settings(epochs=(SKIPPED + steps + 1) / per_epoch, max_tokens=0, seed=number, evaluations=1, **changes)


def ours(run, model: nn.Module, loss=bert.supervised, **changes) -> Block:
    """The study's loop."""

    def block(steps: int, number: int) -> float:
        watch = Stopwatch()

        def timed(model, batch, step):
            watch.tick(batch["attention_mask"])
            return loss(model, batch, step)

        training.train(model, timed, run.train, _settings(run, steps, number, **changes))
        return watch.rate

    return block


def plain(run) -> nn.Module:
    """The backbone as the library gives it: its own attention and dropout."""
    from transformers import AutoModelForSequenceClassification

    models.quiet()
    torch.manual_seed(run.p.seed)
    return AutoModelForSequenceClassification.from_pretrained(
        models.resolve(run.p.backbone), use_safetensors=True, dtype=torch.float32, **models.names(run.task)
    ).to(training.device())


def bare(run, model: nn.Module) -> Block:
    """A plain loop over the same bucketed batches: autocast, AdamW, schedule and clipping, and nothing else."""

    def block(steps: int, number: int) -> float:
        watch, s, place = Stopwatch(), _settings(run, steps, number), training.device()
        plan = batches.plan(run.train.lengths, s.batch_size, number, s.epochs, 0)
        optimizer = torch.optim.AdamW(training.parameter_groups(model.parameters(), s.weight_decay), lr=s.lr,
                                      eps=s.adam_epsilon, fused=True)
        model.train()
        for index, rows in enumerate(plan):
            batch = {k: v.to(place) for k, v in run.train.batch(rows).items()}
            watch.tick(batch["attention_mask"])
            with torch.autocast(place.type, torch.bfloat16, enabled=training.precision(s.precision) == "bf16"):
                logits = model(**{k: v for k, v in batch.items() if k in layers.INPUTS}).logits
                loss = bert.task_loss(logits, batch["labels"])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), s.max_grad_norm)
            for group in optimizer.param_groups:
                group["lr"] = s.lr * training.rate(index, len(plan), s.warmup)
            optimizer.step()
            optimizer.zero_grad()
        return watch.rate

    return block


def trainer(run, model: nn.Module, folder: Path, *, width: int = 0) -> Block:
    """transformers' Trainer in the precision of the run. `width` 0: padded to the longest of the batch, rows grouped
    by length, the fastest that it can do; else padded to `width`.

    Raises `InputError` where accelerate is not installed.
    """
    try:
        import accelerate  # noqa: F401 - what the Trainer needs
        from transformers import DataCollatorWithPadding, Trainer, TrainingArguments
    except ImportError as e:
        raise InputError(f"bench: {e.name or e} is not installed; `make bench` installs requirements-bench.txt") from e
    data = run.train
    rows = [{**{k: v[i] for k, v in data.inputs.items()}, "labels": data.labels[i].item()} for i in range(len(data))]
    padding = {"padding": "max_length", "max_length": width} if width else {}
    collate = DataCollatorWithPadding(run.tokenizer, **padding)

    def block(steps: int, number: int) -> float:
        watch, s = Stopwatch(), _settings(run, steps, number)

        class Timed(Trainer):
            def compute_loss(self, model, inputs, *args, **kwargs):
                watch.tick(inputs["attention_mask"])
                return super().compute_loss(model, inputs, *args, **kwargs)

        total = SKIPPED + steps + 1
        arguments = TrainingArguments(
            output_dir=str(folder), max_steps=total, per_device_train_batch_size=s.batch_size, learning_rate=s.lr,
            warmup_steps=math.ceil(s.warmup * total), weight_decay=s.weight_decay, max_grad_norm=s.max_grad_norm,
            adam_epsilon=s.adam_epsilon, optim="adamw_torch_fused", bf16=training.precision(s.precision) == "bf16",
            train_sampling_strategy="random" if width else "group_by_length", use_cpu=not torch.cuda.is_available(),
            save_strategy="no", logging_strategy="no", report_to=[], disable_tqdm=True, seed=number,
            dataloader_pin_memory=False)
        Timed(model=model, args=arguments, train_dataset=rows, data_collator=collate).train()
        return watch.rate

    return block


class Workers:
    """Processes that train on their own and answer "steps number" with their rate; they sleep in between."""

    def __init__(self, values: dict, threads: int, count: int):
        words = [f"{k}={v}" for k, v in values.items()]
        self.threads, self.children = threads, [subprocess.Popen(
            [sys.executable, "-m", "lib.bench", "--worker", *words], cwd=ROOT, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}) for _ in range(count)]

    def __call__(self, steps: int, number: int) -> float:
        """Sum of the rates of all, which train at the same time."""
        for i, child in enumerate(self.children):
            child.stdin.write(f"{steps} {number * len(self.children) + i}\n")
            child.stdin.flush()
        answers = []
        for child in self.children:
            line = next((x for x in child.stdout if x.startswith("rate ")), None)
            if line is None:
                raise RuntimeError(f"bench: a worker ended with code {child.wait()}")
            answers.append(float(line.split()[1]))
        return sum(answers)

    def close(self) -> None:
        for child in self.children:
            child.stdin.close()
            child.wait()


def worker(run) -> None:
    """A child of `Workers`: blocks of the study's loop as they are asked for on standard input."""
    block = ours(run, run.backbone())
    block(1, 0)
    for line in sys.stdin:
        print("rate", block(*map(int, line.split())), flush=True)


def peak(precision: str, seconds: float = 2.0, size: int = 2048) -> float:
    """Operations a second of a product of two square matrices in a precision, the best of what fits into `seconds`."""
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.randn(size, size, device=training.device()).to(kind) for _ in range(2))
    best, end = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end or best == 0:
        began = time.perf_counter()
        product = a @ b
        if product.is_cuda:
            torch.cuda.synchronize()
        best = max(best, 2 * size**3 / (time.perf_counter() - began))
    return best


def operations(model: nn.Module, lengths: np.ndarray) -> float:
    """Operations of the matrix products of one training step, per real token: three times the forward pass.

    Forward: 2 for each weight of a linear layer, and in each layer's attention 4 * T * H for a row of T tokens
    (Kaplan et al. 2020, arXiv 2001.08361, table 1; backward twice the forward).
    """
    encoder, config = model.base_model, model.config
    weights = sum(m.weight.numel() for n, m in encoder.named_modules() if isinstance(m, nn.Linear) and "pool" not in n)
    length = float((lengths.astype(float) ** 2).sum() / lengths.sum())  # of the row that a token stands in, on average
    return 3 * (2 * weights + 4 * length * config.hidden_size * config.num_hidden_layers)


def compare(name: str, first: Block, second: Block, rounds: int, steps: int) -> dict:
    """Rates in turns, the order turned round each time, and the mean of their ratio with its 95% interval."""
    found: list[tuple[float, float]] = []
    for number in range(rounds):
        if number % 2:
            other, own = second(steps, number), first(steps, number)
        else:
            own, other = first(steps, number), second(steps, number)
        found.append((own, other))
        print(f"{name}: {own:.0f} and {other:.0f} real tokens a second, ratio {own / other:.2f}", flush=True)
    own, other = np.array(found).T
    return _row(name, float(own.mean()), float(other.mean()), np.log(own / other))


def _row(name: str, own: float, other: float, logs) -> dict:
    s = spread(logs)
    half = s.half if s.half is not None else math.nan
    return {"comparison": name, "ours": float(f"{own:.5g}"), "other": float(f"{other:.5g}"),
            "ratio": round(math.exp(s.mean), 3), "low": round(math.exp(s.mean - half), 3),
            "high": round(math.exp(s.mean + half), 3)}


def plan(run, values: dict, rounds: int, steps: int, width: int = 128) -> dict[str, Callable[[], dict]]:
    """Each comparison by its name, to be called for its row of results/bench.csv (without machine and date)."""
    auto, width = training.precision(run.p.precision), min(width, run.tokenizer.model_max_length)

    def against(name: str, other: Callable[[], Block]) -> Callable[[], dict]:
        return lambda: compare(name, ours(run, run.backbone()), other(), rounds, steps)

    def of_trainer(name: str, width: int) -> Callable[[], dict]:
        def call() -> dict:
            with tempfile.TemporaryDirectory() as folder:
                return against(name, lambda: trainer(run, plain(run), Path(folder), width=width))()

        return call

    def caching() -> dict:
        teacher, rows = run.backbone().to(training.device()).eval(), np.arange(len(run.train))
        cached = teacher_cache.Cached(rows, teacher_cache.compute(teacher, run.train, rows, auto, False))
        return compare("cached vs uncached teacher", ours(run, kd.student(run), kd.loss_of(run.p, cached)),
                       ours(run, kd.student(run), kd.loss_of(run.p, teacher_cache.live(teacher, False))),
                       rounds, steps)

    def workers() -> dict:
        two, one = Workers(values, 1, 2), Workers(values, 2, 1)
        try:
            return compare("two runs of one thread vs one run of two", two, one, rounds, steps)
        finally:
            two.close()
            one.close()

    def share_of_peak() -> dict:
        model = run.backbone()
        cost = operations(model, run.train.lengths)
        own, best = np.array([(cost * ours(run, model)(steps, i), peak(auto)) for i in range(rounds)]).T
        return _row("ours vs matrix peak (TFLOP/s)", float(own.mean()) / 1e12, float(best.mean()) / 1e12,
                    np.log(own / best))

    padded = f"ours vs trainer pad {width}"
    out = {"ours vs trainer best": of_trainer("ours vs trainer best", 0), padded: of_trainer(padded, width),
           "ours vs bare loop": against("ours vs bare loop", lambda: bare(run, plain(run))),
           "cached vs uncached teacher": caching}
    if auto == "bf16":
        out["bf16 vs fp32"] = against("bf16 vs fp32", lambda: ours(run, run.backbone(), precision="fp32"))
    out["ours vs matrix peak (TFLOP/s)"] = share_of_peak
    if not torch.cuda.is_available() and (os.cpu_count() or 1) > 1:
        out["two runs of one thread vs one run of two"] = workers
    return out


def machine(precision: str) -> str:
    """What the numbers hold for. precision: that of the study's loop, bf16 or fp32."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{processor()}, {os.cpu_count()} cores"
    return f"{device}; {training.threads()} threads; {precision}; torch {torch.__version__}"


def load() -> list[dict]:
    """The rows of results/bench.csv; none where it does not exist. Raises `InputError` for another header."""
    path = results_dir() / "bench.csv"
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as lines:
        table = csv.DictReader(lines)
        rows = list(table)
    if tuple(table.fieldnames or ()) != FIELDS:
        raise InputError(f"{path}: its columns are not {', '.join(FIELDS)}; delete it, `make bench` writes it anew")
    return rows


def write(row: dict, where: str) -> Path:
    """Put `row` into results/bench.csv with the machine and the day, in place of that machine's earlier one."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    new = {**row, "machine": where, "date": today}
    kept = [r for r in load() if (r["comparison"], r["machine"]) != (new["comparison"], where)]
    out = io.StringIO()
    table = csv.DictWriter(out, FIELDS, lineterminator="\n")
    table.writeheader()
    table.writerows([*kept, new])
    path = results_dir() / "bench.csv"
    write_atomic(path, out.getvalue().encode())
    return path


def measure(values: dict, rounds: int, steps: int, again: bool = False) -> Path:
    """Measure what this machine lacks, each row written as it comes. `values`: parameters as in a notebook."""
    run = runs.start("kd", parameters.validate(kd.Config, values))
    where = machine(training.precision(run.p.precision))
    have = {r["comparison"] for r in load() if r["machine"] == where}
    for name, call in plan(run, values, rounds, steps).items():
        if name in have and not again:
            print(f"{name}: measured before on this machine", flush=True)
            continue
        write(call(), where)
    return results_dir() / "bench.csv"


@one_line()
def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0, or 2 with one line for wrong input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("values", nargs="*", help="parameters as NAME=VALUE, as a notebook takes them")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=12, help="timed steps of a block")
    parser.add_argument("--again", action="store_true", help="measure what this machine has, too")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_intermixed_args(arguments)
    pairs = [v.partition("=") for v in a.values]
    if bad := [name for name, sign, _ in pairs if not sign]:
        raise InputError(f"bench: {bad[0]!r} is no NAME=VALUE")
    values = {"task": "mrpc", "profile": "bench"} | {name: value for name, _, value in pairs}
    if a.rounds < 2 or a.steps < 1:
        raise InputError(f"bench: --rounds {a.rounds} --steps {a.steps}; at least 2 and 1 are needed")
    if a.worker:
        worker(runs.start("kd", parameters.validate(kd.Config, values)))
        return 0
    print(measure(values, a.rounds, a.steps, a.again))
    return 0


if __name__ == "__main__":
    sys.exit(main())
