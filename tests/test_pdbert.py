"""PD-BERT: the compact shape, its own pre-training, the transfer set's loss, the arms under one budget."""

import numpy as np
import pytest
import tiny
import torch
from transformers import AutoModelForSequenceClassification

from lib import layers, models, parameters, runs
from lib.errors import InputError
from lib.methods import pdbert

QUICK = {"max_tokens": 400, "epochs": 2, "evaluations": 1, "teacher_tokens": 300, "precision": "fp32",
         "profile": "test", "text_tokens": 1500, "text_length": 32, "general_batch_size": 8, "batch_size": 8}


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "own.txt"
    path.write_text("\n\n".join(t for t, _, _ in tiny.rows(400, seed=5)))
    return str(path)


def run_of(task, backbone, own, **changes):
    p = parameters.validate(pdbert.Config, {"task": task, "backbone": backbone, "text": own, **QUICK, **changes})
    return runs.start("pdbert", p)


def config(**changes):
    return parameters.validate(pdbert.Config, changes)


def test_shapes():
    base = tiny.config("bert", layers=12, hidden_size=768, num_attention_heads=12, intermediate_size=3072)
    for given, expected in (({}, (6, 768, 12, 3072)), ({"layers": 4, "width": 512}, (4, 512, 8, 2048)),
                            ({"layers": 2, "width": 128}, (2, 128, 2, 512)), ({"width": 256}, (6, 256, 4, 1024)),
                            ({"layers": 4, "width": 312, "heads": 12}, (4, 312, 12, 1248))):
        c = pdbert.student_config(base, config(**given))
        assert (c.num_hidden_layers, c.hidden_size, c.num_attention_heads, c.intermediate_size) == expected
    assert base.hidden_size == 768
    with pytest.raises(InputError, match="width: 100 is not divided by 3 heads; allowed heads: 1, 2, 4, 5, 10"):
        pdbert.student_config(base, config(width=100, heads=3))
    with pytest.raises(InputError, match="layers: 12 is not between 1 and 11"):
        pdbert.student_config(base, config(layers=12))


def test_sizes_of_the_released_models():
    """Parameters of the compact models that the paper released (README of google-research/bert), vocabulary 30,522."""
    from transformers import BertConfig, BertModel

    for depth, width, printed in ((2, 128, 4.4), (4, 256, 11.3), (4, 512, 29.1), (8, 512, 41.7)):
        c = pdbert.student_config(BertConfig(), config(layers=depth, width=width))
        with torch.device("meta"):
            count = sum(p.numel() for p in BertModel(c).parameters())
        # they count the language-modelling head's dense layer, normalisation and bias with it or not: within 2%
        assert count / 1e6 == pytest.approx(printed, rel=0.02)


def test_soft_cross_entropy_against_numpy_and_its_gradient():
    torch.manual_seed(0)
    student, teacher = torch.randn(2, 5, 3, dtype=torch.float64)
    student.requires_grad_()
    found = pdbert.soft_cross_entropy(student, teacher)
    p, q = (torch.softmax(z.detach(), -1).numpy() for z in (teacher, student))
    assert float(found.detach()) == pytest.approx(-(p * np.log(q)).sum(-1).mean(), rel=1e-5)
    found.backward()
    np.testing.assert_allclose(student.grad.numpy(), (q - p) / 5, atol=1e-6)
    # a teacher that is sure is cross-entropy with its class
    sure = torch.eye(3)[[0, 2, 1, 1, 0]] * 1e4
    ce = torch.nn.functional.cross_entropy(student.detach().float(), sure.argmax(-1))
    assert float(pdbert.soft_cross_entropy(student.detach(), sure)) == pytest.approx(float(ce), rel=1e-5)
    assert float(pdbert.soft_cross_entropy(torch.tensor([[1.0], [3.0]]), torch.tensor([[2.0], [5.0]]))) == 2.5


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "electra"])
def test_pre_training_learns_keeps_no_pooler_and_fits_the_classifier(kind, places, films, encoder, own):
    run = run_of(films, encoder(kind), own, layers=2, width=16, general_lr=5e-3)
    model = pdbert.student(run)
    report = run.study["general"]
    assert report["after"]["loss"] < report["before"]["loss"]
    kept = [a for a in run.artefacts if a.kind == "pdbert"]
    assert len(kept) == 1
    assert len(layers.encoder_layers(model)) == 2
    assert model.config.hidden_size == 16
    stored = models.load_encoder(encoder(kind)).config.hidden_size
    assert stored == tiny.WIDTH
    # random, not cut out of the backbone: another seed of the run changes the head and the pooler alone
    other = pdbert.student(run_of(films, encoder(kind), own, layers=2, width=16, general_lr=5e-3, seed=4))
    same = {k for k, v in tiny.state(model).items() if torch.equal(v, other.state_dict()[k])}
    trained = {k for k in same if k.startswith(model.base_model_prefix) and "pooler" not in k}
    assert trained == {k for k in model.state_dict() if k.startswith(model.base_model_prefix) and "pooler" not in k}
    assert layers.output_layer(model).weight.shape[0] == 2
    assert not torch.equal(layers.output_layer(model).weight, layers.output_layer(other).weight)


def test_the_arms_spend_the_same_tokens_and_leave_a_model(places, films, backbone, own):
    spent, names = {}, ["", "pd", "pf", "tf"]
    for q in pdbert.variants(config(study="arms", task=films, backbone=backbone, text=own, **QUICK)):
        run = runs.start("pdbert", q)
        model, history = run.compress(pdbert.compress)
        record = run.finish(model, history)
        spent[q.variant] = record.tokens
        kinds = {a.kind for a in record.artefacts}
        assert ("pdbert" in kinds) == (q.variant != "tf")
        assert ("teacher-answers" in kinds) == (q.variant in ("", "pd"))
        assert ("distillation" in record.curve) == (q.variant in ("", "pd"))
        loaded, report = AutoModelForSequenceClassification.from_pretrained(run.output, output_loading_info=True)
        assert not any(report.values())
        b = {k: v for k, v in tiny.encoded(5).batch(np.arange(5)).items() if k in layers.INPUTS}
        with torch.no_grad():
            torch.testing.assert_close(loaded.eval()(**b).logits, layers.classify(model, b), atol=1e-5, rtol=1e-5)
        assert record.layers == 2
    assert list(spent) == names
    longest = 32
    assert all(400 - 2 * 8 * longest <= n <= 400 for n in spent.values()), spent
    assert max(spent.values()) - min(spent.values()) <= 8 * longest


def test_distillation_uses_no_gold_label(places, films, backbone, own):
    """Turning every training label round changes nothing in the stage: only the held-out rows select."""
    states = []
    for turned in (False, True):
        run = run_of(films, backbone, own, arm="pd", layers=2, evaluations=1)
        if turned:
            train = run.sets["train"]
            run.sets["train"] = type(train)(train.inputs, 1 - train.labels, train.lengths, train.index, train.pad)
        teacher = tiny.classifier("bert", seed=1)
        states.append(tiny.state(pdbert.compress(run, teacher)[0]))
        run.checkpoints("distil").clear()
    assert tiny.same(*states)


def test_a_text_as_transfer_set(places, films, backbone, own):
    run = run_of(films, backbone, own, arm="pd", layers=2, transfer=own)
    teacher = tiny.classifier("bert", seed=1)
    before = tiny.state(teacher)
    model, history = pdbert.compress(run, teacher)
    assert 0 < history.tokens <= 400
    assert tiny.same(before, tiny.state(teacher))
    assert "teacher-answers" not in {a.kind for a in run.artefacts}
    assert history.kept_score is not None


def test_bad_input(places, films, backbone, own):
    with pytest.raises(InputError, match="arm=tf cuts the backbone, whose width stays"):
        pdbert.student(run_of(films, backbone, own, arm="tf", width=16))
    with pytest.raises(InputError, match="cannot be set together with study='arms'"):
        pdbert.variants(config(study="arms", variant="x"))
    with pytest.raises(InputError, match="text: 'nothing' is unknown"):
        pdbert.distil(run_of(films, backbone, own, transfer="nothing"), tiny.classifier(), tiny.classifier(), 0.5)
