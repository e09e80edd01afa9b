"""Fine-tuning, truncation and module replacing: schedule, draw, what is frozen, what is left, and the studies."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
from transformers import AutoModelForSequenceClassification

from lib import evaluation, layers, models, training
from lib.errors import InputError
from lib.methods import bert, theseus, theseus_studies, truncated
from lib.methods.theseus import initial_layers, partition, replaceables, replacing_rate, set_replaced
from lib.parameters import validate
from lib.paths import component
from lib.training import Step


def config(cls=theseus.Config, **values):
    return validate(cls, values)


def logits(model, batch) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        return layers.classify(model, batch)


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


# --- the replacing rate


@pytest.mark.parametrize(("total", "share", "b"), [(100, 0.5, 0.3), (2334, 0.5, 0.3), (50, 1.0, 0.1), (7, 0.4, 0.9)])
def test_curriculum_is_min_1_kt_plus_b(total, share, b):
    p, t = config(replacing_share=share, base_rate=b), np.arange(total)
    k = (1 - b) / (share * total)
    expected = np.minimum(1, k * t + b)
    np.testing.assert_allclose([replacing_rate(i, total, p) for i in t], expected, atol=1e-12)
    anti = config(schedule="anti", replacing_share=share, base_rate=b)
    np.testing.assert_allclose([replacing_rate(i, total, anti) for i in t], 1 - expected, atol=1e-12)
    ends = config(schedule="anti", replacing_share=share, base_rate=b, anti_finish=True)
    np.testing.assert_allclose([replacing_rate(i, total, ends) for i in t],
                               np.where(t >= share * total, 1, 1 - expected), atol=1e-12)


def test_published_mrpc_example_reaches_1_at_step_1167():
    """b = 0.3, k = 0.0006 (methods.md 2.4): 0.7 / 0.0006 = 1166.7 steps."""
    total = 2 * 0.7 / 0.0006
    p = config(replacing_share=0.5, base_rate=0.3)
    assert replacing_rate(1000, total, p) == pytest.approx(0.3 + 0.0006 * 1000)
    assert replacing_rate(1166, total, p) < 1 == replacing_rate(1167, total, p)


def test_constant_rate_then_successor_fine_tuning():
    p = config(schedule="constant", rate=0.7, replacing_share=0.25)
    assert [replacing_rate(t, 40, p) for t in (0, 9, 10, 39)] == [0.7, 0.7, 1.0, 1.0]
    p = config(schedule="constant", rate=0.7, replacing_share=1)
    assert [replacing_rate(t, 40, p) for t in (0, 39)] == [0.7, 0.7]


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


# --- runs


@pytest.fixture
def start(places, films, backbone):
    """`start(**parameters)`: a Theseus run on the tiny task; one teacher for all of a test's runs."""
    def make(cls=theseus.Config, method="theseus", **changes):
        return tiny.run(method, cls, films, backbone, **changes)

    return make


def watch(monkeypatch, run, loss=None):
    """Compress and keep the mixed network: (student, history, mixed, states and choices at each call of the loss)."""
    seen = SimpleNamespace(mixed=None, states=[], choices=[], modes=[])
    prepare, supervised = theseus.prepare, bert.supervised

    def keep(*a):
        seen.mixed = prepare(*a)
        seen.before = tiny.state(seen.mixed)
        return seen.mixed

    def spy(model, batch, step):
        seen.choices.append([m.replaced for m in replaceables(model)])
        seen.modes.append([(m.predecessor.training, m.substitute.training) for m in replaceables(model)])
        if loss:
            return loss(model, batch, step)
        seen.states.append(tiny.state(model))
        return supervised(model, batch, step)

    monkeypatch.setattr(theseus, "prepare", keep)
    teacher = run.teacher().model
    with monkeypatch.context() as m:
        m.setattr(bert, "supervised", spy)
        student, history = theseus.compress(run, teacher)
    return student, history, seen


@pytest.mark.parametrize("variant", ["paper", "code"])
def test_what_is_frozen_stays_bit_for_bit(start, monkeypatch, variant):
    run = start(variant=variant, epochs=3, weight_decay=0.1)
    teacher = run.teacher().model
    before = tiny.state(teacher)
    student, history, seen = watch(monkeypatch, run)
    assert tiny.same(tiny.state(teacher), before)
    assert all(p.grad is None for p in teacher.parameters())
    after = tiny.state(seen.mixed)
    moved = {k for k in after if not torch.equal(after[k], seen.before[k])}
    assert moved == {k for k in after if ".substitute." in k}
    mine = tiny.state(student)
    outside = {k for k in mine if ".layer." not in k}
    assert "bert.embeddings.word_embeddings.weight" in outside
    assert "classifier.weight" in outside
    assert tiny.same(mine, before, outside)
    assert history.steps == 12
    assert student.config.num_hidden_layers == 2


@pytest.mark.parametrize(("variant", "given", "expected"), [
    ("", "", "backbone"), ("paper", "", "backbone"), ("code", "", "predecessor"), ("code", "backbone", "backbone"),
    ("", "predecessor", "predecessor"), ("code-rate0.5", "", "predecessor"), ("other", "", "backbone"),
])
def test_where_substitutes_start(start, variant, given, expected):
    run = start(variant=variant, initial=given, initial_layers="highest")
    teacher = run.teacher().model
    mixed = theseus.prepare(run, teacher)
    source = {"backbone": run.backbone(), "predecessor": teacher}[expected]
    for m, i in zip(replaceables(mixed), (2, 3), strict=True):
        assert tiny.same(tiny.state(m.substitute), tiny.state(layers.encoder_layers(source)[i]))
    trainable = {n for n, p in mixed.named_parameters() if p.requires_grad}
    everything = {n for n, _ in mixed.named_parameters()}
    assert trainable == (everything if variant.startswith("code") else {n for n in everything if ".substitute." in n})


@pytest.mark.parametrize("variant", ["paper", "code"])
def test_a_batch_that_draws_no_substitute(start, monkeypatch, variant):
    """Paper: nothing moves, the step is counted. Code: Adam's momentum moves the substitutes."""
    monkeypatch.setattr(theseus, "replacing_rate", lambda step, total, p: 1.0 if step < 2 else 0.0)
    _, history, seen = watch(monkeypatch, start(variant=variant, epochs=1.5))
    assert seen.choices == [[True, True]] * 2 + [[False, False]] * 4
    assert not tiny.same(seen.states[1], seen.states[2])
    for a, b in zip(seen.states[2:], seen.states[3:], strict=False):
        changed = {k for k in a if not torch.equal(a[k], b[k])}
        assert changed == (set() if variant == "paper" else {k for k in a if ".substitute." in k})
    assert history.idle_steps == (4 if variant == "paper" else 0)
    assert history.steps == 6
    assert [round(v, 9) for _, v in history.curve["replacing_rate"]] == [1, 1, 0, 0, 0, 0]


def test_a_run_that_never_draws_leaves_the_start(start, monkeypatch):
    monkeypatch.setattr(theseus, "replacing_rate", lambda step, total, p: 0.0)
    run = start()
    student, history, seen = watch(monkeypatch, run)
    assert history.idle_steps == history.steps
    assert tiny.same(tiny.state(seen.mixed), seen.before)


def cheap(model, batch, step):
    return sum(p.sum() for p in replaceables(model)[0].substitute.parameters()) * 0.0


def test_draws_are_bernoulli_one_a_module_and_batch(start, monkeypatch):
    rate = 0.3
    run = start(schedule="constant", rate=rate, replacing_share=1.0, epochs=150, evaluations=1)
    _, history, seen = watch(monkeypatch, run, loss=cheap)
    drawn = np.array(seen.choices)
    n = len(drawn)
    assert n == history.steps == 600
    assert np.abs(drawn.mean(0) - rate).max() < 4 * math.sqrt(rate * (1 - rate) / n)
    both = (drawn[:, 0] & drawn[:, 1]).mean()
    assert abs(both - rate**2) < 4 * math.sqrt(rate**2 * (1 - rate**2) / n)  # modules are independent
    again = (drawn[1:, 0] & drawn[:-1, 0]).mean()
    assert abs(again - rate**2) < 4 * math.sqrt(rate**2 * (1 - rate**2) / n)  # and so are batches


def test_draws_follow_the_curriculum_and_end_with_the_student_alone(start, monkeypatch):
    run = start(epochs=100, evaluations=1, base_rate=0.2)
    _, history, seen = watch(monkeypatch, run, loss=cheap)
    drawn = np.array(seen.choices)
    assert drawn[200:].all()
    for a, b in ((0, 100), (100, 200)):
        expected = np.mean([replacing_rate(t, 400, run.p) for t in range(a, b)])
        assert abs(drawn[a:b].mean() - expected) < 4 * math.sqrt(0.25 / 200)
    steps = [s for s, _ in history.curve["replacing_rate"]]
    rates = [v for _, v in history.curve["replacing_rate"]]
    assert steps[-1] == 400
    expected = [np.mean([replacing_rate(t, 400, run.p) for t in range(s - 4, s)]) for s in steps]
    np.testing.assert_allclose(rates, expected)


def test_draw_is_repeated_for_each_micro_batch(start, monkeypatch):
    """methods.md 2.5: under accumulation the draw is made anew, while the schedule moves once a step."""
    run = start(schedule="constant", rate=0.5, replacing_share=1.0, batch_size=2, accumulation=8)
    _, _, seen = watch(monkeypatch, run, loss=cheap)
    by_step = np.array(seen.choices).reshape(-1, 8, 2)
    assert (by_step != by_step[:, :1]).any()


def test_another_seed_draws_otherwise(start, monkeypatch):
    drawn = []
    for seed in (0, 1, 0):
        run = start(schedule="constant", seed=seed, replacing_share=1.0, epochs=5)
        drawn.append(watch(monkeypatch, run, loss=cheap)[2].choices)
    assert drawn[0] == drawn[2] != drawn[1]


@pytest.mark.parametrize("on", [True, False])
def test_dropout_in_frozen_layers(start, monkeypatch, on):
    _, _, seen = watch(monkeypatch, start(frozen_dropout=on))
    assert all(mode == (on, True) for step in seen.modes for mode in step)


def test_equivalent_learning_rate(start, monkeypatch):
    seen = []
    train = training.train
    monkeypatch.setattr(training, "train", lambda m, loss, d, s, **k: seen.append(s) or train(m, loss, d, s, **k))
    for changes in ({"equivalent_lr": True, "rate": 0.25}, {"rate": 0.25}):
        run = start(schedule="constant", lr=1e-3, **changes)
        theseus.compress(run, run.teacher().model)
    rates = [s.lr for s in seen if s.name.startswith("theseus")]
    assert rates == [1e-3 / 0.25, 1e-3]


def test_clipping_sees_what_the_variant_says(start, monkeypatch):
    seen = []
    train = training.train
    monkeypatch.setattr(training, "train", lambda m, loss, d, s, **k: seen.append(s) or train(m, loss, d, s, **k))
    for variant in ("paper", "code"):
        run = start(variant=variant)
        theseus.compress(run, run.teacher().model)
    assert [(s.clip_all, s.zero_gradients) for s in seen if s.name.startswith("theseus")] == [
        (False, False), (True, True)]


# --- one module alone, and what each costs


@pytest.mark.parametrize("which", [1, 2])
def test_one_module_alone(start, monkeypatch, which):
    run = start(only_module=which, schedule="constant", replacing_share=1.0, rate=0.9, epochs=2)
    student, _, seen = watch(monkeypatch, run)
    drawn, alone = np.array(seen.choices), [which == 1, which == 2]
    assert drawn.any(0).tolist() == alone
    after = tiny.state(seen.mixed)
    moved = {k for k in after if not torch.equal(after[k], seen.before[k])}
    assert moved == {k for k in after if f"layer.{which - 1}.substitute." in k}
    batch = run.train.batch(np.arange(5))
    set_replaced(seen.mixed, alone)
    torch.testing.assert_close(logits(student, batch), logits(seen.mixed, batch), atol=2e-6, rtol=1e-5)
    own = list(layers.encoder_layers(run.teacher().model))
    substitute = replaceables(seen.mixed)[which - 1].substitute
    expected = [substitute, *own[2:]] if which == 1 else [*own[:2], substitute]
    assert [tiny.same(tiny.state(a), tiny.state(b)) for a, b in zip(
        layers.encoder_layers(student), expected, strict=True)] == [True] * 3
    assert student.config.num_hidden_layers == 3


@pytest.mark.parametrize(("changes", "scored"), [({}, [True, True]), ({"only_module": 2}, [False, True])])
def test_evaluations_score_the_student_from_the_first_one_on(start, monkeypatch, changes, scored):
    """methods.md 2.2, step 11: with the substitutes only, whatever the last batch has drawn."""
    run = start(schedule="constant", rate=0.1, replacing_share=1.0, **changes)
    run.teacher()
    seen, scores = [], type(run).scores
    monkeypatch.setattr(type(run), "scores", lambda self, model: seen.append(
        [m.replaced for m in replaceables(model)]) or scores(self, model))
    theseus.compress(run, run.teacher().model)
    assert seen[:2] == [scored] * 2  # the two evaluations; the readings of Table 5 come after them


def test_a_module_that_is_not_there(start):
    run = start(only_module=3)
    with pytest.raises(InputError, match="only_module: 3 is not between 1 and 2"):
        theseus.prepare(run, run.teacher().model)


def test_module_impact_scores_the_teacher_with_one_substitute(start, monkeypatch):
    run = start(epochs=2)
    teacher = run.teacher().model
    _, _, seen = watch(monkeypatch, run)
    table = run.study["module_impact"]
    assert table.keys() == {"none", "1", "2"}
    assert table["none"] == pytest.approx(run.scores(teacher)["held_out"])
    for name, choice in (("1", [True, False]), ("2", [False, True])):
        set_replaced(seen.mixed, choice)
        values = evaluation.metrics(run.task, evaluation.predict(seen.mixed, run.sets["held_out"]),
                                    run.sets["held_out"].labels)
        assert table[name] == pytest.approx(100 * values["accuracy"])


# --- encoders


def finish(run, method):
    student, history = run.compress(method)
    return student, run.finish(student, history)


@pytest.mark.parametrize("kind", tiny.KINDS)
@pytest.mark.parametrize(("method", "module"), [("truncated", truncated), ("theseus", theseus)])
def test_encoders_run_through_and_leave_ordinary_models(places, films, encoder, kind, method, module):
    run = tiny.run(method, module.Config, films, encoder(kind), epochs=2, max_rows=32)
    student, record = finish(run, module.compress)
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


def test_unlike_layers_are_refused_in_a_sentence_and_can_be_truncated(places, films, encoder):
    run = tiny.run("theseus", theseus.Config, films, encoder("modernbert"), max_rows=32)
    with pytest.raises(InputError, match="theseus: the layers of ModernBertForSequenceClassification take unlike"):
        theseus.prepare(run, run.teacher().model)
    run = tiny.run("truncated", truncated.Config, films, encoder("modernbert"), max_rows=32)
    _, record = finish(run, truncated.compress)
    assert record.layers == 2


def test_regression_runs_through(places, ratings, backbone):
    run = tiny.run("theseus", theseus.Config, ratings, backbone, epochs=4, max_rows=0)
    student, record = finish(run, theseus.compress)
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


# --- the teacher


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


# --- the studies


def named(study, **changes):
    values = {"study": study, "backbone": "minilm-l6", **changes}
    return {v.variant: v for v in theseus_studies.variants(validate(theseus_studies.Config, values))}


@pytest.fixture
def six(monkeypatch):
    monkeypatch.setattr(models, "depth", lambda name: 6)


def test_studies_are_the_papers(six):
    assert list(named("none")) == [""]
    strategy = named("strategy")
    assert {k: v.schedule for k, v in strategy.items()} == {"": "linear", "constant": "constant", "anti": "anti"}
    rates = named("replacing_rate")
    assert len(rates) == 10
    assert {(v.rate, v.equivalent_lr) for v in rates.values()} == {
        (r, e) for r in (0.1, 0.3, 0.5, 0.7, 0.9) for e in (True, False)}
    assert {v.schedule for v in rates.values()} == {"constant"}
    impact = named("module_impact")
    assert [(v.only_module, v.replacing_share) for v in impact.values()] == [(1, 1.0), (2, 1.0), (3, 1.0)]
    assert {k: v.layers for k, v in named("layers").items()} == {"layers1": 1, "layers2": 2}
    assert {k: v.layers for k, v in named("layers", modules=[3, 3]).items()} == {"layers1": 1, "layers3": 3}
    assert [v.initial_layers for v in named("initialisation").values()] == ["interleaved", "highest"]
    assert list(named("code")) == ["code"]
    with pytest.raises(InputError, match="variant: 'x' cannot be set together with study='strategy'"):
        named("strategy", variant="x")


def test_names_of_studies_can_stand_in_a_path(six):
    for study in theseus_studies.STUDIES:
        for name in named(study):
            assert not name or component("variant", name)


def test_transfer_compresses_on_the_other_task_first(places, films, backbone):
    other = str(tiny.films(places / "other.csv", seed=5))
    run = tiny.run("theseus", theseus_studies.Config, films, backbone, variant="transfer", intermediate_task=other)
    student, record = finish(run, theseus_studies.compress)
    assert record.variant == "transfer"
    assert record.layers == 2
    assert "compressed on other first" in record.notes[0]
    assert len(record.artefacts) == 2  # the teacher of each task
    first = models.load_classifier(str(run.folder / "intermediate"), tiny.FILMS)
    assert not tiny.same(tiny.state(first.bert), tiny.state(student.bert))  # all weights are fine-tuned
    same = tiny.run("theseus", theseus_studies.Config, films, backbone, variant="transfer", intermediate_task=films)
    with pytest.raises(InputError, match="is the task itself"):
        theseus_studies.compress(same, same.teacher().model)


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


# --- resuming


@pytest.mark.parametrize("variant", ["paper", "code"])
def test_resumed_compression_is_the_uninterrupted_one(start, monkeypatch, variant):
    settings = type(start()).settings
    monkeypatch.setattr("lib.runs.Run.settings", lambda self, **k: settings(self, **{"checkpoint_seconds": 0.0, **k}))
    run = start(variant=variant, epochs=3, schedule="constant", rate=0.5, replacing_share=1.0)
    teacher = run.teacher().model
    wanted, history = theseus.compress(run, teacher)
    for stage in (run.folder / "checkpoints" / "main").iterdir():
        stage.unlink()
    supervised = bert.supervised

    def failing(at):
        def loss(model, batch, step):
            if step.index == at:
                raise KeyboardInterrupt
            return supervised(model, batch, step)
        return loss

    for at in (3, 5, 8):
        with monkeypatch.context() as m:
            m.setattr(bert, "supervised", failing(at))
            with pytest.raises(KeyboardInterrupt):
                theseus.compress(run, teacher)
    got, resumed = theseus.compress(run, teacher)
    assert tiny.same(tiny.state(got), tiny.state(wanted))
    assert resumed.curve == history.curve
    assert (resumed.kept_step, resumed.idle_steps) == (history.kept_step, history.idle_steps)


def test_same_seed_same_student_another_seed_another(start):
    students = []
    for seed in (0, 0, 1):
        run = start(seed=seed, epochs=2)
        students.append(tiny.state(theseus.compress(run, run.teacher().model)[0]))
        for path in (run.folder / "checkpoints" / "main").glob("*"):
            path.unlink()
    assert tiny.same(students[0], students[1])
    assert not tiny.same(students[0], students[2])


def test_step_streams_are_independent():
    a, b = Step(3, 10, 0, 7), Step(3, 10, 0, 7)
    assert a.random().random(4).tolist() == b.random().random(4).tolist()
    others = [Step(4, 10, 0, 7).random(), Step(3, 10, 1, 7).random(), Step(3, 10, 0, 8).random(), a.random(1)]
    assert len({tuple(r.random(4)) for r in (a.random(), *others)}) == 5
