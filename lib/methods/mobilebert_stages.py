"""The task-agnostic stages of MobileBERT: IB teacher, knowledge transfer block by block, pre-training distillation.

Each stage is an artefact keyed by its settings, its text, its backbone and its code: tasks and seeds share it.
"""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from lib import artefacts, fast, mlm, models, text, training
from lib.checkpoint import Checkpoints
from lib.errors import InputError
from lib.methods import ibbert
from lib.methods import mobilebert_losses as losses
from lib.methods.ibbert_model import IBBertForMaskedLM
from lib.methods.mobilebert_student import keep_padding_zero, new_student, student_config
from lib.provenance import digest
from lib.training import Loss

CALIBRATION = 64  # sequences that the closed-form start of the IB teacher is fitted on


class Words(nn.Module):
    """A masked language model of transformers in the form of `lib.mlm`: logits (M, V) at the masked positions only."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, masked: mlm.Masked) -> torch.Tensor:
        """masked -> (M, V)."""
        return self.model.cls(self.model.base_model(**masked.inputs).last_hidden_state[masked.where])


@contextlib.contextmanager
def slower(parameters, factor: float):
    """Within, every optimiser step moves `parameters` by `factor` of what it would: their learning rate times `factor`.

    A smaller gradient would not do: Adam divides by the gradient's own size. The step is taken back in part after the
    optimiser made it, which for Adam, AdamW and SGD is the same as a smaller rate, weight decay included.
    """
    parameters, before = list(parameters), []

    def pre(optimizer, args, kwargs):
        before[:] = [p.detach().clone() for p in parameters]

    def post(optimizer, args, kwargs):
        with torch.no_grad():
            for p, b in zip(parameters, before, strict=True):
                p.copy_(b + factor * (p - b))
        before.clear()

    handles = [register_optimizer_step_pre_hook(pre), register_optimizer_step_post_hook(post)]
    try:
        yield
    finally:
        for h in handles:
            h.remove()


def teacher(p, tokenizer) -> artefacts.Artefact:
    """The IB teacher, made from the backbone and trained with masked words on `p.text`; folder `model` inside."""
    settings = text.settings(p, "IB teacher", lr=p.ib_lr, epochs=p.ib_epochs, precision=training.precision(p.precision))
    configuration = {"backbone": models.content_hash(models.resolve(p.backbone)), "between": p.between,
                     "embedding": p.embedding, "settings": vars(settings),
                     **text.key(p.text, tokenizer, p.text_length, p.text_tokens)}

    def make(folder: Path) -> dict:
        words, masker = text.load(p.text, tokenizer, p.text_length, p.text_tokens), mlm.Masker(tokenizer)
        quality = functools.partial(mlm.quality, data=words.held_out, masker=masker,
                                    precision=training.precision(p.precision))
        backbone = models.load_encoder(p.backbone)
        torch.manual_seed(0)
        rows = list(range(min(CALIBRATION, len(words.train))))
        parts = [words.train.batch(rows[i : i + 32]) for i in range(0, len(rows), 32)]
        config = ibbert.configuration(backbone.config, p.between, p.embedding)
        model, seen = ibbert.from_backbone(backbone, config, parts)
        counts = mlm.word_counts(words.train, model.config.vocab_size)
        with torch.no_grad():  # what is common is known from the start, as in lib.mlm
            model.cls.predictions.bias.copy_(torch.from_numpy(counts + 1.0).div(counts.sum() + len(counts)).log())
        wrapped = Words(keep_padding_zero(model)).to(training.device())
        start = quality(wrapped)
        history = training.train(wrapped, mlm.language_loss(masker), words.train, settings,
                                 checkpoints=Checkpoints(folder / "checkpoints", digest(configuration)))
        model.save_pretrained(folder / "model")
        return {"seconds": history.seconds, "tokens": history.tokens, "curve": history.curve, "start": start,
                "quality": quality(wrapped), "hidden_variance_seen": seen, **words.record()}

    return artefacts.build("ib-teacher", configuration, make)


def parts(p) -> tuple[str, ...]:
    """Which of `losses.PARTS` are on. `InputError` where a stage of its own would have nothing to transfer."""
    on = tuple(n for n in losses.PARTS if getattr(p, f"{n}_transfer"))
    if not on and p.strategy != "auxiliary":
        raise InputError(f"feature_transfer and attention_transfer: both are false, and strategy={p.strategy} has a "
                         "stage of its own for them; allowed: one of them true, or strategy=auxiliary")
    return on


def transfer_loss(teacher: nn.Module, masker: mlm.Masker, blocks: list[int], code: bool,
                  on: tuple[str, ...] = losses.PARTS):
    """Transfer (`on`: feature, attention) of the zero-based `blocks`; nothing above the highest of them is run."""

    def loss(model: nn.Module, batch: dict, step) -> Loss:
        inputs = masker(batch, step.random()).inputs
        with torch.no_grad():
            wanted = losses.run_blocks(teacher, inputs, max(blocks) + 1, on)
        given = losses.run_blocks(model, inputs, max(blocks) + 1, on)
        found = losses.block_loss(given, wanted, inputs["attention_mask"], code, blocks, on)
        return Loss(sum(found.values()), weight=float(inputs["attention_mask"].sum()),
                    logs={k: float(v.detach()) for k, v in found.items()})

    return loss


def distillation_loss(teacher: nn.Module, masker: mlm.Masker, alpha: float, code: bool, on: tuple[str, ...] = ()):
    """Pre-training distillation on masked positions; `on` adds those transfer losses of all blocks (auxiliary)."""

    def loss(model: nn.Module, batch: dict, step) -> Loss:
        masked = masker(batch, step.random())
        depth = model.config.num_hidden_layers
        with torch.no_grad():
            wanted = losses.run_blocks(teacher, masked.inputs, depth, on) if on else None
            words = Words(teacher)(masked) if wanted is None else teacher.cls(wanted[0][-1][masked.where])
        given = losses.run_blocks(model, masked.inputs, depth, on) if on else None
        logits = Words(model)(masked) if given is None else model.cls(given[0][-1][masked.where])
        value, language, soft = losses.word_distillation(logits, words, masked.targets, alpha)
        logs = {"mlm": float(language.detach()), "kd": float(soft.detach())}
        if on:
            found = losses.block_loss(given, wanted, masked.inputs["attention_mask"], code, range(depth), on)
            value = value + sum(found.values())
            logs |= {k: float(v.detach()) for k, v in found.items()}
        return Loss(value, weight=len(masked.targets), logs=logs)

    return loss


def transfer(student: nn.Module, teacher: nn.Module, masker, data, p, code: bool, checkpoints: Checkpoints) -> dict:
    """Stage 1 in place: progressive, one block after another with the blocks below at `p.lower_rate` of the rate;
    joint, all blocks at once. Embeddings and output layer, copied from the teacher, stand still; the rate is constant
    after a warm-up over the first tenth of each block's steps (official code). Returns seconds, tokens and the curves
    by stage.

    `checkpoints` keep the student after each block, so that a killed run goes on with the next one.
    """
    layers = list(student.base_model.encoder.layer)
    order = [[i] for i in range(len(layers))] if p.strategy == "progressive" else [list(range(len(layers)))]
    state = {"stages": [], "seconds": 0.0, "tokens": 0}
    if found := checkpoints.load():
        student.load_state_dict(found[0])
        state = found[1]
    for k, blocks in enumerate(order):
        own = [q for i in blocks for q in layers[i].parameters()]
        lower = [q for layer in layers[: blocks[0]] for q in layer.parameters()]
        if k < len(state["stages"]):
            continue
        settings = text.settings(p, f"transfer {k + 1}/{len(order)}", lr=p.transfer_lr, warmup=0.1, decay=False, seed=k,
                                 epochs=p.transfer_epochs / len(order), precision=training.precision(p.precision))
        with slower(lower, p.lower_rate if p.strategy == "progressive" else 1.0):
            history = training.train(student, transfer_loss(teacher, masker, blocks, code, parts(p)), data, settings,
                                     parameters=lower + own)
        state["stages"].append(history.curve)
        state["seconds"] += history.seconds
        state["tokens"] += history.tokens
        checkpoints.save(k + 1, {n: v.clone() for n, v in student.state_dict().items()}, state)
    return state


def block_gap(student: nn.Module, teacher: nn.Module, data, masker) -> list[dict]:
    """For each block the plain feature and attention loss on the held-out text, one batch of at most 64 sequences."""
    place = next(student.parameters()).device
    batch = {k: v.to(place) for k, v in data.batch(list(range(min(64, len(data))))).items()}
    inputs = masker(batch, np.random.default_rng(0)).inputs
    depth = student.config.num_hidden_layers
    with torch.no_grad():
        given, wanted = losses.run_blocks(student.eval(), inputs, depth), losses.run_blocks(teacher, inputs, depth)
        found = [losses.block_loss(given, wanted, inputs["attention_mask"], False, [i]) for i in range(depth)]
    return [{k: float(v) for k, v in block.items()} for block in found]


def distilled(p, tokenizer, source: artefacts.Artefact, code: bool) -> artefacts.Artefact:
    """The task-agnostic student after its strategy's stages; folder `model` inside. `source`: the IB teacher."""
    names = ("strategy", "inside", "ffns", "tiny", "activation", "normalisation", "alpha", "lower_rate",
             "transfer_epochs", "transfer_lr", "feature_transfer", "attention_transfer")
    settings = text.settings(p, f"distillation, {p.strategy}", precision=training.precision(p.precision),
                             epochs=p.general_epochs + (p.transfer_epochs if p.strategy == "auxiliary" else 0))
    configuration = {"teacher": source.key, **{n: getattr(p, n) for n in names}, "code_losses": code,
                     "settings": vars(settings),
                     **text.key(p.text, tokenizer, p.text_length, p.text_tokens)}

    def make(folder: Path) -> dict:
        words, masker = text.load(p.text, tokenizer, p.text_length, p.text_tokens), mlm.Masker(tokenizer)
        quality = functools.partial(mlm.quality, data=words.held_out, masker=masker,
                                    precision=training.precision(p.precision))
        models.quiet()
        teacher = IBBertForMaskedLM.from_pretrained(source.folder / "model", attn_implementation=fast.ATTENTION)
        teacher.requires_grad_(False).eval().to(training.device())
        torch.manual_seed(0)
        first = words.train.batch(list(range(min(CALIBRATION, len(words.train)))))
        student = new_student(teacher, student_config(teacher.config, p), first).to(training.device())
        meta = {"seconds": 0.0, "tokens": 0, "gap": {"start": block_gap(student, teacher, words.held_out, masker)},
                "quality": {"start": quality(Words(student))}}
        identity = digest(configuration)
        if p.strategy != "auxiliary":
            meta |= transfer(student, teacher, masker, words.train, p, code,
                             Checkpoints(folder / "checkpoints" / "blocks", identity))
            meta["gap"]["after transfer"] = block_gap(student, teacher, words.held_out, masker)
            meta["quality"]["after transfer"] = quality(Words(student))
        loss = distillation_loss(teacher, masker, p.alpha, code, parts(p) if p.strategy == "auxiliary" else ())
        history = training.train(student, loss, words.train, settings,
                                 checkpoints=Checkpoints(folder / "checkpoints" / "words", identity))
        student.save_pretrained(folder / "model")
        meta["gap"]["after distillation"] = block_gap(student, teacher, words.held_out, masker)
        meta["quality"]["after distillation"] = quality(Words(student))
        return {**meta, "seconds": meta["seconds"] + history.seconds, "tokens": meta["tokens"] + history.tokens,
                "curve": history.curve, **words.record()}

    return artefacts.build("mobilebert", configuration, make)
