"""Theseus in training: what is frozen, where substitutes begin, steps without a draw, variants, and resuming."""

from __future__ import annotations

import pytest
import tiny
import torch
from theseus_runs import watch

from lib import layers, training
from lib.methods import bert, theseus
from lib.methods.theseus import replaceables


@pytest.mark.parametrize("variant", ["paper", "code"])
def test_what_is_frozen_stays_bit_for_bit(theseus_run, monkeypatch, variant):
    run = theseus_run(variant=variant, epochs=3, weight_decay=0.1)
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
def test_where_substitutes_start(theseus_run, variant, given, expected):
    run = theseus_run(variant=variant, initial=given, initial_layers="highest")
    teacher = run.teacher().model
    mixed = theseus.prepare(run, teacher)
    source = {"backbone": run.backbone(), "predecessor": teacher}[expected]
    for m, i in zip(replaceables(mixed), (2, 3), strict=True):
        assert tiny.same(tiny.state(m.substitute), tiny.state(layers.encoder_layers(source)[i]))
    trainable = {n for n, p in mixed.named_parameters() if p.requires_grad}
    everything = {n for n, _ in mixed.named_parameters()}
    assert trainable == (everything if variant.startswith("code") else {n for n in everything if ".substitute." in n})


@pytest.mark.parametrize("variant", ["paper", "code"])
def test_a_batch_that_draws_no_substitute(theseus_run, monkeypatch, variant):
    """Paper: nothing moves, the step is counted. Code: Adam's momentum moves the substitutes."""
    monkeypatch.setattr(theseus, "replacing_rate", lambda step, total, p: 1.0 if step < 2 else 0.0)
    _, history, seen = watch(monkeypatch, theseus_run(variant=variant, epochs=1.5))
    assert seen.choices == [[True, True]] * 2 + [[False, False]] * 4
    assert not tiny.same(seen.states[1], seen.states[2])
    for a, b in zip(seen.states[2:], seen.states[3:], strict=False):
        changed = {k for k in a if not torch.equal(a[k], b[k])}
        assert changed == (set() if variant == "paper" else {k for k in a if ".substitute." in k})
    assert history.idle_steps == (4 if variant == "paper" else 0)
    assert history.steps == 6
    assert [round(v, 9) for _, v in history.curve["replacing_rate"]] == [1, 1, 0, 0, 0, 0]


def test_a_run_that_never_draws_leaves_the_start(theseus_run, monkeypatch):
    monkeypatch.setattr(theseus, "replacing_rate", lambda step, total, p: 0.0)
    run = theseus_run()
    student, history, seen = watch(monkeypatch, run)
    assert history.idle_steps == history.steps
    assert tiny.same(tiny.state(seen.mixed), seen.before)


@pytest.mark.parametrize("on", [True, False])
def test_dropout_in_frozen_layers(theseus_run, monkeypatch, on):
    _, _, seen = watch(monkeypatch, theseus_run(frozen_dropout=on))
    assert all(mode == (on, True) for step in seen.modes for mode in step)


def test_equivalent_learning_rate(theseus_run, monkeypatch):
    seen = []
    train = training.train
    monkeypatch.setattr(training, "train", lambda m, loss, d, s, **k: seen.append(s) or train(m, loss, d, s, **k))
    for changes in ({"equivalent_lr": True, "rate": 0.25}, {"rate": 0.25}):
        run = theseus_run(schedule="constant", lr=1e-3, **changes)
        theseus.compress(run, run.teacher().model)
    rates = [s.lr for s in seen if s.name.startswith("theseus")]
    assert rates == [1e-3 / 0.25, 1e-3]


def test_clipping_sees_what_the_variant_says(theseus_run, monkeypatch):
    seen = []
    train = training.train
    monkeypatch.setattr(training, "train", lambda m, loss, d, s, **k: seen.append(s) or train(m, loss, d, s, **k))
    for variant in ("paper", "code"):
        run = theseus_run(variant=variant)
        theseus.compress(run, run.teacher().model)
    assert [(s.clip_all, s.zero_gradients) for s in seen if s.name.startswith("theseus")] == [
        (False, False), (True, True)]


@pytest.mark.parametrize(("changes", "scored"), [({}, [True, True]), ({"only_module": 2}, [False, True])])
def test_evaluations_score_the_student_from_the_first_one_on(theseus_run, monkeypatch, changes, scored):
    """methods.md 2.2, step 11: with the substitutes only, whatever the last batch has drawn."""
    run = theseus_run(schedule="constant", rate=0.1, replacing_share=1.0, **changes)
    run.teacher()
    seen, scores = [], type(run).scores
    monkeypatch.setattr(type(run), "scores", lambda self, model: seen.append(
        [m.replaced for m in replaceables(model)]) or scores(self, model))
    theseus.compress(run, run.teacher().model)
    assert seen[:2] == [scored] * 2  # the two evaluations; the readings of Table 5 come after them


# --- resuming


@pytest.mark.parametrize("variant", ["paper", "code"])
def test_resumed_compression_is_the_uninterrupted_one(theseus_run, monkeypatch, variant):
    settings = type(theseus_run()).settings
    monkeypatch.setattr("lib.runs.Run.settings", lambda self, **k: settings(self, **{"checkpoint_seconds": 0.0, **k}))
    run = theseus_run(variant=variant, epochs=3, schedule="constant", rate=0.5, replacing_share=1.0)
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


def test_same_seed_same_student_another_seed_another(theseus_run):
    students = []
    for seed in (0, 0, 1):
        run = theseus_run(seed=seed, epochs=2)
        students.append(tiny.state(theseus.compress(run, run.teacher().model)[0]))
        for path in (run.folder / "checkpoints" / "main").glob("*"):
            path.unlink()
    assert tiny.same(students[0], students[1])
    assert not tiny.same(students[0], students[2])
