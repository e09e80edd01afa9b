"""Which layers stay when a network trained with LayerDrop is pruned (arXiv 1909.11556), and taking the others out."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from torch import nn

from lib import evaluation, layers, training
from lib.errors import InputError


class Droppable(nn.Module):
    """An encoder layer that passes its input on where `dropped` is set."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer
        self.dropped = False
        self.tuples = False  # whether the layer answers with a tuple; found by `wrap`
        if hasattr(layer, "attention_type"):  # ModernBERT asks each layer which mask it wants
            self.attention_type = layer.attention_type

    def last_layers(self) -> list[nn.Module]:
        """The layer itself, when this is the encoder's last."""
        return [self.layer]

    def forward(self, hidden, *args, **kwargs):
        """hidden: (B, T, H), other arguments as the encoder hands them to each layer."""
        if self.dropped:
            return (hidden,) if self.tuples else hidden
        out = self.layer(hidden, *args, **kwargs)
        self.tuples = isinstance(out, tuple)
        return out


def wrap(model: nn.Module) -> list[Droppable]:
    """Make each encoder layer of `model` droppable, in place."""
    own = list(layers.encoder_layers(model))
    parts = [Droppable(x) for x in own]
    layers.set_layers(model, parts, list(range(len(own))))
    mode = model.training
    with torch.no_grad():
        model.eval()(input_ids=torch.ones(1, 2, dtype=torch.long, device=next(model.parameters()).device))
    model.train(mode)
    return parts


def leave(parts: list[Droppable], kept) -> None:
    """Run the layers `kept` (zero-based) and no other."""
    for i, part in enumerate(parts):
        part.dropped = i not in set(kept)


def pruned(model: nn.Module, kept: list[int]) -> nn.Module:
    """A copy of a wrapped model that has the layers `kept` alone, as an ordinary model of its architecture."""
    student = layers.cut(model, kept)
    return layers.set_layers(student, [x.layer for x in layers.encoder_layers(student)], list(range(len(kept))))


def every_other(depth: int, count: int, counting: str = "zero") -> list[int]:
    """Zero-based layers that the paper's rule leaves: drop each l with l mod floor(1/q) = 0.

    q is the share removed. The rule as printed removes everything for q > 1/2, so there its mirror image is taken,
    which is equal to it at 1/2: keep each l with l mod k = k - 1, k = floor(1/(1 - q)). Raises `InputError` where the
    rule does not leave `count` layers.
    """
    removed, shift = depth - count, 1 if counting == "one" else 0
    if 2 * removed <= depth:
        kept = [l for l in range(depth) if (l + shift) % (depth // removed)]
    else:
        kept = [l for l in range(depth) if (l + shift) % (depth // count) == depth // count - 1]
    if len(kept) != count:
        raise InputError(f"layers: the every-other rule leaves {len(kept)} of {depth} layers, not {count}; "
                         "set pruning=search, or keep")
    return kept


def rule(p, depth: int) -> list[int]:
    """The layers that stay without a search (p: `layerdrop.Config`). `InputError` for `keep` out of range or order."""
    if p.keep:
        if sorted(set(p.keep)) != p.keep or p.keep[0] < 0 or p.keep[-1] >= depth or len(p.keep) == depth:
            raise InputError(f"keep: {p.keep} must be rising numbers between 0 and {depth - 1}, not all of them")
        return p.keep
    count = layers.halved(depth, p.layers)
    try:
        return every_other(depth, count, p.counting)
    except InputError:
        if p.pruning != "search":
            raise
        return [(i * depth) // count for i in range(count)]  # even spacing, where the search begins


def candidates(depth: int, count: int, limit: int, seed: int) -> list[tuple[int, ...]]:
    """Sets of `count` of `depth` layers: all of them where there are no more than `limit`, else that many at random."""
    if math.comb(depth, count) <= limit:
        return list(itertools.combinations(range(depth), count))
    rng = np.random.default_rng(seed)
    found: set[tuple[int, ...]] = set()
    while len(found) < limit:
        found.add(tuple(sorted(int(i) for i in rng.choice(depth, count, replace=False))))
    return sorted(found)


def choose(run, model: nn.Module, parts: list[Droppable], rule: list[int]) -> tuple[list[int], dict]:
    """The layers that stay, and the held-out score (percent) of each set that was looked at.

    With pruning="search" the best of `candidates` and of the rule; else the rule, which is then not scored again.
    """
    if run.p.pruning != "search" or run.p.keep:
        return rule, {}
    sets = list(dict.fromkeys([tuple(rule), *candidates(len(parts), len(rule), run.p.search_limit, run.p.seed)]))
    scores = {}
    for kept in sets:
        leave(parts, kept)
        scores[kept] = held_out(run, model)
    return list(max(sets, key=lambda s: scores[s] if math.isfinite(scores[s]) else -math.inf)), scores


def table(run, model: nn.Module, parts: list[Droppable], chosen: list[int], scored: dict) -> dict:
    """Held-out score (percent) of the whole network and of several ways to prune it, before any recovery.

    The lowest layers are the control. A rule that does not give the wanted depth is left out.
    """
    depth, count = len(parts), len(chosen)
    ways = {"all layers": list(range(depth)), "lowest": list(range(count)), "chosen": chosen}
    for counting in ("one", "zero"):
        try:
            ways[f"every other, counted from {counting}"] = every_other(depth, count, counting)
        except InputError:
            continue
    out, known = {}, dict(scored)
    for name, kept in ways.items():
        leave(parts, kept)
        if tuple(kept) not in known:
            known[tuple(kept)] = held_out(run, model)
        out[name] = {"layers": kept, "held_out": known[tuple(kept)]}
    if scored:
        out["candidates"] = [{"layers": list(k), "held_out": v} for k, v in scored.items()]
    leave(parts, chosen)
    return out


def held_out(run, model: nn.Module) -> float:
    """Score of a network on the held-out rows alone, percent."""
    return evaluation.headline(run.task, run.metrics(model, "held_out", training.precision(run.p.precision)))
