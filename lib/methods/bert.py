"""Fine-tuning the whole backbone: the teacher of every method (Devlin et al. 2019, section 3.2).

Adds an output layer to the pre-trained encoder and trains all weights on the labels.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from lib import artefacts, layers, models, training
from lib.parameters import Parameters
from lib.provenance import code_hash
from lib.training import History

Config = Parameters


def task_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy for classes, mean squared error for a regression target; mean over the batch.

    logits: (B, classes), or (B, 1) with labels in floats. Computed in float32.
    """
    if logits.shape[-1] == 1 and labels.is_floating_point():
        return F.mse_loss(logits.float().squeeze(-1), labels.float())
    return F.cross_entropy(logits.float(), labels)


def supervised(model: nn.Module, batch: dict, step) -> torch.Tensor:
    """The task loss of a batch: the loss function of plain fine-tuning."""
    return task_loss(layers.classify(model, batch), batch["labels"])


def fine_tune(run, model: nn.Module, stage: str = "main", checkpoints=None, **settings) -> History:
    """Train `model` in place on the task's labels; the state that scores best on the held-out rows stays."""
    return training.train(model, supervised, run.train, run.settings(**settings), evaluate=run.scores,
                          checkpoints=checkpoints or run.checkpoints(stage))


def compress(run, teacher=None) -> tuple[nn.Module, History]:
    """Fine-tune the backbone. Not a compression; named so that it runs like the methods."""
    model = run.backbone()
    return model, fine_tune(run, model)


def teacher(run) -> artefacts.Artefact:
    """The fine-tuned backbone of a `bert` run as an artefact: built once for all methods of a task and seed."""
    chosen = run.tuned(compress)

    def make(folder: Path) -> dict:
        model, history = compress(chosen)
        models.save_student(model, run.tokenizer, folder / "model")
        return {"seconds": history.seconds, "tokens": history.tokens, "history": vars(history),
                "lr": chosen.p.lr, "selection": chosen.selection, "code_hash": code_hash("bert")}

    return artefacts.build("teacher", chosen.identity, make)


def from_artefact(run) -> tuple[nn.Module, History]:
    """The run's model and history out of the shared teacher artefact, fine-tuning it where it is missing."""
    artefact = teacher(run)
    run.artefacts.append(artefact)
    run.selection = artefact.meta["selection"]
    run.p = run.p.model_copy(update={"lr": artefact.meta["lr"]})
    run.__dict__.pop("identity", None)
    return models.load_classifier(str(artefact.folder / "model"), run.task), History(**artefact.meta["history"])
