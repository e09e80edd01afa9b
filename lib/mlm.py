"""Masked language modelling on any encoder that has input embeddings.

    masker = Masker(tokenizer)                        15% of the tokens, 80/10/10
    masked = masker(batch, step.random()) -> Masked   .inputs (model inputs), .where (B, T) bool, .targets (M,)
    model = MaskedLM(encoder, head)                   model(masked) -> logits (M, V) at the masked positions
    model.hidden(masked.inputs) -> (B, T, H)          model.logits(hidden[masked.where]) -> (M, V)
    language_loss(masker)                             loss function for lib.training.train(model: MaskedLM, ...)
    quality(model, encoded, masker) -> dict           masked-word accuracy and loss, always the same masks
    head_for(backbone, tokenizer, p) -> (Head, Artefact)   its own head where published, else one trained on p.text

M is the number of masked tokens of a batch, V the vocabulary, H the hidden size, E the width of the word embeddings.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F
from transformers import MODEL_FOR_MASKED_LM_MAPPING
from transformers.activations import ACT2FN

from lib import artefacts, models, text, training
from lib.batches import Batch, Encoded, in_order
from lib.checkpoint import Checkpoints
from lib.errors import InputError
from lib.parameters import Float
from lib.provenance import digest
from lib.training import Loss, Step

SHARE = 0.15  # of the tokens are predicted (Devlin et al. 2019, section 3.1)
HEAD_BATCH = 64  # masked words a step of a head that is trained here
MASK, RANDOM = 0.8, 0.1  # of these become [MASK], or a random word; the rest stays as it is


class General(text.General):
    """Parameters of a general stage with a language-modelling head."""

    head_lr: Annotated[Float, Field(gt=0, le=1)] = 2e-3  # of a head trained here, the encoder fixed
    head_epochs: Annotated[Float, Field(gt=0, le=1000)] = 3  # passes over the masked words; the encoder runs once


@dataclass(frozen=True)
class Masked:
    """A batch with tokens hidden. `inputs`: input_ids and attention_mask (B, T); `targets`: the true ids (M,)."""

    inputs: Batch
    where: torch.Tensor
    targets: torch.Tensor


class Masker:
    """Hides tokens anew at each call (dynamic masking), as a function of the generator it is given.

    Each token is drawn with probability `share`. With `weights` (V,) instead ceil(share * tokens) of a batch are drawn
    without replacement, with probability proportional to the weight of the word (DistilBERT, official code). Special
    tokens and padding are never drawn, nor put in as random words. At least one token of a batch is drawn.
    """

    def __init__(self, tokenizer, share: float = SHARE, weights: np.ndarray | None = None):
        if tokenizer.mask_token_id is None:
            raise InputError(f"{type(tokenizer).__name__}: the tokenizer has no mask token; masked language modelling "
                             "needs one")
        self.mask_id, self.share, self.weights = tokenizer.mask_token_id, share, weights
        self.special = np.array(sorted(tokenizer.all_special_ids))
        self.words = np.setdiff1d(np.array(sorted(tokenizer.get_vocab().values())), self.special)

    def __call__(self, batch: Batch, rng: np.random.Generator) -> Masked:
        """batch: input_ids, attention_mask (B, T). The result lies on the same device."""
        place = batch["input_ids"].device
        ids = batch["input_ids"].cpu().numpy()  # (B, T)
        allowed = (batch["attention_mask"].cpu().numpy() > 0) & ~np.isin(ids, self.special)
        if not allowed.any():
            raise ValueError("masking: the batch holds special tokens only")
        if self.weights is None:
            chosen = allowed & (rng.random(ids.shape) < self.share)
            if not chosen.any():
                chosen.flat[rng.choice(np.flatnonzero(allowed))] = True
        else:
            count = min(int(np.ceil(self.share * batch["attention_mask"].sum().item())), int(allowed.sum()))
            places = np.flatnonzero(allowed)
            arrival = rng.exponential(size=len(places)) / self.weights[ids.flat[places]]  # the first are the sample
            chosen = np.zeros_like(allowed)
            chosen.flat[places[np.argsort(arrival, kind="stable")[:count]]] = True
        fate = rng.random(ids.shape)
        hidden = np.where(chosen & (fate < MASK), self.mask_id, ids)
        other = chosen & (fate >= 1 - RANDOM)
        hidden[other] = self.words[rng.integers(len(self.words), size=int(other.sum()))]
        where = torch.from_numpy(chosen).to(place)
        return Masked({"input_ids": torch.from_numpy(hidden).to(place), "attention_mask": batch["attention_mask"]},
                      where, batch["input_ids"][where])


def word_counts(data: Encoded, vocabulary: int) -> np.ndarray:
    """How often each id stands in the text, (V,)."""
    return np.bincount(np.concatenate([np.asarray(s) for s in data.inputs["input_ids"]]), minlength=vocabulary)


class Head(nn.Module):
    """BERT's language-modelling head: dense, activation, layer normalisation, decoder tied to the word embeddings.

    The table is handed over at each call and is no part of the head's state.
    """

    def __init__(self, hidden: int, width: int, vocabulary: int, activation: str = "gelu", epsilon: float = 1e-12,
                 deviation: float = 0.02):
        super().__init__()
        self.dense = nn.Linear(hidden, width)
        self.activation = ACT2FN[activation]
        self.norm = nn.LayerNorm(width, eps=epsilon)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        nn.init.normal_(self.dense.weight, std=deviation)
        nn.init.zeros_(self.dense.bias)

    @classmethod
    def of(cls, encoder: nn.Module) -> Head:
        """A fresh head that fits an encoder, drawn from torch's generator."""
        table, c = encoder.get_input_embeddings().weight, encoder.config
        return cls(c.hidden_size, table.shape[1], table.shape[0], _activation(c), getattr(c, "layer_norm_eps", 1e-12),
                   getattr(c, "initializer_range", 0.02))

    def start_from(self, counts: np.ndarray) -> None:
        """Set the bias to the log frequencies of words (V,), one added to each: the head then knows what is common."""
        share = (counts + 1) / (counts + 1).sum()
        with torch.no_grad():
            self.bias.copy_(torch.from_numpy(np.log(share)))

    def forward(self, hidden: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """hidden (..., H), table (V, E) -> logits (..., V)."""
        return F.linear(self.norm(self.activation(self.dense(hidden))), table, self.bias.to(hidden.dtype))


class MaskedLM(nn.Module):
    """An encoder with a head over its own word embeddings."""

    def __init__(self, encoder: nn.Module, head: Head):
        super().__init__()
        self.encoder, self.head = encoder, head

    def hidden(self, inputs: Batch) -> torch.Tensor:
        """Last hidden states (B, T, H)."""
        return self.encoder(**inputs).last_hidden_state

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden (..., H) -> (..., V)."""
        return self.head(hidden, self.encoder.get_input_embeddings().weight)

    def forward(self, masked: Masked) -> torch.Tensor:
        """Logits at the masked positions (M, V): the vocabulary is never computed for the others."""
        return self.logits(self.hidden(masked.inputs)[masked.where])


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean over the masked tokens, in float32. logits (M, V), targets (M,)."""
    return F.cross_entropy(logits.float(), targets)


def language_loss(masker: Masker) -> training.LossFunction:
    """The loss function of masked language modelling; its weight is the number of masked tokens."""

    def loss(model: MaskedLM, batch: Batch, step: Step) -> Loss:
        masked = masker(batch, step.random())
        return Loss(cross_entropy(model(masked), masked.targets), weight=len(masked.targets))

    return loss


def quality(model: MaskedLM, data: Encoded, masker: Masker, batch_size: int = 32, precision: str = "fp32") -> dict:
    """{"accuracy": share of masked words predicted, "loss": mean cross-entropy, "words": how many}; masks are fixed."""
    place, mode = next(model.parameters()).device, model.training
    model.eval()
    right, loss, count = 0, 0.0, 0
    with torch.inference_mode(), torch.autocast(place.type, torch.bfloat16, enabled=precision == "bf16"):
        for i, (_, batch) in enumerate(in_order(data, batch_size)):
            masked = masker({k: v.to(place) for k, v in batch.items()}, np.random.default_rng([0, i]))
            logits = model(masked)
            right += int((logits.argmax(-1) == masked.targets).sum())
            loss += float(cross_entropy(logits, masked.targets)) * len(masked.targets)
            count += len(masked.targets)
    model.train(mode)
    return {"accuracy": right / count, "loss": loss / count, "words": count}


def head_for(backbone: str, tokenizer, p: General) -> tuple[Head, artefacts.Artefact]:
    """The language-modelling head of a backbone: its published one, else one trained on `p.text`, the encoder fixed.

    An artefact either way: its meta "quality" is the masked-word accuracy on held-out text; "seconds" and "tokens" are
    0 for a published head. The head is on the CPU. Raises `InputError` for a tokenizer without a mask token.
    """
    masker, precision = Masker(tokenizer), training.precision(p.precision)
    encoder = models.load_encoder(backbone)
    settings = text.settings(p, f"head for {backbone}", lr=p.head_lr, epochs=p.head_epochs, precision=precision,
                             batch_size=HEAD_BATCH, accumulation=1)
    configuration = {"backbone": models.content_hash(models.resolve(backbone)), "settings": vars(settings),
                     **text.key(p.text, tokenizer, p.text_length, p.text_tokens)}

    def make(folder: Path) -> dict:
        sequences = text.load(p.text, tokenizer, p.text_length, p.text_tokens)
        head = published_head(backbone, encoder)
        meta = {"source": "published with the backbone", "seconds": 0.0, "tokens": 0}
        if head is None:
            head, meta = _train_head(encoder, sequences.train, masker, settings,
                                     Checkpoints(folder / "checkpoints", digest(configuration)))
        model = MaskedLM(encoder, head).to(training.device())
        meta |= {"quality": quality(model, sequences.held_out, masker, precision=precision), **sequences.record()}
        save_file({k: v.cpu().contiguous() for k, v in head.state_dict().items()}, folder / "head.safetensors")
        return meta

    artefact = artefacts.build("mlm-head", configuration, make)
    head = Head.of(encoder)
    head.load_state_dict(load_file(artefact.folder / "head.safetensors"))
    return head, artefact


def masked_states(encoder: nn.Module, data: Encoded, masker: Masker, precision: str = "fp32",
                  batch_size: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """Last hidden states (M, H) in float32 and true ids (M,) of every masked token of a text, in one pass, on the CPU.

    Evaluation mode, masks drawn once: what a head on a fixed encoder sees never changes, so it is computed once.
    """
    place = training.device()
    encoder.to(place).eval()
    states, targets = [], []
    with torch.no_grad(), torch.autocast(place.type, torch.bfloat16, enabled=precision == "bf16"):
        for i, (_, batch) in enumerate(in_order(data, batch_size)):
            masked = masker({k: v.to(place) for k, v in batch.items()}, np.random.default_rng([1, i]))
            states.append(encoder(**masked.inputs).last_hidden_state[masked.where].float().cpu())
            targets.append(masked.targets.cpu())
    return torch.cat(states), torch.cat(targets)


def _train_head(encoder: nn.Module, data: Encoded, masker: Masker, settings: training.Settings,
                checkpoints: Checkpoints) -> tuple[Head, dict]:
    """A head trained on the masked words of a text: they are its rows, the encoder's states its inputs."""
    began = time.perf_counter()
    states, targets = masked_states(encoder, data, masker, settings.precision)
    table = encoder.get_input_embeddings().weight.detach()
    if settings.precision == "bf16":
        table = table.bfloat16()  # autocast would do it again at every step
    torch.manual_seed(0)
    head = Head.of(encoder)
    head.start_from(word_counts(data, len(head.bias)))
    rows = Encoded({"input_ids": targets[:, None].tolist()}, targets.numpy(), np.ones(len(targets), dtype=np.int64),
                   np.arange(len(targets)), {})

    def loss(head: Head, batch: Batch, step: Step) -> torch.Tensor:
        return cross_entropy(head(states[batch["rows"].cpu()].to(table.device), table), batch["labels"])

    history = training.train(head, loss, rows, settings, checkpoints=checkpoints)
    return head, {"source": "trained here, encoder fixed", "seconds": time.perf_counter() - began,
                  "tokens": int(data.lengths.sum()), "masked_tokens": len(targets), "curve": history.curve}


def published_head(backbone: str, encoder: nn.Module) -> Head | None:
    """The head that a checkpoint brings along, if it has the form of `Head` and is tied to the embeddings, or None."""
    if type(encoder.config) not in MODEL_FOR_MASKED_LM_MAPPING:
        return None
    model, missing = models.load_masked_lm(backbone)
    base, decoder = model.base_model, model.get_output_embeddings()
    inside = set(base.modules())
    outside = [m for m in model.modules() if m not in inside]
    dense = [m for m in outside if isinstance(m, nn.Linear) and m is not decoder]
    norm = [m for m in outside if isinstance(m, nn.LayerNorm)]
    if any(not k.startswith(model.base_model_prefix + ".") for k in missing) or len(dense) != 1 or len(norm) != 1:
        return None
    if decoder.bias is None or not torch.equal(decoder.weight, model.get_input_embeddings().weight):
        return None
    head = Head.of(encoder)
    with torch.no_grad():
        for own, theirs in ((head.dense.weight, dense[0].weight), (head.dense.bias, dense[0].bias),
                            (head.norm.weight, norm[0].weight), (head.norm.bias, norm[0].bias),
                            (head.bias, decoder.bias)):
            own.copy_(theirs)
    return head


def _activation(config) -> str:
    name = getattr(config, "hidden_act", None) or getattr(config, "activation", None)
    return name if isinstance(name, str) and name in ACT2FN else "gelu"
