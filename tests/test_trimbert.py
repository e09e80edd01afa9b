"""TrimBERT as a method: cutting, L2, both origins, studies, bad input, throughput."""

import numpy as np
import pytest
import tiny
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForSequenceClassification

from lib import diverged, fast, layers, mlm, models, parameters, results, runs, training
from lib.errors import InputError
from lib.methods import trimbert, trimbert_plots, trimbert_speed, trimbert_studies
from lib.methods import trimbert_model as tm
from lib.paths import ROOT, results_dir
from lib.reporting import paper_pages
from lib.reporting.pages import load_study

QUICK = {"max_tokens": 400, "epochs": 3, "evaluations": 1, "teacher_tokens": 300, "precision": "fp32",
         "profile": "test", "text_tokens": 2000, "text_length": 32, "general_batch_size": 8, "scratch_blocks": 3,
         "scratch_width": 16, "scratch_heads": 2}


@pytest.fixture
def run_of(films, backbone, places):
    (places / "own.txt").write_text("\n\n".join(t for t, _, _ in tiny.rows(3000, seed=5)))

    def make(**changes):
        values = {"task": films, "backbone": backbone, "text": str(places / "own.txt"), **QUICK, **changes}
        return runs.start("trimbert", parameters.validate(trimbert_studies.Config, values))

    return make


def not_finite(model, batch, step):
    return next(model.parameters()).sum() * torch.nan


def breaking(monkeypatch, which):
    """Language modelling of the networks for which `which(configuration)` holds is not finite from step 3 on."""
    real = mlm.language_loss

    def language_loss(masker):
        plain = real(masker)

        def loss(model, batch, step):
            breaks = which(model.encoder.config) and step.index >= 2
            return not_finite(model, batch, step) if breaks else plain(model, batch, step)

        return loss

    monkeypatch.setattr(trimbert.mlm, "language_loss", language_loss)


def config_of(backbone, **changes):
    p = parameters.validate(trimbert.Config, {"backbone": backbone, **changes})
    return trimbert.architecture(p, tiny.tokenizer(), AutoConfig.from_pretrained(backbone))


def test_uncut_is_the_backbone(backbone):
    encoder = models.load_encoder(backbone).eval()
    same = trimbert.graft(encoder, config_of(backbone, every=1)).eval()
    inputs = {"input_ids": torch.arange(5, 15)[None], "attention_mask": torch.ones(1, 10, dtype=torch.long)}
    torch.testing.assert_close(same(**inputs).last_hidden_state, encoder(**inputs).last_hidden_state, rtol=0, atol=1e-6)


@pytest.mark.parametrize("changes", [{"every": 2}, {"every": 0}, {"bandd": True}, {"nomlpln": True},
                                     {"attention_layernorm": False}, {"every": 2, "bandd": True, "nomlpln": True}])
def test_cutting_keeps_every_other_weight(backbone, changes):
    encoder = models.load_encoder(backbone)
    student = trimbert.graft(encoder, config_of(backbone, **changes))
    theirs = encoder.state_dict()
    for name, value in student.state_dict().items():
        if name.endswith(("self.gain", "self.bias")) and "attention.self" in name:
            assert torch.equal(value, torch.full_like(value, float(name.endswith("gain"))))
        else:
            assert torch.equal(value, theirs[name])


def test_a_lost_weight_is_an_error(backbone):
    encoder = models.load_encoder(backbone)
    del encoder.pooler
    with pytest.raises(RuntimeError, match="pooler"):
        trimbert.graft(encoder, config_of(backbone))


def test_l2_takes_matrices_alone(backbone):
    encoder = models.load_encoder(backbone)
    model = mlm.MaskedLM(encoder, mlm.Head.of(encoder))
    by_hand = sum(float((v.numpy().astype(np.float64) ** 2).sum()) for k, v in model.state_dict().items()
                  if v.ndim == 2 and "embeddings" not in k and "pooler" not in k)
    assert trimbert.l2_penalty(model).item() == pytest.approx(by_hand, rel=1e-5)


def test_l2_leaves_a_pooler_alone_that_language_modelling_does_not_train(run_of):
    run = run_of(every=1, bandd=True, l2=0.1)
    pooler = models.load_encoder(run.p.backbone).pooler.state_dict()
    kept = load_file(trimbert.pretrained(run).folder / "encoder.safetensors")
    assert all(torch.equal(kept[f"pooler.{k}"], v) for k, v in pooler.items())


def test_from_the_backbone(run_of):
    run = run_of(every=2)
    student, history = run.compress(trimbert.compress)
    record = run.finish(student, history)
    assert record.study["intermediate_blocks"] == 2
    assert [a.kind for a in record.artefacts if a.kind != "teacher"] == ["mlm-head", "trimbert"]
    assert "another experiment" in " ".join(record.notes)
    assert record.study["mlm"]["before"]["loss"] > 0
    again = AutoModelForSequenceClassification.from_pretrained(
        run.output, trust_remote_code=False, attn_implementation=fast.ATTENTION).eval()
    batch = run.sets["scored"].batch(np.arange(4))
    torch.testing.assert_close(layers.classify(again, batch), layers.classify(student, batch), rtol=0, atol=1e-6)
    # seeds and tasks share the stage; another n does not
    key = record.artefacts[-1].key
    assert trimbert.pretrained(run_of(seed=1, every=2)).key == key
    assert trimbert.pretrained(run_of(every=1)).key != key


def test_from_scratch_with_everything(run_of):
    run = run_of(origin="scratch", bandd=True, nomlpln=True, every=3, l2=1e-3)
    student, history = trimbert.compress(run)
    assert student.config.hidden_size == 16
    assert run.study["intermediate_blocks"] == 1
    curve = run.study["mlm"]["curve"]
    for (_, whole), (_, words), (_, l2) in zip(curve["loss"], curve["masked_words"], curve["l2"], strict=True):
        assert whole == pytest.approx(words + l2, rel=1e-5)
    assert curve["l2"][0][1] > 0
    assert "compare with n = 1 from scratch" in run.notes[-1]


def test_the_gain_starts_where_it_is_told(run_of):
    run = run_of(origin="scratch", bandd=True, gain_start=0.25, general_lr=1e-30)
    kept = load_file(trimbert.pretrained(run).folder / "encoder.safetensors")
    gains = [v for k, v in kept.items() if k.endswith("attention.self.gain")]
    assert len(gains) == 3
    assert all(torch.equal(g, torch.full((2,), 0.25)) for g in gains)
    assert trimbert.architecture(run.p, run.tokenizer).gain_start == 0.25
    assert trimbert.pretrained(run_of(origin="scratch", bandd=True, gain_start=0.5, general_lr=1e-30)).key != (
        trimbert.pretrained(run).key)


def test_l2_belongs_to_bandd_and_takes_the_place_of_decay(run_of):
    plain = trimbert.pretrained(run_of(origin="scratch", every=1)).meta
    bandd = trimbert.pretrained(run_of(origin="scratch", every=1, bandd=True)).meta
    both = trimbert.pretrained(run_of(origin="scratch", every=1, bandd=True, l2_replaces_decay=False)).meta

    def of(meta):
        return meta["configuration"]["l2"], meta["configuration"]["settings"]["weight_decay"]

    assert (of(plain), of(bandd), of(both)) == ((0.0, 0.01), (1e-4, 0.0), (1e-4, 0.01))


def test_a_diverged_stage_is_not_fine_tuned(run_of, monkeypatch):
    run = run_of(origin="scratch", every=1)
    monkeypatch.setattr(trimbert.mlm, "language_loss",
                        lambda masker: lambda model, batch, step: next(model.parameters()).sum() * torch.nan)
    with pytest.raises(RuntimeError, match="not finite"):
        trimbert.compress(run)
    assert not run.record_path.exists()


@pytest.mark.parametrize(("changes", "name"), [
    ({"every": 5}, "every"), ({"origin": "scratch", "every": 4}, "every"),
    ({"origin": "scratch", "scratch_heads": 3}, "scratch_heads")])
def test_bad_shapes(run_of, changes, name):
    with pytest.raises(InputError, match=f"^{name}"):
        trimbert.compress(run_of(**changes))


@pytest.mark.parametrize(("changes", "name"), [({"every": -1}, "every"), ({"removed_dropout": "all"}, "removed_drop"),
                                               ({"l2": -1}, "l2"), ({"gain_start": 0}, "gain_start"),
                                               ({"origin": "hub"}, "origin")])
def test_bad_parameters(changes, name):
    with pytest.raises(InputError, match=f"parameter {name}"):
        parameters.validate(trimbert.Config, changes)


def test_only_bert_is_cut(encoder):
    with pytest.raises(InputError, match="roberta"):
        config_of(encoder("roberta"))


def test_studies(backbone):
    def of(**changes):
        p = parameters.validate(trimbert_studies.Config, {"backbone": backbone, **changes})
        return trimbert_studies.variants(p)

    assert [(q.variant, q.nomlpln, q.attention_layernorm) for q in of(study="layernorm", origin="scratch")] == [
        ("scratch-n1", False, True), ("scratch-n1-nomlpln", True, True), ("scratch-n1-noattln", False, False)]
    six = of(study="blocks", origin="scratch", scratch_blocks=6)
    assert [q.every for q in six] == [1, 2, 3, 4, 0]  # 4 and 6 both leave one block
    assert [q.every for q in of(study="blocks", origin="scratch", scratch_blocks=12)] == [1, 2, 3, 4, 6, 0]
    assert [q.variant for q in of(study="changes")] == [
        "backbone-n1-bandd", "backbone-n1-nomlpln", "backbone-n1-bandd-nomlpln",
        "backbone-n2-bandd", "backbone-n2-nomlpln", "backbone-n2-bandd-nomlpln"]
    assert len({q.variant for q in of(study="dropout")}) == 4
    assert [q.variant for q in of(study="gain", origin="scratch")] == [
        "scratch-n1-bandd", "scratch-n1-bandd-gain0.3", "scratch-n1-bandd-gain0.1", "scratch-n1-bandd-gain0.05",
        "scratch-n1-bandd-gain0.02", "scratch-n1-bandd-dropnone-gain0.05"]
    assert [q.variant for q in of()] == [""]
    with pytest.raises(InputError, match="variant"):
        of(study="blocks", variant="mine")


def test_a_study_goes_on_after_a_variant_that_diverges(run_of, monkeypatch):
    breaking(monkeypatch, lambda c: not c.attention_layernorm)
    p = run_of(study="layernorm", origin="scratch", lr_grid=[1e-3, 2e-3], tuning_tokens=200, general_epochs=4).p
    records, broken = trimbert_studies.run_all(p)
    assert [r.variant for r in records] == ["scratch-n1", "scratch-n1-nomlpln"]
    (d,) = broken
    assert (d.label, d.stage, d.lr) == ("trimbert-scratch-n1-noattln", "language modelling", p.general_lr)
    assert d.step == 12  # ten steps in a row from the third on
    assert d.words == f"diverged at step 12, lr {p.general_lr:g}"
    assert [s for s, _ in d.curve][-1] == 2  # the last finite loss
    # kept outside of the records, which know nothing of it
    assert diverged.load_all() == [d]
    assert {r.label for r in results.load_all()[0] if r.method == "trimbert"} == {r.label for r in records}
    assert not results.load_all()[1]
    # its row stands on the paper's page, and is marked when the code has changed
    page = paper_pages.section("trimbert", next(s for s in paper_pages.PAGES["trimbert"] if s.study == "layernorm"),
                               load_study())
    assert d.words in page
    assert "stale" not in page.split(d.words)[0].split("diverged")[-1]
    file = diverged.path_of(results.record_path(d.profile, d.backbone, d.task, d.method, d.variant, d.seed))
    file.write_text(file.read_text().replace(d.code_hash, "0" * 16))
    assert "stale" in str(paper_pages.without_score(paper_pages.Section("x", pattern=".*"), load_study()))


def test_what_diverged_is_forgotten_when_there_is_a_record(run_of, monkeypatch):
    values = {"study": "layernorm", "origin": "scratch", "general_epochs": 4, "attention_layernorm": True}
    with monkeypatch.context() as m:
        breaking(m, lambda c: not c.intermediate_layernorm)
        _, broken = trimbert_studies.run_all(run_of(**values).p)
    assert [d.variant for d in broken] == ["scratch-n1-nomlpln"]
    _, broken = trimbert_studies.run_all(run_of(**values, general_lr=1e-3).p)  # other settings, another artefact
    assert not broken
    assert diverged.load_all() == []


def test_nothing_left_is_an_error(run_of, monkeypatch):
    breaking(monkeypatch, lambda c: True)
    with pytest.raises(RuntimeError, match=r"no run has a score.*n1-noattln diverged at step 12"):
        trimbert_studies.run_all(run_of(study="layernorm", origin="scratch", general_epochs=4).p)
    assert len(diverged.load_all()) == 3


@pytest.mark.parametrize("where", ["loss", "outputs"])
def test_fine_tuning_that_diverges_is_kept_too(run_of, monkeypatch, where):
    real = trimbert.bert.fine_tune

    def fine_tune(run, model):
        if getattr(run.p, "removed_dropout", "") != "weights":  # the teacher's too
            return real(run, model)
        if where == "loss":  # the training loop's own words
            return training.train(model, not_finite, run.train, run.settings())
        history = real(run, model)
        torch.nn.init.constant_(model.classifier.weight, torch.nan)
        return history

    monkeypatch.setattr(trimbert.bert, "fine_tune", fine_tune)
    p = run_of(study="dropout", origin="scratch", lr=2e-3, max_tokens=3000, batch_size=16).p
    records, (d,) = trimbert_studies.run_all(p)
    assert [r.variant.removeprefix("scratch-n1-") for r in records] == ["bandd", "bandd-dropboth", "bandd-dropnone"]
    assert (d.variant, d.stage, d.lr) == ("scratch-n1-bandd-dropweights", "fine-tuning", 2e-3)
    assert d.step == (10 if where == "loss" else records[0].steps)
    # the two readings, and both or neither: each student has its own, in its saved configuration
    assert [r.hyperparameters["removed_dropout"] for r in records] == ["output", "both", "none"]


def test_other_errors_stop_a_study(run_of, monkeypatch):
    monkeypatch.setattr(trimbert.bert, "fine_tune", lambda run, model: (_ for _ in ()).throw(RuntimeError("no room")))
    with pytest.raises(RuntimeError, match="no room"):
        trimbert_studies.run_all(run_of(study="layernorm", origin="scratch").p)
    assert diverged.load_all() == []


def test_a_strange_file_among_the_diverged_is_named(places):
    folder = results_dir() / "diverged" / "glue"
    folder.mkdir(parents=True)
    (folder / "x.json").write_text("{}")
    with pytest.raises(InputError, match="x.json"):
        diverged.load_all()


def test_the_control_reports_three_curves(run_of):
    found = trimbert_studies.control(run_of(control_tokens=1000))
    assert all(r["curve"]["loss"] for r in found.values())
    # Embeddings, and in each of three blocks two, one and one
    assert trimbert_plots.control(found)["LayerNorms"].tolist() == [7, 4, 4]


def test_softmax_written_out_is_softmax():
    scores = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)) * 9
    torch.testing.assert_close(trimbert_speed.unfused_softmax(scores), scores.softmax(-1))


@pytest.mark.parametrize("attention", [trimbert_speed.UNFUSED, trimbert_speed.KERNEL])
def test_the_timed_attentions_compute_the_same(attention):
    shape = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
             "intermediate_size": 32}
    ids = torch.randint(1, 50, (2, 6), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 3:] = 0
    out = [trimbert_speed.build(a, shape, {}, 6)(ids, mask).last_hidden_state[mask.bool()]
           for a in (trimbert_speed.FUSED, attention)]
    torch.testing.assert_close(*out, rtol=0, atol=1e-5)


def test_throughput():
    shape = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
             "intermediate_size": 32}
    table = trimbert_speed.throughput((8, 600), shape=shape, batch_tokens=64, rounds=5)
    assert len(table) == 2 * len(trimbert_speed.VARIANTS) * 3
    assert set(table["batch"]) == {8, 1}
    assert (table["tokens_per_second"] > 0).all()
    assert np.allclose(table[table["variant"] == "n = 1"]["ratio"], 1)
    assert isinstance(trimbert_speed.build("sdpa", shape, {"bandd": True}, 600), tm.TrimBertModel)


def test_the_papers_recipe():
    folder = ROOT / "notebooks" / "profiles"
    values: dict = {}
    for name in ("paper.yaml", "paper-trimbert.yaml"):
        values |= yaml.safe_load((folder / name).read_text())
    p = parameters.validate(trimbert.Config, values)
    steps = p.general_epochs * p.text_tokens / (p.general_batch_size * p.text_length)
    assert steps == pytest.approx(900_000, rel=1e-3)
    assert p.general_warmup * steps == pytest.approx(10_000, rel=1e-3)
    config = trimbert.architecture(p, tiny.tokenizer(), None)
    assert (config.num_hidden_layers, config.hidden_size, config.intermediate_size) == (12, 768, 3072)
