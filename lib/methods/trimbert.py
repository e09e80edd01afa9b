"""TrimBERT: fewer intermediate blocks and attention without softmax (arXiv 2202.12411).

The claim is about pre-training from scratch, one recipe for all variants (`origin="scratch"`). Because a small budget
teaches a network from scratch little, the same variants can also be cut out of the pre-trained backbone, healed by a
short language-modelling stage and fine-tuned (`origin="backbone"`): another experiment than the paper's, and a record
says so. The architecture is `trimbert_model`; section numbers are those of the study's notes on the paper.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import nn

from lib import artefacts, fast, mlm, models, pretrain, text
from lib.errors import InputError
from lib.methods import bert
from lib.methods.trimbert_model import TrimBertConfig, TrimBertForSequenceClassification, TrimBertModel
from lib.parameters import Bool, Float, Int
from lib.training import History, Loss

SHAPE = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
         "max_position_embeddings", "type_vocab_size", "hidden_act", "hidden_dropout_prob", "classifier_dropout",
         "attention_probs_dropout_prob", "initializer_range", "layer_norm_eps", "pad_token_id")


class Config(mlm.General):
    """Parameters of TrimBERT. The stage of language modelling is `text`, `text_tokens` and the fields `general_*`."""

    every: Annotated[Int, Field(ge=0)] = 2  # n: an intermediate block after each n-th attention block; 0: none, n = inf
    bandd: Bool = False  # normalisation for softmax, a dropout less, L2 in the loss of language modelling
    nomlpln: Bool = False  # no LayerNorm after intermediate blocks
    attention_layernorm: Bool = True  # False: none after attention, the paper's control, which is to diverge
    # Left open by the paper (12.3). "The dropout after self-attention": by its wording the one after the output matrix
    removed_dropout: Literal["output", "weights", "both", "none"] = "output"
    scale_scores: Bool = False  # 1/sqrt(d) before the normalisation, which takes it out again
    head_gain: Bool = True  # a gain and a bias a head, as in the source of the normalisation
    gain_start: Annotated[Float, Field(gt=0)] = 1.0  # as in that source; TrimBERT's text names none. study=gain
    # No coefficient is given. With weights of deviation 0.02 the gradient of 1e-4 |w|^2 is a few percent of that of the
    # language-modelling loss, and 5M weights add 0.2 to it; the source's layer default, 0.01, would outweigh the loss
    l2: Annotated[Float, Field(ge=0)] = 1e-4
    l2_replaces_decay: Bool = True  # with bandd; False: both
    pretraining_decay: Annotated[Float, Field(ge=0)] = 0.01  # decoupled weight decay of language modelling, as BERT's
    origin: Literal["backbone", "scratch"] = "backbone"
    # Shape from scratch; intermediate blocks are four times as wide
    scratch_blocks: Annotated[Int, Field(ge=1, le=48)] = 6  # attention blocks, m
    scratch_width: Annotated[Int, Field(ge=8)] = 256
    scratch_heads: Annotated[Int, Field(ge=1)] = 4
    study: Literal["none", "blocks", "changes", "dropout"] = "none"
    control_tokens: Annotated[Int, Field(ge=0)] = 0  # text tokens on which the notebook shows the control; 0: not shown
    timing_tokens: Annotated[Int, Field(ge=0)] = 512  # in a batch of the notebook's timing; 0: no timing


def changes(p: Config) -> dict:
    """What the configuration of the architecture says beyond BERT's."""
    return {"intermediate_every": p.every, "bandd": p.bandd, "intermediate_layernorm": not p.nomlpln,
            "attention_layernorm": p.attention_layernorm, "removed_dropout": p.removed_dropout,
            "scale_scores": p.scale_scores, "head_gain": p.head_gain, "gain_start": p.gain_start}


def architecture(p: Config, tokenizer, backbone=None, **more) -> TrimBertConfig:
    """Configuration of the encoder: the backbone's shape, or without one the shape from scratch.

    Raises `InputError` for a backbone that is no BERT, heads that do not divide the width, n beyond the depth.
    """
    if backbone is None:
        if p.scratch_width % p.scratch_heads:
            raise InputError(f"scratch_heads: {p.scratch_heads} does not divide scratch_width {p.scratch_width}")
        vocabulary = max(tokenizer.get_vocab().values()) + 1  # a tokenizer's ids may have holes
        shape = {"vocab_size": vocabulary, "hidden_size": p.scratch_width, "num_hidden_layers": p.scratch_blocks,
                 "num_attention_heads": p.scratch_heads, "intermediate_size": 4 * p.scratch_width,
                 "max_position_embeddings": max(512, p.max_length, p.text_length),
                 "pad_token_id": tokenizer.pad_token_id}
    else:
        if backbone.model_type != "bert":
            raise InputError(f"backbone {p.backbone}: is {backbone.model_type}; TrimBERT is cut out of BERT alone "
                             "(origin=scratch takes any backbone, for its tokenizer)")
        shape = {k: getattr(backbone, k) for k in SHAPE}
    if p.every > shape["num_hidden_layers"]:
        raise InputError(f"every: {p.every} is more than the {shape['num_hidden_layers']} attention blocks; 0 stands "
                         "for no intermediate block")
    config = TrimBertConfig(**{**shape, **changes(p), **more})
    config._attn_implementation = fast.ATTENTION
    return config


def graft(encoder: nn.Module, config: TrimBertConfig) -> TrimBertModel:
    """A TrimBERT encoder with the weights of a BERT encoder; what `config` leaves out is left behind.

    Raises `RuntimeError` where a weight would stay random or anything else would be lost.
    """
    student = TrimBertModel(config)
    report = student.load_state_dict(encoder.state_dict(), strict=False)
    new = [k for k in report.missing_keys if not k.endswith(("attention.self.gain", "attention.self.bias"))]
    gone = [k for k in report.unexpected_keys if not _left_out(k, config)]
    if new or gone:
        raise RuntimeError(f"trimbert: weights {new[:3]} are missing, {gone[:3]} have no place")
    return fast.install(student)


def _left_out(name: str, config: TrimBertConfig) -> bool:
    block, rest = name.removeprefix("encoder.layer.").split(".", 1)
    if rest.startswith(("intermediate.", "output.")) and not config.has_intermediate(int(block)):
        return True
    return (rest.startswith("output.LayerNorm.") and not config.intermediate_layernorm) or (
        rest.startswith("attention.output.LayerNorm.") and not config.attention_layernorm)


def l2_penalty(model: nn.Module) -> torch.Tensor:
    """Sum of the squares of all weight matrices in float32; biases, gains, norms and embedding tables are left out.

    So is a pooler, which language modelling does not train: the penalty alone would take it to nothing.
    """
    return sum(m.weight.float().square().sum() for name, m in model.named_modules()
               if isinstance(m, nn.Linear) and "pooler" not in name.split("."))


def pretrained(run) -> artefacts.Artefact:
    """The encoder after language modelling, from scratch or cut out of the backbone; shared by all tasks and seeds."""
    p = run.p
    text.refuse_overlap(p.text, run.data)
    first = None
    if p.origin == "backbone":
        source = models.load_encoder(p.backbone)
        config = architecture(p, run.tokenizer, source.config)
        head, first = mlm.head_for(p.backbone, run.tokenizer, p)
        run.artefacts.append(first)
    else:
        config = architecture(p, run.tokenizer)
    l2 = p.l2 if p.bandd else 0.0
    decay = 0.0 if p.bandd and p.l2_replaces_decay else p.pretraining_decay
    configuration = {"origin": first.key if first else "scratch", "shape": {k: getattr(config, k) for k in SHAPE},
                     "changes": changes(p), "l2": l2}

    def build(sequences):
        if first is not None:
            return graft(source, config), head
        encoder = fast.install(TrimBertModel(config, add_pooling_layer=False))
        fresh = mlm.Head.of(encoder)
        fresh.start_from(mlm.word_counts(sequences.train, len(fresh.bias)))
        return encoder, fresh

    def objective(encoder, masker):
        plain = mlm.language_loss(masker)

        def loss(model, batch, step):
            out = plain(model, batch, step)
            penalty = l2 * l2_penalty(model)
            return Loss(out.value + penalty, out.weight, {"masked_words": float(out.value.detach()),
                                                          "l2": float(penalty.detach())})

        return loss if l2 else plain

    artefact = pretrain.stage("trimbert", p, run.tokenizer, configuration, build, objective, weight_decay=decay)
    run.artefacts.append(artefact)
    return artefact


def compress(run, teacher=None) -> tuple[nn.Module, History]:
    """Language modelling (an artefact), then ordinary fine-tuning of all weights. No teacher takes part.

    Raises `RuntimeError` where language modelling diverged: there is nothing to fine-tune.
    """
    p = run.p
    artefact = pretrained(run)
    report = artefact.meta["mlm"]
    if report["diverged"]:
        raise RuntimeError(f"trimbert: {report['diverged']}")
    source = models.load_encoder(p.backbone).config if p.origin == "backbone" else None
    config = architecture(p, run.tokenizer, source, **models.names(run.task))
    torch.manual_seed(p.seed)  # the head, and from scratch the pooler, are fresh
    student = fast.install(TrimBertForSequenceClassification(config))
    pretrain.load(student.bert, artefact)
    run.study = {"origin": p.origin, "changes": changes(p), "mlm": report,
                 "intermediate_blocks": sum(config.has_intermediate(i) for i in range(config.num_hidden_layers))}
    words = {"scratch": "pre-trained from scratch, as in the paper, on {:,} tokens: compare with n = 1 from scratch, "
                        "not with the backbone",
             "backbone": "cut out of the pre-trained backbone and healed on {:,} tokens: another experiment than the "
                         "paper's, which pre-trains from scratch"}
    run.notes.append(words[p.origin].format(report["tokens"]))
    return student, bert.fine_tune(run, student)
