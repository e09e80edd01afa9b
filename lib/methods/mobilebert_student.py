"""MobileBERT's student in transformers' own classes, and what they do that a reader may not expect.

* The trigram embedding of a token looks at the next token, padding or not. With a padding vector of zero (as here, and
  as outside of the text) a padded batch gives what the row alone gives; with another vector the last real token's
  embedding changes, and through attention everything else.
* transformers builds one LayerNorm of each block (`output.LayerNorm`) with epsilon 1e-5 whatever the configuration
  says; NoNorm has none.
* For TINY, `key_query_shared_bottleneck` must be off, or each block keeps a second bottleneck that nothing uses.
* The pooled output is the first token's state itself only with `classifier_activation=False` (official code);
  transformers' default adds a dense layer and tanh.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import MobileBertConfig, MobileBertForMaskedLM

from lib import fast
from lib.errors import InputError

# On the pooled output in fine-tuning (official code, run_classifier). Not set, transformers takes the hidden dropout, 0
CLASSIFIER_DROPOUT = 0.1


def keep_padding_zero(model: nn.Module) -> nn.Module:
    """No gradient for the padding word's vector, in place. It starts at zero and so stays there.

    The embedding alone would see to it, but the output layer shares the table and does train that row. A trigram of the
    last word looks at the vector after it: with zeros there, padding is what is outside of the text.
    """
    row = model.config.pad_token_id

    def hook(gradient):
        gradient = gradient.clone()
        gradient[row] = 0
        return gradient

    model.get_input_embeddings().weight.register_hook(hook)
    return model


def student_config(teacher, p) -> MobileBertConfig:
    """MobileBERT with the teacher's depth, heads and width between blocks. `InputError` where heads do not divide.

    `p.inside` 0: a quarter of the teacher's inner width. FFNs are four times as wide as the inside (128 to 512).
    `tiny`: keys, queries and values all from the one bottleneck; two FFNs where `p.ffns` is 0, else four.
    """
    inside = p.inside or teacher.intra_bottleneck_size // 4
    if inside % teacher.num_attention_heads:
        raise InputError(f"inside: {inside} is not a multiple of {teacher.num_attention_heads}, the number of heads "
                         "that teacher and student share")
    config = MobileBertConfig(
        vocab_size=teacher.vocab_size, hidden_size=teacher.hidden_size, embedding_size=teacher.embedding_size,
        num_hidden_layers=teacher.num_hidden_layers, num_attention_heads=teacher.num_attention_heads,
        intra_bottleneck_size=inside, intermediate_size=4 * inside,
        num_feedforward_networks=p.ffns or (2 if p.tiny else 4),
        use_bottleneck_attention=p.tiny, key_query_shared_bottleneck=not p.tiny, hidden_act=p.activation,
        normalization_type=p.normalisation, max_position_embeddings=teacher.max_position_embeddings,
        type_vocab_size=teacher.type_vocab_size, pad_token_id=teacher.pad_token_id, classifier_activation=False,
        classifier_dropout=CLASSIFIER_DROPOUT)
    config._attn_implementation = fast.ATTENTION
    return config


@torch.no_grad()
def new_student(teacher: nn.Module, config: MobileBertConfig, batch: dict) -> MobileBertForMaskedLM:
    """Embeddings and output layer of the teacher, blocks at random (official code); torch's generator draws them.

    Under NoNorm the embeddings' gain and bias are fitted, feature by feature on `batch`, to what the teacher's
    LayerNorm gave: copied as they are they would be on another scale. Without dropout, as in the official distillation;
    the configuration keeps the attention dropout of 0.1 for fine-tuning.
    """
    model = MobileBertForMaskedLM(config)
    own, theirs = model.base_model.embeddings, teacher.base_model.embeddings
    own.load_state_dict(theirs.state_dict())
    model.cls.load_state_dict(teacher.cls.state_dict())
    if config.normalization_type == "no_norm":
        kept = {}
        handle = theirs.LayerNorm.register_forward_hook(lambda m, given, out: kept.update(x=given[0], y=out))
        theirs.eval()(input_ids=batch["input_ids"].to(theirs.word_embeddings.weight.device))
        handle.remove()
        real = batch["attention_mask"].bool()
        x, y = kept["x"].cpu()[real], kept["y"].cpu()[real]
        gain = ((x - x.mean(0)) * (y - y.mean(0))).mean(0) / x.var(0, unbiased=False)
        own.LayerNorm.weight.copy_(gain)
        own.LayerNorm.bias.copy_(y.mean(0) - gain * x.mean(0))
    for m in model.modules():
        if isinstance(m, nn.Dropout):
            m.p = 0.0
    return keep_padding_zero(model)
