"""What a teacher answers to the training rows, computed once in evaluation mode and kept as an artefact.

Valid because the teacher's output for a row depends on nothing but the row: dropout off, padding masked. Kept are the
logits (float32) and, where asked for, the first-token state of each layer; never whole hidden states or attention
maps. In a bf16 run the states are computed and kept in bfloat16, else in float32; a record says which precision.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from tqdm import tqdm

from lib import artefacts, batches, layers, training
from lib.batches import Batch, Encoded
from lib.errors import InputError
from lib.hidden import capture_first_token
from lib.paths import build_dir

FORMAT = 1  # raised when the same teacher and rows would be written otherwise


@dataclass
class Answer:
    """A teacher's answer to one batch: logits (B, classes) float32; states (B, layers, H), entry i of layer i + 1."""

    logits: torch.Tensor
    states: torch.Tensor | None = None


Source = Callable[[Batch], Answer]


@torch.no_grad()
def ask(teacher: nn.Module, batch: Batch, states: bool) -> Answer:
    """The teacher's answer by a forward pass; the caller sees to evaluation mode and autocast."""
    if not states:
        return Answer(layers.classify(teacher, batch).float())
    with capture_first_token(teacher) as found:
        logits = layers.classify(teacher, batch).float()
    return Answer(logits, torch.stack([s.float() for s in found[1:]], 1))


def live(teacher: nn.Module, states: bool = False) -> Source:
    """Ask the teacher anew for every batch. What the cache must equal, and what it is measured against."""
    teacher.eval()
    return lambda batch: ask(teacher, batch, states)


class Cached:
    """Answers by row number, `batch["rows"]`: the order and the size of batches do not matter."""

    def __init__(self, rows: np.ndarray, answer: Answer):
        """rows: (n,) row numbers; `answer` holds n answers in that order."""
        self.answer = answer
        self.place = torch.full((int(rows.max()) + 1,), -1)
        self.place[torch.from_numpy(rows)] = torch.arange(len(rows))

    def __call__(self, batch: Batch) -> Answer:
        """The answers of a batch, on its device. `RuntimeError` for a row that was never asked."""
        rows, device = batch["rows"].cpu(), batch["rows"].device
        where = self.place[rows] if int(rows.max()) < len(self.place) else torch.tensor([-1])
        if int(where.min()) < 0:
            raise RuntimeError("the teacher's answers do not hold every row of this batch")
        states = self.answer.states
        return Answer(self.answer.logits[where].to(device),
                      None if states is None else states[where].to(device, torch.float32))


def compute(teacher: nn.Module, data: Encoded, rows: np.ndarray, precision: str, states: bool = False,
            batch_size: int = 64) -> Answer:
    """The teacher's answers to `rows` in their order, on the CPU. Evaluation mode; the teacher's mode is restored."""
    device, mode = next(teacher.parameters()).device, teacher.training
    teacher.eval()
    order = np.argsort(-data.lengths[rows], kind="stable")
    kept = torch.bfloat16 if precision == "bf16" else torch.float32
    out = Answer(torch.empty(0))
    bar = tqdm(total=len(rows), desc="teacher's answers", unit="row", file=sys.stderr,
               mininterval=float(os.environ.get("BERT_PROGRESS_SECONDS", 2)))
    for start in range(0, len(rows), batch_size):
        part = order[start : start + batch_size]
        batch = {k: v.to(device) for k, v in data.batch(rows[part]).items()}
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            answer = ask(teacher, batch, states)
        if not out.logits.numel():
            out = Answer(torch.empty(len(rows), answer.logits.shape[1]))
            if states:
                out.states = torch.empty((len(rows), *answer.states.shape[1:]), dtype=kept)
        out.logits[part] = answer.logits.cpu()
        if states:
            out.states[part] = answer.states.to("cpu", kept)
        bar.update(len(part))
    bar.close()
    teacher.train(mode)
    return out


def teacher_hash(teacher: nn.Module) -> str:
    """Identity of a teacher: hash of its configuration and of every weight as it is in memory."""
    digest = hashlib.sha256(f"{type(teacher).__name__} {teacher.config.to_json_string()}".encode())
    for name, tensor in sorted(teacher.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def inputs_hash(data: Encoded) -> str:
    """Identity of tokenised rows, which covers texts, their order, tokeniser and truncation; labels do not count."""
    digest = hashlib.sha256(data.lengths.astype(np.int64).tobytes())
    for name, lists in sorted(data.inputs.items()):
        digest.update(name.encode())
        for ids in lists:
            digest.update(np.asarray(ids, dtype=np.int64).tobytes())
    return digest.hexdigest()[:16]


def visited(run) -> np.ndarray:
    """Sorted numbers of the training rows that a run's plan visits; under a token cap not all of them."""
    s = run.settings()
    plan = batches.plan(run.train.lengths, s.batch_size * s.accumulation, s.seed, s.epochs, s.max_tokens)
    return np.unique(np.concatenate(plan))


def cached(run, teacher: nn.Module, states: bool = False) -> Cached:
    """The teacher's answers to the rows that `run` trains on: an artefact, computed where it is missing.

    Key: hashes of teacher and tokenised rows, precision, whether states are kept, and the rows where not all are
    visited. It is added to the run's artefacts, with its seconds and tokens. Raises `InputError` where the disk has
    no room for it.
    """
    rows, precision = visited(run), training.precision(run.p.precision)
    whole = len(rows) == len(run.train)
    key = {"format": FORMAT, "teacher": teacher_hash(teacher), "inputs": inputs_hash(run.train), "precision": precision,
           "states": states, "rows": "all" if whole else hashlib.sha256(rows.tobytes()).hexdigest()[:16]}

    def make(folder: Path) -> dict:
        _room(len(rows), teacher, precision, states)
        began = time.perf_counter()
        answer = compute(teacher, run.train, rows, precision, states)
        tensors = {"rows": torch.from_numpy(rows), "logits": answer.logits, "states": answer.states}
        save_file({k: v for k, v in tensors.items() if v is not None}, folder / "answers.safetensors")
        return {"seconds": time.perf_counter() - began, "tokens": int(run.train.lengths[rows].sum()), "rows": len(rows),
                "bytes": (folder / "answers.safetensors").stat().st_size}

    artefact = artefacts.build("teacher-answers", key, make)
    run.artefacts.append(artefact)
    tensors = load_file(artefact.folder / "answers.safetensors")
    return Cached(tensors["rows"].numpy(), Answer(tensors["logits"], tensors.get("states")))


def _room(rows: int, teacher: nn.Module, precision: str, states: bool) -> None:
    """`InputError` where the answers would not fit on the disk."""
    config = teacher.config
    size = config.num_hidden_layers * config.hidden_size * (2 if precision == "bf16" else 4) if states else 0
    needed, free = rows * (8 + 4 * config.num_labels + size), shutil.disk_usage(build_dir()).free
    if needed > free:
        raise InputError(f"cache: the teacher's answers to {rows:,} rows need {needed / 2**20:,.0f} MB, "
                         f"{free / 2**20:,.0f} MB are free; pass cache=False, or set BERT_BUILD to a folder with room")


def source(run, teacher: nn.Module, states: bool = False) -> Source:
    """Where a run's loss takes the teacher's answers from: the cache, or the teacher itself with `cache=False`."""
    return cached(run, teacher, states) if run.p.cache else live(teacher, states)


def caching_gain(run, teacher: nn.Module, student: Callable[[], nn.Module], loss: Callable, states: bool,
                 steps: int = 20) -> dict[str, float]:
    """Training speed with and without the cache, in one process: real tokens a second of each, and their ratio.

    `student()` gives a fresh student, `loss(source)` the method's loss function. Both ways train on the same batches
    in rounds of a few steps that alternate, so that a change in the load of the machine meets both; two steps before
    them do not count. Filling the cache is paid once: it is timed on its own and enters "ratio_with_filling" alone,
    which is for the run's own number of tokens and of rows.
    """
    rounds = max(1, steps // 5)
    count = -(-steps // rounds)
    s = run.settings()
    window = s.batch_size * s.accumulation
    per_epoch = -(-len(run.train) // window)
    rows = np.unique(np.concatenate(batches.plan(run.train.lengths, window, s.seed, max(2, count) / per_epoch, 0)))
    precision = training.precision(run.p.precision)
    began = time.perf_counter()
    answers = Cached(rows, compute(teacher, run.train, rows, precision, states))
    built = time.perf_counter() - began
    ways = {"cached": answers, "live": live(teacher, states)}
    tokens, seconds = dict.fromkeys(ways, 0), dict.fromkeys(ways, 0.0)
    models = {name: student() for name in ways}

    def train(name: str, count: int):
        return training.train(models[name], loss(ways[name]), run.train,
                              run.settings(epochs=count / per_epoch, max_tokens=0, name=f"timing, {name}"))

    for name in ways:
        train(name, 2)
    for _ in range(rounds):
        for name in ways:
            history = train(name, count)
            tokens[name] += history.tokens
            seconds[name] += history.seconds
    with_, without = (tokens[name] / seconds[name] for name in ("cached", "live"))
    teacher_alone = float(run.train.lengths[rows].sum()) / built
    plan = batches.plan(run.train.lengths, window, s.seed, s.epochs, s.max_tokens)
    trained, asked = (float(run.train.lengths[r].sum()) for r in (np.concatenate(plan), visited(run)))
    return {"tokens_per_second_with_cache": with_, "tokens_per_second_without": without, "ratio": with_ / without,
            "tokens_per_second_of_the_teacher_alone": teacher_alone, "visits_of_a_row": trained / asked,
            "ratio_with_filling": (trained / without) / (trained / with_ + asked / teacher_alone),
            "steps_each": float(rounds * count)}
