"""DistilBERT: a language model half as deep, distilled before any task (Sanh et al. 2019, arXiv 1910.01108).

General distillation, from the raw backbone on unlabelled text, is an artefact that all tasks and seeds share. Then the
student is fine-tuned on the task; `task_distillation` adds the fine-tuned teacher's answers (the paper's "D").

The paper leaves most settings open, so the official code's weights, temperature and optimiser are the default, with the
choices of `VARIANTS` where a small scale needs others: `variant="code"` takes all of the code's, `variant="paper"` the
strictly alternating layers of its text.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F
from transformers import AutoModel, AutoModelForSequenceClassification, DistilBertConfig

from lib import artefacts, fast, layers, mlm, models, pretrain, studies, teacher_cache, text, training
from lib.batches import Batch
from lib.errors import InputError
from lib.methods import bert
from lib.methods.kd import soft_loss
from lib.parameters import Bool, Float, Int
from lib.training import History, Loss, Step

# positions: on which tokens the vocabulary is distilled. token_types: fold the vector of segment 0, which BERT adds at
# every position, into the position table, or drop it. transform: copy the head's dense layer and normalisation.
# smoothing: words are masked with weight count^-s. frozen_positions: a side effect in the code (methods.md 8).
DEFAULT = {"positions": "masked", "initial": "spread", "token_types": "fold", "transform": True, "smoothing": 0.0,
           "frozen_positions": False}
VARIANTS = {"paper": {**DEFAULT, "initial": "alternate"},
            "code": {"positions": "all", "initial": "spread", "token_types": "drop", "transform": False,
                     "smoothing": 0.7, "frozen_positions": True}}


class Config(mlm.General):
    """Parameters of DistilBERT; of its text and of the language-modelling head see `lib.mlm.General`."""

    layers: Annotated[Int, Field(ge=0)] = 0  # of the student; 0: half of the backbone's
    kd_weight: Annotated[Float, Field(ge=0)] = 5.0  # of T^2 * KL on the vocabulary; the three from the official code
    mlm_weight: Annotated[Float, Field(ge=0)] = 2.0  # of masked language modelling
    cosine_weight: Annotated[Float, Field(ge=0)] = 1.0  # of 1 - cos of the last hidden states
    temperature: Annotated[Float, Field(gt=0, le=1000)] = 2.0  # T, also of task distillation
    positions: Literal["", "masked", "all"] = ""  # empty: the variant's, as for the next two
    initial: Literal["", "spread", "alternate", "random"] = ""
    token_types: Literal["", "fold", "drop"] = ""
    task_distillation: Bool = False  # fine-tune on labels and the fine-tuned teacher's answers
    alpha: Annotated[Float, Field(ge=0, le=1)] = 0.5  # weight of the teacher there (run_squad_w_distillation.py)
    cache: Bool = True  # task distillation asks the teacher once and keeps its answers
    comparison_tokens: Annotated[Int, Field(ge=0)] = 0  # of each small general stage that compares; 0: none is made
    study: Literal["none", "ablation", "code", "paper", "task", "token_types"] = "none"


# Study -> the changes of each of its runs. "ablation" is the paper's Table 4.
STUDIES: dict[str, list[dict]] = {
    "none": [{}],
    "ablation": [{}, {"kd_weight": 0, "variant": "no-ce"}, {"cosine_weight": 0, "variant": "no-cos"},
                 {"mlm_weight": 0, "variant": "no-mlm"}, {"initial": "random", "variant": "random"}],
    "code": [{}, {"variant": "code"}],
    "paper": [{}, {"variant": "paper"}],
    "task": [{}, {"task_distillation": True, "variant": "task"}],
    "token_types": [{}, {"token_types": "drop", "variant": "drop-types"}],
}


# Small general stages that show what a choice does: their name -> the changes of the parameters.
COMPARED = {"default": {}, "paper": {"variant": "paper"}, "code": {"variant": "code"},
            "token type dropped": {"token_types": "drop"}, "random start": {"initial": "random"}}


def variants(p: Config) -> list[Config]:
    """The runs of a study, each with its variant name."""
    return studies.variants(p, STUDIES[p.study])


def flavour(p: Config) -> dict:
    """Settings of the variant with what was given explicitly; a name that is no variant only labels the record."""
    chosen = dict(VARIANTS.get(p.variant.split("-")[0], DEFAULT))
    return chosen | {k: getattr(p, k) for k in ("positions", "initial", "token_types") if getattr(p, k)}


def teacher_layers(depth: int, count: int, which: str) -> list[int]:
    """Zero-based teacher layers that the student's layers start from.

    "spread": from the first to the last at equal distances, a half rounded down; 12 to 6 gives 0, 2, 4, 7, 9, 11, the
    list of the official script. "alternate": one layer out of depth/count, 0, 2, 4, 6, 8, 10, as the paper words it.
    """
    if which == "alternate":
        return [i * depth // count for i in range(count)]
    if count == 1:
        return [0]
    return [-((count - 1 - 2 * i * (depth - 1)) // (2 * (count - 1))) for i in range(count)]  # ceil(x - 1/2)


def student_config(config, count: int) -> DistilBertConfig:
    """The student's configuration. `InputError` for a teacher that is no BERT: DistilBERT's classes mirror BERT's."""
    if config.model_type != "bert":
        raise InputError(f"distilbert: the backbone is a {config.model_type}; it must be a BERT, whose layers "
                         "DistilBERT's classes can hold")
    return DistilBertConfig(
        vocab_size=config.vocab_size, max_position_embeddings=config.max_position_embeddings, n_layers=count,
        n_heads=config.num_attention_heads, dim=config.hidden_size, hidden_dim=config.intermediate_size,
        dropout=config.hidden_dropout_prob, attention_dropout=config.attention_probs_dropout_prob,
        activation=config.hidden_act, initializer_range=config.initializer_range, pad_token_id=config.pad_token_id)


def encoder(config: DistilBertConfig) -> nn.Module:
    """A DistilBERT encoder with weights from torch's generator."""
    return fast.install(AutoModel.from_config(config, attn_implementation=fast.ATTENTION))


@torch.no_grad()
def copy_weights(student: nn.Module, teacher: nn.Module, kept: list[int], fold: bool) -> None:
    """Embeddings and the layers `kept` of a BERT encoder into a DistilBERT encoder, in place.

    `fold` adds the vector of segment 0 to the position table, so that the student's embedding layer gives what the
    teacher's does for a single sentence. The word table stays as it is: the decoder is tied to it.
    """
    ours, theirs = student.embeddings, teacher.embeddings
    ours.word_embeddings.weight.copy_(theirs.word_embeddings.weight)
    ours.position_embeddings.weight.copy_(theirs.position_embeddings.weight)
    if fold:
        ours.position_embeddings.weight.add_(theirs.token_type_embeddings.weight[0])
    ours.LayerNorm.load_state_dict(theirs.LayerNorm.state_dict())
    for i, block in zip(kept, layers.encoder_layers(student), strict=True):
        source = layers.encoder_layers(teacher)[i]
        attention = source.attention
        for own, other in ((block.attention.q_lin, attention.self.query), (block.attention.k_lin, attention.self.key),
                           (block.attention.v_lin, attention.self.value),
                           (block.attention.out_lin, attention.output.dense),
                           (block.sa_layer_norm, attention.output.LayerNorm),
                           (block.ffn.lin1, source.intermediate.dense), (block.ffn.lin2, source.output.dense),
                           (block.output_layer_norm, source.output.LayerNorm)):
            own.load_state_dict(other.state_dict())


def cosine_loss(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Mean of 1 - cos over the rows of two (n, H), in float32."""
    return 1 - F.cosine_similarity(student.float(), teacher.float(), dim=-1).mean()


def general_loss(teacher: mlm.MaskedLM, masker: mlm.Masker, p: Config, everywhere: bool):
    """The loss function of general distillation: kd_weight * L_ce + mlm_weight * L_mlm + cosine_weight * L_cos.

    L_ce = T^2 * KL(teacher || student) over the vocabulary, a mean over the masked tokens, or with `everywhere` over
    all that are no padding; L_mlm a mean over the masked ones; L_cos over all that are no padding. Teacher and student
    read the same masked text. A loss of weight 0 is not computed.
    """
    teacher.to(training.device()).eval().requires_grad_(False)

    def loss(model: mlm.MaskedLM, batch: Batch, step: Step) -> Loss:
        masked = masker(batch, step.random())
        seen = masked.inputs["attention_mask"].bool()
        ours = model.hidden(masked.inputs)
        with torch.no_grad():
            theirs = teacher.hidden(masked.inputs)
        value, logs = torch.zeros((), device=ours.device), {}
        wide = everywhere and p.kd_weight > 0
        where = seen if wide else masked.where
        logits = model.logits(ours[where])
        if p.kd_weight:
            with torch.no_grad():
                wanted = teacher.logits(theirs[where])
            logs["ce"] = soft_loss(logits, wanted, p.temperature)
            value = value + p.kd_weight * logs["ce"]
        if p.mlm_weight:
            logs["mlm"] = mlm.cross_entropy(logits[masked.where[where]] if wide else logits, masked.targets)
            value = value + p.mlm_weight * logs["mlm"]
        if p.cosine_weight:
            logs["cosine"] = cosine_loss(ours[seen], theirs[seen])
            value = value + p.cosine_weight * logs["cosine"]
        return Loss(value, weight=len(masked.targets), logs={k: float(v.detach()) for k, v in logs.items()})

    return loss


def general(run, max_tokens: int = 0) -> artefacts.Artefact:
    """General distillation of the run's backbone: a DistilBERT encoder that no task has touched, kept and shared.

    It and the head of the teacher, with its masked-word accuracy, are added to the run's artefacts and `study`.
    `max_tokens` ends the stage early, for a small comparison; 0: all of the text.
    """
    p, chosen = run.p, flavour(run.p)
    if not (p.kd_weight or p.mlm_weight or p.cosine_weight):
        raise InputError("kd_weight, mlm_weight, cosine_weight: 0 all three; at least one must be positive")
    text.refuse_overlap(p.text, run.data)
    student_config(models.configuration(p.backbone), 1)  # what cannot be a teacher is refused before a head is trained
    head, first = mlm.head_for(p.backbone, run.tokenizer, p)
    teacher = mlm.MaskedLM(models.load_encoder(p.backbone), head)
    config = teacher.encoder.config
    count = layers.halved(config.num_hidden_layers, p.layers)
    shape = student_config(config, count)
    kept = None if chosen["initial"] == "random" else teacher_layers(config.num_hidden_layers, count, chosen["initial"])
    rare = {}  # filled once the text is read

    def build(sequences: text.Text) -> tuple[nn.Module, mlm.Head]:
        rare["weights"] = np.maximum(mlm.word_counts(sequences.train, config.vocab_size), 1.0) ** -chosen["smoothing"]
        student = encoder(shape)
        own = mlm.Head.of(student)
        if kept:
            copy_weights(student, teacher.encoder, kept, chosen["token_types"] == "fold")
            own.load_state_dict({**own.state_dict(), **(head.state_dict() if chosen["transform"] else
                                                        {"bias": head.bias.detach()})})
        student.embeddings.position_embeddings.requires_grad_(not chosen["frozen_positions"])
        return student, own

    def objective(student: nn.Module, masker: mlm.Masker):
        if chosen["smoothing"]:
            masker = mlm.Masker(run.tokenizer, weights=rare["weights"])
        return general_loss(teacher, masker, p, chosen["positions"] == "all")

    weights = {"ce": p.kd_weight, "mlm": p.mlm_weight, "cosine": p.cosine_weight, "temperature": p.temperature}
    artefact = pretrain.stage("distilbert", p, run.tokenizer, {"head": first.key, "layers": kept or count, "weights":
                              weights, **chosen}, build, objective, max_tokens=max_tokens, weight_decay=0.0,
                              max_grad_norm=5.0, adam_epsilon=1e-6)  # the last three as in the official code
    run.artefacts += [first, artefact]
    if p.teacher and p.backbone == p.teacher:
        run.notes.append("general distillation began from the fine-tuned teacher: no raw backbone was given")
    run.study = {"general": artefact.meta["mlm"], "teacher_head": {k: first.meta[k] for k in ("source", "quality")},
                 "teacher_layers": kept or "random", "settings": chosen}
    return artefact


def student(run, artefact: artefacts.Artefact) -> nn.Module:
    """The distilled encoder under a fresh classifier drawn from the run's seed, in the library's DistilBERT class."""
    config = models.load_encoder(run.p.backbone).config
    config = student_config(config, layers.halved(config.num_hidden_layers, run.p.layers))
    for name, value in models.names(run.task).items():
        setattr(config, name, value)
    torch.manual_seed(run.p.seed)
    model = AutoModelForSequenceClassification.from_config(config, attn_implementation=fast.ATTENTION)
    pretrain.load(model.base_model, artefact)
    return fast.install(model)


def task_loss(p: Config, source: teacher_cache.Source):
    """Loss function of task distillation: (1 - alpha) * task loss + alpha * T^2 * KL, as the official SQuAD script."""

    def loss(model: nn.Module, batch: Batch, step: Step) -> Loss:
        logits = layers.classify(model, batch)
        hard, soft = bert.task_loss(logits, batch["labels"]), soft_loss(logits, source(batch).logits, p.temperature)
        return Loss((1 - p.alpha) * hard + p.alpha * soft, logs={"hard": float(hard.detach()),
                                                                 "soft": float(soft.detach())})

    return loss


def compress(run, teacher: nn.Module) -> tuple[nn.Module, History]:
    """Distil the raw backbone on text (or take the artefact), then fine-tune on the task. Returns (student, history).

    The history is the task's alone: the general stage counts its tokens and seconds as an artefact.
    """
    model = student(run, general(run))
    if not run.p.task_distillation:
        return model, bert.fine_tune(run, model)
    loss = task_loss(run.p, teacher_cache.source(run, teacher))
    return model, training.train(model, loss, run.train, run.settings(), evaluate=run.scores,
                                 checkpoints=run.checkpoints())


def compare(run) -> dict[str, dict]:
    """Masked words on held-out text, and speed, after small general stages of `comparison_tokens` tokens each.

    All read the same batches. Small: they show where each choice starts and what it costs, not which one is best.
    """
    out, plain = {}, {"variant": "", "positions": "", "initial": "", "token_types": ""}
    for name, change in COMPARED.items():
        artefact = general(run.with_parameters(trial=True, **plain | change), run.p.comparison_tokens)
        before, after = artefact.meta["mlm"]["before"], artefact.meta["mlm"]["after"]
        out[name] = {"cross-entropy at the start": before["loss"], "cross-entropy after": after["loss"],
                     "masked words right after, percent": 100 * after["accuracy"],
                     "tokens a second": artefact.meta["tokens"] / max(artefact.meta["seconds"], 1e-9)}
    return out
