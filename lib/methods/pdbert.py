"""PD-BERT: pre-trained distillation (Turc et al. 2019, arXiv 1908.08962, "Well-read students learn better").

A compact model is pre-trained by masked language modelling itself, from random weights, rather than cut out of a large
one; then it learns the teacher's probabilities on an unlabelled transfer set; then, if wanted, the labels. Its
pre-training is an artefact that all tasks and seeds share.
"""

from __future__ import annotations

import copy
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F
from transformers import AutoModel, AutoModelForSequenceClassification

from lib import artefacts, batches, fast, layers, mlm, models, pretrain, stages, studies, teacher_cache, text, training
from lib.batches import Batch
from lib.errors import InputError
from lib.methods import bert
from lib.parameters import Float, Int, Str
from lib.training import History, Loss, Step


class Config(text.General):
    """Parameters of PD-BERT; of the text that it is pre-trained on see `lib.text.General`."""

    layers: Annotated[Int, Field(ge=0)] = 0  # of the student; 0: half of the backbone's
    width: Annotated[Int, Field(ge=0)] = 0  # hidden size; 0: the backbone's
    heads: Annotated[Int, Field(ge=0)] = 0  # 0: heads as wide as the backbone's (64 in the paper)
    # What follows pre-training: distil and fine-tune; distil alone (PD); fine-tune alone (PF); or instead of all that
    # the lowest layers of the backbone, fine-tuned (TF)
    arm: Literal["pdf", "pd", "pf", "tf"] = "pdf"
    transfer: Str = "task"  # unlabelled transfer set: the task's own inputs, or a text as in lib/text.py
    distil_share: Annotated[Float, Field(gt=0, lt=1)] = 0.5  # of the budget, with arm=pdf
    study: Literal["none", "arms"] = "none"


# The paper's comparison of what pre-training and distillation each bring (its Table 3), with the plain run.
STUDIES: dict[str, list[dict]] = {"none": [{}], "arms": [{}, *({"arm": a, "variant": a} for a in ("pd", "pf", "tf"))]}


def variants(p: Config) -> list[Config]:
    """The runs of a study, each with its variant name."""
    return studies.variants(p, STUDIES[p.study])


def student_config(config, p: Config):
    """The compact model's configuration: the backbone's, with fewer layers and, if asked for, another width.

    The feed-forward width keeps its ratio to the hidden size (4 in the paper). Raises `InputError` for a width that the
    heads do not divide.
    """
    c = copy.deepcopy(config)
    count = layers.halved(config.num_hidden_layers, p.layers)
    width = p.width or config.hidden_size
    head = config.hidden_size // config.num_attention_heads
    heads = p.heads or max(1, width // head)
    if width % heads:
        allowed = ", ".join(str(h) for h in range(1, width + 1) if width % h == 0)
        raise InputError(f"width: {width} is not divided by {heads} heads; allowed heads: {allowed}")
    inner = "intermediate_size" if hasattr(c, "intermediate_size") else "hidden_dim"
    setattr(c, inner, round(getattr(config, inner) * width / config.hidden_size))
    c.hidden_size, c.num_attention_heads, c.num_hidden_layers = width, heads, count
    if getattr(c, "layer_types", None):
        c.layer_types = c.layer_types[:count]
    return c


def pretrained(run) -> artefacts.Artefact:
    """The compact encoder after masked language modelling from random weights: an artefact, added to the run's.

    The head's bias starts from the log frequencies of the words. A pooler is not kept: language modelling has none.
    """
    p = run.p
    text.refuse_overlap(p.text, run.data)
    backbone = models.load_encoder(p.backbone)
    config = student_config(backbone.config, p)

    def build(sequences: text.Text) -> tuple[nn.Module, mlm.Head]:
        encoder = fast.install(AutoModel.from_config(config, attn_implementation=backbone.config._attn_implementation))
        if getattr(encoder, "pooler", None) is not None:
            encoder.pooler = None
        head = mlm.Head.of(encoder)
        head.start_from(mlm.word_counts(sequences.train, config.vocab_size))
        return encoder, head

    shape = {k: v for k, v in config.to_dict().items() if k not in ("_name_or_path", "transformers_version", "dtype")}
    artefact = pretrain.stage("pdbert", p, run.tokenizer, {"shape": shape, "from": "random weights"}, build,
                              lambda encoder, masker: mlm.language_loss(masker))
    run.artefacts.append(artefact)
    run.study = {"general": artefact.meta["mlm"]}
    return artefact


def student(run) -> nn.Module:
    """The pre-trained compact encoder under a fresh head drawn from the run's seed; with arm=tf the lowest layers."""
    p = run.p
    if p.arm == "tf":
        if p.width or p.heads:
            raise InputError(f"width, heads: {p.width}, {p.heads}: arm=tf cuts the backbone, whose width stays; "
                             "allowed: 0")
        backbone = run.backbone()
        depth = len(layers.encoder_layers(backbone))
        return layers.cut(backbone, layers.lowest(depth, layers.halved(depth, p.layers)))
    artefact = pretrained(run)
    backbone = models.load_encoder(p.backbone)
    config = student_config(backbone.config, p)
    for name, value in models.names(run.task).items():
        setattr(config, name, value)
    torch.manual_seed(p.seed)
    model = AutoModelForSequenceClassification.from_config(
        config, attn_implementation=backbone.config._attn_implementation)
    pretrain.load(model.base_model, artefact)
    return fast.install(model)


def soft_cross_entropy(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """- sum over classes of softmax(teacher) * log softmax(student), a mean over the batch; logits (B, classes).

    One output (regression) has no probabilities: there it is the squared error to the teacher's output.
    """
    if student.shape[-1] == 1:
        return F.mse_loss(student.float(), teacher.float())
    return -(teacher.float().softmax(-1) * student.float().log_softmax(-1)).sum(-1).mean()


def distil(run, model: nn.Module, teacher: nn.Module, share: float) -> History:
    """Train `model` on the teacher's probabilities for the transfer set, with a share of the budget. No gold labels.

    Labels take part in one place only: the held-out rows choose the state that is kept, as for every method.
    """
    settings, data = stages.share_of(run, share), run.train
    if run.p.transfer == "task":
        source = teacher_cache.cached(run, teacher)
    else:
        text.refuse_overlap(run.p.transfer, run.data)
        data = text.load(run.p.transfer, run.tokenizer, run.p.text_length, run.p.text_tokens).train
        plan = batches.plan(data.lengths, settings.batch_size * settings.accumulation, settings.seed, settings.epochs,
                            settings.max_tokens)
        rows = np.unique(np.concatenate(plan))
        source = teacher_cache.Cached(rows, teacher_cache.compute(teacher, data, rows, training.precision(
            run.p.precision)))

    def loss(model: nn.Module, batch: Batch, step: Step) -> Loss:
        value = soft_cross_entropy(layers.classify(model, batch), source(batch).logits)
        return Loss(value, logs={"distillation": float(value.detach())})

    return training.train(model, loss, data, settings, evaluate=run.scores, checkpoints=run.checkpoints("distil"))


def compress(run, teacher: nn.Module) -> tuple[nn.Module, History]:
    """Pre-train (or take the artefact), then the arm's stages under one token budget. Returns (student, history)."""
    model = student(run)
    if run.p.arm in ("pf", "tf"):
        return model, bert.fine_tune(run, model)
    if run.p.arm == "pd":
        return model, distil(run, model, teacher, 1.0)
    first = distil(run, model, teacher, run.p.distil_share)
    second = training.train(model, bert.supervised, run.train, stages.share_of(run, 1 - run.p.distil_share),
                            evaluate=run.scores, checkpoints=run.checkpoints())
    return model, stages.joined(first, second)
