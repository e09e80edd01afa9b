"""BERT-of-Theseus: module replacing (Xu et al. 2020, arXiv 2002.02925).

The predecessor (a fine-tuned encoder) is cut into contiguous modules; each has a substitute of one layer. During
training a module is replaced by its substitute with probability p, drawn anew for each module and batch, p rising to
1. The task loss is the only loss. In the end the substitutes alone are the student.

`variant="paper"`, the default, and `variant="code"` (the official repository) differ in where substitutes start, in
what gradient clipping sees, and in what happens to a substitute that a batch did not draw (see `VARIANTS`).
"""

from __future__ import annotations

import copy
from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from lib import layers, training
from lib.errors import InputError
from lib.methods import bert
from lib.parameters import Bool, Float, Int, Ints, Parameters
from lib.training import History, Loss, Step

# Where paper and official code differ (methods.md 2.5). `all_gradients`: nothing has its gradient switched off;
# gradients are zeroed, not removed, so Adam's momentum moves undrawn substitutes; clipping sees all gradients.
VARIANTS = {"paper": {"initial": "backbone", "all_gradients": False},
            "code": {"initial": "predecessor", "all_gradients": True}}


class Config(Parameters):
    """Parameters of module replacing; paper section 4 and its published MRPC example (b = 0.3)."""

    layers: Annotated[Int, Field(ge=0)] = 0  # of the student; 0: half of the backbone's
    modules: Ints = []  # layers of each module, e.g. 1 2 3; empty: equal modules
    schedule: Literal["linear", "constant", "anti"] = "linear"  # curriculum, constant rate, anti-curriculum
    base_rate: Annotated[Float, Field(gt=0, le=1)] = 0.3  # b of p(t) = min(1, k t + b)
    rate: Annotated[Float, Field(gt=0, le=1)] = 0.5  # p of the constant schedule
    replacing_share: Annotated[Float, Field(gt=0, le=1)] = 0.5  # of the steps; from then on p = 1 (this sets k)
    equivalent_lr: Bool = False  # constant schedule: lr / p instead of lr, so that every p has the same lr' = p * lr
    anti_finish: Bool = False  # anti-curriculum: p = 1 after the replacing phase (the paper does not say)
    initial: Literal["", "backbone", "predecessor"] = ""  # weights that substitutes start from; empty: the variant's
    initial_layers: Literal["lowest", "interleaved", "highest"] = "lowest"
    frozen_dropout: Bool = True  # frozen predecessor layers run with dropout on, as in the official code
    only_module: Annotated[Int, Field(ge=0)] = 0  # replace this module alone (1 = lowest); 0: all


def flavour(p: Config) -> dict:
    """Settings of the variant; a variant name that is neither "paper" nor "code" only labels the record."""
    chosen = dict(VARIANTS["code" if p.variant.split("-")[0] == "code" else "paper"])
    if p.initial:
        chosen["initial"] = p.initial
    return chosen


def partition(depth: int, p: Config) -> list[int]:
    """Number of predecessor layers in each module. `InputError` where they do not add up to `depth`."""
    if p.modules:
        if sum(p.modules) != depth or min(p.modules) < 1:
            raise InputError(f"modules: {p.modules} must be positive and add up to the backbone's {depth} layers")
        if p.layers not in (0, len(p.modules)):
            raise InputError(f"layers: {p.layers} is not the number of modules {p.modules}; leave one of them out")
        return list(p.modules)
    count = layers.halved(depth, p.layers)
    if depth % count:
        raise InputError(f"layers: {count} does not divide the backbone's {depth} layers into equal modules; "
                         "give the size of each in `modules`")
    return [depth // count] * count


def initial_layers(depth: int, count: int, which: str) -> list[int]:
    """Zero-based layers that substitutes start from: the lowest, every (depth/count)-th, or the highest."""
    if which == "lowest":
        return list(range(count))
    if which == "highest":
        return list(range(depth - count, depth))
    return [(i + 1) * depth // count - 1 for i in range(count)]


def replacing_rate(step: int, total: int, p: Config) -> float:
    """p_d at a zero-based optimiser step (paper, section 3.2): min(1, k t + b), k from `replacing_share`.

    Constant: `rate` and then, from the end of the replacing phase, 1. Anti-curriculum: 1 - p_d of the curriculum.
    """
    ends = p.replacing_share * total
    if p.schedule == "constant":
        return p.rate if step < ends else 1.0
    curriculum = min(1.0, p.base_rate + (1 - p.base_rate) * step / max(ends, 1e-9))
    if p.schedule == "linear":
        return curriculum
    return 1.0 if p.anti_finish and step >= ends else 1 - curriculum


class Replaceable(nn.Module):
    """A module of the predecessor with its substitute; `replaced` says which of the two runs."""

    def __init__(self, predecessor: list[nn.Module], substitute: nn.Module):
        super().__init__()
        self.predecessor = nn.ModuleList(predecessor)
        self.substitute = substitute
        self.replaced = True

    def last_layers(self) -> list[nn.Module]:
        """The layers that may be the last to run, when this is the encoder's last module."""
        return [self.substitute, self.predecessor[-1]]

    def forward(self, hidden, *args, **kwargs):
        """hidden: (B, T, hidden size), other arguments as the encoder hands them to each layer."""
        out = hidden
        for layer in [self.substitute] if self.replaced else self.predecessor:
            out = layer(hidden, *args, **kwargs)
            hidden = out[0] if isinstance(out, tuple) else out
        return out


def assemble(teacher: nn.Module, sizes: list[int], source: nn.Module, start: list[int]) -> nn.Module:
    """The mixed network: embeddings and head of the teacher, each module with a substitute copied from `source`."""
    depth = len(encoder_for_replacing(teacher))
    model = copy.deepcopy(teacher)
    own = list(layers.encoder_layers(model))
    candidates = layers.encoder_layers(source)
    modules, first = [], 0
    for size, i in zip(sizes, start, strict=True):
        modules.append(Replaceable(own[first : first + size], copy.deepcopy(candidates[i])))
        first += size
    assert first == depth
    return layers.set_layers(model, modules, start)


def encoder_for_replacing(model: nn.Module) -> nn.ModuleList:
    """The encoder's layers, if any of them may take another's place; `InputError` if they take unlike inputs."""
    kinds = set(getattr(model.config, "layer_types", None) or ["one"])
    if len(kinds) > 1:
        raise InputError(f"theseus: the layers of {type(model).__name__} take unlike inputs "
                         f"({', '.join(sorted(kinds))}), so that one cannot stand for several")
    return layers.encoder_layers(model)


def replaceables(model: nn.Module) -> list[Replaceable]:
    return [m for m in model.modules() if isinstance(m, Replaceable)]


def set_replaced(model: nn.Module, choice) -> None:
    """`choice`: one truth value for all modules, or one a module."""
    parts = replaceables(model)
    for m, r in zip(parts, [choice] * len(parts) if isinstance(choice, bool) else choice, strict=True):
        m.replaced = bool(r)


def successor(model: nn.Module) -> nn.Module:
    """The student: the substitutes alone, in the teacher's frame, as an ordinary model of its architecture."""
    student = copy.deepcopy(model)
    substitutes = [m.substitute for m in replaceables(student)]
    return layers.set_layers(student, substitutes, list(range(len(substitutes))))


def prepare(run, teacher: nn.Module) -> nn.Module:
    """The mixed network of a run, with only the substitutes trainable (variant "code": with all gradients on)."""
    p, chosen = run.p, flavour(run.p)
    depth = len(encoder_for_replacing(teacher))
    sizes = partition(depth, p)
    if p.only_module > len(sizes):
        raise InputError(f"only_module: {p.only_module} is not between 1 and {len(sizes)}")
    source = teacher if chosen["initial"] == "predecessor" else run.backbone().to(next(teacher.parameters()).device)
    start = initial_layers(depth, len(sizes), p.initial_layers)
    if source.config.hidden_size != teacher.config.hidden_size:
        raise InputError(f"backbone {p.backbone}: its width {source.config.hidden_size} is not the teacher's "
                         f"{teacher.config.hidden_size}; leave backbone empty or set initial='predecessor'")
    has = len(layers.encoder_layers(source))
    if max(start) >= has:
        raise InputError(f"backbone {p.backbone}: it has {has} layers, substitutes should start from its layer "
                         f"{max(start) + 1}; leave backbone empty or set initial='predecessor'")
    model = assemble(teacher, sizes, source, start)
    model.requires_grad_(chosen["all_gradients"])
    for m in replaceables(model):
        m.substitute.requires_grad_(True)
    return model


def compress(run, teacher: nn.Module) -> tuple[nn.Module, History]:
    """Module replacing, then successor fine-tuning, in one run of the loop. Returns (student, history).

    Embeddings and head stay the teacher's throughout, as in the official code; the held-out rows are scored with the
    substitutes only, from the first evaluation on. With `only_module` the network scored and returned is the
    predecessor with that one module replaced (Table 5).
    """
    p, chosen = run.p, flavour(run.p)
    model = prepare(run, teacher)
    parts = replaceables(model)
    alone = [i + 1 == p.only_module for i in range(len(parts))] if p.only_module else True

    def loss(model: nn.Module, batch: dict, step: Step) -> Loss:
        rate = replacing_rate(step.index, step.total, p)
        drawn = step.random().random(len(parts)) < rate  # one draw a module for the whole batch
        set_replaced(model, drawn if alone is True else drawn & alone)
        for m in parts:
            m.predecessor.train(p.frozen_dropout)
        value = bert.supervised(model, batch, step)
        return Loss(value, logs={"replacing_rate": rate})

    def scores(model: nn.Module) -> dict[str, float]:
        set_replaced(model, alone)
        return run.scores(model)

    trained = [q for m, on in zip(parts, [True] * len(parts) if alone is True else alone, strict=True) if on
               for q in m.substitute.parameters()]
    lr = p.lr / p.rate if p.equivalent_lr and p.schedule == "constant" else p.lr
    history = training.train(
        model, loss, run.train,
        run.settings(lr=lr, idle_allowed=True, clip_all=chosen["all_gradients"],
                     zero_gradients=chosen["all_gradients"]),
        evaluate=scores, parameters=trained, checkpoints=run.checkpoints())
    set_replaced(model, alone)
    if not run.trial:
        run.study = {"module_impact": module_impact(run, model)}
    if p.only_module:
        parts_kept = [x for m in parts for x in ([m.substitute] if m.replaced else m.predecessor)]
        return layers.set_layers(copy.deepcopy(model), copy.deepcopy(parts_kept), [0] * len(parts_kept)), history
    return successor(model), history


def module_impact(run, model: nn.Module) -> dict:
    """Held-out score (percent) of the predecessor with one trained substitute in place at a time, and with none.

    A cheap reading of Table 5: the substitutes were trained together.
    """
    parts = replaceables(model)
    before = [m.replaced for m in parts]
    out = {}
    for name, choice in {"none": [False] * len(parts),
                         **{str(i + 1): [j == i for j in range(len(parts))] for i in range(len(parts))}}.items():
        set_replaced(model, choice)
        out[name] = run.scores(model)["held_out"]
    set_replaced(model, before)
    return out
