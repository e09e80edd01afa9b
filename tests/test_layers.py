"""Surgery on encoders: found, cut and replaced; padding and the other rows of a batch change no output."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch
from torch import nn

from lib import layers
from lib.errors import InputError


@pytest.fixture(params=tiny.KINDS)
def model(request):
    return tiny.classifier(request.param, classes=3)


def logits(model, batch) -> torch.Tensor:
    with torch.no_grad():
        return layers.classify(model, batch)


def test_finds_the_layers(model):
    found = layers.encoder_layers(model)
    assert len(found) == tiny.LAYERS == model.config.num_hidden_layers
    assert len({type(x) for x in found}) == 1


def test_finds_the_output_layer(model):
    head = layers.output_layer(model)
    before = logits(model, tiny.encoded(3).batch(np.arange(3)))
    with torch.no_grad():
        head.bias += torch.tensor([1.0, 2.0, 3.0])
    after = logits(model, tiny.encoded(3).batch(np.arange(3)))
    torch.testing.assert_close(after - before, torch.tensor([[1.0, 2.0, 3.0]] * 3), atol=1e-5, rtol=1e-5)


def test_output_layer_where_the_width_is_the_number_of_classes():
    model = tiny.classifier(classes=tiny.WIDTH)
    assert layers.output_layer(model) is model.classifier


def test_padding_changes_no_output(model):
    """A row alone, in a batch of longer rows, and with still more padding."""
    data = tiny.encoded(12, seed=3, low=4, high=30)
    together = logits(model, data.batch(np.arange(12)))
    for i in range(12):
        alone = logits(model, data.batch(np.array([i])))
        torch.testing.assert_close(together[i : i + 1], alone, atol=2e-6, rtol=1e-5)
    batch = data.batch(np.arange(12))
    wider = {k: nn.functional.pad(batch[k], (0, 9)) for k in ("input_ids", "attention_mask")}
    torch.testing.assert_close(logits(model, wider), together, atol=2e-6, rtol=1e-5)
    assert together.std(0).min() > 1e-3  # the rows do differ


def test_what_stands_under_the_padding_does_not_matter(model):
    batch = tiny.encoded(6, seed=3).batch(np.arange(6))
    other = dict(batch)
    junk = torch.randint(10, tiny.SIZE, batch["input_ids"].shape)
    other["input_ids"] = torch.where(batch["attention_mask"] == 0, junk, batch["input_ids"])
    if model.config.model_type != "roberta":  # its positions are counted from the padding token itself
        torch.testing.assert_close(logits(model, other), logits(model, batch), atol=2e-6, rtol=1e-5)


def test_a_batch_is_read_by_name_and_extra_names_are_left_alone(model):
    batch = tiny.encoded(3).batch(np.arange(3))
    a = logits(model, batch)
    batch |= {"labels": torch.zeros(3), "anything": torch.ones(1)}
    assert torch.equal(logits(model, batch), a)


def test_token_types_are_passed_on():
    model, batch = tiny.classifier(), tiny.encoded(3).batch(np.arange(3))
    batch["token_type_ids"] = (batch["input_ids"] % 2).long()
    with torch.no_grad():
        wanted = model(**{k: batch[k] for k in ("input_ids", "attention_mask", "token_type_ids")}).logits
    torch.testing.assert_close(logits(model, batch), wanted, atol=2e-6, rtol=1e-5)
    del batch["token_type_ids"]
    assert not torch.allclose(logits(model, batch), wanted, atol=1e-4)


# --- cut


def by_hand(model, keep, batch):
    """The encoder with only the layers `keep`, by skipping the others with hooks."""
    def skip(module, args, kwargs, output):
        hidden = args[0] if args else kwargs["hidden_states"]
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

    handles = [x.register_forward_hook(skip, with_kwargs=True)
               for i, x in enumerate(layers.encoder_layers(model)) if i not in keep]
    with torch.no_grad():
        out = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    for h in handles:
        h.remove()
    return out


@pytest.mark.parametrize("keep", [[0], [0, 1], [1, 3], [0, 1, 2, 3]])
def test_cut_runs_exactly_the_kept_layers(model, keep):
    batch = tiny.encoded(5, seed=6).batch(np.arange(5))
    wanted = by_hand(model, keep, batch)
    before = tiny.state(model)
    student = layers.cut(model, keep)
    torch.testing.assert_close(logits(student, batch), wanted, atol=2e-6, rtol=1e-5)
    assert student.config.num_hidden_layers == len(layers.encoder_layers(student)) == len(keep)
    assert model.config.num_hidden_layers == tiny.LAYERS
    with torch.no_grad():
        for p in student.parameters():
            p.add_(1.0)
    assert tiny.same(tiny.state(model), before)  # nothing is shared


@pytest.mark.parametrize("keep", [[], [4], [-1], [0, 9]])
def test_cut_refuses_layers_that_are_not_there(keep):
    with pytest.raises(InputError, match="between 0 and 3"):
        layers.cut(tiny.classifier(), keep)


def test_kept_layers_keep_their_order_as_given():
    model = tiny.classifier()
    student = layers.cut(model, [2, 0])
    for new, old in zip(layers.encoder_layers(student), (2, 0), strict=True):
        assert tiny.same(tiny.state(new), tiny.state(layers.encoder_layers(model)[old]))


def test_layers_of_unlike_types_keep_their_types():
    model = tiny.classifier("modernbert")
    types = list(model.config.layer_types)
    assert len(set(types)) == 2
    student = layers.cut(model, [1, 2])
    assert list(student.config.layer_types) == [types[1], types[2]] != types[:2]
    batch = tiny.encoded(4, high=30).batch(np.arange(4))
    torch.testing.assert_close(logits(student, batch), by_hand(model, [1, 2], batch), atol=2e-6, rtol=1e-5)


def test_lowest_and_halved():
    assert layers.lowest(6, 3) == [0, 1, 2]
    assert layers.lowest(2, 3) == [0, 1]
    assert [layers.halved(d, 0) for d in (2, 3, 5, 6, 12)] == [1, 1, 2, 3, 6]
    assert layers.halved(6, 5) == 5
    for depth, asked in ((6, 6), (6, 7), (1, 0), (1, 1)):
        with pytest.raises(InputError, match=rf"layers: \d is not between 1 and {depth - 1}"):
            layers.halved(depth, asked)


def test_fresh_head_is_drawn_from_torchs_generator():
    a, b = tiny.classifier(), tiny.classifier()
    torch.manual_seed(9)
    layers.fresh_head(a)
    torch.manual_seed(9)
    layers.fresh_head(b)
    assert torch.equal(a.classifier.weight, b.classifier.weight)
    assert abs(float(a.classifier.weight.detach().std()) - a.config.initializer_range) < 0.06


def test_fresh_head_of_an_output_layer_without_a_bias():
    model = tiny.classifier()
    model.classifier = torch.nn.Linear(model.config.hidden_size, 2, bias=False)
    before = model.classifier.weight.detach().clone()
    layers.fresh_head(model)
    assert not torch.equal(model.classifier.weight, before)


def test_set_layers_numbers_them_anew():
    model = tiny.classifier()
    student = layers.cut(model, [1, 3])
    numbers = {m.layer_idx for x in layers.encoder_layers(student)[1:] for m in x.modules() if hasattr(m, "layer_idx")}
    assert numbers in ({1}, set())
