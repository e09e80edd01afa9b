"""TrimBERT's architecture (arXiv 2202.12411) in transformers' classes: fewer intermediate blocks, normalised attention.

With `intermediate_every=1` and no other change it is BERT, and the names of its weights are BERT's throughout. This
file imports nothing of the study: it is copied into every saved student, which so opens without it.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, BertConfig
from transformers import initialization as init
from transformers.models.bert.modeling_bert import (
    BertEmbeddings,
    BertEncoder,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertLayer,
    BertModel,
    BertOnlyMLMHead,
    BertPooler,
    BertPreTrainedModel,
    BertSelfAttention,
)


class TrimBertConfig(BertConfig):
    """BERT's configuration and what TrimBERT changes. Section numbers are those of the study's notes on the paper.

    `num_hidden_layers` counts attention blocks (m in the paper). Raises `ValueError` for a value out of range.
    """

    model_type = "trimbert"

    intermediate_every: int = 1  # n: an intermediate block after attention blocks n, 2n, 3n, ...; 0: none (n infinite)
    bandd: bool = False  # attention weights by normalisation instead of softmax (12.2)
    removed_dropout: str = "output"  # with bandd, "dropout after self-attention": output, weights, both or none (12.3)
    scale_scores: bool = False  # with bandd: divide the scores by sqrt(d) first
    head_gain: bool = True  # with bandd: a trained gain and bias for each head
    gain_start: float = 1.0  # of that gain; the bias starts at 0
    normalization_eps: float = 1e-3  # added to the deviation, not to the variance
    intermediate_layernorm: bool = True  # False: NoMLPLN
    attention_layernorm: bool = True  # False: the paper's control, which diverges

    def __post_init__(self, **kwargs):
        """Check what transformers does not know."""
        super().__post_init__(**kwargs)
        if self.intermediate_every < 0:
            raise ValueError(f"intermediate_every: {self.intermediate_every} must be 0 (none) or more")
        if self.removed_dropout not in ("output", "weights", "both", "none"):
            raise ValueError(f"removed_dropout: {self.removed_dropout!r}; allowed: output, weights, both, none")

    def has_intermediate(self, block: int) -> bool:
        """Whether an intermediate block follows the attention block with this zero-based number."""
        return self.intermediate_every > 0 and (block + 1) % self.intermediate_every == 0


def normalise(scores: torch.Tensor, seen: torch.Tensor | None, gain: torch.Tensor | None, bias: torch.Tensor | None,
              eps: float) -> torch.Tensor:
    """Attention weights without softmax (Richter and Wattenhofer 2020, arXiv 2005.09561; methods.md 12.2).

    scores: (B, heads, T, S); `seen`: boolean, broadcastable to it, True where a key counts, or None for all; gain and
    bias: (heads,) or None. Over the seen keys of each query: w = gain * (x - mean) / (deviation + eps) + bias, the
    population deviation; unseen keys get 0. Weights may be negative. Computed and returned in float32.
    """
    x = scores.float()
    if seen is None:
        x = x - x.mean(-1, keepdim=True)
        variance = x.square().mean(-1, keepdim=True)
    else:
        mask = seen.to(x.dtype)
        count = mask.sum(-1, keepdim=True).clamp(min=1)
        x = (x - (x * mask).sum(-1, keepdim=True) / count) * mask
        variance = x.square().sum(-1, keepdim=True) / count
    # Where all scores are equal the weights are 0 whatever the deviation, but sqrt has no derivative at 0
    weights = x / (variance.clamp(min=1e-20).sqrt() + eps)
    if gain is not None:
        weights = weights * gain.float().view(-1, 1, 1) + bias.float().view(-1, 1, 1)
    return weights if seen is None else weights * mask


class NormalisedSelfAttention(BertSelfAttention):
    """BERT's self-attention with `normalise` for softmax."""

    def __init__(self, config, layer_idx=None):
        super().__init__(config, layer_idx=layer_idx)
        self.eps = config.normalization_eps
        if not config.scale_scores:
            self.scaling = 1.0
        if config.removed_dropout in ("weights", "both"):
            self.dropout = nn.Identity()
        shape = (self.num_attention_heads,)
        self.gain = nn.Parameter(torch.full(shape, config.gain_start)) if config.head_gain else None
        self.bias = nn.Parameter(torch.zeros(shape)) if config.head_gain else None

    def forward(self, hidden_states, attention_mask=None, **_):
        """hidden_states: (B, T, H); attention_mask: None, boolean or additive (B, 1, T, T). -> ((B, T, H), weights)."""
        if attention_mask is not None and attention_mask.ndim != 4:
            raise ValueError("TrimBERT's normalised attention needs the mask of eager, sdpa or the study's attention")
        shape = (*hidden_states.shape[:-1], self.num_attention_heads, self.attention_head_size)
        query, key, value = (f(hidden_states).view(shape).transpose(1, 2) for f in (self.query, self.key, self.value))
        seen = attention_mask
        if seen is not None and seen.dtype != torch.bool:
            seen = seen == 0
        scores = query @ key.transpose(-1, -2)  # (B, heads, T, T)
        if self.scaling != 1.0:
            scores = scores * self.scaling
        weights = self.dropout(normalise(scores, seen, self.gain, self.bias, self.eps))
        context = weights.to(value.dtype) @ value  # (B, heads, T, d)
        return context.transpose(1, 2).flatten(2), weights


class TrimBertLayer(BertLayer):
    """An attention block, and an intermediate block after it where the configuration has one there."""

    def __init__(self, config, layer_idx):
        super().__init__(config, layer_idx=layer_idx)
        if config.bandd:
            self.attention.self = NormalisedSelfAttention(config, layer_idx=layer_idx)
            if config.removed_dropout in ("output", "both"):
                self.attention.output.dropout = nn.Identity()
        if not config.attention_layernorm:
            self.attention.output.LayerNorm = nn.Identity()
        if not config.has_intermediate(layer_idx):
            del self.intermediate, self.output
        elif not config.intermediate_layernorm:
            self.output.LayerNorm = nn.Identity()

    def feed_forward_chunk(self, attention_output):
        """(B, T, H) -> (B, T, H): the intermediate block, or nothing."""
        return super().feed_forward_chunk(attention_output) if hasattr(self, "intermediate") else attention_output


class TrimBertEncoder(BertEncoder):
    """The chain of blocks."""

    def __init__(self, config):
        nn.Module.__init__(self)
        self.config = config
        self.layer = nn.ModuleList([TrimBertLayer(config, i) for i in range(config.num_hidden_layers)])


class TrimBertPreTrainedModel(BertPreTrainedModel):
    """What all TrimBERT models share."""

    config_class = TrimBertConfig
    _supports_flash_attn = False
    _supports_flex_attn = False
    _can_record_outputs = {"hidden_states": TrimBertLayer, "attentions": BertSelfAttention}

    @torch.no_grad()
    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, NormalisedSelfAttention) and module.gain is not None:
            init.constant_(module.gain, self.config.gain_start)
            init.zeros_(module.bias)

    def save_pretrained(self, *args, **kwargs):
        """As transformers'. `ValueError` where blocks do not stand where the configuration says, e.g. after surgery.

        Such a folder would reload with random weights.
        """
        blocks = self.base_model.encoder.layer
        have = [hasattr(x, "intermediate") for x in blocks]
        if have != [self.config.has_intermediate(i) for i in range(self.config.num_hidden_layers)]:
            raise ValueError(f"TrimBERT: intermediate blocks after {[i + 1 for i, h in enumerate(have) if h]} of "
                             f"{len(blocks)} are not every {self.config.intermediate_every}th; it cannot be saved")
        return super().save_pretrained(*args, **kwargs)


# Each class below skips the BERT class's own constructor, which would build a second network.
class TrimBertModel(TrimBertPreTrainedModel, BertModel):
    """The encoder with BERT's pooler."""

    _no_split_modules = ["BertEmbeddings", "TrimBertLayer"]

    def __init__(self, config, add_pooling_layer=True):
        super(BertModel, self).__init__(config)
        self.gradient_checkpointing = False
        self.embeddings = BertEmbeddings(config)
        self.encoder = TrimBertEncoder(config)
        self.pooler = BertPooler(config) if add_pooling_layer else None
        self.post_init()


class TrimBertForMaskedLM(TrimBertPreTrainedModel, BertForMaskedLM):
    """The encoder with BERT's masked-word head, its output matrix tied to the word embeddings."""

    def __init__(self, config):
        super(BertForMaskedLM, self).__init__(config)
        self.bert = TrimBertModel(config, add_pooling_layer=False)
        self.cls = BertOnlyMLMHead(config)
        self.post_init()


class TrimBertForSequenceClassification(TrimBertPreTrainedModel, BertForSequenceClassification):
    """The encoder with BERT's classification head."""

    def __init__(self, config):
        super(BertForSequenceClassification, self).__init__(config)
        self.num_labels = config.num_labels
        self.bert = TrimBertModel(config)
        dropout = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()


AutoConfig.register("trimbert", TrimBertConfig, exist_ok=True)
for _auto, _model in ((AutoModel, TrimBertModel), (AutoModelForMaskedLM, TrimBertForMaskedLM),
                      (AutoModelForSequenceClassification, TrimBertForSequenceClassification)):
    _auto.register(TrimBertConfig, _model, exist_ok=True)
    _model.register_for_auto_class(_auto.__name__)
TrimBertConfig.register_for_auto_class()
