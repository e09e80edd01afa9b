"""A general stage of language modelling as an artefact: what it keeps, shares and says when it diverges."""

import pytest
import tiny
import torch

from lib import artefacts, layers, mlm, models, parameters, pretrain, text


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.txt"
    path.write_text("\n\n".join(t for t, _, _ in tiny.rows(3000, seed=5)))
    return str(path)


def parameters_of(own, **changes):
    return parameters.validate(mlm.General, {"text": own, "text_tokens": 2000, "text_length": 32, "precision": "fp32",
                                             "general_batch_size": 4, **changes})


def stage(p, backbone, loss=None, **configuration):
    def build(sequences):
        encoder = models.load_encoder(backbone)
        return encoder, mlm.Head.of(encoder)

    def objective(encoder, masker):
        plain = mlm.language_loss(masker)
        return loss or plain

    tokenizer = models.load_tokenizer(backbone)
    return pretrain.stage("stage", p, tokenizer, {"of": "test", **configuration}, build, objective)


def test_it_learns_is_kept_and_loads(own, backbone, places):
    p = parameters_of(own, general_lr=5e-3, general_epochs=3)
    artefact = stage(p, backbone)
    report = artefact.meta["mlm"]
    assert report["after"]["loss"] < report["before"]["loss"] - 0.5
    assert report["diverged"] == ""
    assert report["steps"] > 10
    assert artefact.meta["tokens"] == report["tokens"] > 2000
    again = stage(p, backbone)
    assert (again.key, again.meta) == (artefact.key, artefact.meta)
    assert stage(p, backbone, other=1).key != artefact.key
    encoder = models.load_encoder(backbone)
    before = tiny.state(encoder)
    pretrain.load(encoder, artefact)
    assert not tiny.same(before, tiny.state(encoder))
    with pytest.raises(RuntimeError, match="does not fit"):
        pretrain.load(layers.cut(encoder, [0]), artefact)


def test_divergence_is_said_and_not_hidden(own, backbone, places):
    def loss(model, batch, step):
        inner = mlm.language_loss(mlm.Masker(models.load_tokenizer(backbone)))(model, batch, step)
        return inner if step.index < 3 else inner.value * torch.nan

    report = stage(parameters_of(own), backbone, loss).meta["mlm"]
    assert "not finite" in report["diverged"]
    assert [step for step, _ in report["curve"]["loss"]] == [1, 2, 3]


def test_another_error_is_not_taken_for_divergence(own, backbone, places):
    def loss(model, batch, step):
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        stage(parameters_of(own), backbone, loss)
    assert not list((artefacts.build_dir() / "artefacts" / "stage").glob("*/artefact.json"))


def test_a_tokenizers_identity_does_not_depend_on_its_last_call():
    tokenizer = tiny.tokenizer()
    before = text.tokenizer_hash(tokenizer)
    tokenizer(["a film", "a"], truncation=True, max_length=3, padding=True)
    assert text.tokenizer_hash(tokenizer) == before
