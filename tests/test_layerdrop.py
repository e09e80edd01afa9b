"""LayerDrop: draws, no rescaling, the rule of the paper, search, both places, the student's equality."""

import json

import numpy as np
import pytest
import tiny
import torch
from transformers import AutoModelForSequenceClassification

from lib import fast, hidden, layers, parameters, runs, stages
from lib.errors import InputError
from lib.methods import bert, layerdrop, truncated
from lib.methods import layerdrop_pruning as pruning
from lib.training import History, Step

QUICK = {"max_tokens": 400, "epochs": 3, "evaluations": 1, "teacher_tokens": 300, "precision": "fp32",
         "profile": "test"}


def run_of(films, backbone, **changes):
    p = parameters.validate(layerdrop.Config, {"task": films, "backbone": backbone, **QUICK, **changes})
    return runs.start("layerdrop", p)


def batch(rows=4):
    data = tiny.encoded(rows)
    return data.batch(np.arange(rows))


@pytest.mark.parametrize(("depth", "count", "counting", "expected"), [
    (12, 6, "one", [0, 2, 4, 6, 8, 10]), (12, 6, "zero", [1, 3, 5, 7, 9, 11]), (6, 3, "one", [0, 2, 4]),
    (12, 9, "one", [0, 1, 2, 4, 5, 6, 8, 9, 10]), (12, 8, "zero", [1, 2, 4, 5, 7, 8, 10, 11]),
    (12, 3, "one", [2, 6, 10]), (12, 3, "zero", [3, 7, 11]), (5, 4, "one", [0, 1, 2, 3]),
])
def test_every_other(depth, count, counting, expected):
    assert pruning.every_other(depth, count, counting) == expected


@pytest.mark.parametrize(("depth", "count"), [(12, 7), (12, 5), (10, 4)])
def test_a_rule_that_does_not_fit_is_refused(depth, count):
    with pytest.raises(InputError, match="layers: the every-other rule"):
        pruning.every_other(depth, count)


def test_draws_are_a_function_of_seed_step_and_micro_batch_and_have_the_rate():
    parts = [pruning.Droppable(torch.nn.Identity()) for _ in range(6)]

    def drawn(p, seed=0, index=0, micro=0):
        layerdrop.draw(parts, p, Step(index, 2000, micro, seed))
        return [x.dropped for x in parts]

    assert drawn(0.5) == drawn(0.5)
    assert len({tuple(drawn(0.5, *k)) for k in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]}) > 2
    share = np.mean([drawn(0.3, index=i) for i in range(2000)], axis=0)
    assert np.abs(share - 0.3).max() < 4 * np.sqrt(0.21 / 2000)  # each layer alone has the rate
    both = np.mean([[a and b for a, b in [drawn(0.5, index=i)[:2]]] for i in range(2000)])
    assert abs(both - 0.25) < 0.04  # independently
    assert not any(any(drawn(0.0, index=i)) for i in range(200))


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_a_skipped_layer_passes_its_input_on_unscaled(kind):
    model = tiny.classifier(kind, layers=4)
    inputs = {k: v for k, v in batch().items() if k in layers.INPUTS}
    whole = model(**inputs).logits
    student = layers.cut(model, [0, 3])
    parts = pruning.wrap(model)
    torch.testing.assert_close(model(**inputs).logits, whole, rtol=0, atol=0)
    pruning.leave(parts, [0, 3])
    torch.testing.assert_close(model(**inputs).logits, student(**inputs).logits, rtol=0, atol=1e-6)
    pruning.leave(parts, [])
    with torch.no_grad(), hidden.capture_hidden(model) as states:
        model(**inputs)
    assert all(torch.equal(s, states[0]) for s in states)


def test_skipping_the_last_layer_and_the_first_token_shortcut():
    model = tiny.classifier(layers=3)
    parts = pruning.wrap(model)
    for kept in ([0, 1, 2], [0, 1], [2]):
        pruning.leave(parts, kept)
        inputs = batch()
        plain = model(**{k: v for k, v in inputs.items() if k in layers.INPUTS}).logits
        torch.testing.assert_close(layers.classify(model, inputs), plain, rtol=0, atol=1e-6)


def test_pruned_is_an_ordinary_model_and_a_skipped_layer_has_no_gradient(tmp_path):
    model = tiny.classifier(layers=4)
    parts = pruning.wrap(model)
    pruning.leave(parts, [1, 2])
    bert.supervised(model, batch(), None).backward()
    touched = [any(q.grad is not None for q in x.parameters()) for x in parts]
    assert touched == [False, True, True, False]
    student = pruning.pruned(model, [1, 2])
    assert not any(isinstance(m, pruning.Droppable) for m in student.modules())
    student.save_pretrained(tmp_path)
    again, info = AutoModelForSequenceClassification.from_pretrained(
        tmp_path, attn_implementation=fast.ATTENTION, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    torch.testing.assert_close(layers.classify(again.eval(), batch()), layers.classify(student, batch()),
                               rtol=0, atol=1e-6)


def test_candidates():
    every = pruning.candidates(6, 3, 64, 0)
    assert len(every) == len(set(every)) == 20
    some = pruning.candidates(12, 6, 30, 1)
    assert len(set(some)) == 30
    assert all(len(set(s)) == 6 and list(s) == sorted(s) for s in some)
    assert some == pruning.candidates(12, 6, 30, 1) != pruning.candidates(12, 6, 30, 2)


def test_rate():
    p = parameters.validate(layerdrop.Config, {})
    assert layerdrop.drop_rate(p, 12, 6) == 0.5
    assert layerdrop.drop_rate(p, 12, 3) == 0.75
    assert layerdrop.drop_rate(parameters.validate(layerdrop.Config, {"drop_rate": 0}), 12, 6) == 0


def test_joined_histories():
    a = History(steps=10, tokens=100, seconds=2.0, padding_share=0.1, kept_step=8, kept_score=50.0, best_scored=60.0,
                idle_steps=1, curve={"loss": [[10, 1.0]]})
    b = History(steps=5, tokens=300, seconds=1.0, padding_share=0.2, kept_step=4, kept_score=55.0, highest_score=56.0,
                best_scored=58.0, idle_steps=2, peak_memory_mb=7.0, curve={"loss": [[5, 0.5]], "held_out": [[5, 55.0]]})
    j = stages.joined(a, b)
    assert (j.steps, j.tokens, j.seconds, j.kept_step, j.kept_score, j.best_scored) == (15, 400, 3.0, 14, 55.0, 60.0)
    assert j.padding_share == pytest.approx(0.175)
    assert (j.highest_score, j.idle_steps, j.peak_memory_mb) == (56.0, 3, 7.0)
    assert j.curve == {"loss": [[10, 1.0], [15, 0.5]], "held_out": [[15, 55.0]]}


@pytest.mark.parametrize(("changes", "message"), [
    ({"drop_rate": 1}, "drop_rate"), ({"drop_rate": -2}, "drop_rate"), ({"when": "never"}, "when"),
    ({"search_limit": 0}, "search_limit"), ({"recovery_share": 1}, "recovery_share"), ({"pruning": "best"}, "pruning"),
])
def test_bad_parameters(changes, message):
    with pytest.raises(InputError, match=f"parameter {message}"):
        parameters.validate(layerdrop.Config, changes)


@pytest.mark.parametrize("keep", [[1, 0], [0, 9], [-1, 2], [0, 0], [0, 1, 2, 3]])
def test_bad_keep(keep):
    with pytest.raises(InputError, match="keep"):
        pruning.rule(parameters.validate(layerdrop.Config, {"keep": keep}), 4)


def test_study_names():
    p = parameters.validate(layerdrop.Config, {"study": "place", "variant": "mine"})
    with pytest.raises(InputError, match="variant"):
        layerdrop.variants(p)
    for study in layerdrop.STUDIES:
        found = layerdrop.variants(parameters.validate(layerdrop.Config, {"study": study}))
        assert len({q.variant for q in found}) == len(found)
        assert {q.study for q in found} == {"none"}  # a record's command makes that run alone


def test_a_run_with_search(films, backbone, places):
    run = run_of(films, backbone, pruning="search", drop_rate=0.5)
    student, history = run.compress(layerdrop.compress)
    record = run.finish(student, history)
    table = record.study["pruning"]
    assert len(table["candidates"]) == 6  # 2 of 4
    best = max(c["held_out"] for c in table["candidates"])
    assert table["chosen"]["held_out"] == best == record.selection.held_out_score
    assert record.layers == 2
    assert run.scores(student)["held_out"] == pytest.approx(best)
    run_values = [v for _, v in record.curve["layers_run"]]
    assert 0 < np.mean(run_values) < 4
    assert json.loads(run.record_path.read_text())["study"]["drop_rate"] == 0.5


def test_rate_0_without_pruning_rule_is_plain_fine_tuning(films, backbone, places):
    """With p = 0 the network trained is the backbone in ordinary fine-tuning, bit for bit."""
    run = run_of(films, backbone, drop_rate=0, keep=[0, 1, 2])
    student, _ = layerdrop.compress(run)
    plain = run_of(films, backbone)
    model, _ = bert.compress(plain)
    assert tiny.same(tiny.state(student), tiny.state(layers.cut(model, [0, 1, 2])))


def test_recovery_trains_the_pruned_student(films, backbone, places):
    run = run_of(films, backbone, recovery_share=0.5, max_tokens=800)
    student, history = layerdrop.compress(run)
    assert history.tokens <= 800
    assert len(history.curve["held_out"]) == 2
    assert history.kept_score == pytest.approx(run.scores(student)["held_out"])


def test_pretraining_then_plain_fine_tuning(films, backbone, places, tmp_path):
    (tmp_path / "own.txt").write_text("\n\n".join(t for t, _, _ in tiny.rows(3000, seed=5)))
    settings = {"when": "pretraining", "text": str(tmp_path / "own.txt"), "text_tokens": 2000, "text_length": 32,
                "general_batch_size": 8, "drop_rate": 0.5}
    run = run_of(films, backbone, **settings)
    student, history = run.compress(layerdrop.compress)
    record = run.finish(student, history)
    kinds = [a.kind for a in record.artefacts]
    assert "layerdrop" in kinds
    assert "mlm-head" in kinds
    assert record.study["mlm"]["tokens"] > 500
    assert record.study["kept"] == [1, 3]
    assert "layers_run" not in record.curve  # no LayerDrop in the fine-tuning
    other = run_of(films, backbone, **settings, seed=1)
    assert layerdrop.pretrained(other, 0.5).key == next(a.key for a in record.artefacts if a.kind == "layerdrop")
    fresh = truncated.compress  # the same student without the stage differs: its weights came from the artefact
    p = parameters.validate(truncated.Config, {"task": films, "backbone": backbone, **QUICK})
    without, _ = fresh(runs.start("truncated", p))
    assert not tiny.same(tiny.state(student), tiny.state(without))


def test_text_longer_than_the_model_is_refused_at_the_start(films, backbone, places):
    with pytest.raises(InputError, match="text_length: 65 is more than the 64 tokens"):
        run_of(films, backbone, when="pretraining", text_length=65)
    run_of(films, backbone, text_length=65)  # no text is read


@pytest.mark.parametrize("changes", [{"pruning": "search"}, {"recovery_share": 0.5}])
def test_what_pretraining_cannot_take(films, backbone, places, changes):
    run = run_of(films, backbone, when="pretraining", text_length=32, **changes)
    with pytest.raises(InputError, match=next(iter(changes))):
        layerdrop.compress(run)
