"""EfficientBERT's search space: feed-forward functions as expression trees, with a size for each layer.

An architecture is one gene a layer, (s stacks, d, tree); limits and operators from the official code (methods.md 11.3).
All randomness comes from the generator handed in. Trees are those of `efficientbert_model`.
"""

from __future__ import annotations

import functools
import hashlib

import numpy as np
import torch

from lib.methods.efficientbert_model import (
    BINARY,
    LINEAR,
    PLAIN,
    RELEASED,
    UNARY,
    EfficientBertConfig,
    Tree,
    check_widths,
    evaluate,
    parse,
    spread,
)

HEIGHT = (3, 7)  # smallest and largest, x alone counting 0
STACKS = RATIOS = (1, 2, 3, 4)
# The paper's limit of 15-16M for the whole model, written as a share of the released 3.911M FFN parameters, so that it
# holds at every shape: everything else in that model, with the distillation projection, is 11.827M.
FFN_SHARE = ((15.0 - 11.8266) / 3.91104, (16.0 - 11.8266) / 3.91104)
OPERATIONS = (*LINEAR, *UNARY, *BINARY)
Gene = tuple[int, int, Tree]
Architecture = tuple[Gene, ...]


def text(tree: Tree) -> str:
    """A tree as the expression that `parse` reads."""
    return tree if isinstance(tree, str) else f"{tree[0]}({', '.join(text(c) for c in tree[1:])})"


def height(tree: Tree) -> int:
    """Longest way from the root to an x."""
    return 0 if isinstance(tree, str) else 1 + max(height(c) for c in tree[1:])


def nodes(tree: Tree, place: tuple[int, ...] = ()) -> list[tuple[tuple[int, ...], Tree]]:
    """Every subtree with the way to it, the root first."""
    found = [(place, tree)]
    if not isinstance(tree, str):
        for i, child in enumerate(tree[1:], 1):
            found += nodes(child, (*place, i))
    return found


def replace(tree: Tree, place: tuple[int, ...], new: Tree) -> Tree:
    """The tree with `new` at the end of a way."""
    if not place:
        return new
    i = place[0]
    return (*tree[:i], replace(tree[i], place[1:], new), *tree[i + 1:])


def problem(tree: Tree) -> str | None:
    """Why a tree is not in the space, or None. The rules are the official code's (methods.md 11.3); the last one, that
    the function must be finite and depend on its linears, is ours.
    """
    if wrong := check_widths(tree):
        return wrong
    if not HEIGHT[0] <= height(tree) <= HEIGHT[1]:
        return f"height {height(tree)} is not between {HEIGHT[0]} and {HEIGHT[1]}"
    for _, t in nodes(tree):
        if isinstance(t, str):
            continue
        inside = [c[0] for c in t[1:] if not isinstance(c, str)]
        if t[0] in UNARY and any(c in UNARY for c in inside):
            return "an activation stands directly on an activation"
        if t[0] in LINEAR and any(c in LINEAR for c in inside):
            return "a linear stands directly on a linear"
        if t[0] in BINARY and t[1] == t[2]:
            return "a binary operation has two equal inputs"
    return None if _lives(tree) else "it does not depend on both linears, or is not finite"


@functools.lru_cache(maxsize=100_000)
def outputs(tree: Tree, draw: int = 0) -> np.ndarray:
    """f on fixed random inputs, (16, 12) in float64, inner width 6; `draw` chooses the weights of W1."""
    g = torch.Generator().manual_seed(20210907)
    x = torch.randn(16, 12, generator=g, dtype=torch.float64)
    w2, b2 = torch.randn(6, 12, generator=g, dtype=torch.float64) / 2, torch.randn(12, generator=g, dtype=torch.float64)
    for _ in range(draw + 1):
        w1 = torch.randn(12, 6, generator=g, dtype=torch.float64) / 3
        b1 = torch.randn(6, generator=g, dtype=torch.float64)
    return evaluate(tree, x, lambda v: v @ w1 + b1, lambda v: v @ w2 + b2).numpy()


def _lives(tree: Tree) -> bool:
    # W1 stands inside W2, so that what depends on W1 depends on both
    a, b = outputs(tree), outputs(tree, 1)
    finite = np.isfinite(a).all() and np.isfinite(b).all()
    return bool(finite and np.abs(a - b).max() > 1e-6 and np.ptp(a, axis=0).max() > 1e-6)


def fingerprint(tree: Tree) -> str:
    """Hash of the outputs on fixed inputs: trees that compute the same function are equal in it."""
    values = np.round(outputs(tree), 8) + 0.0  # + 0: no negative zeros
    return hashlib.sha256(values.tobytes()).hexdigest()[:16]


def key(architecture: Architecture) -> str:
    """Hash of an architecture: sizes and what each function computes."""
    parts = [(s, d, fingerprint(t)) for s, d, t in architecture]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def pick(rng: np.random.Generator, options):
    return options[int(rng.integers(len(options)))]


def _leafy(rng: np.random.Generator, depth: int) -> Tree:
    """A random tree over x without linears."""
    if depth == 0 or rng.random() < 0.4:
        return "x"
    if rng.random() < 0.6:
        return (pick(rng, list(UNARY)), _leafy(rng, depth - 1))
    return (pick(rng, list(BINARY)), _leafy(rng, depth - 1), _leafy(rng, depth - 1))


def _change(tree: Tree, rng: np.random.Generator) -> Tree:
    """One random change: another operation, one put in, one taken out, or a new subtree. May leave the space."""
    place, t = pick(rng, nodes(tree))
    kind = pick(rng, ("exchange", "insert", "delete", "subtree"))
    if kind == "exchange" and not isinstance(t, str) and t[0] not in LINEAR:
        return replace(tree, place, (pick(rng, list(UNARY if t[0] in UNARY else BINARY)), *t[1:]))
    if kind == "insert":
        if rng.random() < 0.5:
            return replace(tree, place, (pick(rng, list(UNARY)), t))
        other = _leafy(rng, 2)
        return replace(tree, place, (pick(rng, list(BINARY)), *((t, other) if rng.random() < 0.5 else (other, t))))
    if kind == "delete" and not isinstance(t, str) and t[0] not in LINEAR:
        return replace(tree, place, pick(rng, t[1:]))
    if kind == "subtree" and not any(f"'{w}'" in str(t) for w in LINEAR):
        return replace(tree, place, _leafy(rng, 3))
    return tree


def mutate(tree: Tree, rng: np.random.Generator, tries: int = 1000) -> Tree:
    """A tree of the space a few changes away from `tree`; `tree` itself if none was found (official code: the same)."""
    for _ in range(tries):
        new = tree
        for _ in range(int(rng.integers(1, 5))):
            new = _change(new, rng)
        if new != tree and problem(new) is None:
            return new
    return tree


def sample(rng: np.random.Generator) -> Tree:
    """A random tree of the space: the plain function, changed several times over."""
    tree = parse(PLAIN)
    for _ in range(int(rng.integers(1, 4))):
        tree = mutate(tree, rng)
    return tree


def ffn_parameters(config: EfficientBertConfig, sizes) -> int:
    """Parameters of all feed-forward parts for (s, d) a layer, LayerNorms included."""
    h, base = config.hidden_size, config.ffn_size
    return sum(s * (2 * h * (base // d) + base // d + h + 2 * h) for s, d in sizes)


def limits(config: EfficientBertConfig) -> tuple[float, float]:
    """Smallest and largest number of FFN parameters that the search admits at this shape (see `FFN_SHARE`)."""
    released = ffn_parameters(config, [(s, d) for s, d, _ in spread(RELEASED, config.num_hidden_layers)])
    return released * FFN_SHARE[0], released * FFN_SHARE[1]


def admitted(config: EfficientBertConfig, architecture: Architecture) -> bool:
    """Whether the size of an architecture is within the limits."""
    low, high = limits(config)
    return low <= ffn_parameters(config, [g[:2] for g in architecture]) <= high


def sizes(config: EfficientBertConfig, rng: np.random.Generator, tries: int = 10_000) -> list[tuple[int, int]]:
    """Random (s, d) a layer within the limits. `RuntimeError` if none was found."""
    low, high = limits(config)
    for _ in range(tries):
        drawn = [(pick(rng, STACKS), pick(rng, RATIOS)) for _ in range(config.num_hidden_layers)]
        if low <= ffn_parameters(config, drawn) <= high:
            return drawn
    raise RuntimeError(f"no sizes of {config.num_hidden_layers} layers have {low:.0f} to {high:.0f} FFN parameters")


def even_sizes(config: EfficientBertConfig) -> list[tuple[int, int]]:
    """The same (s, d) in every layer, the first in order that is within the limits: (1, 1) in the paper's shape, where
    the search starts. If none is, sizes drawn with a fixed seed.
    """
    low, high = limits(config)
    for s in STACKS:
        for d in RATIOS:
            even = [(s, d)] * config.num_hidden_layers
            if low <= ffn_parameters(config, even) <= high:
                return even
    return sizes(config, np.random.default_rng(0))


def features(architecture: Architecture) -> list[float]:
    """Numbers that the classifiers of the search see: for each layer s, d, the height, and how often each operation
    stands in the tree (official code: the list of operations itself, filled up to 20).
    """
    out: list[float] = []
    for s, d, tree in architecture:
        names = [t[0] for _, t in nodes(tree) if not isinstance(t, str)]
        out += [s, d, height(tree), *(names.count(o) for o in OPERATIONS)]
    return out


def to_json(architecture: Architecture) -> list[list]:
    """[[s, d, expression], ...], as in `EfficientBertConfig.ffns`."""
    return [[s, d, text(t)] for s, d, t in architecture]


def from_json(entries) -> Architecture:
    return tuple((int(s), int(d), parse(e)) for s, d, e in entries)
