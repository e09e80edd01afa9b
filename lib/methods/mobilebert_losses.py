"""Losses of MobileBERT (Sun et al. 2020, arXiv 2004.02984, section 3.4): block by block, and on the masked words.

Teacher and student have as many blocks, as many heads and the same width between blocks, so everything compares one to
one. Everything is computed in float32; padding takes part nowhere.
"""

from __future__ import annotations

import contextlib

import torch
from torch import nn
from torch.nn import functional as F
from transformers.masking_utils import create_bidirectional_mask

from lib import fast

# Factors of the official code: LayerNormed features, difference of means, difference of variances
CODE_FACTORS = (100.0, 5000.0, 5.0)
PARTS = ("feature", "attention")  # of the transfer, each block by block


def run_blocks(model: nn.Module, batch: dict, upto: int,
               parts: tuple[str, ...] = PARTS) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Outputs (B, T, width) and attention scores before softmax (B, heads, T, T) of the lowest `upto` blocks.

    `model`: a MobileBERT or IB-BERT with any head, loaded with the study attention. Higher blocks are not run. Without
    "attention" among `parts` no score is asked for, and the second list is empty. Raises `RuntimeError` where another
    attention hands out no scores, for then the attention loss would silently be 0.
    """
    base = model.base_model
    features = []
    asked = "attention" in parts
    with fast.capture_scores() if asked else contextlib.nullcontext([]) as scores:
        hidden = base.embeddings(input_ids=batch["input_ids"], token_type_ids=batch.get("token_type_ids"))
        mask = create_bidirectional_mask(config=base.config, inputs_embeds=hidden,
                                         attention_mask=batch["attention_mask"])
        for layer in base.encoder.layer[:upto]:
            hidden = layer(hidden, mask)
            features.append(hidden)
    if asked and len(scores) != upto:
        raise RuntimeError(f"{upto} blocks gave {len(scores)} attention scores; the study attention is needed")
    return features, scores


def feature_transfer(student: torch.Tensor, teacher: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """L_FMT of one block: mean squared difference over real positions and features (paper, section 3.4).

    student, teacher: (B, T, width); mask: (B, T), 1 at real tokens.
    """
    real = mask.bool()
    return F.mse_loss(student[real].float(), teacher[real].float())


def feature_transfer_code(student: torch.Tensor, teacher: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The official code's L_FMT: features LayerNormed without gain, and a token's mean and variance beside them.

    100 * MSE(LN(s), LN(t)) + 5000 * mean((mean_s - mean_t)^2) + 5 * mean(|var_s - var_t|), statistics over features.
    """
    real = mask.bool()
    s, t = student[real].float(), teacher[real].float()  # (tokens, width)
    shape, beta, gamma = CODE_FACTORS
    width = (s.shape[-1],)
    return (shape * F.mse_loss(F.layer_norm(s, width, eps=1e-12), F.layer_norm(t, width, eps=1e-12))
            + beta * F.mse_loss(s.mean(-1), t.mean(-1))
            + gamma * F.l1_loss(s.var(-1, unbiased=False), t.var(-1, unbiased=False)))


def attention_transfer(student: torch.Tensor, teacher: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """L_AT of one block: KL(teacher row || student row), mean over heads and real query positions.

    student, teacher: scores before softmax (B, heads, T, T); mask: (B, T). Padded keys are outside of both softmaxes.
    """
    hidden = ~mask.bool()[:, None, None, :]
    low = torch.finfo(torch.float32).min
    log_p = teacher.float().masked_fill(hidden, low).log_softmax(-1)
    log_q = student.float().masked_fill(hidden, low).log_softmax(-1)
    rows = (log_p.exp() * (log_p - log_q)).masked_fill(hidden, 0.0).sum(-1)  # (B, heads, T)
    return rows.transpose(1, 2)[mask.bool()].mean()


def block_loss(student: tuple, teacher: tuple, mask: torch.Tensor, code: bool, blocks,
               parts: tuple[str, ...] = PARTS) -> dict[str, torch.Tensor]:
    """Sum of the losses over the zero-based `blocks`, by name; what is not among `parts` is not computed.

    `student`, `teacher`: what `run_blocks` returned for the same parts.
    """
    kinds = {"feature": feature_transfer_code if code else feature_transfer, "attention": attention_transfer}
    return {name: torch.stack([kinds[name](student[k][i], teacher[k][i], mask) for i in blocks]).sum()
            for k, name in enumerate(PARTS) if name in parts}


def word_distillation(student: torch.Tensor, teacher: torch.Tensor, labels: torch.Tensor,
                      alpha: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """L_PD = alpha * L_MLM + (1 - alpha) * L_KD on the masked positions; returns (L_PD, L_MLM, L_KD).

    student, teacher: logits (masked positions, vocabulary); labels: the words that stood there. L_KD is the soft
    cross-entropy -sum p_T log p_S at temperature 1, as in the official code; its floor is the teacher's entropy. There
    is no next-sentence loss: the texts here hold no sentence pairs.
    """
    log_q = student.float().log_softmax(-1)
    mlm = F.nll_loss(log_q, labels)
    kd = -(teacher.float().softmax(-1) * log_q).sum(-1).mean()
    return alpha * mlm + (1 - alpha) * kd, mlm, kd
