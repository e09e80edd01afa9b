"""EfficientBERT's search space: no forbidden tree is ever made (property-based), duplicates and limits."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.methods import efficientbert_model as eb
from lib.methods import efficientbert_space as space

SEEDS = st.integers(0, 2**32 - 1)
FAST = settings(max_examples=150, deadline=None)
CONFIG = eb.config()


def leaves_and_nodes(children):
    return st.one_of(st.tuples(st.sampled_from([*eb.UNARY, *eb.LINEAR]), children),
                     st.tuples(st.sampled_from(list(eb.BINARY)), children, children))


ANY_TREE = st.recursive(st.just("x"), leaves_and_nodes, max_leaves=8)


def forbidden(text: str) -> bool:
    """The rules on the expression's text, as the official code states them: independent of `space.problem`."""
    text = text.replace(" ", "")
    acts = "(" + "|".join(sorted(eb.UNARY, key=len, reverse=True)) + ")"
    depth = most = 0
    for c in text:
        depth += (c == "(") - (c == ")")
        most = max(most, depth)
    if not 3 <= most <= 7 or text.count("W1(") != 1 or text.count("W2(") != 1:
        return True
    if re.search(rf"(?<![a-z_]){acts}\({acts}\(", text) or re.search(r"W[12]\(W[12]\(", text):
        return True
    inside = text[text.index("W2(") + 3:]
    end, level = 0, 1
    while level:
        level += (inside[end] == "(") - (inside[end] == ")")
        end += 1
    return "W1(" not in inside[:end] or equal_operands(text)


def equal_operands(text: str) -> bool:
    for found in re.finditer(r"(add|mul|max)\(", text):
        level, start, parts = 1, found.end(), []
        for i in range(found.end(), len(text)):
            level += (text[i] == "(") - (text[i] == ")")
            if (text[i] == "," and level == 1) or level == 0:
                parts.append(text[start:i])
                start = i + 1
            if level == 0:
                break
        if parts[0] == parts[1]:
            return True
    return False


def test_the_text_rules_know_good_from_bad():
    assert not any(forbidden(t) for _, _, t in (*eb.RELEASED, (1, 1, eb.PLAIN)))
    bad = ["W2(W1(x))", "gelu(tanh(W2(gelu(W1(x)))))", "W2(gelu(W1(add(tanh(x), tanh(x)))))", "W1(gelu(W2(x)))",
           "add(W1(x), gelu(W2(x)))", "gelu(W1(x))", "W2(gelu(W1(max(x, x))))"]
    assert all(forbidden(t) for t in bad)
    assert all(space.problem(eb.parse(t)) for t in bad)


@FAST
@given(SEEDS)
def test_sampled_trees_are_allowed(seed):
    tree = space.sample(np.random.default_rng(seed))
    assert not forbidden(space.text(tree))
    assert space.problem(tree) is None
    assert eb.parse(space.text(tree)) == tree


@FAST
@given(SEEDS, st.sampled_from([t for _, _, t in eb.RELEASED]))
def test_mutated_trees_are_allowed(seed, text):
    tree = eb.parse(text)
    for _ in range(3):
        tree = space.mutate(tree, np.random.default_rng(seed))
        assert not forbidden(space.text(tree))


@settings(max_examples=400, deadline=None)
@given(ANY_TREE)
def test_the_judge_agrees_with_the_text_rules(tree):
    """Whatever is forbidden is refused; what is refused beyond that is so for computing nothing of the linears."""
    wrong = space.problem(tree)
    if forbidden(space.text(tree)):
        assert wrong is not None
    else:
        assert wrong is None or "depend" in wrong


@FAST
@given(SEEDS)
def test_every_sampled_function_runs_at_every_width(seed):
    tree = space.sample(np.random.default_rng(seed))
    for inner in (12, 6, 4, 3, 24):
        x = torch.randn(2, 12)
        out = eb.evaluate(tree, x, torch.nn.Linear(12, inner), torch.nn.Linear(inner, 12))
        assert out.shape == (2, 12)
        assert torch.isfinite(out).all()


def test_sampling_reaches_the_whole_space():
    trees = [space.sample(np.random.default_rng(i)) for i in range(600)]
    assert {t[0] for tree in trees for _, t in space.nodes(tree) if t != "x"} == set(space.OPERATIONS)
    assert {space.height(t) for t in trees} == {3, 4, 5, 6, 7}
    found = {space.fingerprint(t) for t in trees}
    assert len(found) > 250
    assert {space.fingerprint(eb.parse(t)) for t in ("tanh(W2(gelu(W1(x))))", "W2(relu(mul(W1(x), x)))")} & found


@pytest.mark.parametrize(("a", "b", "same"), [
    ("W2(gelu(add(W1(x), x)))", "W2(gelu(add(x, W1(x))))", True),
    ("W2(gelu(W1(max(x, relu(x)))))", "W2(gelu(W1(relu(x))))", True),
    ("W2(gelu(W1(x)))", "W2(swish(W1(x)))", False),
    ("add(x, W2(gelu(W1(x))))", "W2(gelu(W1(x)))", False),
])
def test_duplicates_are_known_by_their_outputs(a, b, same):
    first, second = eb.parse(a), eb.parse(b)
    assert (space.fingerprint(first) == space.fingerprint(second)) is same
    assert (space.key(((1, 2, first),)) == space.key(((1, 2, second),))) is same
    assert space.key(((1, 2, first),)) != space.key(((2, 2, first),))


@pytest.mark.parametrize("broken", [torch.zeros_like, lambda v: v / 0 * 0, lambda v: v.sum() + torch.zeros_like(v)])
def test_a_function_that_computes_nothing_is_degenerate(monkeypatch, broken):
    """elu stands for any composition that loses the linears or is not finite (the third: one number for all inputs)."""
    tree = eb.parse("elu(W2(gelu(W1(x))))")
    assert space.problem(tree) is None
    monkeypatch.setitem(eb.UNARY, "elu", broken)
    space.outputs.cache_clear()
    assert "depend" in space.problem(tree)
    space.outputs.cache_clear()


def test_parameters_and_limits():
    sizes = [(s, d) for s, d, _ in eb.RELEASED]
    assert space.ffn_parameters(CONFIG, sizes) == 3_911_040
    low, high = space.limits(CONFIG)
    other = 15_322_236 - 3_911_040 + 540 * 768 + 768  # everything but the FFNs, with the projection
    assert low + other == pytest.approx(15e6, abs=500)
    assert high + other == pytest.approx(16e6, abs=500)
    with torch.device("meta"):
        layer = eb.EfficientBertModel(eb.config(num_hidden_layers=1, ffns=[[3, 4, eb.PLAIN]])).layers[0]
    assert sum(p.numel() for p in layer.ffns.parameters()) == space.ffn_parameters(
        eb.config(num_hidden_layers=1, ffns=[[3, 4, eb.PLAIN]]), [(3, 4)])


@FAST
@given(SEEDS, st.sampled_from([eb.config(), eb.config("tiny"), eb.config(hidden_size=264, num_hidden_layers=3)]))
def test_sizes_are_within_the_limits(seed, config):
    drawn = space.sizes(config, np.random.default_rng(seed))
    low, high = space.limits(config)
    assert low <= space.ffn_parameters(config, drawn) <= high
    assert all(1 <= s <= 4 and 1 <= d <= 4 for s, d in drawn)
    plain = eb.parse(eb.PLAIN)
    assert space.admitted(config, tuple((s, d, plain) for s, d in drawn))
    assert not space.admitted(config, tuple((4, 1, plain) for _ in drawn))


@pytest.mark.parametrize("layers", range(1, 13))
def test_the_search_starts_within_the_limits(layers):
    config = eb.config(num_hidden_layers=layers)
    even = space.even_sizes(config)
    plain = eb.parse(eb.PLAIN)
    assert space.admitted(config, tuple((s, d, plain) for s, d in even))
    if layers == 6:
        assert even == [(1, 1)] * 6


@FAST
@given(SEEDS)
def test_json_round_trip_and_features(seed):
    rng = np.random.default_rng(seed)
    a = tuple((s, d, space.sample(rng)) for s, d in space.sizes(CONFIG, rng))
    assert space.from_json(space.to_json(a)) == a
    numbers = np.array(space.features(a)).reshape(6, -1)
    assert numbers[:, 3:].sum() == sum(len([n for _, n in space.nodes(t) if n != "x"]) for _, _, t in a)
