"""TinyBERT (Jiao et al. 2020, arXiv 1909.10351): a narrow, shallow student that learns a teacher's layers, twice.

1. General distillation: embeddings, hidden states and attention scores of the backbone, on unlabelled text.
2. Task distillation from the fine-tuned teacher, on augmented rows: a) the same losses, b) the logits alone.

`variant="paper"`, the default, and `variant="code"` differ in the reductions of the losses and the projections
(`tinybert_losses`), and in the code's active dropout of the teacher, constant learning rate of step a, gold scores in
step b of regression, and augmentation (`tinybert_data`), but for its list of stop words and its N_a for each task. The
code's relu between pooler and classifier is left out everywhere: the student stays an ordinary model of its
architecture.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F
from transformers import AutoModel

from lib import artefacts, batches, held_out, layers, mlm, models, stages, teacher_cache, text, training
from lib.batches import Encoded
from lib.checkpoint import Checkpoints
from lib.errors import InputError, one_of
from lib.methods import bert, tinybert_data, tinybert_losses, tinybert_shape
from lib.parameters import Float, Int, Str, Strs
from lib.provenance import digest
from lib.training import History, Loss

# Ablations of the paper (methods.md 9.5): stages, the augmentation, and the terms of the losses.
PARTS = ("general", "task", "augmentation", "embedding", "hidden", "attention", "prediction")
STEP_B = 2**31  # added to the run's seed, which is below it: step b has an order of batches of its own


class Config(mlm.General):
    """Parameters of TinyBERT; of the general stage and of the language-modelling head see `lib.mlm.General`."""

    shape: Literal["tinybert4", "tinybert6"] = "tinybert4"  # in proportion to the backbone
    layers: Annotated[Int, Field(ge=0)] = 0  # of the student; 0: the shape's, as for the next three
    width: Annotated[Int, Field(ge=0)] = 0
    heads: Annotated[Int, Field(ge=0)] = 0
    intermediate: Annotated[Int, Field(ge=0)] = 0
    mapping: Literal["uniform", "top", "bottom"] = "uniform"
    without: Strs = []  # parts that are left out, see PARTS
    # Of the budget: what step a gets. In the paper 20 of 23 passes, 10 of 13 in the official README; with few
    # tokens the head, which only step b trains, needs more of them.
    intermediate_share: Annotated[Float, Field(gt=0, lt=1)] = 0.5
    intermediate_lr: Annotated[Float, Field(gt=0, le=1)] = 5e-4  # of step a; 5e-5 in the paper, for 20 passes and more
    temperature: Annotated[Float, Field(gt=0, le=1000)] = 1.0  # t of step b
    # Augmentation (section 3.2 and appendix A)
    new_rows: Annotated[Int, Field(ge=1, le=1000)] = 20  # N_a, for each row
    replace: Annotated[Float, Field(gt=0, le=1)] = 0.4  # p_t
    candidates: Annotated[Int, Field(ge=1, le=1000)] = 15  # K
    # Share of new rows in the tokens of a step, at most; original rows, repeated, are the rest. 1 is the paper's: N_a
    # new rows beside each original one, see `fold`
    augmented_share: Annotated[Float, Field(ge=0, le=1)] = 0.5
    word_vectors: Str = ""  # a GloVe text file; empty: the backbone's own input embeddings

    @property
    def fold(self) -> int:
        """Rows that one of `epochs` reads for each original one, in a step on new rows.

        1, so that the tokens are those of every other method; 1 + N_a in the paper's recipe (`augmented_share=1` and
        no `max_tokens`), where a pass goes over all the rows that a step has.
        """
        papers = self.augmented_share == 1 and not self.max_tokens and "augmentation" not in self.without
        return 1 + self.new_rows if papers else 1


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a configuration asks for: the student's shape, the layer mapping and the terms of the losses."""

    shape: tinybert_shape.Shape
    mapping: list[int]
    terms: tuple[str, ...]
    code: bool


def plan(p: Config) -> Plan:
    """The plan, from configurations alone. `InputError` for parts, shapes or teachers that do not fit together."""
    for word in p.without:
        one_of("without", word, PARTS)
    terms = tuple(t for t in tinybert_losses.TERMS if t not in p.without)
    if not terms:
        raise InputError(f"without: {', '.join(p.without)} leaves no intermediate loss; allowed: at most two of "
                         f"{', '.join(tinybert_losses.TERMS)}")
    shape = tinybert_shape.scaled(models.configuration(p.backbone), p.shape, p.layers, p.width, p.heads,
                                  p.intermediate)
    name, what = (p.teacher, "teacher") if p.teacher else (p.backbone, "backbone")
    if "attention" in terms:
        for checked in {(name, what), (p.backbone, "backbone")}:
            tinybert_shape.check_teacher(*checked, shape.heads)
    depths = {models.depth(name), models.depth(p.backbone)}
    if len(depths) > 1:
        raise InputError(f"teacher {p.teacher}: its depth is not that of backbone {p.backbone}; leave backbone empty")
    return Plan(shape, tinybert_shape.layer_mapping(depths.pop(), shape.layers, p.mapping), terms,
                p.variant.split("-")[0] == "code")


class Distilled(nn.Module):
    """A student with the projections that its losses need; only the student is kept."""

    def __init__(self, student: nn.Module, projections: nn.Module):
        super().__init__()
        self.student, self.projections = student, projections


def state_loss(teacher: nn.Module, chosen: Plan):
    """The loss function of general distillation and of step a: `training.train` gets a `Distilled`."""
    scores = "attention" in chosen.terms

    def loss(model: Distilled, batch: dict, step) -> Loss:
        teacher.train(chosen.code and step is not None)  # the official code never switches its dropout off
        with torch.no_grad():
            theirs = tinybert_losses.watch(teacher, batch, scores)
        return tinybert_losses.intermediate_loss(
            tinybert_losses.watch(model.student, batch, scores), theirs, model.projections, batch["attention_mask"],
            chosen.mapping, chosen.terms, chosen.code)

    return loss


def general(p: Config, tokenizer, chosen: Plan) -> artefacts.Artefact:
    """General distillation from the raw backbone: an encoder and its projections, shared by tasks and seeds.

    Its "general" holds the loss on held-out text before and after.
    """
    settings = text.settings(p, "TinyBERT, general distillation", precision=training.precision(p.precision))
    configuration = {"backbone": models.content_hash(models.resolve(p.backbone)), "plan": dataclasses.asdict(chosen),
                     "settings": vars(settings), **text.key(p.text, tokenizer, p.text_length, p.text_tokens)}

    def make(folder: Path) -> dict:
        sequences = text.load(p.text, tokenizer, p.text_length, p.text_tokens)
        torch.manual_seed(0)
        teacher = models.load_encoder(p.backbone).to(training.device()).eval()
        student = tinybert_shape.build(tinybert_shape.student_config(teacher.config, chosen.shape), AutoModel,
                                       teacher.config._attn_implementation)
        wide = teacher.config.hidden_size
        model = Distilled(student, tinybert_losses.Projections(chosen.shape.width, wide, chosen.code))
        loss = state_loss(teacher, chosen)
        before = held_out.mean_loss(model, loss, sequences.held_out, settings.precision)
        history = training.train(model, loss, sequences.train, settings,
                                 checkpoints=Checkpoints(folder / "checkpoints", digest(configuration)))
        after = held_out.mean_loss(model, loss, sequences.held_out, settings.precision)
        save_file({k: v.cpu().clone() for k, v in model.state_dict().items()}, folder / "student.safetensors")
        return {"seconds": history.seconds, "tokens": history.tokens,
                "general": {"before": before, "after": after, "curve": history.curve, **sequences.record()}}

    return artefacts.build("tinybert-general", configuration, make)


def start(run, teacher: nn.Module, chosen: Plan) -> Distilled:
    """The student that task distillation starts from: generally distilled, its head new; projections beside it."""
    p = run.p
    config = tinybert_shape.student_config(models.configuration(p.backbone), chosen.shape,
                                           **models.names(run.task))
    torch.manual_seed(p.seed)
    student = tinybert_shape.build(config, attention=models.attention_for(models.resolve(p.backbone), p.backbone))
    projections = tinybert_losses.Projections(chosen.shape.width, teacher.config.hidden_size, chosen.code)
    model = Distilled(student, projections).to(training.device())
    if "general" in p.without:
        return model
    artefact = general(p, run.tokenizer, chosen)
    run.artefacts.append(artefact)
    saved = load_file(artefact.folder / "student.safetensors")
    encoder = {k.removeprefix("student."): v for k, v in saved.items()
               if k.startswith("student.") and not k.startswith("student.pooler.")}
    report = student.base_model.load_state_dict(encoder, strict=False)
    lacking = [k for k in report.missing_keys if not k.startswith("pooler.")]
    if lacking or report.unexpected_keys:
        raise RuntimeError(f"artefact {artefact.key} does not fit the student: {lacking} {report.unexpected_keys}")
    theirs = {k.removeprefix("projections."): v for k, v in saved.items() if k.startswith("projections.")}
    if all(v.shape == projections.state_dict()[k].shape for k, v in theirs.items()):  # a wider own teacher: new ones
        projections.load_state_dict(theirs)
    if p.teacher and p.backbone == p.teacher:
        run.notes.append("general distillation took the fine-tuned teacher itself: no raw backbone was given")
    return model


def compress(run, teacher: nn.Module) -> tuple[nn.Module, History]:
    """Both stages; steps a and b share the run's token budget. Returns (student, history of both steps).

    The run's `study` says what augmentation did to the rows.
    """
    text.refuse_overlap(run.p.text, run.data)
    p, chosen = run.p, plan(run.p)
    model = start(run, teacher, chosen)
    if "task" in p.without:  # the paper does not say on which rows; here the original ones
        return model.student, bert.fine_tune(run, model.student)
    first, second = tinybert_data.budget(run)
    rows = run.train
    if "augmentation" not in p.without:
        made = tinybert_data.augmented(run, max(first, second) if tinybert_data.reads_new(run)[1] else first,
                                       chosen.code)
        rows = made.data
        if not run.trial:
            run.study = {"augmentation": tinybert_data.described(run, teacher, made)}
    constant = {"warmup": 0.0, "decay": False} if chosen.code else {}
    a = training.train(model, state_loss(teacher, chosen), rows, tinybert_data.settings(
        run, first, lr=p.intermediate_lr, **constant), checkpoints=run.checkpoints("intermediate"))
    a.curve["intermediate_loss"] = a.curve.pop("loss", [])
    teacher.eval()
    settings = tinybert_data.settings(run, second, seed=p.seed + STEP_B)
    loss, rows, seconds = prediction(run, teacher, rows, settings, chosen.code)
    b = training.train(model.student, loss, rows, settings, evaluate=run.scores, checkpoints=run.checkpoints())
    teacher.eval()
    history = stages.joined(a, b)
    history.seconds += seconds
    return model.student, history


def prediction(run, teacher: nn.Module, rows: Encoded, s: training.Settings, code: bool) -> tuple:
    """(loss function, rows, seconds of asking the teacher) of step b, whose settings are `s`.

    Original rows for regression (paper) and without the prediction loss, where the labels teach.
    """
    rows = rows if tinybert_data.reads_new(run)[1] else run.train
    if "prediction" in run.p.without or run.task.regression and code:
        return bert.supervised, rows, 0.0
    seconds = 0.0
    if code:  # dropout is active: no answer may be kept
        ask = teacher_cache.live(teacher)
        teacher.train()
    else:
        began = time.perf_counter()
        window = s.batch_size * s.accumulation
        seen = np.unique(np.concatenate(batches.plan(rows.lengths, window, s.seed, s.epochs, s.max_tokens)))
        ask = tinybert_data.answers(teacher, rows, seen, s.precision)
        seconds = time.perf_counter() - began

    def loss(model: nn.Module, batch: dict, step) -> torch.Tensor:
        with torch.no_grad():
            theirs = ask(batch).logits
        logits = layers.classify(model, batch)
        if run.task.regression:
            return F.mse_loss(logits.float(), theirs.float())
        return tinybert_losses.soft_cross_entropy(logits, theirs, run.p.temperature, code)

    return loss, rows, seconds
