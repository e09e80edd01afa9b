"""TinyBERT's losses (Jiao et al. 2020, arXiv 1909.10351, equations 7 to 10) and the projections that they need.

`seen = watch(model, batch)` runs a model and keeps what is compared: hidden states, attention scores before softmax.

Paper and official code differ (methods.md 9.2 and 9.6), which `code` chooses everywhere here:
* paper: a mean over the real positions of each row, then over the rows, so that padding never enters;
* code: a mean over all positions of the padded batch; scores of padded keys count as 0 on both sides.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from lib import fast, layers
from lib.hidden import capture_hidden
from lib.training import Loss

TERMS = ("embedding", "hidden", "attention")
HIDDEN_BELOW = -100.0  # official code: masked scores are -10000; what is at or below this is set to 0


@dataclass
class Seen:
    """Hidden states (B, T, H), entry 0 of the embeddings; attention scores (B, heads, T, T) of each layer, or none."""

    states: list[torch.Tensor]
    scores: list[torch.Tensor]


def watch(model: nn.Module, batch: dict, scores: bool = True) -> Seen:
    """One forward pass; with `scores=False` any attention will do, and none of its scores are kept.

    `RuntimeError` where the scores are not one a layer: the attention is not the study's then.
    """
    with capture_hidden(model) as states, fast.capture_scores() if scores else contextlib.nullcontext([]) as found:
        model(**{k: batch[k] for k in layers.INPUTS if k in batch})
    if scores and len(found) != len(states) - 1:
        raise RuntimeError(f"{type(model).__name__}: {len(found)} attention maps for {len(states) - 1} layers; load "
                           f"it with attn_implementation={fast.ATTENTION!r}")
    return Seen(list(states), list(found))


class Projections(nn.Module):
    """Student width to teacher width. Paper: W_e and W_h, no bias. Code: one matrix with bias for both."""

    def __init__(self, student: int, teacher: int, code: bool = False):
        super().__init__()
        self.hidden = nn.Linear(student, teacher, bias=code)
        self.embedding = self.hidden if code else nn.Linear(student, teacher, bias=False)


def state_loss(student: torch.Tensor, teacher: torch.Tensor, mask: torch.Tensor, code: bool = False) -> torch.Tensor:
    """Mean squared error of projected student states and teacher states (B, T, H); mask (B, T), 1 at real tokens."""
    squares = (student.float() - teacher.float()).square().mean(-1)  # (B, T)
    if code:
        return squares.mean()
    mask = mask.to(squares.dtype)
    return ((squares * mask).sum(1) / mask.sum(1)).mean()


def attention_loss(student: torch.Tensor, teacher: torch.Tensor, mask: torch.Tensor,
                   code: bool = False) -> torch.Tensor:
    """(1 / heads) * sum over heads of MSE of scores before softmax (B, heads, T, T), each scaled by its own sqrt(d)."""
    student, teacher = student.float(), teacher.float()
    if code:
        keys = mask[:, None, None, :].bool()
        student = torch.where(keys & (student > HIDDEN_BELOW), student, 0.0)
        teacher = torch.where(keys & (teacher > HIDDEN_BELOW), teacher, 0.0)
        return F.mse_loss(student, teacher)
    mask = mask.to(student.dtype)
    pairs = mask[:, :, None] * mask[:, None, :]  # (B, T, T)
    squares = (student - teacher).square().mean(1)  # (B, T, T), the mean over heads
    return ((squares * pairs).sum((1, 2)) / pairs.sum((1, 2))).mean()


def intermediate_loss(student: Seen, teacher: Seen, projections: Projections, mask: torch.Tensor, mapping: list[int],
                      terms: tuple[str, ...] = TERMS, code: bool = False) -> Loss:
    """Sum of the chosen terms, all weights 1 (section 4.1); `mapping[m]` is the teacher layer of student layer m + 1.

    Raises `RuntimeError` for an attention loss that is exactly 0: nothing was compared then.
    """
    parts: dict[str, torch.Tensor] = {}
    if "embedding" in terms:
        parts["embedding"] = state_loss(projections.embedding(student.states[0]), teacher.states[0], mask, code)
    if "hidden" in terms:
        parts["hidden"] = sum(state_loss(projections.hidden(student.states[m + 1]), teacher.states[g], mask, code)
                              for m, g in enumerate(mapping))
    if "attention" in terms:
        parts["attention"] = sum(attention_loss(student.scores[m], teacher.scores[g - 1], mask, code)
                                 for m, g in enumerate(mapping))
        if not mapping or float(parts["attention"].detach()) == 0.0:
            raise RuntimeError("the attention loss is 0: no attention scores were compared")
    return Loss(sum(parts.values()), logs={k: float(v.detach()) for k, v in parts.items()})


def soft_cross_entropy(student: torch.Tensor, teacher: torch.Tensor, temperature: float = 1.0,
                       code: bool = False) -> torch.Tensor:
    """-sum softmax(teacher / t) * log_softmax(student / t) of logits (B, classes), mean over rows (equation 10).

    `code` takes the mean over the classes too. `ValueError` for one output, where it would be 0 whatever is learned.
    """
    if student.shape[-1] < 2:
        raise ValueError("soft cross-entropy needs two classes or more")
    weights = F.softmax(teacher.float() / temperature, -1)
    products = -weights * F.log_softmax(student.float() / temperature, -1)
    return products.mean() if code else products.sum(-1).mean()
