"""The studies of Theseus: one module alone, what each costs, the papers' settings, and transfer from another task."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from theseus_runs import logits, watch

from lib import evaluation, layers, models
from lib.errors import InputError
from lib.methods import theseus, theseus_studies
from lib.methods.theseus import replaceables, set_replaced
from lib.parameters import validate
from lib.paths import component

# --- one module alone, and what each costs


@pytest.mark.parametrize("which", [1, 2])
def test_one_module_alone(theseus_run, monkeypatch, which):
    run = theseus_run(only_module=which, schedule="constant", replacing_share=1.0, rate=0.9, epochs=2)
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


def test_a_module_that_is_not_there(theseus_run):
    run = theseus_run(only_module=3)
    with pytest.raises(InputError, match="only_module: 3 is not between 1 and 2"):
        theseus.prepare(run, run.teacher().model)


def test_module_impact_scores_the_teacher_with_one_substitute(theseus_run, monkeypatch):
    run = theseus_run(epochs=2)
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


# --- the settings, and transfer


def named(study, **changes):
    values = {"study": study, "backbone": "minilm-l6", **changes}
    return {v.variant: v for v in theseus_studies.variants(validate(theseus_studies.Config, values))}


@pytest.fixture
def six(monkeypatch):
    monkeypatch.setattr(models, "depth", lambda name: 6)


def test_studies_are_the_papers(six):
    assert list(named("none")) == [""]
    strategy = named("strategy")
    assert {k: v.schedule for k, v in strategy.items()} == {"": "linear", "constant": "constant", "anti": "anti",
                                                            "anti-finish": "anti"}
    assert [v.anti_finish for v in strategy.values()] == [False, False, False, True]
    rates = named("replacing_rate")
    assert len(rates) == 10
    assert {(v.rate, v.equivalent_lr) for v in rates.values()} == {
        (r, e) for r in (0.1, 0.3, 0.5, 0.7, 0.9) for e in (True, False)}
    assert {v.schedule for v in rates.values()} == {"constant"}
    tuned = {"lr": 2e-4, "lr_grid": [1e-4, 2e-4]}
    assert {(v.lr, tuple(v.lr_grid)) for v in named("replacing_rate", **tuned).values()} == {(2e-4, ())}
    assert {tuple(v.lr_grid) for v in named("initialisation", **tuned).values()} == {(1e-4, 2e-4)}
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
    student, record = tiny.finish(run, theseus_studies.compress)
    assert record.variant == "transfer"
    assert record.layers == 2
    assert "compressed on other first" in record.notes[0]
    teachers, cost = record.artefacts[:2], record.artefacts[2]
    assert [a.kind for a in record.artefacts] == ["teacher", "teacher", "intermediate"]
    assert len({a.key for a in teachers}) == 2
    assert cost.tokens > 0 < cost.seconds
    first = models.load_classifier(str(run.folder / "intermediate"), tiny.FILMS)
    assert not tiny.same(tiny.state(first.bert), tiny.state(student.bert))  # all weights are fine-tuned
    same = tiny.run("theseus", theseus_studies.Config, films, backbone, variant="transfer", intermediate_task=films)
    with pytest.raises(InputError, match="is the task itself"):
        theseus_studies.compress(same, same.teacher().model)


def test_an_intermediate_task_may_not_hold_scored_rows(places, films, backbone):
    sentence = "nine words of which all stand in both files"
    run = tiny.run("theseus", theseus_studies.Config, films, backbone, variant="transfer")
    rows = run.data.scored.to_dict()
    rows["text_2"][-1] = sentence
    held = replace(run.data, scored=type(run.data.scored).from_dict(rows))
    other = {"text": ["Something else altogether, in more than eight words, or so."], "text_2": [""]}
    theseus_studies.refuse_overlap("other", other, held)
    other["text"].append(f"Before it, {sentence.title()}; after it.")
    with pytest.raises(InputError, match=r"intermediate_task: other trains on 1 sentences .* 'nine words of"):
        theseus_studies.refuse_overlap("other", other, held)
