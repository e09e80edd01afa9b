"""EfficientBERT's search: stages, partition, duplicates, and that a killed search ends as the uninterrupted one."""

import json

import numpy as np
import pytest

from lib.methods import efficientbert_model as eb
from lib.methods import efficientbert_search as es
from lib.methods import efficientbert_space as space

CONFIG = eb.config(hidden_size=24, num_hidden_layers=3, num_attention_heads=2)
PLAN = es.Plan((12, 5, 5), first=8, interval=2)
COUNTS = PLAN.candidates


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(es, "SETTINGS", es.SETTINGS[::2])


class Killed(Exception):
    pass


class Landscape:
    """A score that rewards tanh and few stacks, known in advance; `left` evaluations until the process is killed."""

    def __init__(self, left=10**9):
        self.left, self.asked, self.supernets = left, [], 0

    def score(self, a):
        if self.left == 0:
            raise Killed
        self.left -= 1
        self.asked.append(a)
        names = [t[0] for _, _, tree in a for _, t in space.nodes(tree) if t != "x"]
        return {"score": 50 + 5 * names.count("tanh") - sum(s for s, _, _ in a), "seconds": 1.0, "tokens": 10}

    def supernet(self, best):
        self.supernets += 1
        return self.score


def run(tmp_path, landscape, plan=PLAN, name="scored.json"):
    return es.search(CONFIG, plan, tmp_path / name, landscape.score, landscape.supernet)


def test_stages(tmp_path):
    landscape = Landscape()
    state = run(tmp_path, landscape)
    one, two, three = (state.stage(n) for n in (1, 2, 3))
    assert (len(one), len(two), len(three)) == COUNTS
    plain = [[s, d, eb.PLAIN] for s, d in space.even_sizes(CONFIG)]
    assert one[0]["architecture"] == plain
    assert one[0]["how"] == "start"
    first = space.to_json(state.best(1))
    # stage 2: the best and the plain one with its sizes first; the sizes of every candidate are stage 1's
    assert two[0]["architecture"] == first
    assert two[1]["architecture"] == [[s, d, eb.PLAIN] for s, d, _ in first]
    assert all([g[:2] for g in c["architecture"]] == [g[:2] for g in first] for c in two)
    # stage 3: the operators are stage 2's
    second = space.to_json(state.best(2))
    assert three[0]["architecture"] == second
    assert all([g[2] for g in c["architecture"]] == [g[2] for g in second] for c in three)
    assert landscape.supernets == 1
    assert max(c["score"] for c in two) >= max(c["score"] for c in one)
    assert max(c["score"] for c in three) >= three[0]["score"]
    assert state.best(3)[0][2] == space.from_json(second)[0][2]


@pytest.mark.parametrize("stages", [1, 2])
def test_stages_without_candidates_are_left_out(tmp_path, stages):
    """What is left is what the whole search does up to there, and no supernet of sizes is trained."""
    whole = run(tmp_path, Landscape(), name="whole.json")
    landscape = Landscape()
    plan = es.Plan((*COUNTS[:stages], *[0] * (3 - stages)), 8, 2)
    assert (plan.stages, PLAN.stages) == (stages, 3)
    part = run(tmp_path, landscape, plan, "part.json")
    assert part.scored == whole.stage(1) + (whole.stage(2) if stages == 2 else [])
    assert part.result() == whole.best(stages)
    assert whole.result() == whole.best(3)
    assert landscape.supernets == 0
    assert run(tmp_path, Landscape(0), plan, "part.json").scored == part.scored  # finished: only read


def test_every_candidate_is_allowed_new_and_within_the_limits(tmp_path):
    state = run(tmp_path, Landscape())
    for c in state.scored:
        a = space.from_json(c["architecture"])
        assert all(space.problem(t) is None for _, _, t in a)
        assert space.admitted(CONFIG, a)
        assert c["ffn_parameters"] == space.ffn_parameters(CONFIG, [g[:2] for g in a])
    for stage in (1, 2, 3):
        keys = [c["key"] for c in state.stage(stage)]
        assert len(set(keys)) == len(keys)
    assert {c["how"] for c in state.stage(1)} >= {"start", "mutation", "best leaf"}
    assert all(c["how"] != "best leaf" for c in state.stage(1)[: PLAN.first])


def test_proposals_keep_about_half_of_the_functions(tmp_path):
    """Of the start: plain functions in stage 1, those of its best or plain ones in stage 2."""
    landscape = Landscape()
    state = es.search(CONFIG, es.Plan((60, 40, 0), 1000), tmp_path / "s.json", landscape.score, landscape.supernet)
    for stage, starts in ((1, [[], [], []]), (2, space.to_json(state.best(1)))):
        proposed = [c["architecture"] for c in state.stage(stage) if c["how"] == "mutation"]
        kept = np.array([[g[2] in (eb.PLAIN, *b[2:]) for g, b in zip(a, starts, strict=True)] for a in proposed])
        assert 0.35 < kept.mean() < 0.65
        assert {0, 1, 2} <= set(kept.sum(1))  # each layer by a draw of its own


def test_a_plain_winner_is_not_scored_twice(tmp_path):
    landscape = Landscape()
    plain = lambda a: {"score": -float(sum(len(space.nodes(t)) for _, _, t in a)), "seconds": 0.0, "tokens": 1}  # noqa: E731
    state = es.search(CONFIG, es.Plan((3, 3, 2), 2, 1), tmp_path / "s.json", plain, landscape.supernet)
    assert state.best(1) == state.best(2)
    assert [c["how"] for c in state.stage(2)].count("start") == 1
    assert len({c["key"] for c in state.stage(2)}) == 3


def test_a_function_met_again_is_not_trained_again(tmp_path):
    landscape = Landscape()
    state = run(tmp_path, landscape)
    trained = [space.key(a) for a in landscape.asked[: len(landscape.asked) - COUNTS[2]]]  # the last ones are stage 3's
    assert len(set(trained)) == len(trained)
    again = state.stage(2)[0]
    assert again["tokens"] == 0
    assert again["score"] == max(c["score"] for c in state.stage(1))


def test_killed_and_resumed_equals_uninterrupted(tmp_path):
    whole = run(tmp_path, Landscape(), name="whole.json").scored
    for kills in ([1] * 25, [4, 7, 2, 9]):
        name = f"killed-{len(kills)}.json"
        for k in kills:
            try:
                run(tmp_path, Landscape(k), name=name)
            except Killed:
                assert len(json.loads((tmp_path / name).read_text())) > 0
        assert run(tmp_path, Landscape(), name=name).scored == whole
    assert json.loads((tmp_path / "whole.json").read_text()) == whole


def test_a_finished_search_is_only_read(tmp_path):
    first = run(tmp_path, Landscape())
    again = Landscape(0)
    assert run(tmp_path, again).scored == first.scored
    assert again.supernets == 0


def test_the_seed_matters(tmp_path):
    a = run(tmp_path, Landscape(), name="a.json").scored
    b = run(tmp_path, Landscape(), es.Plan(COUNTS, 8, 2, seed=1), "b.json").scored
    assert [c["key"] for c in a] != [c["key"] for c in b]


def test_what_diverges_loses(tmp_path):
    landscape = Landscape()
    score = landscape.score

    def sometimes(a):
        return {**score(a), "score": float("nan")} if len(landscape.asked) % 3 == 2 else score(a)

    state = es.search(CONFIG, es.Plan((6, 2, 2), 3, 2), tmp_path / "s.json", sometimes, landscape.supernet)
    lost = [c for c in state.scored if "diverged" in c]
    assert lost
    assert all(c["score"] == es.DIVERGED for c in lost)
    assert all(c["score"] > 0 for c in state.scored if c not in lost)
    best = state.best(1)
    assert max(c["score"] for c in state.stage(1)) > 0
    assert space.to_json(best) == max(state.stage(1), key=lambda c: (c["score"], -c["number"]))["architecture"]


def examples(n, seed=0):
    rng = np.random.default_rng(seed)
    found = [tuple((s, d, space.sample(rng)) for s, d in space.sizes(CONFIG, rng)) for _ in range(n)]
    return found, [Landscape().score(a)["score"] for a in found]


def test_the_partition_learns_which_half_is_better():
    seen, scores = examples(60)
    chain = es.partition([space.features(a) for a in seen], scores, levels=2)
    assert len(chain) == 2
    fresh, truth = examples(300, seed=1)
    inside = np.array([es.in_best_leaf(chain, a) for a in fresh])
    truth = np.array(truth)
    assert 0.05 < inside.mean() < 0.6
    assert truth[inside].mean() > truth[~inside].mean() + truth.std() / 2


def test_the_partition_is_a_function_of_what_was_scored():
    seen, scores = examples(30)
    x = [space.features(a) for a in seen]
    one, two = es.partition(x, scores, 1)[0], es.partition(x, scores, 1)[0]
    assert (one.predict_proba(x) == two.predict_proba(x)).all()


@pytest.mark.parametrize(("n", "levels"), [(10, 1), (400, 1), (401, 2), (800, 2), (801, 3), (3201, 5)])
def test_levels_grow_as_in_the_official_code(n, levels, monkeypatch):
    monkeypatch.setattr(es, "SETTINGS", es.SETTINGS[:1])
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 4))
    assert len(es.partition(x.tolist(), x[:, 0].tolist())) == levels


@pytest.mark.parametrize("scores", [[1.0] * 20, [1.0, 2.0, 3.0]])
def test_what_cannot_be_split_lets_everything_through(scores):
    x = [[float(i)] for i in range(len(scores))]
    assert es.partition(x, scores) == []
    assert es.in_best_leaf([], ((1, 1, eb.parse(eb.PLAIN)),))
