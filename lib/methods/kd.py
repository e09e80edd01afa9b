"""Vanilla knowledge distillation (Hinton et al. 2015, arXiv 1503.02531), as the baseline of BERT-PKD and Theseus.

The student, the lowest layers of the pre-trained backbone under a new head, learns from the labels and from the
teacher's probabilities, both softened by a temperature T.

`variant="code"` averages the soft term over batch and classes, as the official code of BERT-PKD does; the default and
`variant="paper"` average over the batch alone.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from lib import layers, models, teacher_cache, training
from lib.methods import bert
from lib.parameters import Bool, Float, Int, Parameters
from lib.teacher_cache import Source
from lib.training import History, Loss, Step


class Config(Parameters):
    """Parameters of vanilla KD; grids of Sun et al. 2019, section 4: alpha 0.2, 0.5, 0.7 and T 5, 10, 20."""

    layers: Annotated[Int, Field(ge=0)] = 0  # of the student; 0: half of the backbone's
    alpha: Annotated[Float, Field(ge=0, le=1)] = 0.5  # weight of the teacher; 1 - alpha is that of the labels
    temperature: Annotated[Float, Field(gt=0, le=1000)] = 10.0  # T
    cache: Bool = True  # ask the teacher once and keep its answers; False: ask it for every batch
    gain_steps: Annotated[Int, Field(ge=0, le=1000)] = 0  # steps timed with and without the cache; 0: not measured
    comparison_tokens: Annotated[Int, Field(ge=0)] = 0  # of each small run that compares variants; 0: none is made


def is_code(p: Parameters) -> bool:
    """Whether the variant is the official code's; any other name only labels the record, "" and "paper" too."""
    return p.variant.split("-")[0] == "code"


def student_depth(p: Config) -> int:
    """Layers of the student, from the configuration alone; `InputError` where the backbone has not more of them."""
    return layers.halved(models.depth(p.backbone), p.layers)


def soft_loss(student: torch.Tensor, teacher: torch.Tensor, temperature: float, over_classes: bool = False):
    """T^2 * KL(softmax(teacher / T) || softmax(student / T)) of logits (B, classes); a scalar in float32.

    Mean over the batch. `over_classes` divides by the number of classes too, as the official code of BERT-PKD does.
    One output (regression) has no soft distribution: there it is the squared error to the teacher's output.
    """
    if student.shape[-1] == 1:
        return F.mse_loss(student.float(), teacher.float())
    log_q = F.log_softmax(student.float() / temperature, -1)
    log_p = F.log_softmax(teacher.float() / temperature, -1)
    total = F.kl_div(log_q, log_p, reduction="sum", log_target=True)
    return temperature**2 * total / (student.numel() if over_classes else len(student))


def mixed(logits: torch.Tensor, teacher: torch.Tensor, labels: torch.Tensor, p: Config) -> Loss:
    """(1 - alpha) * task loss + alpha * soft loss, with both in the logs."""
    hard = bert.task_loss(logits, labels)
    soft = soft_loss(logits, teacher, p.temperature, is_code(p))
    logs = {"hard": float(hard.detach()), "soft": float(soft.detach())}
    return Loss((1 - p.alpha) * hard + p.alpha * soft, logs=logs)


def loss_of(p: Config, source: Source):
    """The loss function of vanilla KD for the training loop."""

    def loss(model: nn.Module, batch: dict, step: Step) -> Loss:
        return mixed(layers.classify(model, batch), source(batch).logits, batch["labels"], p)

    return loss


def student(run) -> nn.Module:
    """The lowest layers of the pre-trained backbone under a new head: the start of truncated fine-tuning too."""
    backbone = run.backbone()
    return layers.cut(backbone, layers.lowest(len(layers.encoder_layers(backbone)), student_depth(run.p)))


def compress(run, teacher: nn.Module) -> tuple[nn.Module, History]:
    """Cut the student out of the backbone and distil the teacher into it. Returns (student, history)."""
    model = student(run)
    loss = loss_of(run.p, teacher_cache.source(run, teacher))
    history = training.train(model, loss, run.train, run.settings(), evaluate=run.scores, checkpoints=run.checkpoints())
    return model, history


def caching_gain(run, teacher: nn.Module) -> dict[str, float]:
    """Training speed with and without cached teacher logits (`teacher_cache.caching_gain`), for `gain_steps` steps."""
    return teacher_cache.caching_gain(run, teacher, lambda: student(run), lambda s: loss_of(run.p, s), False,
                                      run.p.gain_steps)


# Small runs that show what a choice does: their name -> the changes of the parameters.
COMPARED = {"paper": {"variant": "paper"}, "code": {"variant": "code"}, "labels only": {"alpha": 0.0},
            "teacher only": {"alpha": 1.0}, "T = 1": {"temperature": 1.0}}


def compare(run, teacher: nn.Module, method=compress, changes: dict[str, dict] = COMPARED) -> dict[str, dict]:
    """Held-out score in percent and last losses of small runs of `comparison_tokens` tokens each, one seed.

    All start alike and see the same batches. Small: they show what a choice does to the terms of the loss, not which
    one is best.
    """
    out = {}
    for name, change in changes.items():
        q = run.with_parameters(trial=True, max_tokens=run.p.comparison_tokens, evaluations=1, score_curve=False,
                                lr_grid=[], **change)
        _, history = method(q, teacher)
        q.checkpoints().clear()
        last = {k: v[-1][1] for k, v in history.curve.items() if k not in ("held_out", "scored") and v}
        out[name] = {"held-out score, percent": history.kept_score, **last}
    return out
