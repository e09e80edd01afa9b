"""Every system of the study at its paper's own shape: configurations, which need neither weights nor a network.

Shapes are those of the papers' text and official code (methods.md, the section named at each); vocabulary 30522 and
512 positions, BERT uncased. Systems that differ in training only share a shape and stand here once, with all names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from transformers import AutoModel, BertConfig, DistilBertConfig

from lib.errors import one_of
from lib.methods import mobilebert_shapes
from lib.methods.efficientbert_model import config as efficientbert
from lib.methods.tinybert_shape import scaled, student_config
from lib.methods.trimbert_model import TrimBertConfig

BASE = "BERT-base"


@dataclass(frozen=True)
class System:
    """A shape with a name. `papers`: their keys in reported.csv."""

    name: str
    papers: str
    variant: str
    config: Callable[[], object]
    extra: tuple[str, int] = ("", 0)  # what a paper counts beside the encoder, in words, and its parameters
    long: bool = False  # one of the systems that TrimBERT's Fig. 6 follows to length 1024

    @property
    def layers(self) -> int:
        return self.config().num_hidden_layers


def _bert(layers: int = 12, width: int = 768, heads: int = 0, inner: int = 0) -> Callable[[], BertConfig]:
    return lambda: BertConfig(num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads or width // 64,
                              intermediate_size=inner or 4 * width)


def _tiny(name: str) -> Callable[[], BertConfig]:
    return lambda: student_config(BertConfig(), scaled(BertConfig(), name))


def _mobile(name: str, **changes) -> Callable[[], object]:
    def make():
        config = mobilebert_shapes.shape(name)
        for field, value in changes.items():
            setattr(config, field, value)
        return config

    return make


def _trim(**changes) -> Callable[[], TrimBertConfig]:
    return lambda: TrimBertConfig(**changes)


_PROJECTION = ("with its projection 540 to 768 for distillation", 540 * 768 + 768)

SYSTEMS = (
    System(BASE, "bert distilbert tinybert mobilebert efficientbert minilm pdbert", "12 x 768", _bert(), long=True),
    System("BERT-large", "bert mobilebert", "24 x 1024", _bert(24, 1024)),
    # Section 2 to 6. LayerDrop pruned to every other layer and TinyBERT6 have this shape, too.
    System("BERT, 6 layers", "theseus kd pkd pdbert truncated layerdrop tinybert minilm", "6 x 768", _bert(6)),
    System("BERT, 4 layers", "theseus pkd tinybert truncated", "4 x 768", _bert(4)),
    System("BERT, 3 layers", "theseus pkd truncated", "3 x 768", _bert(3)),
    System("DistilBERT", "distilbert", "6 x 768, no pooler, no token types", DistilBertConfig),
    System("DistilBERT4", "tinybert", "4 x 768, no pooler, no token types", lambda: DistilBertConfig(n_layers=4)),
    System("TinyBERT4", "tinybert theseus", "4 x 312, FFN 1200", _tiny("tinybert4")),
    System("TinyBERT6", "tinybert", "6 x 768: the shape of BERT, 6 layers", _tiny("tinybert6")),
    System("PD-BERT Tiny", "pdbert", "2 x 128", _bert(2, 128)),
    System("PD-BERT Mini", "pdbert", "4 x 256", _bert(4, 256)),
    System("PD-BERT Small", "pdbert tinybert", "4 x 512", _bert(4, 512)),
    System("PD-BERT Medium", "pdbert", "8 x 512", _bert(8, 512)),
    System("MiniLM-L6", "minilm", "6 x 384, 12 heads", _bert(6, 384, 12)),
    System("MiniLM-L12", "minilm", "12 x 384, 12 heads", _bert(12, 384, 12)),
    # Section 10; the paper's own is NoNorm with relu, and "w/o OPT" is LayerNorm with gelu
    System("MobileBERT", "mobilebert", "NoNorm, relu", _mobile("MobileBERT")),
    System("MobileBERT, LayerNorm", "mobilebert", "LayerNorm, relu",
           _mobile("MobileBERT", normalization_type="layer_norm")),
    System("MobileBERT, gelu", "mobilebert", "NoNorm, gelu", _mobile("MobileBERT", hidden_act="gelu")),
    System("MobileBERT w/o OPT", "mobilebert", "LayerNorm, gelu",
           _mobile("MobileBERT", normalization_type="layer_norm", hidden_act="gelu")),
    System("MobileBERT-TINY", "mobilebert tinybert efficientbert", "one bottleneck, two FFNs",
           _mobile("MobileBERT-TINY")),
    System("IB-BERT-large", "mobilebert", "the teacher", _mobile("IB-BERT-large")),
    # Section 11
    System("EfficientBERT", "efficientbert", "6 x 540, searched FFNs", lambda: efficientbert("base"), _PROJECTION),
    System("EfficientBERT-TINY", "efficientbert", "6 x 360", lambda: efficientbert("tiny"),
           ("with its projection 360 to 768 for distillation", 360 * 768 + 768)),
    System("EfficientBERT++", "efficientbert", "12 x 360, inner widths of 540", lambda: efficientbert("plusplus"),
           ("with its projection 360 to 768 for distillation", 360 * 768 + 768)),
    System("EfficientBERT++, as released", "efficientbert", "12 x 360, inner widths of 360",
           lambda: efficientbert("plusplus-released"),
           ("with its projection 360 to 768 for distillation", 360 * 768 + 768)),
    # Section 12; n = 1 is BERT-base in TrimBERT's own class
    System("TrimBERT n=1", "trimbert", "BERT-base", _trim(), long=True),
    System("TrimBERT n=2", "trimbert", "6 intermediate blocks", _trim(intermediate_every=2), long=True),
    System("TrimBERT n=3", "trimbert", "4 intermediate blocks", _trim(intermediate_every=3), long=True),
    System("TrimBERT n=4", "trimbert", "3 intermediate blocks", _trim(intermediate_every=4)),
    System("TrimBERT n=6", "trimbert", "2 intermediate blocks", _trim(intermediate_every=6)),
    System("TrimBERT n=inf", "trimbert", "no intermediate block", _trim(intermediate_every=0), long=True),
    System("TrimBERT BANDD", "trimbert", "normalised attention", _trim(bandd=True), long=True),
    System("TrimBERT NoMLPLN", "trimbert", "no LayerNorm after intermediate blocks",
           _trim(intermediate_layernorm=False), long=True),
    System("TrimBERT BANDD, n=2", "trimbert", "both", _trim(bandd=True, intermediate_every=2), long=True),
    System("TrimBERT NoMLPLN, n=2", "trimbert", "both", _trim(intermediate_layernorm=False, intermediate_every=2)),
    System("TrimBERT BANDD, NoMLPLN, n=2", "trimbert", "all three",
           _trim(bandd=True, intermediate_layernorm=False, intermediate_every=2)),
)
BY_NAME = {s.name: s for s in SYSTEMS}


def get(name: str) -> System:
    """A system by name. `InputError` for an unknown one."""
    one_of("systems", name, BY_NAME)
    return BY_NAME[name]


def build(system: System, attention: str, length: int = 512) -> nn.Module:
    """The encoder with random weights (seed 0) in float32 and evaluation mode, with positions for `length` tokens."""
    config = system.config()
    config.max_position_embeddings = max(length, config.max_position_embeddings)
    torch.manual_seed(0)
    return AutoModel.from_config(config, attn_implementation=attention).eval()
