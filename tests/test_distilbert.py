"""DistilBERT: layer choice, weights taken over, the three losses, the shared artefact, the student that is left."""

import json
import math
import os

import numpy as np
import pytest
import tiny
import torch
from torch import nn
from transformers import AutoModel, AutoModelForSequenceClassification

from lib import artefacts, layers, mlm, models, parameters, runs, teacher_cache
from lib.errors import InputError
from lib.methods import distilbert
from lib.training import Step

QUICK = {"max_tokens": 300, "epochs": 2, "evaluations": 1, "teacher_tokens": 300, "precision": "fp32",
         "profile": "test", "text_tokens": 1500, "text_length": 32, "general_batch_size": 8, "head_epochs": 1,
         "batch_size": 8}


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "own.txt"
    path.write_text("\n\n".join(t for t, _, _ in tiny.rows(400, seed=5)))
    return str(path)


def run_of(task, backbone, own, **changes):
    p = parameters.validate(distilbert.Config, {"task": task, "backbone": backbone, "text": own, **QUICK, **changes})
    return runs.start("distilbert", p)


@pytest.mark.parametrize(("depth", "count", "which", "expected"), [
    (12, 6, "spread", [0, 2, 4, 7, 9, 11]),  # official script
    (12, 6, "alternate", [0, 2, 4, 6, 8, 10]),  # the paper's words
    (6, 3, "spread", [0, 2, 5]), (6, 3, "alternate", [0, 2, 4]), (4, 2, "spread", [0, 3]),
    (12, 4, "spread", [0, 4, 7, 11]), (24, 12, "alternate", list(range(0, 24, 2))), (6, 1, "spread", [0]),
    (5, 4, "spread", [0, 1, 3, 4]),
])  # fmt: skip
def test_layers_that_the_student_starts_from(depth, count, which, expected):
    assert distilbert.teacher_layers(depth, count, which) == expected


@pytest.mark.parametrize("which", ["spread", "alternate"])
def test_layers_rise_and_stay_inside(which):
    for depth in range(2, 26):
        for count in range(1, depth):
            kept = distilbert.teacher_layers(depth, count, which)
            assert kept == sorted(set(kept))
            assert (kept[0], len(kept)) == (0, count)
            assert kept[-1] < depth
            if which == "spread" and count > 1:
                assert kept[-1] == depth - 1
                exact = [i * (depth - 1) / (count - 1) for i in range(count)]
                assert max(abs(a - b) for a, b in zip(kept, exact, strict=True)) <= 0.5


def bert(seed=0, depth=4):
    torch.manual_seed(seed)
    model = AutoModel.from_config(tiny.config("bert", layers=depth, dropout=0.0)).eval()
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    return model


def batch(rows=6):
    data = tiny.encoded(rows)
    return {k: v for k, v in data.batch(np.arange(rows)).items() if k in layers.INPUTS}


def taken_over(teacher, kept, fold):
    student = distilbert.encoder(distilbert.student_config(teacher.config, len(kept))).eval()
    distilbert.copy_weights(student, teacher, kept, fold)
    return student


def test_all_layers_taken_over_give_the_teachers_states_where_token_types_are_folded():
    teacher, b = bert(), batch()
    student = taken_over(teacher, [0, 1, 2, 3], fold=True)
    seen = b["attention_mask"].bool()
    with torch.no_grad():
        theirs, ours = (m(**b).last_hidden_state[seen] for m in (teacher, student))
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
        dropped = taken_over(teacher, [0, 1, 2, 3], fold=False)(**b).last_hidden_state[seen]
    assert (dropped - theirs).abs().max() > 0.01  # a hundred times the tolerance above
    assert torch.equal(student.embeddings.word_embeddings.weight, teacher.embeddings.word_embeddings.weight)


def test_chosen_layers_are_the_teachers_and_nothing_is_shared():
    teacher, b = bert(), batch()
    student = taken_over(teacher, [0, 2], fold=True)
    small = layers.cut(AutoModelForSequenceClassification.from_config(teacher.config), [0, 2]).base_model
    state = {k: v for k, v in teacher.state_dict().items() if "encoder.layer" not in k}
    state |= {k.replace(f"layer.{old}.", f"layer.{new}."): v for new, old in enumerate((0, 2))
              for k, v in teacher.state_dict().items() if f"encoder.layer.{old}." in k}
    small.load_state_dict(state)
    with torch.no_grad():
        a, c = student(**b).last_hidden_state, small.eval()(**b).last_hidden_state
    torch.testing.assert_close(a[b["attention_mask"].bool()], c[b["attention_mask"].bool()], atol=1e-4, rtol=1e-4)
    before = tiny.state(teacher)
    with torch.no_grad():
        for p in student.parameters():
            p.add_(1)
    assert tiny.same(before, tiny.state(teacher))
    assert not any("token_type" in k or "pooler" in k for k in student.state_dict())


def test_a_teacher_that_is_no_bert_is_refused():
    with pytest.raises(InputError, match="the backbone is a roberta; it must be a BERT"):
        distilbert.student_config(tiny.config("roberta"), 2)


def log_softmax(z):
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def parts():
    """A teacher and a student as masked language models, in float64, with a batch of mixed lengths."""
    encoder = bert().double()
    torch.manual_seed(1)
    head = mlm.Head.of(encoder).double()
    student = distilbert.encoder(distilbert.student_config(encoder.config, 2)).double()
    for p in student.parameters():
        nn.init.normal_(p, std=0.2)
    return mlm.MaskedLM(encoder, head), mlm.MaskedLM(student, mlm.Head.of(student).double()).eval(), batch(8)


def config(**changes):
    return parameters.validate(distilbert.Config, changes)


@pytest.mark.parametrize("everywhere", [False, True])
def test_the_three_losses_against_numpy(everywhere):
    teacher, student, b = parts()
    masker, step = mlm.Masker(tiny.tokenizer()), Step(0, 1, 0, 3)
    p = config(kd_weight=5, mlm_weight=2, cosine_weight=1, temperature=3)
    with torch.no_grad():
        found = distilbert.general_loss(teacher, masker, p, everywhere)(student, b, step)
        m = masker(b, step.random())
        h_s, h_t = student.hidden(m.inputs), teacher.hidden(m.inputs)
        z_s, z_t = student.logits(h_s).numpy(), teacher.logits(h_t).numpy()
    where, seen, ids = m.where.numpy(), b["attention_mask"].numpy() > 0, b["input_ids"].numpy()
    ce, nll, cosine, wanted = [], [], [], seen if everywhere else where
    for i in range(len(ids)):
        for j in range(ids.shape[1]):
            log_q, log_p = log_softmax(z_s[i, j] / 3), log_softmax(z_t[i, j] / 3)
            if wanted[i, j]:
                ce.append(9 * (np.exp(log_p) * (log_p - log_q)).sum())
            if where[i, j]:
                nll.append(-log_softmax(z_s[i, j])[ids[i, j]])
            if seen[i, j]:
                a, c = h_s[i, j].numpy(), h_t[i, j].numpy()
                cosine.append(1 - a @ c / (np.linalg.norm(a) * np.linalg.norm(c)))
    assert found.logs["ce"] == pytest.approx(np.mean(ce), rel=1e-4)
    assert found.logs["mlm"] == pytest.approx(np.mean(nll), rel=1e-4)
    assert found.logs["cosine"] == pytest.approx(np.mean(cosine), rel=1e-4)
    assert float(found.value) == pytest.approx(5 * np.mean(ce) + 2 * np.mean(nll) + np.mean(cosine), rel=1e-4)
    assert found.weight == where.sum()


def test_t_squared_by_hand():
    """Two classes, logits (0, 2 ln 3) and (0, 0), T = 2: the softened teacher is (1/4, 3/4), the student (1/2, 1/2)."""
    kl = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)
    found = distilbert.soft_loss(torch.zeros(3, 2), torch.tensor([[0.0, 2 * math.log(3)]] * 3), 2.0)
    assert float(found) == pytest.approx(4 * kl, rel=1e-6)


def test_the_gradient_of_the_soft_term_does_not_shrink_with_t():
    """T^2 * KL has about the same gradient at every large T: (z_s - mean - (z_t - mean)) / classes."""
    z_t = torch.randn(1, 8)
    for t in (20.0, 200.0):
        z_s = torch.randn(1, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
        distilbert.soft_loss(z_s, z_t, t).backward()
        limit = ((z_s - z_s.mean()) - (z_t - z_t.mean())).detach() / 8
        torch.testing.assert_close(z_s.grad, limit, atol=0.02, rtol=0.2)


@pytest.mark.parametrize("off", ["kd_weight", "mlm_weight", "cosine_weight"])
def test_a_loss_that_is_off_is_not_there(off):
    teacher, student, b = parts()
    masker, step = mlm.Masker(tiny.tokenizer()), Step(0, 1, 0, 3)
    full = distilbert.general_loss(teacher, masker, config(), True)(student, b, step)
    less = distilbert.general_loss(teacher, masker, config(**{off: 0}), True)(student, b, step)
    name = {"kd_weight": "ce", "mlm_weight": "mlm", "cosine_weight": "cosine"}[off]
    assert set(less.logs) == set(full.logs) - {name}
    assert less.value.item() == pytest.approx(full.value.item() - getattr(config(), off) * full.logs[name], rel=1e-4)


@pytest.mark.parametrize("everywhere", [False, True])
def test_padding_changes_no_loss(everywhere):
    teacher, student, b = parts()
    masker = mlm.Masker(tiny.tokenizer())
    m = masker(b, np.random.default_rng(0))
    wide = mlm.Masked({k: nn.functional.pad(v, (0, 7)) for k, v in m.inputs.items()},
                      nn.functional.pad(m.where, (0, 7)), m.targets)
    with torch.no_grad():
        a, c = (distilbert.general_loss(teacher, lambda *_, m=m: m, config(), everywhere)(student, b, Step(0, 1, 0, 0))
                for m in (m, wide))
    assert float(a.value) == pytest.approx(float(c.value), rel=1e-5)


@pytest.mark.parametrize("everywhere", [False, True])
def test_gradients_by_finite_differences_and_none_in_the_teacher(everywhere):
    teacher, student, b = parts()
    loss = distilbert.general_loss(teacher, mlm.Masker(tiny.tokenizer(), share=0.4), config(), everywhere)

    def value():
        # float32 inside the losses limits the precision of differences, so the step is wide
        return loss(student, b, Step(0, 1, 0, 1)).value

    value().backward()
    inner = layers.encoder_layers(student.encoder)
    for parameter, place in ((inner[0].ffn.lin1.weight, (1, 2)), (inner[1].output_layer_norm.weight, (3,)),
                             (student.head.dense.weight, (2, 2)), (student.encoder.embeddings.LayerNorm.bias, (5,))):
        gradient, step = float(parameter.grad[place]), 1e-3
        with torch.no_grad():
            parameter[place] += step
            up = float(value())
            parameter[place] -= 2 * step
            down = float(value())
            parameter[place] += step
        assert gradient == pytest.approx((up - down) / (2 * step), rel=0.02, abs=2e-3)
        assert abs(gradient) > 1e-6
    assert all(p.grad is None for p in teacher.parameters())
    assert not teacher.encoder.training


def test_the_general_stage_is_built_once_for_all_tasks_and_seeds(places, films, ratings, backbone, own, monkeypatch):
    first = distilbert.general(run_of(films, backbone, own, seed=0))
    monkeypatch.setattr(distilbert.pretrain.training, "train", None)  # a second training would fail
    again = [distilbert.general(run_of(films, backbone, own, seed=5, lr=1e-3)),
             distilbert.general(run_of(ratings, backbone, own, seed=1))]
    assert {a.key for a in again} == {first.key}
    assert first.meta["tokens"] == first.meta["mlm"]["text_tokens"] > 0


def test_what_changes_the_general_stage_changes_its_key(places, films, backbone, own, monkeypatch):
    seen = []

    def build(kind, configuration, make):
        seen.append(artefacts.digest(configuration))
        raise InterruptedError

    monkeypatch.setattr(distilbert.pretrain.artefacts, "build", build)
    monkeypatch.setattr(distilbert.mlm, "head_for", lambda *_: (mlm.Head.of(models.load_encoder(backbone)),
                                                                artefacts.Artefact("mlm-head", "k", places, {})))
    changes = [{}, {"kd_weight": 1}, {"mlm_weight": 0}, {"cosine_weight": 0}, {"temperature": 1}, {"initial": "random"},
               {"initial": "alternate", "layers": 3}, {"layers": 3}, {"positions": "all"}, {"token_types": "drop"},
               {"variant": "code"}, {"text_tokens": 1400}, {"general_lr": 1e-4}, {"general_epochs": 2}]
    for c in changes:
        with pytest.raises(InterruptedError):
            distilbert.general(run_of(films, backbone, own, **c))
    assert len(set(seen)) == len(changes)
    with pytest.raises(InterruptedError):
        distilbert.general(run_of(films, backbone, own, alpha=0.2, max_tokens=200, seed=3, variant="label-only"))
    assert seen[-1] == seen[0]


def test_a_run_leaves_a_distilbert_and_a_record(places, films, backbone, own):
    run = run_of(films, backbone, own)
    model, history = run.compress(distilbert.compress)
    record = run.finish(model, history)
    assert record.tokens <= 300
    assert {a.kind for a in record.artefacts} == {"teacher", "mlm-head", "distilbert"}
    stage = next(a for a in record.artefacts if a.kind == "distilbert")
    assert stage.tokens > 1000
    assert (record.layers, record.study["teacher_layers"]) == (2, [0, 3])
    assert record.study["teacher_head"]["quality"]["words"] > 0
    folder = run.output
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["DistilBertForSequenceClassification"]
    again = AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    loaded, report = again
    assert not any(report.values()), report
    assert not any("token_type" in k or "pooler" in k or "vocab" in k or "head" in k for k in loaded.state_dict())
    b = batch(5)
    with torch.no_grad():
        torch.testing.assert_close(loaded.eval()(**{k: b[k] for k in ("input_ids", "attention_mask")}).logits,
                                   layers.classify(model, b), atol=1e-5, rtol=1e-5)
    assert loaded.config.id2label == {0: "negative", 1: "positive"}


def test_seeds_share_the_encoder_and_draw_their_own_head(places, films, backbone, own):
    made = []
    for seed in (0, 0, 1):
        run = run_of(films, backbone, own, seed=seed)
        made.append(tiny.state(distilbert.student(run, distilbert.general(run))))
    assert tiny.same(made[0], made[1])
    encoder = [k for k in made[0] if k.startswith("distilbert.")]
    assert tiny.same(made[0], made[2], encoder)
    assert not tiny.same(made[0], made[2], ["pre_classifier.weight"])
    assert not tiny.same(made[0], made[2], ["classifier.weight"])


def test_code_freezes_positions_and_starts_without_folding(places, films, backbone, own):
    run = run_of(films, backbone, own, variant="code")
    artefact = distilbert.general(run)
    model = distilbert.student(run, artefact)
    teacher = models.load_encoder(backbone)
    assert torch.equal(model.base_model.embeddings.position_embeddings.weight,
                       teacher.embeddings.position_embeddings.weight)
    words = teacher.embeddings.word_embeddings.weight
    assert not torch.equal(model.base_model.embeddings.word_embeddings.weight, words)
    assert all(p.requires_grad for p in model.parameters())
    assert run.study["settings"] == distilbert.VARIANTS["code"]
    plain = run_of(films, backbone, own)
    moved = distilbert.student(plain, distilbert.general(plain)).base_model.embeddings.position_embeddings.weight
    start = teacher.embeddings.position_embeddings.weight + teacher.embeddings.token_type_embeddings.weight[0]
    assert not torch.equal(moved[:32], start[:32])  # trained
    assert torch.equal(moved[32:], start[32:])  # no sequence is longer


def test_task_distillation_is_the_mixture(places, films, backbone, own):
    model = tiny.classifier("distilbert", layers=2)
    teacher = tiny.classifier("bert", seed=1)
    b = tiny.encoded(6).batch(np.arange(6))
    p = config(alpha=0.3, temperature=2)
    with torch.no_grad():
        found = distilbert.task_loss(p, teacher_cache.live(teacher))(model, b, Step(0, 1, 0, 0))
        z_s = layers.classify(model, b).double().numpy()
        z_t = layers.classify(teacher, b).double().numpy()
    hard = -log_softmax(z_s)[np.arange(6), b["labels"].numpy()].mean()
    log_p, log_q = log_softmax(z_t / 2), log_softmax(z_s / 2)
    soft = 4 * (np.exp(log_p) * (log_p - log_q)).sum(-1).mean()
    assert float(found.value) == pytest.approx(0.7 * hard + 0.3 * soft, rel=1e-4)
    run = run_of(films, backbone, own, task_distillation=True, variant="task")
    _, history = run.compress(distilbert.compress)
    assert {"hard", "soft"} <= set(history.curve)
    assert "teacher-answers" in {a.kind for a in run.artefacts}


def test_studies_and_flavours():
    names = [q.variant for q in distilbert.variants(config(study="ablation"))]
    assert names == ["", "no-ce", "no-cos", "no-mlm", "random"]
    assert all(q.study == "none" for q in distilbert.variants(config(study="ablation")))
    for study in distilbert.STUDIES:
        assert len({q.variant for q in distilbert.variants(config(study=study))}) == len(distilbert.STUDIES[study])
    with pytest.raises(InputError, match="cannot be set together with study='ablation'"):
        distilbert.variants(config(study="ablation", variant="code"))
    assert distilbert.flavour(config()) == distilbert.flavour(config(variant="label")) == distilbert.DEFAULT
    assert distilbert.flavour(config(variant="code", positions="masked"))["positions"] == "masked"
    assert distilbert.flavour(config(variant="paper"))["initial"] == "alternate"


@pytest.mark.parametrize(("changes", "message"), [
    ({"kd_weight": 0, "mlm_weight": 0, "cosine_weight": 0}, "kd_weight, mlm_weight, cosine_weight: 0 all three"),
    ({"layers": 4}, "layers: 4 is not between 1 and 3"),
    ({"text": "gutenbrg"}, "did you mean 'gutenberg'"),
])
def test_bad_input(changes, message, places, films, backbone, own):
    run = run_of(films, backbone, own, **{k: v for k, v in changes.items() if k != "text"})
    if "text" in changes:
        run.p = run.p.model_copy(update={"text": changes["text"]})
    with pytest.raises(InputError, match=message):
        distilbert.general(run)


def test_small_stages_compare_the_choices(places, films, backbone, own):
    run = run_of(films, backbone, own, comparison_tokens=300)
    head = [a.key for a in (distilbert.general(run), *run.artefacts) if a.kind == "mlm-head"]
    found = distilbert.compare(run)
    assert list(found) == list(distilbert.COMPARED)
    kinds = {kind: [f for f in (places / "build" / "artefacts" / kind).iterdir() if f.is_dir()]
             for kind in ("mlm-head", "distilbert")}
    assert [f.name for f in kinds["mlm-head"]] == head  # one head for all
    assert len(kinds["distilbert"]) == 1 + len(found)
    assert found["default"]["cross-entropy at the start"] != found["token type dropped"]["cross-entropy at the start"]
    assert all(v["tokens a second"] > 0 for v in found.values())
    assert "compared" not in run.study  # the notebook puts it there


def test_a_teacher_of_the_users_own_is_said_to_have_been_distilled(places, films, own, tmp_path):
    folder = tiny.save_classifier(tmp_path / "mine", ["negative", "positive"])
    p = parameters.validate(distilbert.Config, {"task": films, "teacher": str(folder), "text": own, **QUICK})
    run = runs.start("distilbert", p)
    model, history = run.compress(distilbert.compress)
    record = run.finish(model, history)
    assert any("began from the fine-tuned teacher" in n for n in record.notes)
    assert record.teacher.source == "own checkpoint mine"
    assert {a.kind for a in record.artefacts} == {"mlm-head", "distilbert"}


def test_own_text_counts_by_its_content(places, films, backbone, tmp_path):
    path = tmp_path / "t.txt"
    seen = []
    for i, words in enumerate(("good film with a plot", "bad film with a plot", "good film with a plot")):
        path.write_text(words)
        os.utime(path, (i, i))
        seen.append(run_of(films, backbone, str(path)).identity["text"])
    assert seen[0] == seen[2] != seen[1]
