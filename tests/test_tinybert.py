"""TinyBERT: shapes, layer mapping, what is refused, both stages, ablations, whole runs."""

import numpy as np
import pytest
import tiny
import torch
from tinybert_runs import batch_of, started
from transformers import AutoModelForSequenceClassification, BertConfig, BertModel

from lib import batches, evaluation, fast, layers, models, parameters, stages, training
from lib.errors import InputError
from lib.methods import tinybert, tinybert_losses, tinybert_shape, tinybert_studies
from lib.methods.tinybert import Config
from lib.methods.tinybert_losses import Projections

# Shapes and mapping


def test_parameters_of_the_paper_s_students():
    """14.35M with pooler for TinyBERT4, 67.0M for TinyBERT6 (methods.md 9.7 and 0.3), counted from the shapes."""
    counts = {}
    for name in tinybert_shape.SHAPES:
        config = tinybert_shape.student_config(BertConfig(), tinybert_shape.scaled(BertConfig(), name))
        with torch.device("meta"):
            counts[name] = models.count_parameters(BertModel(config))[0]
    width, inner, vocabulary = 312, 1200, 30522
    layer = 4 * (width * width + width) + 2 * width * inner + inner + width + 4 * width
    whole = (vocabulary + 512 + 2) * width + 2 * width + 4 * layer + width * width + width
    assert counts["tinybert4"] == whole
    assert round(counts["tinybert4"] / 1e6, 2) == 14.35
    assert round(counts["tinybert6"] / 1e6, 1) == 67.0


def test_shapes_in_proportion():
    base, mini = BertConfig(), BertConfig(num_hidden_layers=6, hidden_size=384, intermediate_size=1536)
    large = BertConfig(num_hidden_layers=24, hidden_size=1024, num_attention_heads=16, intermediate_size=4096)
    shape = tinybert_shape.Shape
    assert tinybert_shape.scaled(base) == shape(4, 312, 12, 1200)
    assert tinybert_shape.scaled(base, "tinybert6") == shape(6, 768, 12, 3072)
    assert tinybert_shape.scaled(mini) == shape(2, 156, 12, 600)
    assert tinybert_shape.scaled(mini, "tinybert6") == shape(3, 384, 12, 1536)
    assert tinybert_shape.scaled(large) == shape(8, 416, 16, 1600)
    assert tinybert_shape.scaled(base, layers=3, width=120, intermediate=77) == shape(3, 120, 12, 77)
    with pytest.raises(InputError, match="width: 100 is no multiple of 12 heads; allowed: .*96 or 108"):
        tinybert_shape.scaled(base, width=100)
    with pytest.raises(InputError, match="layers: 13 is not between 1 and 12"):
        tinybert_shape.scaled(base, layers=13)


@pytest.mark.parametrize(("teacher", "student", "uniform", "top", "bottom"), [
    (12, 4, [3, 6, 9, 12], [9, 10, 11, 12], [1, 2, 3, 4]),
    (12, 6, [2, 4, 6, 8, 10, 12], [7, 8, 9, 10, 11, 12], [1, 2, 3, 4, 5, 6]),
    (6, 2, [3, 6], [5, 6], [1, 2]), (6, 4, [1, 3, 4, 6], [3, 4, 5, 6], [1, 2, 3, 4]),
])  # fmt: skip
def test_layer_mapping(teacher, student, uniform, top, bottom):
    found = [tinybert_shape.layer_mapping(teacher, student, m) for m in ("uniform", "top", "bottom")]
    assert found == [uniform, top, bottom]


def test_what_does_not_fit_is_said_from_the_configuration_alone(tmp_path):
    narrow = str(tiny.save_encoder(tmp_path / "narrow"))
    other = str(tiny.save_encoder(tmp_path / "heads", num_attention_heads=8))
    with pytest.raises(InputError, match="heads: a student of 2 attention heads .*allowed: heads=4, or without=att"):
        tinybert.plan(Config(backbone=narrow, heads=2))
    with pytest.raises(InputError, match="heads: .* teacher .*heads, which has 8"):
        tinybert.plan(Config(backbone=narrow, teacher=other))
    assert tinybert.plan(Config(backbone=narrow, heads=2, without=["attention"])).terms == ("embedding", "hidden")
    with pytest.raises(InputError, match="without: .*leaves no intermediate loss"):
        tinybert.plan(Config(backbone=narrow, without=["attention", "hidden", "embedding"]))
    with pytest.raises(InputError, match="without: 'generel' is unknown .*'general'"):
        tinybert.plan(Config(backbone=narrow, without="generel"))
    deep = str(tiny.save_encoder(tmp_path / "deep", layers=6))
    with pytest.raises(InputError, match="its depth is not that of backbone"):
        tinybert.plan(Config(backbone=narrow, teacher=deep))


@pytest.mark.parametrize(("values", "says"), [
    ({"shape": "tinybert5"}, "parameter shape: 'tinybert5'"), ({"replace": 0}, "parameter replace: 0"),
    ({"intermediate_share": 1}, "parameter intermediate_share: 1"), ({"new_rows": 0}, "parameter new_rows: 0"),
    ({"candidates": "many"}, "parameter candidates: 'many'"), ({"mapping": "middle"}, "parameter mapping: 'middle'"),
])  # fmt: skip
def test_bad_parameters_are_one_line(values, says):
    with pytest.raises(InputError, match=says):
        parameters.validate(Config, values)


# Stages


def test_a_whole_run(places):
    run = started(places, epochs=2)
    student, history = run.compress(tinybert.compress)
    record = run.finish(student, history)
    assert record.layers == 1
    assert {"intermediate_loss", "embedding", "hidden", "attention", "loss", "held_out"} <= set(record.curve)
    assert [a.kind for a in record.artefacts] == ["teacher", "tinybert-general", "mlm-head", "augmented-rows"]
    whole = 2 * int(run.train.lengths.sum())
    assert whole - 2 * run.p.batch_size * run.train.lengths.max() < record.tokens <= whole  # each step ends in a batch
    assert set(record.study["augmentation"]) == {"new_rows", "share_of_tokens", "masked_words_right", "asked",
                                                 "same_class"}  # fmt: skip
    assert 0 < record.study["augmentation"]["share_of_tokens"] <= 0.51
    assert record.steps == record.curve["loss"][-1][0]
    assert record.curve["intermediate_loss"][-1][0] < record.curve["loss"][0][0]
    loaded, info = AutoModelForSequenceClassification.from_pretrained(run.output, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not any("projection" in k for k in loaded.state_dict())
    batch = run.sets["scored"].batch(np.arange(5))
    with torch.no_grad():
        own, theirs = (layers.classify(m.eval(), batch) for m in (student, loaded))
    torch.testing.assert_close(own, theirs, rtol=1e-5, atol=1e-5)
    assert [loaded.config.id2label[i] for i in range(2)] == list(run.task.labels)


@pytest.fixture
def trainings(monkeypatch):
    """Every call of the training loop in order: settings, rows, the model's state before and after, history."""
    seen, train = [], training.train

    def watched(model, loss, data, settings, **more):
        before = tiny.state(model)
        history = train(model, loss, data, settings, **more)
        seen.append((settings, data, before, tiny.state(model), history))
        return history

    monkeypatch.setattr(training, "train", watched)
    return seen


def test_the_steps_are_apart_and_learn(places, trainings):
    """Step a lowers its loss and leaves head, pooler and teacher alone; step b begins where it ended."""
    run = started(places, epochs=4, intermediate_lr=3e-3, without=["augmentation", "general"])
    teacher = run.teacher().model
    untouched = tiny.state(teacher)
    trainings.clear()
    student, history = tinybert.compress(run, teacher)
    (_, rows, start, middle, _), (_, rows_b, start_b, end, _) = trainings
    assert rows is rows_b is run.train
    head = [k for k in start if "classifier" in k or "pooler" in k]
    assert len(head) == 4
    assert tiny.same(start, middle, head)
    assert not any(tiny.same(start, middle, [k]) for k in start if "embeddings.word" in k or "projections" in k)
    curve = history.curve["intermediate_loss"]
    assert curve[-1][1] < 0.8 * curve[0][1]
    assert set(start_b) == {k.removeprefix("student.") for k in middle if k.startswith("student.")}
    assert tiny.same(start_b, {k.removeprefix("student."): v for k, v in middle.items()}, start_b)
    assert not any(tiny.same(start_b, end, [k]) for k in end if "classifier" in k)
    assert tiny.same(end, tiny.state(student))
    assert tiny.same(untouched, tiny.state(teacher))


@pytest.mark.parametrize("variant", ["", "code"])
def test_rates_and_order_of_the_steps(places, trainings, variant):
    """Step a has its own rate, constant in the code; the batches of step b come in another order."""
    run = started(places, epochs=2, lr=1e-3, intermediate_lr=2e-4, warmup=0.2, variant=variant, seed=3,
                  without=["augmentation", "general"])
    teacher = run.teacher().model
    trainings.clear()
    tinybert.compress(run, teacher)
    a, b = (t[0] for t in trainings)
    assert (a.lr, a.warmup, a.decay) == ((2e-4, 0.0, False) if variant else (2e-4, 0.2, True))
    assert (b.lr, b.warmup, b.decay) == (1e-3, 0.2, True)
    assert a.seed == 3
    orders = [np.concatenate(batches.epoch_batches(run.train.lengths, 8, s.seed, 0)) for s in (a, b)]
    assert sorted(orders[0]) == sorted(orders[1])
    assert list(orders[0]) != list(orders[1])


def test_general_distillation_is_shared_and_starts_the_student(places):
    runs_ = [started(places, seed=s) for s in (0, 1)]
    arts = [tinybert.general(r.p, r.tokenizer, tinybert.plan(r.p)) for r in runs_]
    assert arts[0].key == arts[1].key
    meta = arts[0].meta["general"]
    assert meta["after"]["loss"] < meta["before"]["loss"]
    assert 0 < arts[0].meta["tokens"] <= 2000
    teacher = tiny.classifier(layers=4)
    students = [tinybert.start(r, teacher, tinybert.plan(r.p)) for r in runs_]
    encoders = [tiny.state(s.student.base_model) for s in students]
    shared = [k for k in encoders[0] if "pooler" not in k]
    assert any("word_embeddings" in k for k in shared)
    assert tiny.same(*encoders, shared)
    assert not tiny.same(*encoders)  # poolers are drawn from the seed
    assert not torch.equal(students[0].student.classifier.weight, students[1].student.classifier.weight)
    assert torch.equal(students[0].projections.hidden.weight, students[1].projections.hidden.weight)
    scratch = tinybert.start(started(places, without=["general"]), teacher, tinybert.plan(runs_[0].p))
    drawn = tiny.state(scratch.student.base_model)
    assert not any(tiny.same(drawn, encoders[0], [k]) for k in shared if k.endswith("weight") and "Norm" not in k)
    other = started(places, variant="code")
    assert tinybert.general(other.p, other.tokenizer, tinybert.plan(other.p)).key != arts[0].key


@pytest.mark.parametrize(("without", "curves", "kinds"), [
    (["general"], {"intermediate_loss"}, ["teacher", "mlm-head", "augmented-rows"]),
    (["task"], set(), ["teacher", "tinybert-general"]),
    (["augmentation"], {"intermediate_loss"}, ["teacher", "tinybert-general"]),
    (["attention", "hidden", "augmentation"], {"intermediate_loss", "embedding"}, ["teacher", "tinybert-general"]),
    (["prediction", "augmentation"], {"intermediate_loss", "hidden"}, ["teacher", "tinybert-general"]),
])  # fmt: skip
def test_ablations(places, without, curves, kinds):
    run = started(places, without=without, variant="no-" + without[0], max_tokens=400, teacher_tokens=200)
    student, history = run.compress(tinybert.compress)
    assert curves <= set(history.curve)
    assert [a.kind for a in run.artefacts] == kinds
    assert {"embedding", "hidden", "attention"} & set(without) & set(history.curve) == set()
    if without == ["task"]:
        assert set(history.curve) == {"loss", "held_out"}


def test_heads_that_do_not_fit_need_the_attention_loss_left_out(places):
    """A student of two heads; its teacher has four."""
    with pytest.raises(InputError, match="heads: a student of 2 attention heads .*without=attention"):
        tinybert.compress(started(places, heads=2), None)
    run = started(places, heads=2, without=["attention", "augmentation"], max_tokens=400)
    student, history = run.compress(tinybert.compress)
    assert student.config.num_attention_heads == 2
    assert {"embedding", "hidden"} <= set(history.curve)
    assert "attention" not in history.curve
    assert run.finish(student, history).tokens > 0


def test_attention_that_cannot_be_replaced_needs_the_attention_loss_left_out(places):
    """Megatron-BERT computes its own: the study never sees its scores."""
    with pytest.raises(InputError, match="attention scores before softmax cannot be had.*without=attention"):
        tinybert.compress(started(places, kind="megatron-bert"), None)
    run = started(places, kind="megatron-bert", without=["attention", "augmentation"], max_tokens=400)
    student, history = run.compress(tinybert.compress)
    assert student.config._attn_implementation == "eager"
    assert {"embedding", "hidden"} <= set(history.curve)
    record = run.finish(student, history)
    assert "tinybert-general" in [a.kind for a in record.artefacts]


def test_without_the_attention_loss_no_scores_are_kept():
    student = tiny.classifier(layers=2, attention="sdpa")
    seen = tinybert_losses.watch(student, batch_of(), scores=False)
    assert (len(seen.states), seen.scores) == (3, [])
    chosen = tinybert.Plan(None, [1, 2], ("hidden",), False)
    loss = tinybert.state_loss(tiny.classifier(layers=2, seed=1, attention="sdpa"), chosen)
    assert set(loss(tinybert.Distilled(student, Projections(32, 32)), batch_of(), None).logs) == {"hidden"}


@pytest.mark.parametrize("kind", ["roberta", "distilbert", "electra"])
def test_other_architectures(kind, encoder):
    folder = encoder(kind)
    p = Config(backbone=folder)
    chosen = tinybert.plan(p)
    config = tinybert_shape.student_config(models.configuration(folder), chosen.shape)
    student, teacher = tinybert_shape.build(config), models.load_encoder(folder)
    model = tinybert.Distilled(student.base_model, Projections(chosen.shape.width, 32))
    batch = {k: v for k, v in batch_of().items() if k in layers.INPUTS}
    loss = tinybert.state_loss(teacher.eval(), chosen)(model.eval(), batch, None)
    assert loss.logs["attention"] > 0
    assert student.config._attn_implementation == fast.ATTENTION


# Studies


def test_studies_name_their_runs_and_change_what_they_say():
    p = tinybert_studies.Config()
    for study, runs_ in tinybert_studies.STUDIES.items():
        made = tinybert_studies.variants(p.model_copy(update={"study": study}))
        assert len(made) == len(runs_)
        assert len({q.variant for q in made}) == len(made)
    names = {c.get("variant") for c in tinybert_studies.STUDIES["objectives"]}
    assert {"no-embedding", "no-prediction", "no-transformer", "no-attention", "no-hidden"} <= names
    with pytest.raises(InputError, match="variant: 'x' cannot be set together with study"):
        tinybert_studies.variants(p.model_copy(update={"study": "code", "variant": "x"}))


def test_histories_add_up():
    a = training.History(steps=3, tokens=30, seconds=1.0, curve={"intermediate_loss": [[3, 1.0]]})
    b = training.History(steps=2, tokens=20, seconds=2.0, kept_step=1, kept_score=50.0, curve={"loss": [[2, 0.5]]})
    both = stages.joined(a, b)
    assert (both.steps, both.tokens, both.seconds, both.kept_step) == (5, 50, 3.0, 4)
    assert both.curve == {"intermediate_loss": [[3, 1.0]], "loss": [[5, 0.5]]}


@pytest.mark.slow
def test_given_enough_passes_the_student_answers_as_its_teacher(places):
    """From random weights, by the teacher's answers alone: labels are never seen. Chance is 50%."""
    run = started(places, epochs=60, lr=3e-3, intermediate_lr=3e-3, without=["general", "augmentation"],
                  teacher_epochs=30, teacher_lr=3e-3)
    teacher, rows = run.teacher().model, run.train
    answers = evaluation.predict(teacher, rows).argmax(-1)
    assert 0.3 < answers.mean() < 0.7
    rows.labels[:] = 0  # the teacher is ready; from here on labels teach nothing
    student, _ = tinybert.compress(run, teacher)
    assert (evaluation.predict(student, rows).argmax(-1) == answers).mean() > 0.9
