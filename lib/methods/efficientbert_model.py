"""EfficientBERT's student (Dong et al. 2021, arXiv 2109.07222): BERT attention, searched feed-forward functions.

This file stands alone (torch and transformers only): it is copied into the folder of every saved student.

Each layer is ordinary self-attention followed by `s` stacked feed-forward parts x <- LayerNorm(x + dropout(f(x))).
f is an expression over x with two linears, W1 from the hidden width H to the inner width H/d and W2 back, e.g.
"tanh(W2(gelu(W1(x))))". Word vectors are narrow and join their two neighbours (3-gram) before a linear to H.
Shapes, counts and the released architecture: official code (cheneydon/efficient-bert), summed in methods.md 11.2, 11.5.
"""

import ast
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import BaseModelOutputWithPooling, SequenceClassifierOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

LINEAR = ("W1", "W2")
UNARY: dict[str, Callable] = {
    "gelu": F.gelu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "relu": F.relu, "leaky_relu": F.leaky_relu,
    "elu": F.elu, "swish": F.silu,
}
# Each binary operation with the value that changes nothing: it fills up the narrower of two unlike operands.
BINARY: dict[str, tuple[Callable, float]] = {
    "add": (torch.add, 0.0), "mul": (torch.mul, 1.0), "max": (torch.maximum, float("-inf"))}
PLAIN = "W2(gelu(W1(x)))"
# (stacks s, d of the inner width H/d, f) of the six layers that the authors released (official code; methods.md 11.5)
RELEASED = (
    (4, 2, "tanh(W2(gelu(W1(x))))"),
    (2, 1, "elu(W2(gelu(W1(x))))"),
    (1, 2, "sigmoid(W2(relu(W1(x))))"),
    (2, 2, "W2(gelu(W1(max(x, tanh(x)))))"),
    (1, 2, "W2(relu(mul(W1(x), x)))"),
    (2, 3, "leaky_relu(W2(gelu(W1(x))))"),
)
# Shapes of the paper. "plusplus" uses every searched part in two layers in a row; its inner widths are those of 540
# (the configured list: 16.0M), in "plusplus-released" those of 360, which is what the released code builds (14.2M).
SHAPES: dict[str, dict[str, Any]] = {
    "base": {"hidden_size": 540, "num_hidden_layers": 6},
    "tiny": {"hidden_size": 360, "num_hidden_layers": 6},
    "plusplus": {"hidden_size": 360, "num_hidden_layers": 12, "ffn_size": 540},
    "plusplus-released": {"hidden_size": 360, "num_hidden_layers": 12},
}

Tree = str | tuple  # "x", or (operation, subtree[, subtree])


def parse(text: str) -> Tree:
    """An expression as a tree, ("tanh", ("W2", ("gelu", ("W1", "x")))). `ValueError` naming what is not understood."""

    def walk(node) -> Tree:
        if isinstance(node, ast.Name) and node.id == "x":
            return "x"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            name = node.func.id
            arity = 2 if name in BINARY else 1 if name in UNARY or name in LINEAR else 0
            if arity and len(node.args) == arity:
                return (name, *(walk(a) for a in node.args))
        raise ValueError(f"expression {text!r}: {ast.unparse(node)!r} is not x, nor one of {', '.join(LINEAR)}, "
                         f"{', '.join(UNARY)} of one argument, {', '.join(BINARY)} of two")

    try:
        body = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise ValueError(f"expression {text!r}: cannot be read; an example: {PLAIN}") from None
    return walk(body)


def check_widths(tree: Tree) -> str | None:
    """What is wrong with the linears of a tree, or None. W1 must stand inside W2, each of them once."""

    def width(t: Tree) -> str:  # "H" or "I", the inner width
        if t == "x":
            return "H"
        inside = [width(c) for c in t[1:]]
        if t[0] == "W1":
            if inside != ["H"]:
                raise ValueError("W1 takes an input of the hidden width")
            return "I"
        if t[0] == "W2":
            if inside != ["I"]:
                raise ValueError("W2 must be applied to what comes out of W1")
            return "H"
        return "I" if "I" in inside else "H"

    names = str(tree)
    if names.count("'W1'") != 1 or names.count("'W2'") != 1:
        return "W1 and W2 must stand in it exactly once"
    try:
        return None if width(tree) == "H" else "its output must have the hidden width"
    except ValueError as e:
        return str(e)


def evaluate(tree: Tree, x: torch.Tensor, w1: Callable, w2: Callable) -> torch.Tensor:
    """f(x). x: (..., H) -> (..., H); `w1`: H -> inner width, `w2` back.

    Where the operands of a binary operation differ in width, the one that does not hold W1 is cut, or filled with the
    operation's neutral value, to the other's width (official code: cut to the smaller; fill for the 768-wide transfer).
    """
    if tree == "x":
        return x
    name, *parts = tree
    values = [evaluate(p, x, w1, w2) for p in parts]
    if name == "W1":
        return w1(values[0])
    if name == "W2":
        return w2(values[0])
    if name in UNARY:
        return UNARY[name](values[0])
    function, neutral = BINARY[name]
    a, b = values
    if a.shape[-1] != b.shape[-1]:
        if "'W1'" in str(parts[1]):
            a = _fit(a, b.shape[-1], neutral)
        else:
            b = _fit(b, a.shape[-1], neutral)
    return function(a, b)


def _fit(x: torch.Tensor, width: int, neutral: float) -> torch.Tensor:
    return x[..., :width] if x.shape[-1] >= width else F.pad(x, (0, width - x.shape[-1]), value=neutral)


def taken(count: int, layers: int) -> list[int]:
    """Which of `count` entries (zero-based) each of `layers` layers takes, in order.

    More layers: every entry several times in a row ("++": twice). Fewer: those at the same relative depth, as the
    layers are paired in distillation: the second, fourth and sixth of six for three layers.
    """
    if layers < count:
        return [(i + 1) * count // layers - 1 for i in range(layers)]
    return [i * count // layers for i in range(layers)]


def spread(entries, layers: int) -> list[list]:
    """`entries` over `layers` layers, see `taken`."""
    return [list(entries[i]) for i in taken(len(entries), layers)]


def plain(entries) -> list[list]:
    """The same stacks and ratios with the ordinary f = W2 gelu(W1 x): the control."""
    return [[s, d, PLAIN] for s, d, _ in entries]


class EfficientBertConfig(PreTrainedConfig):
    """Shape of a student. Defaults: the paper's EfficientBERT (official code, models/configs.py; methods.md 11.2).

    `ffns`: one [stacks, d, expression] a layer; empty: the released ones, spread over the layers.
    `ffn_size`: width that d divides; 0: the hidden width.
    """

    model_type = "efficientbert"

    vocab_size: int = 30522
    embedding_size: int = 128
    hidden_size: int = 540
    num_hidden_layers: int = 6
    num_attention_heads: int = 12
    ffns: list | None = None
    ffn_size: int = 0
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0

    def __post_init__(self, **kwargs):
        super().__post_init__(**kwargs)
        self.ffns = [list(e) for e in self.ffns] if self.ffns else spread(RELEASED, self.num_hidden_layers)
        self.ffn_size = self.ffn_size or self.hidden_size
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(f"hidden_size {self.hidden_size} is no multiple of the {self.num_attention_heads} heads")
        if len(self.ffns) != self.num_hidden_layers:
            raise ValueError(f"ffns: {len(self.ffns)} entries for {self.num_hidden_layers} layers")
        for i, (stacks, d, text) in enumerate(self.ffns):
            if stacks < 1 or d < 1 or self.ffn_size // d < 1:
                raise ValueError(f"ffns, layer {i + 1}: stacks {stacks} and d {d} must be positive, "
                                 f"d at most {self.ffn_size}")
            if wrong := check_widths(parse(text)):
                raise ValueError(f"ffns, layer {i + 1}: expression {text!r}: {wrong}")


def config(shape: str = "base", **changes) -> EfficientBertConfig:
    """The paper's shape by name ("base", "tiny", "plusplus", "plusplus-released"), with changes."""
    if shape not in SHAPES:
        raise ValueError(f"shape {shape!r} is unknown; allowed: {', '.join(SHAPES)}")
    return EfficientBertConfig(**{**SHAPES[shape], **changes})


class Embeddings(nn.Module):
    """Word vectors of width E; each position joins those of the next, the current and the previous token (3 E), then
    a linear to H, positions, token types, LayerNorm. Neighbours beyond the ends are zeros, and so is the padding
    token's vector (it is never trained), so the last real token sees the same beside padding as at the end.
    """

    def __init__(self, c: EfficientBertConfig):
        super().__init__()
        self.word_embeddings = nn.Embedding(c.vocab_size, c.embedding_size, padding_idx=c.pad_token_id)
        self.transform = nn.Linear(3 * c.embedding_size, c.hidden_size)
        self.position_embeddings = nn.Embedding(c.max_position_embeddings, c.hidden_size)
        self.token_type_embeddings = nn.Embedding(c.type_vocab_size, c.hidden_size)
        self.LayerNorm = nn.LayerNorm(c.hidden_size, eps=c.layer_norm_eps)
        self.dropout = nn.Dropout(c.hidden_dropout_prob)

    def forward(self, input_ids: torch.Tensor, token_type_ids: torch.Tensor | None = None) -> torch.Tensor:
        """(B, T) ids -> (B, T, H)."""
        words = self.word_embeddings(input_ids)  # (B, T, E)
        ahead, behind = F.pad(words[:, 1:], (0, 0, 0, 1)), F.pad(words[:, :-1], (0, 0, 1, 0))
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        x = self.transform(torch.cat([ahead, words, behind], -1))
        x = x + self.position_embeddings(positions) + self.token_type_embeddings(types)
        return self.dropout(self.LayerNorm(x))


def _eager(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **_):
    scores = query @ key.transpose(2, 3) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = F.dropout(scores.softmax(-1), dropout, module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


class SelfAttention(nn.Module):
    """Multi-head self-attention through transformers' attention interface, so that its implementation can be chosen."""

    def __init__(self, c: EfficientBertConfig):
        super().__init__()
        self.config, self.heads, self.head_size = c, c.num_attention_heads, c.hidden_size // c.num_attention_heads
        self.scaling = self.head_size**-0.5
        self.is_causal = False
        self.query = nn.Linear(c.hidden_size, c.hidden_size)
        self.key = nn.Linear(c.hidden_size, c.hidden_size)
        self.value = nn.Linear(c.hidden_size, c.hidden_size)
        self.dropout = nn.Dropout(c.attention_probs_dropout_prob)

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor | None):
        """(B, T, H) -> ((B, T, H), attention weights or None)."""
        q, k, v = (f(x).view(*x.shape[:2], self.heads, self.head_size).transpose(1, 2)
                   for f in (self.query, self.key, self.value))  # (B, heads, T, head size)
        interface = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, _eager)
        out, weights = interface(self, q, k, v, attention_mask, scaling=self.scaling,
                                 dropout=self.dropout.p if self.training else 0.0)
        return out.reshape(x.shape), weights


class FeedForward(nn.Module):
    """One of a layer's stacked parts: x <- LayerNorm(x + dropout(f(x)))."""

    def __init__(self, c: EfficientBertConfig, d: int, tree: Tree):
        super().__init__()
        inner = c.ffn_size // d
        self.tree = tree
        self.dense1 = nn.Linear(c.hidden_size, inner)
        self.dense2 = nn.Linear(inner, c.hidden_size)
        self.LayerNorm = nn.LayerNorm(c.hidden_size, eps=c.layer_norm_eps)
        self.dropout = nn.Dropout(c.hidden_dropout_prob)

    def forward(self, x: torch.Tensor, inner: int | None = None) -> torch.Tensor:
        """(B, T, H) -> (B, T, H), with the first `inner` inner units only, if given (a path of a supernet)."""
        one, two = self.dense1, self.dense2
        return self.LayerNorm(x + self.dropout(evaluate(
            self.tree, x,
            lambda v: F.linear(v, one.weight[:inner], one.bias[:inner]),
            lambda v: F.linear(v, two.weight[:, :inner], two.bias))))


class Layer(nn.Module):
    """Self-attention with output LayerNorm, then the stacked feed-forward parts."""

    def __init__(self, c: EfficientBertConfig, stacks: int, d: int, expression: str):
        super().__init__()
        self.attention = SelfAttention(c)
        self.dense = nn.Linear(c.hidden_size, c.hidden_size)
        self.LayerNorm = nn.LayerNorm(c.hidden_size, eps=c.layer_norm_eps)
        self.dropout = nn.Dropout(c.hidden_dropout_prob)
        self.ffns = nn.ModuleList([FeedForward(c, d, parse(expression)) for _ in range(stacks)])
        self.path: tuple[int, int] | None = None  # (stacks, inner width) in use, of a supernet; None: all

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """(B, T, H) -> (B, T, H)."""
        context, _ = self.attention(x, attention_mask)
        x = self.LayerNorm(x + self.dropout(self.dense(context)))
        stacks, inner = self.path or (len(self.ffns), None)
        for ffn in self.ffns[:stacks]:
            x = ffn(x, inner)
        return x


class EfficientBertPreTrainedModel(PreTrainedModel):
    """Loading, saving and initial weights (normal with the configured deviation)."""

    config_class = EfficientBertConfig
    config: EfficientBertConfig
    base_model_prefix = "efficientbert"
    _supports_sdpa = True
    _supports_attention_backend = True
    _can_record_outputs = {"hidden_states": Layer, "attentions": SelfAttention}


class EfficientBertModel(EfficientBertPreTrainedModel):
    """The encoder. Parameters without pooler at the paper's shape: 15.32M."""

    def __init__(self, config: EfficientBertConfig, add_pooling_layer: bool = True):
        super().__init__(config)
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList([Layer(config, *entry) for entry in config.ffns])
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if add_pooling_layer else None
        self.post_init()

    def get_input_embeddings(self):
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value):
        self.embeddings.word_embeddings = value

    @merge_with_config_defaults
    @capture_outputs
    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None,
                token_type_ids: torch.Tensor | None = None, **kwargs) -> BaseModelOutputWithPooling:
        """(B, T) ids, mask (1: real token) and types -> last hidden state (B, T, H), pooled first token (B, H)."""
        x = self.embeddings(input_ids, token_type_ids)
        mask = create_bidirectional_mask(config=self.config, inputs_embeds=x, attention_mask=attention_mask)
        for layer in self.layers:
            x = layer(x, mask)
        pooled = None if self.pooler is None else torch.tanh(self.pooler(x[:, 0]))
        return BaseModelOutputWithPooling(last_hidden_state=x, pooler_output=pooled)


class EfficientBertForSequenceClassification(EfficientBertPreTrainedModel):
    """Pooled first token, dropout, linear; as BERT's classifier."""

    def __init__(self, config: EfficientBertConfig):
        super().__init__(config)
        self.efficientbert = EfficientBertModel(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None,
                token_type_ids: torch.Tensor | None = None, labels: torch.Tensor | None = None,
                **kwargs) -> SequenceClassifierOutput:
        """Logits (B, num_labels), and the task loss where labels (B,) are given."""
        out = self.efficientbert(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids, **kwargs)
        logits = self.classifier(self.dropout(out.pooler_output))
        loss = None
        if labels is not None:
            if self.config.num_labels == 1:
                loss = F.mse_loss(logits.squeeze(-1), labels.to(logits.dtype))
            else:
                loss = F.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=out.hidden_states,
                                        attentions=out.attentions)


AutoConfig.register("efficientbert", EfficientBertConfig, exist_ok=True)
AutoModel.register(EfficientBertConfig, EfficientBertModel, exist_ok=True)
AutoModelForSequenceClassification.register(
    EfficientBertConfig, EfficientBertForSequenceClassification, exist_ok=True)
EfficientBertConfig.register_for_auto_class()
EfficientBertModel.register_for_auto_class("AutoModel")
EfficientBertForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")
