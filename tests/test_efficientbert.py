"""EfficientBERT as a run: shapes, bad input, the whole chain, the control, and a search that is killed and resumed."""

import json

import method_runs
import numpy as np
import pytest
import tiny
import torch
from transformers import AutoModelForSequenceClassification, BertConfig

from lib import artefacts, evaluation, models, parameters, profiles
from lib.errors import InputError
from lib.methods import efficientbert as eb
from lib.methods import efficientbert_distill, efficientbert_model, efficientbert_space, efficientbert_studies
from lib.paths import build_dir

TINY = {"text_tokens": 1200, "text_length": 32, "general_batch_size": 8, "max_tokens": 500, "teacher_tokens": 500,
        "candidates": [4, 3, 2], "first_candidates": 3, "refit_interval": 1, "candidate_text_tokens": 150,
        "candidate_tokens": 200, "sizes_tokens": 200, "search_teacher_tokens": 200, "search_teacher_lr": 1e-3}


@pytest.fixture
def run(places):
    """`run(**parameters)`: a started run with a text of its own."""
    rng = np.random.default_rng(0)
    text = places / "text.txt"
    text.write_text("\n\n".join(" ".join(rng.choice(tiny.FILLER, 60)) for _ in range(600)))

    def start(**values):
        return method_runs.start("efficientbert", eb.Config, places, **{**TINY, "text": str(text), **values})

    return start


def trained(run):
    student, history = run.compress(eb.compress)
    return student, history, run.finish(student, history)


@pytest.mark.parametrize(("teacher", "expected"), [
    (BertConfig(), (540, 12, 6, 128)), (BertConfig(hidden_size=384, num_hidden_layers=6), (264, 12, 3, 64)),
    (BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16), (720, 16, 12, 171))])
def test_shapes_follow_the_papers_proportions(monkeypatch, teacher, expected):
    monkeypatch.setattr(models, "_load", lambda *a, **k: teacher)
    c = eb.shape(parameters.validate(eb.Config, {}))
    assert (c.hidden_size, c.num_attention_heads, c.num_hidden_layers, c.embedding_size) == expected
    assert c.hidden_size % c.num_attention_heads == 0


@pytest.mark.parametrize(("values", "message"), [
    ({"heads": 3}, "heads: 3 are not the teacher's 4"), ({"layers": 3}, "layers: 3 does not divide the teacher's 4"),
    ({"layers": 4}, "layers: 4"), ({"candidates": [3, 3]}, "candidates"), ({"candidates": [3, 0, 3]}, "candidates"),
    ({"candidates": [0, 0, 0]}, "candidates"), ({"candidates": [3, -1, 0]}, "candidates")])
def test_what_cannot_be_distilled_is_refused_before_training(run, values, message):
    r = run(**values)
    with pytest.raises(InputError, match=message) as e:
        eb.shape(r.p)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(("name", "value"), [("architecture", "best"), ("temperature", 0), ("candidate_lr", 2),
                                             ("control", "maybe"), ("supernet_epochs", 0)])
def test_bad_parameters(name, value):
    with pytest.raises(InputError, match=name):
        parameters.validate(eb.Config, {name: value})


def test_the_whole_chain(run):
    r = run()
    teacher = r.teacher().model
    before = tiny.state(teacher)
    student, history, record = trained(r)
    assert tiny.same(before, tiny.state(teacher))
    assert student.config.ffns == efficientbert_model.spread(efficientbert_model.RELEASED, 2)
    assert student.config.hidden_size == 4 * 5  # heads of 8 * 540 / 768
    assert {a.kind for a in record.artefacts} == {"teacher", "efficientbert-supernet", "efficientbert-student"}
    assert all(a.tokens > 0 for a in record.artefacts)
    assert set(record.curve) >= {"loss", "embedding", "attention", "hidden", "prediction", "held_out"}
    assert record.study["architecture"] == student.config.ffns
    assert any("spread over 2 layers" in n for n in record.notes)
    again, report = AutoModelForSequenceClassification.from_pretrained(r.output, output_loading_info=True)
    assert not any(report[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert again.config.id2label == {0: "negative", 1: "positive"}
    scored = r.sets["scored"]
    np.testing.assert_allclose(evaluation.predict(again, scored), evaluation.predict(student, scored), atol=1e-6)
    assert (r.output / "efficientbert_model.py").exists()


def test_same_seed_same_result_other_seed_shares_the_general_stages(run):
    one = trained(run())
    again = trained(run())
    assert tiny.same(tiny.state(one[0]), tiny.state(again[0]))
    other = trained(run(seed=1))
    assert not tiny.same(tiny.state(one[0]), tiny.state(other[0]))
    keys = [{a.key for a in x[2].artefacts if a.kind != "teacher"} for x in (one, other)]
    assert keys[0] == keys[1]


def test_control_differs_in_the_functions_only(run):
    student, _, record = trained(run(variant="released"))
    control, _, other = trained(run(control=True, variant="control"))
    assert [e[:2] for e in control.config.ffns] == [e[:2] for e in student.config.ffns]
    assert {e[2] for e in control.config.ffns} == {efficientbert_model.PLAIN}
    assert record.parameters == other.parameters
    assert record.tokens == other.tokens
    assert [a.tokens for a in record.artefacts] == [a.tokens for a in other.artefacts]
    assert any(n.startswith("control") for n in other.notes)


def test_regression(run):
    _, _, record = trained(run(regression=True))
    assert record.curve["prediction"][-1][1] > 0


def evaluator(run, source):
    config = eb.shape(run.p)
    fitness, teacher, _ = eb._fitness(run)
    return eb.Evaluator(run, fitness, config, teacher, source, run.folder)


def test_without_warm_up_the_supernet_has_no_influence_on_the_search(run, monkeypatch):
    r = run(architecture="search", warm_up=False)
    config, inherit, asked = eb.shape(r.p), efficientbert_distill.Distiller.inherit, []
    monkeypatch.setattr(efficientbert_distill.Distiller, "inherit", lambda self, w: asked.append(1) or inherit(self, w))
    found = eb.search(r, config, None)
    assert len(found.meta["scored"]) == 4 + 3 + 2
    assert not asked
    assert not list((build_dir() / "artefacts").glob("efficientbert-supernet"))  # it was not even built
    # Oracle: another supernet gives the same cold search, and another warm one
    other = run(architecture="search", warm_up=False, supernet_epochs=2)
    assert eb.search(other, config, None).key == found.key
    warm = {eb.supernet(x, config).key for x in (r, other)}
    assert len(warm) == 2
    # Oracle: a cold candidate is a fresh network, and a warm one is not
    source, entries = eb.supernet(r, config), [[1, 1, efficientbert_model.PLAIN]] * 2
    fresh = efficientbert_distill.build(eb.with_ffns(config, entries), 32, models.names(r.task), 0)
    assert tiny.same(tiny.state(evaluator(r, None)._build(entries)), tiny.state(fresh))
    assert not asked
    assert not tiny.same(tiny.state(evaluator(r, source)._build(entries)), tiny.state(fresh))
    assert asked


@pytest.mark.parametrize(("changes", "stages", "note"), [
    ({"warm_up": False, "candidates": [2, 1, 1]}, [1, 1, 2, 3], "no warm-up"),
    ({"candidates": [3, 0, 0]}, [1, 1, 1], "1 of the paper's three stages")])
def test_ablations_of_the_search_give_a_student(run, changes, stages, note):
    student, _, record = trained(run(architecture="search", **changes))
    scored = record.study["search"]
    assert [c["stage"] for c in scored] == stages
    last = max((c for c in scored if c["stage"] == stages[-1]), key=lambda c: (c["score"], -c["number"]))
    assert student.config.ffns == record.study["architecture"] == last["architecture"]
    assert sum(note in n for n in record.notes) == 1
    kinds = [a.kind for a in record.artefacts]
    assert "efficientbert-supernet" in kinds  # the final student starts from it all the same
    assert not efficientbert_studies.search_table(record).empty


def test_studies_name_their_runs():
    def of(**changes):
        return efficientbert_studies.variants(parameters.validate(efficientbert_studies.Config, changes))

    assert [(q.variant, q.architecture, q.warm_up, q.candidates) for q in of(study="search")] == [
        ("search", "search", True, [24, 12, 12]), ("search-cold", "search", False, [24, 12, 12]),
        ("coarse", "search", True, [48, 0, 0])]
    assert [(q.variant, q.architecture, q.control) for q in of(study="control")] == [
        ("", "released", False), ("control", "released", True)]
    assert all(q.study == "none" for q in of(study="search"))
    with pytest.raises(InputError, match="variant"):
        of(study="search", variant="mine")


def test_on_glue_functions_and_control_share_budget_and_general_stages():
    """The profile as the grid reads it: the released functions, then the control, under one cap of tokens."""
    p = parameters.validate(efficientbert_studies.Config, profiles.values("glue", "efficientbert", "mrpc"))
    plain, control = efficientbert_studies.variants(p)
    assert (plain.architecture, plain.control, control.control) == ("released", False, True)
    changed = {k for k, v in plain.model_dump().items() if control.model_dump()[k] != v}
    assert changed == {"control", "variant"}
    assert plain.max_tokens == profiles.values("glue")["max_tokens"]


def without_seconds(scored):
    return [{k: v for k, v in c.items() if k != "seconds"} for c in scored]


def test_search_killed_and_resumed_equals_uninterrupted(run, places, monkeypatch):
    r = run(architecture="search")
    student, _, record = trained(r)
    whole = record.study["search"]
    assert [c["stage"] for c in whole] == [1] * 4 + [2] * 3 + [3] * 2
    assert student.config.ffns == record.study["architecture"]
    best = max((c for c in whole if c["stage"] == 3), key=lambda c: (c["score"], -c["number"]))
    assert best["architecture"] == record.study["architecture"]
    assert any("stand-in for the paper's MNLI" in n for n in record.notes)
    assert all(c["tokens"] > 0 or c["stage"] == 3 or any(o["key"] == c["key"] for o in whole[:i])
               for i, c in enumerate(whole))

    monkeypatch.setenv("BERT_BUILD", str(places / "build-2"))
    real, made = eb.Evaluator.score, []

    def dies(self, architecture):
        made.append(1)
        if len(made) % 3 == 0:
            raise KeyboardInterrupt
        return real(self, architecture)

    monkeypatch.setattr(eb.Evaluator, "score", dies)
    kills = 0
    while True:
        try:
            again = run(architecture="search")
            config = eb.shape(again.p)
            found = eb.search(again, config, eb.supernet(again, config))
            break
        except KeyboardInterrupt:
            kills += 1
            partial = list((places / "build-2" / "artefacts" / "efficientbert-search").glob("*.partial/scored.json"))
            assert sum(c["tokens"] > 0 for c in json.loads(partial[0].read_text())) == 2 * kills
    assert kills >= 2
    assert without_seconds(found.meta["scored"]) == without_seconds(whole)
    assert efficientbert_space.from_json(found.meta["best"])


def test_a_trial_does_not_search_again(run):
    """The rate's grid shares the search and the general stages with the run itself."""
    built = []
    real = artefacts.build

    def counting(kind, *a):
        made = real(kind, *a)
        built.append((kind, made.key))
        return made

    with pytest.MonkeyPatch.context() as m:
        m.setattr(artefacts, "build", counting)
        trained(run(architecture="search", lr_grid=[1e-3, 2e-3], tuning_tokens=200))
    for kind in ("efficientbert-search", "efficientbert-supernet", "efficientbert-student"):
        assert len({k for name, k in built if name == kind}) == 1, kind


def test_a_student_is_no_larger_for_stages_that_were_left(run):
    """No projection and no other training part in what is saved."""
    r = run()
    student, _, record = trained(r)
    encoder = sum(p.numel() for p in student.efficientbert.parameters())
    assert record.parameters == encoder + sum(p.numel() for p in student.classifier.parameters())
    assert not [n for n in student.state_dict() if "projection" in n]
    assert torch.isfinite(torch.cat([p.flatten() for p in student.parameters()])).all()


@pytest.mark.parametrize("other", [False, True])
def test_fitness_comes_from_the_runs_teacher_or_from_another_task(run, places, other):
    values = {"search_task": str(tiny.ratings(places / "elsewhere.csv"))} if other else {"search_teacher_tokens": 0}
    _, _, record = trained(run(architecture="search", candidates=[2, 1, 1], **values))
    assert [a.kind for a in record.artefacts].count("teacher") == (2 if other else 1)
    assert any(("elsewhere" if other else "films") in n for n in record.notes if "candidates were scored" in n)
    assert len(record.study["search"]) == 4
