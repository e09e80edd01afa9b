"""The mixed network of Theseus: how it is cut into modules, what each choice runs, and what cannot be cut."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import tiny
import torch
from theseus_runs import config, logits

from lib import layers
from lib.errors import InputError
from lib.methods import bert, theseus, truncated
from lib.methods.theseus import initial_layers, partition, replaceables, set_replaced

# --- modules


def test_partition():
    assert partition(12, config()) == [2] * 6
    assert partition(12, config(layers=4)) == [3] * 4
    assert partition(12, config(layers=3)) == [4] * 3
    assert partition(6, config(modules=[1, 2, 3])) == [1, 2, 3]
    assert partition(6, config(modules="3 3")) == [3, 3]
    assert partition(4, config(modules=[4])) == [4]


@pytest.mark.parametrize(("depth", "values", "words"), [
    (6, {"modules": [2, 2]}, "add up to the backbone's 6 layers"), (6, {"modules": [6, 0]}, "positive"),
    (6, {"modules": [7, -1]}, "positive"), (6, {"layers": 4}, "4 does not divide the backbone's 6 layers"),
    (6, {"modules": [3, 3], "layers": 3}, "3 is not the number of modules"),
    (5, {}, "2 does not divide"), (6, {"layers": 6}, "not between 1 and 5"), (6, {"layers": 99}, "not between 1 and 5"),
])
def test_partitions_that_do_not_fit(depth, values, words):
    with pytest.raises(InputError, match=words):
        partition(depth, config(**values))


def test_substitutes_start_from():
    assert initial_layers(12, 6, "lowest") == [0, 1, 2, 3, 4, 5]
    assert initial_layers(12, 6, "highest") == [6, 7, 8, 9, 10, 11]
    assert initial_layers(12, 6, "interleaved") == [1, 3, 5, 7, 9, 11]
    assert initial_layers(12, 4, "interleaved") == [2, 5, 8, 11]
    for which in ("lowest", "highest", "interleaved"):
        for depth, count in ((7, 3), (5, 4), (6, 1), (4, 4)):
            got = initial_layers(depth, count, which)
            assert len(set(got)) == count
            assert sorted(got) == got
            assert min(got) >= 0
            assert max(got) < depth


# --- the mixed network


@pytest.fixture(params=tiny.KINDS)
def pair(request):
    """(teacher, another encoder as source of the substitutes, batch)."""
    return (tiny.classifier(request.param, seed=1, classes=3), tiny.classifier(request.param, seed=2, classes=3),
            tiny.encoded(7, seed=3, classes=3).batch(np.arange(7)))


@pytest.mark.parametrize("sizes", [[2, 2], [1, 3], [4], [1, 1, 2], [1, 1, 1, 1]])
def test_every_choice_runs_exactly_the_chosen_layers(pair, sizes):
    teacher, source, batch = pair
    start = list(range(len(sizes)))
    mixed = theseus.assemble(teacher, sizes, source, start)
    own, substitutes = list(layers.encoder_layers(teacher)), [layers.encoder_layers(source)[i] for i in start]
    bounds = np.cumsum([0, *sizes])
    for choice in np.ndindex(*[2] * len(sizes)):
        chain = []
        for i, replaced in enumerate(choice):
            chain += [substitutes[i]] if replaced else own[bounds[i] : bounds[i + 1]]
        by_hand = layers.set_layers(copy.deepcopy(teacher), copy.deepcopy(chain), [0] * len(chain))
        set_replaced(mixed, [bool(c) for c in choice])
        torch.testing.assert_close(logits(mixed, batch), logits(by_hand, batch), atol=2e-6, rtol=1e-5)
    set_replaced(mixed, False)
    torch.testing.assert_close(logits(mixed, batch), logits(teacher, batch), atol=2e-6, rtol=1e-5)
    set_replaced(mixed, True)
    student = theseus.successor(mixed)
    torch.testing.assert_close(logits(student, batch), logits(mixed, batch), atol=2e-6, rtol=1e-5)
    assert student.config.num_hidden_layers == len(sizes)
    assert not replaceables(student)


def test_assembling_shares_nothing(pair):
    teacher, source, _ = pair
    before, other = tiny.state(teacher), tiny.state(source)
    mixed = theseus.assemble(teacher, [2, 2], source, [0, 1])
    with torch.no_grad():
        for p in mixed.parameters():
            p.add_(1.0)
    assert tiny.same(tiny.state(teacher), before)
    assert tiny.same(tiny.state(source), other)


def test_gradient_passes_through_frozen_layers_to_lower_substitutes():
    teacher = tiny.classifier(seed=1)
    mixed = theseus.assemble(teacher, [2, 2], tiny.classifier(seed=2), [0, 1])
    mixed.requires_grad_(False)
    first, second = replaceables(mixed)
    first.substitute.requires_grad_(True)
    set_replaced(mixed, [True, False])
    batch = tiny.encoded(6).batch(np.arange(6))
    bert.task_loss(layers.classify(mixed, batch), batch["labels"]).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for n, p in first.substitute.named_parameters()
               if "key.bias" not in n)
    assert all(p.grad is None for p in second.parameters())


# --- backbones and teachers that do not fit


def test_unlike_layers_are_refused_in_a_sentence_and_can_be_truncated(places, films, encoder):
    run = tiny.run("theseus", theseus.Config, films, encoder("modernbert"), max_rows=32)
    with pytest.raises(InputError, match="theseus: the layers of ModernBertForSequenceClassification take unlike"):
        theseus.prepare(run, run.teacher().model)
    run = tiny.run("truncated", truncated.Config, films, encoder("modernbert"), max_rows=32)
    _, record = tiny.finish(run, truncated.compress)
    assert record.layers == 2


def test_backbone_of_another_width_than_the_teacher_is_one_line(places, films, backbone):
    wide = tiny.save_classifier(places / "wide", ["negative", "positive"], hidden_size=64)
    run = tiny.run("theseus", theseus.Config, films, backbone, teacher=str(wide))
    with pytest.raises(InputError, match="width"):
        run.compress(theseus.compress)


def test_backbone_with_fewer_layers_than_asked_for_is_one_line(places, films, encoder):
    deep = tiny.save_classifier(places / "deep", ["negative", "positive"], layers=8)
    run = tiny.run("theseus", theseus.Config, films, encoder("bert"), teacher=str(deep), initial_layers="highest")
    with pytest.raises(InputError, match="layers"):
        theseus.prepare(run, run.teacher().model)
