"""A stage of masked language modelling that leaves an encoder: an artefact that all tasks and seeds share.

    artefact = pretrain.stage("kind", p, tokenizer, configuration, build, objective, weight_decay=0.01)
    pretrain.load(encoder, artefact)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from lib import artefacts, mlm, text, training
from lib.checkpoint import Checkpoints
from lib.provenance import digest
from lib.training import LossFunction

Build = Callable[[text.Text], tuple[nn.Module, mlm.Head]]


def stage(kind: str, p: mlm.General, tokenizer, configuration: dict, build: Build,
          objective: Callable[[nn.Module, mlm.Masker], LossFunction],
          after: Callable[[nn.Module], nn.Module] | None = None, **settings) -> artefacts.Artefact:
    """Train `build(text)` = (encoder, head) by `objective(encoder, masker)` on `p.text`; keep the last state.

    `configuration` must say all that decides what `build` and `objective` do; text and settings are added here. `after`
    turns the trained encoder into what is kept. The artefact's "mlm" holds the quality on held-out text before and
    after (None where it is not finite), the curve of the loss, and "diverged": why training broke off, or "".
    Raises `InputError` for a text or tokenizer that does not serve.
    """
    masker, precision = mlm.Masker(tokenizer), training.precision(p.precision)
    chosen = text.settings(p, kind, precision=precision, **settings)
    configuration = {**configuration, "settings": vars(chosen),
                     **text.key(p.text, tokenizer, p.text_length, p.text_tokens)}

    def make(folder: Path) -> dict:
        sequences = text.load(p.text, tokenizer, p.text_length, p.text_tokens)
        torch.manual_seed(0)
        encoder, head = build(sequences)
        model = mlm.MaskedLM(encoder, head).to(training.device())
        before = _quality(model, sequences, masker, precision)
        inner, losses, diverged = objective(encoder, masker), [], ""

        def loss(model, batch, step):
            out = inner(model, batch, step)
            losses.append([step.index + 1, float((out.value if isinstance(out, training.Loss) else out).detach())])
            return out

        try:
            history = training.train(model, loss, sequences.train, chosen,
                                     checkpoints=Checkpoints(folder / "checkpoints", digest(configuration)))
        except RuntimeError as e:
            if "not finite" not in str(e):
                raise
            diverged = str(e)
            history = training.History(steps=losses[-1][0], curve={"loss": [x for x in losses if math.isfinite(x[1])]})
        if not diverged and losses and not math.isfinite(losses[-1][1]):  # fewer than the loop's ten in a row
            diverged = f"{kind}: the loss was not finite at the last step ({history.steps})"
        encoder = after(encoder) if after else encoder
        model = mlm.MaskedLM(encoder.eval(), head)
        save_file({k: v.cpu().contiguous() for k, v in encoder.state_dict().items()}, folder / "encoder.safetensors")
        save_file({k: v.cpu().contiguous() for k, v in head.state_dict().items()}, folder / "head.safetensors")
        report = {"before": before, "after": _quality(model, sequences, masker, precision), "curve": history.curve,
                  "steps": history.steps, "tokens": history.tokens, "diverged": diverged, **sequences.record()}
        return {"seconds": history.seconds, "tokens": history.tokens, "mlm": report}

    return artefacts.build(kind, configuration, make)


def _quality(model, sequences: text.Text, masker, precision: str) -> dict:
    found = mlm.quality(model, sequences.held_out, masker, precision=precision)
    return {k: v if math.isfinite(v) else None for k, v in found.items()}


def load(encoder: nn.Module, artefact: artefacts.Artefact) -> nn.Module:
    """Put a stage's weights into an encoder, in place. A pooler that the stage had none of stays as it is.

    Raises `RuntimeError` where any other weight is missing or left over.
    """
    report = encoder.load_state_dict(load_file(artefact.folder / "encoder.safetensors"), strict=False)
    missing = [k for k in report.missing_keys if not k.startswith("pooler.")]
    if missing or report.unexpected_keys:
        raise RuntimeError(f"artefact {artefact.kind} {artefact.key} does not fit the encoder: missing {missing[:3]}, "
                           f"left over {report.unexpected_keys[:3]}")
    return encoder
