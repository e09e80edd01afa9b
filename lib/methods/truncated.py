"""Truncated fine-tuning: the lowest layers of the pre-trained backbone, fine-tuned in the ordinary way.

The "Fine-tuning" row of BERT-of-Theseus, Table 2: the lowest 6 of 12 layers of raw BERT-base, a new head, all weights
trained. No teacher takes part.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import nn

from lib import layers, models
from lib.methods import bert
from lib.parameters import Int, Parameters
from lib.training import History


class Config(Parameters):
    """Parameters of truncated fine-tuning."""

    layers: Annotated[Int, Field(ge=0)] = 0  # of the student; 0: half of the backbone's


def plan(p: Config) -> int:
    """Depth of the student, from configurations alone; `InputError` where it is not below the backbone's."""
    return layers.halved(models.depth(p.backbone), p.layers)


def compress(run, teacher=None) -> tuple[nn.Module, History]:
    """Cut the backbone to its lowest layers and fine-tune it."""
    backbone = run.backbone()
    depth = len(layers.encoder_layers(backbone))
    student = layers.cut(backbone, layers.lowest(depth, layers.halved(depth, run.p.layers)))
    return student, bert.fine_tune(run, student)
