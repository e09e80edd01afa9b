"""MobileBERT: a deep, thin student with bottlenecks (Sun et al. 2020, arXiv 2004.02984).

A BERT with inverted bottlenecks (the IB teacher) and a student of the same depth, number of heads and width between the
blocks, but narrow inside. The student learns the teacher's blocks on unlabelled text, then its predictions of masked
words, and is in the end fine-tuned on the task like any BERT: the task's teacher takes no part in it.

`variant="paper"`, the default, transfers feature maps by their plain mean squared difference; `variant="code"` by the
official code's LayerNormed features and statistics (`mobilebert_losses`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from torch import nn
from transformers import AutoConfig

from lib import models, text
from lib.methods import bert, ibbert, mobilebert_stages, mobilebert_student
from lib.parameters import Bool, Float, Int
from lib.training import History


class Config(text.General):
    """Parameters of MobileBERT. Widths left at 0 follow the backbone; the stages are those of the official code."""

    # Shape
    between: Annotated[Int, Field(ge=0)] = 0  # width between blocks; 0: half of the backbone's (paper: 512)
    embedding: Annotated[Int, Field(ge=0)] = 0  # width of word vectors; 0: half of that (paper: 128)
    inside: Annotated[Int, Field(ge=0)] = 0  # width inside the student's blocks; 0: a quarter of the backbone's
                                             # (paper: an eighth, 128, which would leave heads of four numbers here)
    ffns: Annotated[Int, Field(ge=0, le=64)] = 0  # stacked in each block; 0: 4, or 2 with `tiny`
    tiny: Bool = False  # MobileBERT-TINY: keys, queries and values from the one bottleneck
    normalisation: Literal["no_norm", "layer_norm"] = "no_norm"
    activation: Literal["relu", "gelu"] = "relu"
    # Stages on unlabelled text; `general_epochs` and `general_lr` are those of the pre-training distillation
    strategy: Literal["progressive", "joint", "auxiliary"] = "progressive"
    feature_transfer: Bool = True  # False: without it (the paper's ablation; block outputs are then not compared)
    attention_transfer: Bool = True  # False: without it; attention maps are then not even computed
    alpha: Annotated[Float, Field(ge=0, le=1)] = 0.5  # of the masked-word loss beside distillation (official code)
    lower_rate: Annotated[Float, Field(ge=0, le=1)] = 0.1  # of the rate, below the block in turn (official code)
    transfer_epochs: Annotated[Float, Field(gt=0, le=1000)] = 2  # passes over the text for all blocks together
    transfer_lr: Annotated[Float, Field(gt=0, le=1)] = 5e-4
    ib_epochs: Annotated[Float, Field(gt=0, le=1000)] = 1  # of the IB teacher's training
    ib_lr: Annotated[Float, Field(gt=0, le=1)] = 2e-4
    # Official code: 1.5e-3 with LAMB. With AdamW that left attention maps further from the teacher's than at the start
    # (held-out text, 24,000 tokens); at 5e-4 features and attention both came nearer.
    general_lr: Annotated[Float, Field(gt=0, le=1)] = 5e-4
    # The notebook's timing table
    timing_blocks: Annotated[Int, Field(ge=0, le=24)] = 0  # blocks of the timed shapes; 0: the paper's 24


def check(p: Config, backbone) -> None:
    """`InputError` where no student of `p` can be made of a backbone of this configuration. Nothing is built."""
    mobilebert_student.student_config(ibbert.configuration(backbone, p.between, p.embedding), p)
    mobilebert_stages.parts(p)


def compress(run, teacher=None) -> tuple[nn.Module, History]:
    """The distilled student (an artefact of the backbone and the text), fine-tuned on the task."""
    p = run.p
    text.refuse_overlap(p.text, run.data)
    check(p, AutoConfig.from_pretrained(models.resolve(p.backbone)))
    source = mobilebert_stages.teacher(p, run.tokenizer)
    student = mobilebert_stages.distilled(p, run.tokenizer, source, p.variant.split("-")[0] == "code")
    run.artefacts += [source, student]
    if not run.trial:
        run.study = {"distillation": {
            "teacher": {k: source.meta[k] for k in ("start", "quality", "hidden_variance_seen", "curve")},
            "student": {k: student.meta[k] for k in ("gap", "quality", "curve")},
            "transfer": student.meta.get("stages", [])}}
    model = models.load_backbone(str(student.folder / "model"), run.task, p.seed)
    return model, bert.fine_tune(run, model)
