"""The one training loop. It knows no method: a method hands it a loss over (model, batch, step).

All randomness is a function of (seed, optimiser step, micro-batch): the loop seeds torch before each of them. So a
resumed run needs no random states, and repeats the uninterrupted one bit for bit on the same machine.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from lib import batches, distributed, fast
from lib.batches import Batch, Encoded
from lib.checkpoint import Checkpoints
from lib.errors import InputError


@dataclass(frozen=True)
class Step:
    """Where the loop is: optimiser step `index` of `total` (zero-based), micro-batch `micro` of that step."""

    index: int
    total: int
    micro: int
    seed: int

    def random(self, stream: int = 0) -> np.random.Generator:
        """A generator that is a function of (seed, step, micro-batch, stream), for a method's own draws."""
        return np.random.default_rng([self.seed, self.index, self.micro, stream])


@dataclass
class Loss:
    """What a loss function may return instead of a bare tensor.

    `value` is a mean over `weight` items (rows by default; masked tokens for language modelling), so that batches of
    unequal size add up rightly under accumulation. `logs` are numbers to draw as curves.
    """

    value: torch.Tensor
    weight: float | None = None
    logs: dict[str, float] = field(default_factory=dict)


LossFunction = Callable[[nn.Module, Batch, Step], "torch.Tensor | Loss"]


@dataclass(frozen=True)
class Settings:
    """Settings of the loop; field meanings as in `lib.parameters.Parameters`."""

    lr: float = 1e-4
    epochs: float = 3
    max_tokens: int = 0
    batch_size: int = 32
    accumulation: int = 1
    warmup: float = 0.1
    decay: bool = True  # linear to zero after the warm-up; False: constant
    weight_decay: float = 0.0  # not on biases and normalisations
    max_grad_norm: float = 1.0
    adam_epsilon: float = 1e-8
    precision: str = "auto"
    evaluations: int = 5
    seed: int = 0
    checkpoint_seconds: float = 60.0
    clip_all: bool = False  # norm over all parameters of the model that have a gradient, not only the trained ones
    zero_gradients: bool = False  # keep zero gradients, so that Adam's momentum moves what a step did not touch
    idle_allowed: bool = False  # a step whose loss has no trainable input is skipped instead of being an error
    better: str = "max"  # direction of the selection score
    name: str = "training"  # on the progress bar


@dataclass
class History:
    """What a training run left behind, besides the model."""

    steps: int = 0
    tokens: int = 0  # real tokens processed
    seconds: float = 0.0
    padding_share: float = 0.0
    kept_step: int = 0
    kept_score: float | None = None  # of the selection rows; None without evaluation
    highest_score: float | None = None  # best score on the selection rows, by which the kept state was judged
    best_scored: float | None = None  # best score on the scored split, if it was watched (optimistic)
    idle_steps: int = 0  # steps without any trainable input to the loss
    peak_memory_mb: float | None = None
    curve: dict[str, list[list[float]]] = field(default_factory=dict)

    def add(self, name: str, step: int, value: float) -> None:
        """Append a point to a curve; a value that is not finite is kept out of the JSON as a gap."""
        if math.isfinite(value):
            self.curve.setdefault(name, []).append([step, float(value)])


def threads() -> int:
    """CPU threads that torch uses."""
    return torch.get_num_threads()


def device() -> torch.device:
    """GPU where there is one, else CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def precision(wanted: str = "auto") -> str:
    """"bf16" or "fp32". "auto" takes bf16 where the processor (AVX512-BF16 or AMX) or the GPU computes in it.

    Raises `InputError` where bf16 is asked for on a GPU without it.
    """
    if torch.cuda.is_available():
        able = torch.cuda.is_bf16_supported()
        if wanted == "bf16" and not able:
            raise InputError("precision: 'bf16' is not supported by this GPU; allowed: auto, fp32")
    else:
        cpu = torch.cpu
        able = cpu._is_avx512_bf16_supported() or cpu._is_amx_tile_supported()
    return ("bf16" if able else "fp32") if wanted == "auto" else wanted


def parameter_groups(parameters: Iterable[nn.Parameter], weight_decay: float) -> list[dict]:
    """Two groups: matrices and tables with weight decay; biases, gains and other vectors without."""
    parameters = list(parameters)
    return [{"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
            {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0}]


def rate(step: int, total: int, warmup: float, decay: bool = True) -> float:
    """Factor on the learning rate at a zero-based step: linear warm-up, then linear decay to 0 at `total`."""
    ramp = math.ceil(warmup * total)
    if step < ramp:
        return (step + 1) / ramp
    return 1.0 if not decay else max(0.0, (total - step) / max(1, total - ramp))


def _reset_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak_memory() -> float | None:
    """Peak resident memory of the process in MB since `_reset_peak`, or of the GPU; None where it cannot be read."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    with contextlib.suppress(OSError, IndexError, ValueError):
        text = Path("/proc/self/status").read_text()
        return int(text.split("VmHWM:")[1].split()[0]) / 1024
    return None


def _seed(seed: int, step: int, micro: int) -> None:
    torch.manual_seed(int(np.random.SeedSequence([seed, step, micro]).generate_state(1, np.uint64)[0] >> 1))


def _better(score: float, best: float | None, direction: str) -> bool:
    """Whether `score` wins. NaN never does; among equals the earlier stays."""
    if score is None or not math.isfinite(score):
        return False
    return best is None or (score > best if direction == "max" else score < best)


class _State:
    """Model, optimiser, best weights and history as one flat set of tensors plus JSON, for checkpoints."""

    def __init__(self, model, optimizer, parameters):
        self.model, self.optimizer, self.parameters = model, optimizer, parameters
        self.best: dict[str, torch.Tensor] = {}
        self.history = History()

    def pack(self, step: int) -> tuple[dict[str, torch.Tensor], dict]:
        # clone: tied weights share memory, which safetensors refuses
        tensors = {f"model.{k}": v.clone() for k, v in self.model.state_dict().items()}
        tensors |= {f"best.{k}": v.clone() for k, v in self.best.items()}
        for i, p in enumerate(self.parameters):
            for k, v in self.optimizer.state.get(p, {}).items():
                tensors[f"adam.{i}.{k}"] = v.clone()
        touched = [i for i, p in enumerate(self.parameters) if p.grad is not None]
        return tensors, {"step": step, "history": vars(self.history), "touched": touched}

    def unpack(self, tensors: dict[str, torch.Tensor], state: dict) -> int:
        def part(prefix):
            return {k[len(prefix):]: v for k, v in tensors.items() if k.startswith(prefix)}

        self.model.load_state_dict(part("model."))
        self.best = part("best.")
        saved: dict[int, dict] = {}
        for key, value in part("adam.").items():
            i, name = key.split(".", 1)
            saved.setdefault(int(i), {})[name] = value
        for i, entries in saved.items():
            p = self.parameters[i]
            self.optimizer.state[p] = {k: v if k == "step" else v.to(p.device) for k, v in entries.items()}
        for i in state["touched"]:  # kept gradients are zero between steps
            self.parameters[i].grad = torch.zeros_like(self.parameters[i])
        self.history = History(**state["history"])
        return state["step"]


def train(
    model: nn.Module,
    loss_function: LossFunction,
    data: Encoded,
    settings: Settings,
    *,
    evaluate: Callable[[nn.Module], dict[str, float]] | None = None,
    parameters: Iterable[nn.Parameter] | None = None,
    checkpoints: Checkpoints | None = None,
) -> History:
    """Train `model` in place and leave the best state in it, the last one without `evaluate`.

    `evaluate` returns scores by name after `settings.evaluations` equal shares of the steps: "held_out" decides which
    state is kept, "scored" is only watched. With a "tolerance" beside it (one standard error of "held_out"), the last
    state within the tolerance of the best is kept: the one-standard-error rule of Breiman et al. 1984, with "furthest
    trained" in the place of "simplest", because the best of a few noisy scores is a lottery on a few hundred rows.

    `parameters` are the ones trained; by default all that require gradients. The model is left in evaluation mode.
    Raises `RuntimeError` where the loss is not finite for ten steps in a row.
    """
    s, place = settings, device()
    distributed.check(s.accumulation)
    fast.keep_memory()
    model.to(place)
    parameters = [p for p in (model.parameters() if parameters is None else parameters) if p.requires_grad]
    window = s.batch_size * s.accumulation
    plan = batches.plan(data.lengths, window, s.seed, s.epochs, s.max_tokens)
    total = len(plan)
    optimizer = torch.optim.AdamW(parameter_groups(parameters, s.weight_decay), lr=s.lr, eps=s.adam_epsilon, fused=True)
    ordered = [p for g in optimizer.param_groups for p in g["params"]]
    state = _State(model, optimizer, ordered)
    history, start = state.history, 0
    if checkpoints and (found := checkpoints.load()):
        start = state.unpack(*found)
        history = state.history
        print(f"{s.name}: going on from step {start} of {total}", file=sys.stderr)
    ran = [rows[i : i + s.batch_size] for rows in plan for i in range(0, len(rows), s.batch_size)]
    history.padding_share = batches.padding_share(data.lengths, ran)
    autocast = precision(s.precision) == "bf16"
    marks = {round(total * (i + 1) / s.evaluations) for i in range(s.evaluations)} | {total} if evaluate else set()
    _reset_peak()
    began, saved, bad = time.perf_counter(), time.perf_counter(), 0
    before, tokens_before = history.seconds, history.tokens
    bar = tqdm(total=total, initial=start, desc=s.name, unit="step", file=sys.stderr,
               disable=not distributed.main(),
               mininterval=float(os.environ.get("BERT_PROGRESS_SECONDS", 2)))
    model.train()
    recent: list[dict[str, float]] = []
    for index in range(start, total):
        factor = rate(index, total, s.warmup, s.decay)
        for g in optimizer.param_groups:
            g["lr"] = s.lr * factor
        numbers, trained = _backward(model, loss_function, data, plan[index], index, total, s, autocast, place)
        value = numbers["loss"]
        history.tokens += int(data.lengths[plan[index]].sum())
        bad = 0 if math.isfinite(value) else bad + 1
        if bad >= min(10, total):
            raise RuntimeError(f"{s.name}: the loss was not finite for {bad} steps in a row (step {index + 1}, "
                               f"lr {s.lr:g}); lower lr or set precision=fp32")
        if not (trained or s.idle_allowed):
            raise RuntimeError(f"{s.name}: the loss of step {index + 1} depends on no trained parameter")
        if trained and math.isfinite(value):
            _update(model, optimizer, ordered, s)
        else:
            history.idle_steps += 1
        _clear_gradients(model, optimizer, ordered, s)
        recent.append(numbers)
        step = index + 1
        if step % max(1, total // 100) == 0 or step == total:
            for name in sorted({n for r in recent for n in r}):
                seen = [r[name] for r in recent if math.isfinite(r.get(name, math.nan))]
                history.add(name, step, float(np.mean(seen)) if seen else math.nan)
            recent = []
        elapsed = time.perf_counter() - began
        bar.set_postfix(loss=f"{value:.4f}", lr=f"{s.lr * factor:.1e}",
                        tok_s=f"{(history.tokens - tokens_before) / elapsed:.0f}", refresh=False)
        bar.update()
        if step in marks:
            _evaluate(model, evaluate, step, state, s)
        history.steps, history.seconds = step, before + time.perf_counter() - began
        # Only between loss points, so that a resumed run has the same curve.
        due = checkpoints and distributed.main() and not recent
        if due and time.perf_counter() - saved >= s.checkpoint_seconds and step < total:
            checkpoints.save(step, *state.pack(step))
            saved = time.perf_counter()
    bar.close()
    if state.best:
        model.load_state_dict(state.best)
    else:
        history.kept_step = total
    history.peak_memory_mb = _peak_memory()
    model.eval()
    return history


def _backward(model, loss_function, data, rows, index, total, s, autocast, place) -> tuple[dict[str, float], bool]:
    """Gradients of one optimiser step, accumulated over its micro-batches: (numbers to log, any gradient?)."""
    starts = range(0, len(rows), s.batch_size)
    sums: dict[str, float] = {}
    weights, trained = 0.0, False
    for micro, start in distributed.share(enumerate(starts)):
        part = rows[start : start + s.batch_size]
        batch = {k: v.to(place) for k, v in data.batch(part).items()}
        _seed(s.seed, index, micro)
        with torch.autocast(place.type, torch.bfloat16, enabled=autocast):
            loss = loss_function(model, batch, Step(index, total, micro, s.seed))
        loss = loss if isinstance(loss, Loss) else Loss(loss)
        weight = float(len(part)) if loss.weight is None else float(loss.weight)
        for name, number in {"loss": float(loss.value.detach()), **loss.logs}.items():
            sums[name] = sums.get(name, 0.0) + number * weight
        weights += weight
        if loss.value.requires_grad:
            (loss.value if len(starts) == 1 else loss.value * weight).backward()
            trained = True
    trained, weights, sums = distributed.gather(model, trained, weights, sums)
    if trained and len(starts) > 1 and weights > 0:
        for p in model.parameters():
            if p.grad is not None:
                p.grad.div_(weights)
    return {name: number / max(weights, 1e-12) for name, number in sums.items()}, trained


def _update(model, optimizer, parameters, s) -> None:
    if s.max_grad_norm:
        clipped = [p for p in model.parameters() if p.grad is not None] if s.clip_all else parameters
        nn.utils.clip_grad_norm_(clipped, s.max_grad_norm)
    optimizer.step()


def _clear_gradients(model, optimizer, parameters, s) -> None:
    own = {id(p) for p in parameters}
    for p in model.parameters():
        if id(p) not in own:  # gradients of what is not trained must not pile up
            p.grad = None
    # What no batch has touched yet has no gradient to zero: Adam's count of its steps begins with its first batch
    optimizer.zero_grad(set_to_none=not s.zero_gradients)


def _evaluate(model, evaluate, step, state, s) -> None:
    """Score the state, and keep a copy where it is the best so far, or as good within the tolerance."""
    scores = evaluate(model)
    model.train()
    history, tolerance = state.history, scores.pop("tolerance", 0.0)
    for name, score in scores.items():
        history.add(name, step, score)
    if "scored" in scores and _better(scores["scored"], history.best_scored, "max"):
        history.best_scored = scores["scored"]
    held_out = scores.get("held_out", math.nan)
    if _better(held_out, history.highest_score, s.better):
        history.highest_score = held_out
    elif history.highest_score is None or not (tolerance > 0 and abs(held_out - history.highest_score) <= tolerance):
        return
    history.kept_score, history.kept_step = held_out, step
    state.best = {k: v.detach().clone() for k, v in model.state_dict().items()}
