"""An IB-BERT made from a pre-trained BERT: its blocks between new linear layers, then trained with masked words.

The paper trains its teacher from scratch on 256 TPU chips. Here the backbone's blocks are kept, and the new parts start
from closed forms, so that the short training that follows begins near the backbone and not at nothing:

* the stream between blocks starts as the leading principal components of the backbone's hidden states;
* word vectors are the leading principal components of the backbone's word table, and the further components are the
  output layer's own columns;
* each block's input layer is the ridge regression of the backbone's hidden state on the narrow stream; queries, keys
  and values, which the paper takes from the narrow stream, are the backbone's behind that regression.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers.masking_utils import create_bidirectional_mask

from lib import fast
from lib.errors import InputError
from lib.hidden import capture_hidden
from lib.methods.ibbert_model import IBBertConfig, IBBertForMaskedLM

RESIDUAL = 2.0  # weight of a block's output beside the stream that it is added to, at the start
RIDGE = 1e-3  # of the mean diagonal of the Gram matrix


def configuration(c, between: int, embedding: int) -> IBBertConfig:
    """IB-BERT with the blocks of a BERT of configuration `c` inside.

    0 for a width: half of the backbone's between the blocks (paper: 512 of 1024), half of that for the word vectors
    (paper: a quarter, 128).

    Raises `InputError` for a backbone that is no BERT or widths that do not shrink.
    """
    if c.model_type != "bert":
        raise InputError(f"mobilebert: the backbone is a {c.model_type}; its IB teacher is made of BERT's blocks; "
                         "allowed: backbones of model type bert")
    between = between or c.hidden_size // 2
    embedding = embedding or between // 2
    if not 0 < embedding < between < c.hidden_size:
        raise InputError(f"between: {between} and embedding: {embedding} must be 0 < embedding < between < "
                         f"{c.hidden_size}, the backbone's width")
    config = IBBertConfig(
        vocab_size=c.vocab_size, hidden_size=between, embedding_size=embedding, intra_bottleneck_size=c.hidden_size,
        num_hidden_layers=c.num_hidden_layers, num_attention_heads=c.num_attention_heads,
        intermediate_size=c.intermediate_size, hidden_act=c.hidden_act, hidden_dropout_prob=c.hidden_dropout_prob,
        attention_probs_dropout_prob=c.attention_probs_dropout_prob, max_position_embeddings=c.max_position_embeddings,
        type_vocab_size=c.type_vocab_size, layer_norm_eps=c.layer_norm_eps, pad_token_id=c.pad_token_id)
    config._attn_implementation = fast.ATTENTION
    return config


def principal(x: torch.Tensor, count: int) -> torch.Tensor:
    """Leading principal directions of centred rows `x` (n, width), as columns (width, count), in float64."""
    return torch.linalg.eigh((x.T @ x).double()).eigenvectors.flip(-1)[:, :count]


def regression(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Ridge regression y ~ x A^T + a over rows. Returns (A, a, explained share of the variance of y).

    A and a in float64. x: (n, p), y: (n, q), float32.
    """
    mx, my = x.mean(0), y.mean(0)
    x, y = x - mx, y - my
    gram = (x.T @ x).double()
    gram += RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    a = torch.linalg.solve(gram, (x.T @ y).double()).T
    rest = y - x @ a.float().T
    return a, my - a @ mx.double(), float(1 - rest.square().sum() / y.square().sum())


def _set(linear: nn.Linear, weight: torch.Tensor, bias: torch.Tensor) -> None:
    linear.weight.copy_(weight)
    linear.bias.copy_(bias)


def _states(backbone: nn.Module, batches: list[dict]) -> list[torch.Tensor]:
    """Hidden states (tokens, width) of real tokens: of the embeddings, then of each layer."""
    collected = []
    for b in batches:
        with capture_hidden(backbone) as states:
            backbone(input_ids=b["input_ids"], attention_mask=b["attention_mask"])
        collected.append([s[b["attention_mask"].bool()].float() for s in states])
    return [torch.cat(parts) for parts in zip(*collected, strict=True)]


@torch.no_grad()
def from_backbone(backbone: nn.Module, config: IBBertConfig,
                  batches: list[dict]) -> tuple[IBBertForMaskedLM, list[float]]:
    """The IB teacher at its start, and for each block the share of the backbone's hidden variance that it sees.

    `batches`: input_ids and attention_mask (B, T) of unlabelled text, some thousand tokens in all, on the CPU.
    """
    bert = backbone.base_model.eval()
    model = IBBertForMaskedLM(config).eval()
    base, width = model.base_model, config.embedding_size
    masks = [b["attention_mask"].bool() for b in batches]
    targets = _states(bert, batches)
    centres = [t.mean(0) for t in targets]
    channel = principal(torch.cat([t - m for t, m in zip(targets, centres, strict=True)]), config.hidden_size).float()
    _embeddings(model, bert, channel, width)
    streams = [base.embeddings(input_ids=b["input_ids"]) for b in batches]
    norm, seen = bert.embeddings.LayerNorm, []
    for i, (block, old) in enumerate(zip(base.encoder.layer, bert.encoder.layer, strict=True)):
        a, offset, share = regression(torch.cat([s[m] for s, m in zip(streams, masks, strict=True)]), targets[i])
        seen.append(share)
        gain = norm.weight.double()
        _set(block.bottleneck.input.dense, a / gain[:, None], (offset - norm.bias) / gain)
        block.bottleneck.input.LayerNorm.load_state_dict(norm.state_dict())
        for name in ("query", "key", "value"):
            source = getattr(old.attention.self, name)
            weight = source.weight.double()
            _set(getattr(block.attention.self, name), weight @ a, weight @ offset + source.bias)
        block.attention.output.load_state_dict(old.attention.output.state_dict())
        block.intermediate.load_state_dict(old.intermediate.state_dict())
        block.output.dense.load_state_dict(old.output.dense.state_dict())
        block.output.LayerNorm.load_state_dict(old.output.LayerNorm.state_dict())
        out = (targets[i + 1] - centres[i + 1]) @ channel
        scale = RESIDUAL / out.square().mean().sqrt()
        _set(block.output.bottleneck.dense, scale * channel.T, -scale * (centres[i + 1] @ channel))
        streams = [block(s, _mask(config, s, b)) for s, b in zip(streams, batches, strict=True)]
        norm = old.output.LayerNorm
    return fast.install(model), seen


def _mask(config, stream: torch.Tensor, batch: dict):
    return create_bidirectional_mask(config=config, inputs_embeds=stream, attention_mask=batch["attention_mask"])


def _embeddings(model: IBBertForMaskedLM, bert: nn.Module, channel: torch.Tensor, width: int) -> None:
    """Word vectors and output columns from the backbone's table; at first the token itself without its neighbours."""
    own, old = model.base_model.embeddings, bert.embeddings
    table = old.word_embeddings.weight
    mean = table.mean(0)
    directions = principal(table - mean, channel.shape[1]).float()
    parts = (table - mean) @ directions  # (vocabulary, width between blocks)
    own.word_embeddings.weight.copy_(parts[:, :width])
    own.word_embeddings.weight[model.config.pad_token_id] = 0  # outside of the text there are zeros (trigrams)
    model.cls.predictions.dense.weight.copy_(parts[:, width:].T)
    middle = torch.zeros_like(own.embedding_transformation.weight)
    middle[:, width : 2 * width] = channel.T @ directions[:, :width]
    _set(own.embedding_transformation, middle, mean @ channel)
    own.position_embeddings.weight.copy_(old.position_embeddings.weight @ channel)
    own.token_type_embeddings.weight.copy_(old.token_type_embeddings.weight @ channel)
