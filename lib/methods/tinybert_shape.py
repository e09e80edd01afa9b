"""TinyBERT's shapes: how deep and wide the student is, and which teacher layer each of its layers learns from."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from transformers import AutoModelForSequenceClassification, PretrainedConfig

from lib import fast, models
from lib.errors import InputError

# Proportions of BERT-base (12 layers, 768, 3072) of the two models of the paper, section 4.2.
SHAPES = {"tinybert4": (4 / 12, 312 / 768, 1200 / 3072), "tinybert6": (6 / 12, 1.0, 1.0)}


@dataclass(frozen=True)
class Shape:
    """Depth, width, attention heads and width of the feed-forward layers."""

    layers: int
    width: int
    heads: int
    intermediate: int


def scaled(config: PretrainedConfig, name: str = "tinybert4", layers: int = 0, width: int = 0, heads: int = 0,
           intermediate: int = 0) -> Shape:
    """A student for a backbone's configuration: a named shape in proportion, numbers that are not 0 as given.

    tinybert4 of BERT-base: 4 layers, 312, 12 heads of 26, 1200; of all-MiniLM-L6: 2 layers, 156, 12 heads of 13, 600.
    Raises `InputError` where the width is no multiple of the heads, or the depth exceeds the backbone's.
    """
    depth, wide, deep = SHAPES[name]
    heads = heads or config.num_attention_heads
    width = width or max(1, round(wide * config.hidden_size / heads)) * heads
    if width % heads:
        near = width // heads * heads
        raise InputError(f"width: {width} is no multiple of {heads} heads; allowed: multiples such as "
                         f"{near or heads} or {near + heads}")
    layers = layers or max(1, round(depth * config.num_hidden_layers))
    if layers > config.num_hidden_layers:
        raise InputError(f"layers: {layers} is not between 1 and {config.num_hidden_layers}, the backbone's depth")
    return Shape(layers, width, heads, intermediate or max(1, round(deep * getattr(config, _inner(config)))))


def _inner(config: PretrainedConfig) -> str:
    name = next((n for n in ("intermediate_size", "hidden_dim") if hasattr(config, n)), None)
    if name is None:
        raise InputError(f"{config.model_type}: its configuration has no width of feed-forward layers")
    return name


def student_config(config: PretrainedConfig, shape: Shape, **changes) -> PretrainedConfig:
    """The backbone's configuration at another shape; `changes` such as the names of the classes."""
    if len(set(getattr(config, "layer_types", None) or ["one"])) > 1:
        raise InputError(f"{config.model_type}: its layers are of unlike kinds; TinyBERT maps like to like")
    config = copy.deepcopy(config)
    values = {"num_hidden_layers": shape.layers, "hidden_size": shape.width, "num_attention_heads": shape.heads,
              _inner(config): shape.intermediate, "architectures": None}
    if getattr(config, "layer_types", None):
        values["layer_types"] = config.layer_types[: shape.layers]
    for name, value in {**values, **changes}.items():
        setattr(config, name, value)
    config.name_or_path = ""
    return config


def build(config: PretrainedConfig, cls=AutoModelForSequenceClassification, attention: str = fast.ATTENTION):
    """A model of a configuration with random weights from torch's generator, and the study's dropout.

    `attention`: that of the backbone, the study's where the architecture takes it (`models.attention_for`).
    """
    return fast.install(cls.from_config(config, attn_implementation=attention))


def layer_mapping(teacher: int, student: int, mapping: str) -> list[int]:
    """g(1..M): the teacher layer, one-based, of each student layer (section 3.1 and Table 4).

    Uniform: m * N // M, so 3m or 2m for 12 layers and 4 or 6. Top: m + N - M. Bottom: m.
    """
    step = {"uniform": lambda m: m * teacher // student, "top": lambda m: m + teacher - student,
            "bottom": lambda m: m}[mapping]
    return [step(m) for m in range(1, student + 1)]


def check_teacher(name: str, what: str, heads: int) -> None:
    """`InputError` where attention scores of `name` cannot be had, or stand for another number of heads."""
    theirs = models.configuration(name, what).num_attention_heads
    if theirs != heads:
        raise InputError(f"heads: a student of {heads} attention heads cannot learn the attention of {what} {name}, "
                         f"which has {theirs}; allowed: heads={theirs}, or without=attention")
    if models.attention_for(models.resolve(name, what), name, what) != fast.ATTENTION:
        raise InputError(f"{what} {name}: its attention scores before softmax cannot be had; allowed: an architecture "
                         "with a replaceable attention such as BERT or RoBERTa, or without=attention")
