"""IB-BERT, the teacher of MobileBERT (Sun et al. 2020, arXiv 2004.02984, section 3.1 and Table 1).

A BERT whose blocks stand between two linear layers: narrow between the blocks, wide inside them. transformers has
MobileBERT but not this: in a `MobileBertLayer` that takes queries, keys and values straight from the block's input
(`use_bottleneck_attention=False`, `key_query_shared_bottleneck=False`), the query and key layers are built for the
inner width and refuse the input. Here they are built for it; everything else is transformers' own block.

This file imports nothing of the study: it travels with a saved model, which then opens without the repository.
"""

from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    MobileBertConfig,
    MobileBertForMaskedLM,
    MobileBertForSequenceClassification,
    MobileBertModel,
)


class IBBertConfig(MobileBertConfig):
    """Defaults are IB-BERT-large: 24 blocks, 512 between, 1024 inside, 4 heads, one FFN of 4096, gelu, LayerNorm.

    `hidden_size` is the width between blocks, `intra_bottleneck_size` the one inside (transformers' names).
    """

    model_type = "ibbert"

    intra_bottleneck_size: int = 1024
    intermediate_size: int = 4096
    hidden_act: str = "gelu"
    hidden_dropout_prob: float | int = 0.1
    key_query_shared_bottleneck: bool = False
    num_feedforward_networks: int = 1
    normalization_type: str = "layer_norm"
    classifier_activation: bool = False  # the first token's state itself is the pooled output (official code)


def _take_the_input(model, config) -> None:
    """Queries and keys from the width between blocks, as values already are."""
    for layer in model.base_model.encoder.layer:
        inner = layer.attention.self
        inner.query = nn.Linear(config.hidden_size, inner.all_head_size)
        inner.key = nn.Linear(config.hidden_size, inner.all_head_size)
    model.post_init()


class IBBertModel(MobileBertModel):
    """The encoder: (B, T) ids -> (B, T, hidden_size)."""

    config_class = IBBertConfig

    def __init__(self, config, add_pooling_layer=True):
        super().__init__(config, add_pooling_layer)
        _take_the_input(self, config)


class IBBertForMaskedLM(MobileBertForMaskedLM):
    """With MobileBERT's output layer: the embedding table and `hidden_size - embedding_size` columns of its own."""

    config_class = IBBertConfig

    def __init__(self, config):
        super().__init__(config)
        _take_the_input(self, config)


class IBBertForSequenceClassification(MobileBertForSequenceClassification):
    """With a linear layer on the first token."""

    config_class = IBBertConfig

    def __init__(self, config):
        super().__init__(config)
        _take_the_input(self, config)


AutoConfig.register("ibbert", IBBertConfig, exist_ok=True)
AutoModel.register(IBBertConfig, IBBertModel, exist_ok=True)
AutoModelForMaskedLM.register(IBBertConfig, IBBertForMaskedLM, exist_ok=True)
AutoModelForSequenceClassification.register(IBBertConfig, IBBertForSequenceClassification, exist_ok=True)
IBBertConfig.register_for_auto_class()
IBBertModel.register_for_auto_class("AutoModel")
IBBertForMaskedLM.register_for_auto_class("AutoModelForMaskedLM")
IBBertForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")
