"""BERT-PKD: patient knowledge distillation (Sun et al. 2019, arXiv 1908.09355).

Vanilla KD, and beside it the student's first-token states in its layers 1..k-1 are drawn to those of chosen teacher
layers. "Skip" takes every (depth / k)-th teacher layer, "Last" the k - 1 layers below the teacher's last one.

Reductions differ between paper and official code (see `VARIANTS`). The default takes the code's mean for the states,
because the printed beta (10 to 1000) belongs to it, and the formula's mean over the batch for the soft term, so that
beta = 0 is `kd`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from lib import layers, models, teacher_cache, training
from lib.errors import InputError
from lib.hidden import capture_hidden
from lib.methods import kd
from lib.parameters import Bool, Float
from lib.teacher_cache import Source
from lib.training import History, Loss, Step

# How squared differences of states (layers x components) of one row are reduced; `kd.is_code` decides the soft term's.
VARIANTS = {"": "mean", "code": "mean", "paper": "sum"}


class Config(kd.Config):
    """Parameters of BERT-PKD; beta of 10, 100, 500, 1000 in the paper, 100 most often best in the official results."""

    mapping: Literal["skip", "last"] = "skip"
    beta: Annotated[Float, Field(ge=0, le=1e6)] = 100.0  # weight of the patience loss
    normalise: Bool = True  # divide states by their L2 norm (the paper's formula); the code has it as a switch


def reduction(p: Config) -> str:
    """ "mean" or "sum" of the variant; a name that is neither "paper" nor "code" only labels the record."""
    return VARIANTS.get(p.variant.split("-")[0], VARIANTS[""])


def layer_mapping(teacher: int, student: int, mapping: str) -> list[int]:
    """Teacher layers, one-based, for the student's layers 1..student-1; the last layer is left to the logits.

    Skip: floor(j * teacher / student), for 12 and 6 layers 2, 4, 6, 8, 10. Last: teacher - student + j, 7..11.
    Raises `InputError` where the student has one layer or is not shallower than the teacher.
    """
    if not 2 <= student < teacher:
        raise InputError(f"layers: {student} layers cannot learn patiently from {teacher}; allowed: 2 to {teacher - 1} "
                         "(a student of one layer has only the logits: method kd)")
    step = {"skip": lambda j: j * teacher // student, "last": lambda j: teacher - student + j}[mapping]
    return [step(j) for j in range(1, student)]


def plan(p: Config) -> list[int]:
    """The layer mapping of a configuration, before anything is loaded or trained.

    Raises `InputError` where depths do not fit or the student's width is not the teacher's (states are compared as
    they are, without a projection).
    """
    depth, name = kd.student_depth(p), p.teacher or p.backbone
    chosen = layer_mapping(models.depth(name), depth, p.mapping)
    theirs, ours = models.width(name), models.width(p.backbone)
    if theirs != ours:
        raise InputError(f"backbone {p.backbone}: a student of width {ours} cannot learn states from teacher {name} of "
                         f"width {theirs}; allowed: a backbone as wide as the teacher, or method kd")
    return chosen


def patience_loss(student: torch.Tensor, teacher: torch.Tensor, normalise: bool = True, reduce: str = "mean"):
    """Squared distance of first-token states (B, layers, H), each divided by its L2 norm; a scalar in float32.

    "mean": over rows, layers and components (official code). "sum": over layers and components, mean over the rows
    (the paper sums over the rows too, in all three terms alike).
    """
    student, teacher = student.float(), teacher.float()
    if normalise:
        student, teacher = F.normalize(student, dim=-1), F.normalize(teacher, dim=-1)
    squares = (student - teacher) ** 2
    return squares.mean() if reduce == "mean" else squares.sum() / len(squares)


def loss_of(p: Config, source: Source, teacher_layers: list[int]):
    """The loss function of BERT-PKD for the training loop."""
    index = [i - 1 for i in teacher_layers]

    def loss(model: nn.Module, batch: dict, step: Step) -> Loss:
        with capture_hidden(model, last=False) as states:
            logits = layers.classify(model, batch)
        answer = source(batch)
        own = torch.stack([s[:, 0] for s in states[1:]], 1)  # (B, k - 1, H)
        patience = patience_loss(own, answer.states[:, index], p.normalise, reduction(p))
        value = kd.mixed(logits, answer.logits, batch["labels"], p)
        return Loss(value.value + p.beta * patience, logs={**value.logs, "patience": float(patience.detach())})

    return loss


def compress(run, teacher: nn.Module) -> tuple[nn.Module, History]:
    """Cut the student out of the backbone and distil the teacher's layers and logits into it: (student, history)."""
    chosen, model = plan(run.p), kd.student(run)
    loss = loss_of(run.p, teacher_cache.source(run, teacher, states=True), chosen)
    history = training.train(model, loss, run.train, run.settings(), evaluate=run.scores, checkpoints=run.checkpoints())
    return model, history


def caching_gain(run, teacher: nn.Module) -> dict[str, float]:
    """Training speed with and without cached teacher logits and states, for `gain_steps` steps."""
    return teacher_cache.caching_gain(run, teacher, lambda: kd.student(run), lambda s: loss_of(run.p, s, plan(run.p)),
                                      True, run.p.gain_steps)


# Small runs for `kd.compare`: their name -> the changes of the parameters.
COMPARED = {"as run": {}, "paper": {"variant": "paper"}, "code": {"variant": "code"}, "last": {"mapping": "last"},
            "not normalised": {"normalise": False}, "no patience (kd)": {"beta": 0.0}}


def compare(run, teacher: nn.Module) -> dict[str, dict]:
    """Held-out scores and last losses of small runs, one a choice (see `kd.compare`)."""
    return kd.compare(run, teacher, compress, COMPARED)
