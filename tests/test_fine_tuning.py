"""Fine-tuning and truncation: the loss, the teacher that all methods share, and ordinary models left, as by Theseus."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch
from transformers import AutoModelForSequenceClassification

from lib import evaluation, layers, models
from lib.errors import InputError
from lib.methods import bert, theseus, truncated

# --- the loss


def test_cross_entropy():
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(7, 4)) * 3, rng.integers(0, 4, 7)
    log_p = z - np.log(np.exp(z).sum(-1, keepdims=True))
    expected = -log_p[np.arange(7), y].mean()
    assert float(bert.task_loss(torch.tensor(z), torch.tensor(y))) == pytest.approx(expected, rel=1e-6)
    shifted = bert.task_loss(torch.tensor(z) + 100, torch.tensor(y))
    assert float(shifted) == pytest.approx(expected, rel=1e-4)
    assert bert.task_loss(torch.tensor(z).bfloat16(), torch.tensor(y)).dtype == torch.float32


def test_squared_error():
    z, y = np.array([[1.0], [2.0], [-1.0]]), np.array([0.5, 4.0, -1.0])
    got = bert.task_loss(torch.tensor(z), torch.tensor(y).float())
    assert float(got) == pytest.approx(np.mean((z[:, 0] - y) ** 2))


# --- runs


@pytest.mark.parametrize("kind", tiny.KINDS)
@pytest.mark.parametrize(("method", "module"), [("truncated", truncated), ("theseus", theseus)])
def test_encoders_run_through_and_leave_ordinary_models(places, films, encoder, kind, method, module):
    run = tiny.run(method, module.Config, films, encoder(kind), epochs=2, max_rows=32)
    student, record = tiny.finish(run, module.compress)
    assert (record.layers, record.method) == (2, method)
    again, report = AutoModelForSequenceClassification.from_pretrained(run.output, output_loading_info=True)
    assert all(len(v) == 0 for v in report.values())
    assert again.config.id2label == {0: "negative", 1: "positive"}
    data = run.sets["scored"]
    theirs = evaluation.predict(again, data)
    np.testing.assert_allclose(theirs, evaluation.predict(student, data), atol=2e-5)
    assert record.metrics["accuracy"] == pytest.approx((theirs.argmax(-1) == data.labels).mean())
    assert sum(p.numel() for p in again.parameters()) == record.parameters
    saved = models.load_tokenizer(str(run.output))
    assert saved("a good film")["input_ids"] == run.tokenizer("a good film")["input_ids"]


def test_regression_runs_through(places, ratings, backbone):
    run = tiny.run("theseus", theseus.Config, ratings, backbone, epochs=4, max_rows=0)
    student, record = tiny.finish(run, theseus.compress)
    assert record.metrics.keys() == {"pearson", "spearman"}
    assert record.loyalty is None
    assert record.majority == 0
    assert student.config.num_labels == 1


def test_truncation_keeps_the_lowest_layers_of_the_raw_backbone(places, films, backbone, monkeypatch):
    seen = []
    monkeypatch.setattr(bert, "fine_tune", lambda run, model, **k: seen.append(tiny.state(model)))
    run = tiny.run("truncated", truncated.Config, films, backbone, layers=3)
    student, _ = truncated.compress(run)
    raw = run.backbone()
    for a, b in zip(layers.encoder_layers(student), list(layers.encoder_layers(raw))[:3], strict=True):
        assert tiny.same(tiny.state(a), tiny.state(b))
    assert tiny.same(tiny.state(student.bert.embeddings), tiny.state(raw.bert.embeddings))
    assert torch.equal(student.classifier.weight, raw.classifier.weight)
    assert all(p.requires_grad for p in student.parameters())
    for asked in (4, 9):
        with pytest.raises(InputError, match="layers"):
            truncated.compress(tiny.run("truncated", truncated.Config, films, backbone, layers=asked))


def test_teacher_is_built_once_for_all_methods(places, films, backbone, capsys):
    first = tiny.run("theseus", theseus.Config, films, backbone).teacher()
    second = tiny.run("truncated", truncated.Config, films, backbone, lr=1e-4, epochs=2).teacher()
    model = tiny.run("bert", bert.Config, films, backbone)
    own, history = bert.from_artefact(model)
    assert first.artefact.key == second.artefact.key == model.artefacts[0].key
    assert capsys.readouterr().err.count("building teacher") == 1
    assert tiny.same(tiny.state(first.model), tiny.state(own))
    assert history.steps == 4
    other = tiny.run("theseus", theseus.Config, films, backbone, seed=1).teacher()
    assert other.artefact.key != first.artefact.key
    assert tiny.run("theseus", theseus.Config, films, backbone, teacher_lr=1e-3).teacher().artefact.key != \
        first.artefact.key
