"""EfficientBERT's distillation (methods.md 11.6): embedding, attention, hidden states and prediction, all factors 1.

Student layer l (one-based) learns from teacher layer l N/M of N and M layers, which is 2 l for 6 of 12. One projection
from the student's width to the teacher's, shared by embedding and layers, as the official code's; it is only needed in
training. Padding does not enter any mean (the official code's means run over it).
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

from lib import fast, layers
from lib.errors import InputError
from lib.hidden import capture_hidden
from lib.methods.efficientbert_model import EfficientBertConfig, EfficientBertForSequenceClassification
from lib.training import Loss

POOLER = "pooler."


def state_loss(student: torch.Tensor, teacher: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean squared error over real tokens and features. student, teacher: (B, T, H); mask: (B, T), 1 at real tokens."""
    keep = mask.unsqueeze(-1).float()
    return ((student.float() - teacher.float()) ** 2 * keep).sum() / (keep.sum() * student.shape[-1])


def attention_loss(student: torch.Tensor, teacher: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean squared error of scaled scores before softmax, over heads and pairs of real tokens.

    student, teacher: (B, heads, T, T); mask: (B, T). `RuntimeError` for unlike numbers of heads: nothing may broadcast.
    """
    if student.shape != teacher.shape:
        raise RuntimeError(f"attention scores: student {tuple(student.shape)}, teacher {tuple(teacher.shape)}")
    keep = (mask[:, None, :, None] * mask[:, None, None, :]).float()  # (B, 1, T, T)
    return ((student.float() - teacher.float()) ** 2 * keep).sum() / (keep.sum() * student.shape[1])


def prediction_loss(student: torch.Tensor, teacher: torch.Tensor, labels: torch.Tensor,
                    temperature: float = 1.0) -> torch.Tensor:
    """Soft cross-entropy, mean over batch *and* classes (official code); regression: squared error to the labels.

    student, teacher: (B, classes), or (B, 1) with labels (B,) in floats.
    """
    if student.shape[-1] == 1 and labels.is_floating_point():
        return F.mse_loss(student.float().squeeze(-1), labels.float())
    target = (teacher.float() / temperature).softmax(-1)
    return -(target * (student.float() / temperature).log_softmax(-1)).mean()


class Distiller(nn.Module):
    """A student with its projection to the teacher's width: what is trained."""

    def __init__(self, student: EfficientBertForSequenceClassification, width: int):
        super().__init__()
        self.student = student
        self.projection = nn.Linear(student.config.hidden_size, width)
        nn.init.normal_(self.projection.weight, std=student.config.initializer_range)
        nn.init.zeros_(self.projection.bias)

    @property
    def encoder(self) -> nn.Module:
        return self.student.efficientbert

    def save(self, path: Path) -> None:
        """Encoder and projection, without head and pooler: no loss on text reaches these, so what stood in them would
        be one random draw for all seeds.
        """
        tensors = {f"encoder.{k}": v for k, v in self.encoder.state_dict().items() if not k.startswith(POOLER)}
        tensors |= {f"projection.{k}": v for k, v in self.projection.state_dict().items()}
        save_file({k: v.detach().cpu().clone().contiguous() for k, v in tensors.items()}, path)

    def inherit(self, source: dict[str, torch.Tensor]) -> None:
        """Take over the leading slice of each of `source`'s tensors (as `save` names them): narrower inner widths,
        fewer stacks, narrower layers. A deeper student takes each layer several times over, in order ("++"). The pooler
        stays as it was drawn.
        """
        depth = 1 + max(int(k.split(".")[2]) for k in source if k.startswith("encoder.layers."))
        own = self.encoder.config.num_hidden_layers
        with torch.no_grad():
            for part, module in (("encoder", self.encoder), ("projection", self.projection)):
                for name, parameter in module.named_parameters():
                    if name.startswith(POOLER):
                        continue
                    words = name.split(".")
                    if words[0] == "layers":
                        words[1] = str(int(words[1]) * depth // own)
                    given = source[".".join([part, *words])]
                    if any(a > b for a, b in zip(parameter.shape, given.shape, strict=True)):
                        raise InputError(f"efficientbert: {name} {tuple(parameter.shape)} does not fit into the "
                                         f"supernet's {tuple(given.shape)}")
                    parameter.copy_(given[tuple(slice(n) for n in parameter.shape)])


def build(config: EfficientBertConfig, width: int, names: dict, seed: int, source: Path | None = None) -> Distiller:
    """A student for a teacher of `width`, drawn from `seed`, with weights out of `source` if given.

    `names`: the configuration of the head (`lib.models.names`). Study attention and dropout.
    """
    torch.manual_seed(seed)
    c = EfficientBertConfig(**{**config.to_dict(), **names})
    c._attn_implementation = fast.ATTENTION
    distiller = Distiller(EfficientBertForSequenceClassification(c), width)
    if source is not None:
        distiller.inherit(load_file(source))
    fast.install(distiller.student)
    return distiller


def save_whole(distiller: Distiller, path: Path) -> None:
    """Everything, the head too."""
    save_file({k: v.detach().cpu().clone().contiguous() for k, v in distiller.state_dict().items()}, path)


def check_teacher(teacher: nn.Module, config: EfficientBertConfig) -> None:
    """`InputError` where the teacher's attention cannot be compared with the student's head by head."""
    heads = teacher.config.num_attention_heads
    if teacher.config._attn_implementation != fast.ATTENTION:
        raise InputError(f"efficientbert: the attention scores of {type(teacher).__name__} cannot be had "
                         f"(it runs with {teacher.config._attn_implementation!r} attention)")
    if heads != config.num_attention_heads:
        raise InputError(f"heads: {config.num_attention_heads} of the student are not the teacher's {heads}; the "
                         "attention loss compares head by head")


def losses(distiller: Distiller, teacher: nn.Module, batch: dict, head: bool = True):
    """(parts by name, student logits, teacher logits): "embedding", "attention" and "hidden" summed over the layers.

    With `head=False` (general stage) neither head is computed and the logits are None. `RuntimeError` where attention
    scores were not captured or their loss is exactly 0: a part that is missing must not look like a perfect one.
    """
    inputs = {k: batch[k] for k in layers.INPUTS if k in batch}
    mask = batch["attention_mask"]
    student, project = distiller.student, distiller.projection
    with torch.no_grad(), capture_hidden(teacher) as theirs, fast.capture_scores() as their_scores:
        t = (teacher if head else teacher.base_model)(**inputs)
    with capture_hidden(student) as ours, fast.capture_scores() as our_scores:
        s = (student if head else distiller.encoder)(**inputs)
    count, depth = len(ours) - 1, len(theirs) - 1
    if len(our_scores) != count or len(their_scores) != depth:
        raise RuntimeError(f"attention loss: {len(our_scores)} layers of {count} were captured of the student, "
                           f"{len(their_scores)} of {depth} of the teacher")
    at = [(i + 1) * depth // count for i in range(count)]  # one-based teacher layer of each student layer
    parts = {
        "embedding": state_loss(project(ours[0]), theirs[0], mask),
        "attention": sum(attention_loss(our_scores[i], their_scores[j - 1], mask) for i, j in enumerate(at)),
        "hidden": sum(state_loss(project(ours[i + 1]), theirs[j], mask) for i, j in enumerate(at)),
    }
    if float(parts["attention"].detach()) == 0.0:
        raise RuntimeError("attention loss: it is exactly 0, so that student and teacher scores are the same or empty")
    return parts, getattr(s, "logits", None), getattr(t, "logits", None)


def general_loss(teacher: nn.Module):
    """Loss function of the general stage: no prediction (methods.md 11.6). Mean over real tokens."""

    def loss(distiller: Distiller, batch: dict, step) -> Loss:
        parts, _, _ = losses(distiller, teacher, batch, head=False)
        return Loss(sum(parts.values()), weight=float(batch["attention_mask"].sum()),
                    logs={k: float(v.detach()) for k, v in parts.items()})

    return loss


def task_loss(teacher: nn.Module, hidden_ratio: float = 1.0, prediction_ratio: float = 1.0, temperature: float = 1.0):
    """Loss function of the task stage: all parts together in one stage (methods.md 11.6)."""

    def loss(distiller: Distiller, batch: dict, step) -> Loss:
        parts, ours, theirs = losses(distiller, teacher, batch)
        parts["prediction"] = prediction_loss(ours, theirs, batch["labels"], temperature)
        value = hidden_ratio * (parts["embedding"] + parts["attention"] + parts["hidden"]) \
            + prediction_ratio * parts["prediction"]
        return Loss(value, logs={k: float(v.detach()) for k, v in parts.items()})

    return loss
