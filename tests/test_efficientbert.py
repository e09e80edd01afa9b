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
    assert student.config.ffns == [list(efficientbert_model.RELEASED[i]) for i in (2, 5)]
    assert student.config.hidden_size == 4 * 5  # heads of 8 * 540 / 768
    assert {a.kind for a in record.artefacts} == {"teacher", "efficientbert-supernet", "efficientbert-student"}
    assert all(a.tokens > 0 for a in record.artefacts)
    assert set(record.curve) >= {"loss", "embedding", "attention", "hidden", "prediction", "held_out"}
    assert record.study["architecture"] == student.config.ffns
    assert any("the 2 layers here have those of 3, 6" in n for n in record.notes)
    assert not any("no raw backbone" in n for n in record.notes)
    assert set(record.study["general"]) == {"supernet", "student"}
    for stage in record.study["general"].values():
        assert set(stage["before"]) == {"loss", "embedding", "attention", "hidden"}
        assert stage["after"]["loss"] < stage["before"]["loss"]
    assert list(efficientbert_studies.general_table(record).columns) == [
        "supernet, before", "supernet, after", "student, before", "student, after"]
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


def starts(monkeypatch) -> dict[str, list]:
    """The states in which students are built, by the artefact that they start from."""
    found, real = {}, efficientbert_distill.build

    def build(config, width, names, seed, source=None):
        d = real(config, width, names, seed, source)
        found.setdefault(source.parent.parent.name if source else "", []).append(tiny.state(d))
        return d

    monkeypatch.setattr(efficientbert_distill, "build", build)
    return found


def test_each_seed_draws_its_own_pooler_and_head(run, monkeypatch):
    built = starts(monkeypatch)
    for seed in (0, 1):
        run(seed=seed).compress(eb.compress)
    one, two = built["efficientbert-student"]
    apart = {k for k in one if not torch.equal(one[k], two[k])}
    assert apart == {"student.efficientbert.pooler.weight", "student.classifier.weight"}


def test_control_differs_in_the_functions_only(run):
    student, _, record = trained(run(variant="released"))
    control, _, other = trained(run(control=True, variant="control"))
    assert [e[:2] for e in control.config.ffns] == [e[:2] for e in student.config.ffns]
    assert {e[2] for e in control.config.ffns} == {efficientbert_model.PLAIN}
    assert record.parameters == other.parameters
    assert record.tokens == other.tokens
    assert [a.tokens for a in record.artefacts] == [a.tokens for a in other.artefacts]
    assert any(n.startswith("control") for n in other.notes)


def test_control_starts_from_the_same_weights(run, monkeypatch):
    built = starts(monkeypatch)
    for control in (False, True):
        run(control=control).compress(eb.compress)
    plain, control = built["efficientbert-supernet"]
    assert tiny.same(plain, control)
    assert not tiny.same(*built["efficientbert-student"])  # the functions were distilled apart by then


def test_regression_learns_the_labels(run, monkeypatch):
    """With one output the soft cross-entropy would be 0 for every student."""
    seen, real = [], efficientbert_distill.prediction_loss

    def spy(student, teacher, labels, temperature):
        found = real(student, teacher, labels, temperature)
        seen.append((float(found.detach()), float(((student.detach().squeeze(-1) - labels) ** 2).mean()), labels.dtype))
        return found

    monkeypatch.setattr(efficientbert_distill, "prediction_loss", spy)
    _, _, record = trained(run(regression=True))
    assert seen
    assert all(a == pytest.approx(b, rel=1e-5) and kind.is_floating_point for a, b, kind in seen)
    assert record.curve["prediction"]


def evaluator(run, source):
    config = eb.shape(run.p)
    run.folder.mkdir(parents=True, exist_ok=True)
    fitness, teacher, _ = eb._fitness(run)
    return eb.Evaluator(run, fitness, config, teacher, source, run.folder)


def test_random_paths_of_the_supernet_of_sizes_lie_within_the_limits(run, monkeypatch):
    """Those of training, step by step; uniform ones lie outside in the most."""
    r = run(architecture="search", sizes_tokens=1500)
    config, paths, real = eb.shape(r.p), [], efficientbert_distill.losses

    def spy(distiller, *a, **k):
        paths.append([layer.path for layer in distiller.encoder.layers])
        return real(distiller, *a, **k)

    monkeypatch.setattr(efficientbert_distill, "losses", spy)
    e = evaluator(r, None)
    plain = efficientbert_space.parse(efficientbert_model.PLAIN)
    e.sizes([(1, 1, plain)] * 2)
    low, high = efficientbert_space.limits(config)
    ratio = {config.ffn_size // d: d for d in efficientbert_space.RATIOS}
    assert all(low <= efficientbert_space.ffn_parameters(config, [(s, ratio[w]) for s, w in p]) <= high for p in paths)
    assert len({str(p) for p in paths}) > 1


@pytest.mark.parametrize("part", ["text", "task"])
def test_what_diverges_is_paid_for_and_loses(run, monkeypatch, part):
    """A candidate, and the supernet of sizes, which is not trained again when the search is resumed."""
    r = run(architecture="search")
    name = {"text": "general_loss", "task": "task_loss"}[part]
    real, fine = getattr(efficientbert_distill, name), evaluator(r, None)
    plain = efficientbert_space.parse(efficientbert_model.PLAIN)
    architecture = ((1, 1, plain),) * 2
    whole = fine.score(architecture)
    assert "diverged" not in whole
    assert whole["tokens"] >= r.p.candidate_text_tokens + r.p.candidate_tokens - 200

    def broken(*a, **k):
        loss = real(*a, **k)

        def inner(*b):
            out = loss(*b)
            out.value = out.value * float("nan")
            return out
        return inner

    monkeypatch.setattr(efficientbert_distill, name, broken)
    e = evaluator(r, None)
    found = e.score(architecture)
    assert found["diverged"]
    assert np.isnan(found["score"])
    assert 0 < found["tokens"] <= whole["tokens"]
    assert found["seconds"] > 0
    first = e.sizes(architecture)(architecture)
    assert np.isnan(first["score"])
    assert first["tokens"] > 0
    again = evaluator(r, None).sizes(architecture)(architecture)
    assert np.isnan(again["score"])
    assert again["tokens"] == 0


def test_a_search_whose_supernet_of_sizes_diverged_keeps_the_second_stages_sizes(run, monkeypatch):
    real = eb.Evaluator._train

    def train(self, distiller, name, *a):
        return {**real(self, distiller, name, *a), **({"diverged": True} if name == "supernet of sizes" else {})}

    monkeypatch.setattr(eb.Evaluator, "_train", train)
    student, _, record = trained(run(architecture="search"))
    scored = record.study["search"]
    second = max((c for c in scored if c["stage"] == 2), key=lambda c: (c["score"], -c["number"]))
    assert student.config.ffns == second["architecture"]
    assert any("stage 3 of the search: 2 of 2 candidates diverged; what it started from was kept" in n
               for n in record.notes)


def test_a_fine_tuned_teacher_that_teaches_on_text_too_is_noted(run, places):
    own = tiny.save_classifier(places / "own", ["negative", "positive"])
    _, _, record = trained(run(teacher=str(own), backbone=str(own)))
    assert any("no raw backbone was given" in n for n in record.notes)


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
    """The released functions, then the control, under one cap of tokens; the profile itself names no study."""
    assert "study" not in profiles.values("glue", "efficientbert", "mrpc")  # a printed command names its variant
    p = parameters.validate(efficientbert_studies.Config, profiles.values("glue", "efficientbert", "mrpc") | {
        "study": "control"})
    plain, control = efficientbert_studies.variants(p)
    assert (plain.architecture, plain.control, control.control) == ("released", False, True)
    changed = {k for k, v in plain.model_dump().items() if control.model_dump()[k] != v}
    assert changed == {"control", "variant"}
    assert plain.max_tokens == profiles.values("glue")["max_tokens"]
    other = profiles.values("glue", "tinybert")  # the other student from random weights
    for name in ("text", "text_tokens", "text_length", "general_lr", "general_batch_size", "general_epochs"):
        assert getattr(plain, name) == other[name], name
    assert plain.first_candidates < min(plain.candidates)  # the partition is used in each stage of the search


def test_the_papers_profile_has_the_search_of_the_official_code():
    p = parameters.validate(efficientbert_studies.Config, profiles.values("paper", "efficientbert"))
    assert (p.candidate_batch_size, p.search_teacher_lr, p.search_teacher_epochs) == (64, 3e-5, 3)
    assert (p.candidate_text_lr, p.candidate_lr, p.first_candidates, p.refit_interval) == (1e-4, 4e-4, 80, 10)


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
