"""LayerDrop: structured dropout of whole layers (Fan et al. 2020, arXiv 1909.11556), then pruning.

In training each layer is skipped as a whole with probability p, drawn anew for each layer and forward pass; the layers
that stay are not rescaled. Afterwards any part of the layers can be taken out: every other one, or those that a search
on held-out rows finds. Two places to do it: `when="finetuning"`, as the LayerDrop row of BERT-of-Theseus (Table 2), and
`when="pretraining"`, the paper's own order: language modelling with LayerDrop, pruning, ordinary fine-tuning.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from lib import artefacts, layers, mlm, models, pretrain, stages, text, training
from lib.errors import InputError
from lib.methods import bert
from lib.methods import layerdrop_pruning as pruning
from lib.parameters import Float, Int, Ints
from lib.training import History, Loss, Step


class Config(mlm.General):
    """Parameters of LayerDrop; the fields of language modelling count with `when="pretraining"` alone."""

    layers: Annotated[Int, Field(ge=0)] = 0  # of the student; 0: half of the backbone's
    # p. Negative: 1 - r/N for r of N layers, the paper's optimum for a model that will be cut to r; its pre-training
    # took 0.2, to allow several depths. The Theseus table gives no rate.
    drop_rate: Annotated[Float, Field(ge=-1, lt=1)] = -1
    when: Literal["finetuning", "pretraining"] = "finetuning"
    pruning: Literal["every_other", "search"] = "every_other"
    # "Drop layers l with l mod floor(1/q) = 0": is the lowest layer 0 or 1? With 0 the last of an even depth stays,
    # and the head reads that one
    counting: Literal["zero", "one"] = "zero"
    keep: Ints = []  # zero-based layers that stay, instead of a rule
    search_limit: Annotated[Int, Field(ge=1)] = 64  # sets of layers scored; above it they are drawn at random
    recovery_share: Annotated[Float, Field(ge=0, lt=1)] = 0.0  # of the budget: plain fine-tuning of the pruned student
    study: Literal["none", "rate", "pruning", "place"] = "none"

    @property
    def reads_text(self) -> bool:  # noqa: D102
        return self.when == "pretraining" or self.study == "place"


# Study -> the changes of each of its runs, which are records of their own. Rate 0 is the control: a network pruned
# without having learnt to miss layers.
STUDIES: dict[str, list[dict]] = {
    "none": [{}],
    "rate": [{}, *({"drop_rate": r, "variant": f"rate{r}"} for r in (0.0, 0.2))],
    "pruning": [{}, {"counting": "one", "variant": "one"}, {"pruning": "search", "variant": "search"}],
    "place": [{}, {"recovery_share": 0.5, "variant": "recovery"}, {"when": "pretraining", "variant": "pretraining"}],
}


def variants(p: Config) -> list[Config]:
    """The runs of a study. `InputError` where a study is asked for and the run has a name of its own."""
    if p.study != "none" and p.variant:
        raise InputError(f"variant: {p.variant!r} cannot be set together with study={p.study!r}, which names its runs")
    return [type(p).model_validate({**p.model_dump(), "study": "none", **c}) for c in STUDIES[p.study]]


def draw(parts: list[pruning.Droppable], p: float, step: Step) -> None:
    """Drop layers for one forward pass: one uniform number a layer, kept where it exceeds p (official code)."""
    for part, u in zip(parts, step.random().random(len(parts)), strict=True):
        part.dropped = bool(u <= p) if p else False


def drop_rate(p: Config, depth: int, count: int) -> float:
    """The rate in force: as given, or 1 - r/N (paper)."""
    return 1 - count / depth if p.drop_rate < 0 else p.drop_rate


def compress(run, teacher=None) -> tuple[nn.Module, History]:
    """Train with LayerDrop and prune. Returns (student, history); no teacher takes part.

    The held-out rows are scored with the layers of the rule alone, from the first evaluation on: what is kept is the
    state that prunes best.
    """
    p = run.p
    model = run.backbone()
    depth = len(layers.encoder_layers(model))
    kept = pruning.rule(p, depth)
    rate = drop_rate(p, depth, len(kept))
    if p.when == "pretraining":
        return after_pretraining(run, model, kept, rate)
    parts = pruning.wrap(model)

    def loss(model: nn.Module, batch: dict, step: Step) -> Loss:
        draw(parts, rate, step)
        return Loss(bert.supervised(model, batch, step), logs={"layers_run": sum(not x.dropped for x in parts)})

    def scores(model: nn.Module) -> dict[str, float]:
        pruning.leave(parts, kept)
        return run.scores(model)

    share = 1 - p.recovery_share
    history = training.train(model, loss, run.train, stages.share_of(run, share), evaluate=scores,
                             checkpoints=run.checkpoints())
    kept, scored = pruning.choose(run, model, parts, kept)
    if scored:
        history.kept_score = scored[tuple(kept)]
    if not run.trial:
        run.study = {"pruning": pruning.table(run, model, parts, kept, scored), "drop_rate": rate}
    student = pruning.pruned(model, kept)
    if p.recovery_share == 0:
        return student, history
    second = training.train(student, bert.supervised, run.train, stages.share_of(run, p.recovery_share),
                            evaluate=run.scores, checkpoints=run.checkpoints("recovery"))
    return student, stages.joined(history, second)


def after_pretraining(run, model: nn.Module, kept: list[int], rate: float) -> tuple[nn.Module, History]:
    """The paper's order: language modelling with LayerDrop (an artefact), pruning, fine-tuning without it."""
    if run.p.pruning == "search" and not run.p.keep:
        raise InputError("pruning: 'search' needs scores of a task before fine-tuning; with when=pretraining allowed: "
                         "every_other, or layers given in keep")
    if run.p.recovery_share:
        raise InputError("recovery_share: has no meaning with when=pretraining, where all fine-tuning is after pruning")
    artefact = pretrained(run, rate)
    pretrain.load(model.base_model, artefact)
    run.study = {"drop_rate": rate, "kept": kept, "mlm": artefact.meta["mlm"]}
    student = layers.cut(model, kept)
    return student, bert.fine_tune(run, student)


def pretrained(run, rate: float) -> artefacts.Artefact:
    """The backbone after masked language modelling with LayerDrop; with the head that it began from as an artefact."""
    p = run.p
    text.refuse_overlap(p.text, run.data)
    head, first = mlm.head_for(p.backbone, run.tokenizer, p)

    def build(sequences):
        encoder = models.load_encoder(p.backbone)
        pruning.wrap(encoder)
        return encoder, head

    def plain(encoder):
        return pruning.pruned(encoder, list(range(len(layers.encoder_layers(encoder)))))

    def objective(encoder, masker):
        masked, parts = mlm.language_loss(masker), list(layers.encoder_layers(encoder))

        def loss(model, batch, step):
            draw(parts, rate, step)
            return masked(model, batch, step)

        return loss

    artefact = pretrain.stage("layerdrop", p, run.tokenizer, {"drop_rate": rate, "head": first.key}, build, objective,
                              after=plain)
    run.artefacts += [first, artefact]
    return artefact
