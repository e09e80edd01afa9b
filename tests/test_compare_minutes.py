"""How a comparison shares out its minutes: what a method's training costs, and the budget that this leaves."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
from compare_runs import ask

from lib import artefacts, batches, evaluation, training
from lib.compare import cost
from lib.compare import request as compare_plan
from lib.compare.cost import Cost
from lib.errors import InputError
from lib.methods import bert

# The budget

COSTS = {"a": Cost(8, 2, 0.001), "b": Cost(15, 5, 0.003)}


def at(least=1000, choosing=2000, largest=10**9):
    return compare_plan.Limits(least, choosing, largest)


def test_one_rate_given_the_budget_fills_the_minutes_equally():
    got, grid = compare_plan.budget(COSTS, 10, 60, at(), False)
    expected = (0.85 * 600 - 60 - 30) / 0.004
    assert grid == []
    assert 0 <= expected - got < 1000
    assert sum(c.seconds(got) for c in COSTS.values()) + 60 <= 0.85 * 600
    # more passes over the rows are of no use
    assert compare_plan.budget(COSTS, 10, 60, at(largest=5432), False) == (5432, [])


def test_choosing_rates_takes_its_share_of_the_minutes():
    got, grid = compare_plan.budget(COSTS, 10, 60, at(), True)
    # three trials of half the budget and the run itself: four starts of training, two and a half budgets
    expected = (0.85 * 600 - 60 - (8 + 15) - 4 * (2 + 5)) / (2.5 * 0.004)
    assert grid == [3e-5, 1e-4, 3e-4]
    assert 0 <= expected - got < 1000


def test_where_there_is_no_time_to_choose_it_is_said(capsys):
    got, grid = compare_plan.budget(COSTS, 10, 60, at(choosing=10**6), True)
    assert (got, grid) == compare_plan.budget(COSTS, 10, 60, at(), False)
    said = capsys.readouterr().out
    need = float(re.search(r"about ([\d.]+) would", said)[1])
    assert "leave no time to choose a learning rate" in said
    assert compare_plan.budget(COSTS, need, 60, at(choosing=10**6), True)[1]
    assert not compare_plan.budget(COSTS, need - 0.2, 60, at(choosing=10**6), True)[1]


def test_budget_refuses_and_says_what_would_do():
    few = at(10_000, 20_000)
    with pytest.raises(InputError, match="MINUTES: 1 is too short; a, b on the least budget") as e:
        compare_plan.budget(COSTS, 1, 15, few, True)
    need = float(re.search(r"about ([\d.]+) minutes", str(e.value))[1])
    assert compare_plan.budget(COSTS, need, 15, few, True)[0] >= 10_000
    with pytest.raises(InputError):
        compare_plan.budget(COSTS, need - 0.2, 15, few, True)


# The costs


@pytest.fixture
def meter(monkeypatch):
    """`meter()`: a meter under a clock of its own whose training takes 0.01 s a token, with its training rows."""
    clock = [0.0]
    monkeypatch.setattr(cost.time, "perf_counter", lambda: clock[0])

    def train(model, loss, rows, s, *, evaluate=None, parameters=None):
        plan = batches.plan(rows.lengths, s.batch_size * s.accumulation, s.seed, s.epochs, s.max_tokens)
        tokens, began = sum(int(rows.lengths[b].sum()) for b in plan), clock[0]
        clock[0] += 0.01 * tokens
        for _ in range(s.evaluations if evaluate else 0):
            evaluate(model)
        return training.History(steps=len(plan), tokens=tokens, seconds=clock[0] - began)

    def make():
        data, held_out = tiny.encoded(400, seed=1), tiny.encoded(20, seed=2)
        full = {"train": data, "held_out": SimpleNamespace(lengths=np.repeat(held_out.lengths, 5))}
        m = cost._Meter({"train": data, "held_out": held_out}, full, 1000, Path("/nowhere"))
        m.originals = (train, *m.originals[1:])
        m.wait = lambda seconds: clock.__setitem__(0, clock[0] + seconds)
        return m, data

    return make


def test_a_stage_under_the_budget_costs_its_share_of_every_token(meter):
    m, data = meter()
    m.train(None, None, data, training.Settings(max_tokens=1000, batch_size=8, epochs=9))
    assert m.per_token == pytest.approx(0.01)
    assert (m.once, m.each) == (0, 0)
    m.train(None, None, data, training.Settings(max_tokens=250, batch_size=8, epochs=9))
    assert m.per_token == pytest.approx(0.01 + 0.0025)


def test_a_stage_of_its_own_and_evaluations_are_fixed_costs(meter):
    m, data = meter()
    m.train(None, None, data, training.Settings(batch_size=8, epochs=2))
    assert m.each == pytest.approx(0.01 * 2 * data.lengths.sum())
    assert (m.once, m.per_token) == (0, 0)
    m, data = meter()
    m.train(None, None, data, training.Settings(max_tokens=1000, batch_size=8, evaluations=7),
            evaluate=lambda model: m.wait(0.02))
    assert m.each == pytest.approx(0.02 * 7 * 5)  # the full held-out set is five times this one
    assert m.per_token == pytest.approx(0.01)


def test_a_stage_of_few_steps_is_not_stretched(meter):
    m, data = meter()
    seen = []
    m.train(None, None, data, training.Settings(batch_size=8, epochs=0.04, evaluations=2),
            evaluate=lambda model: (seen.append(1), m.wait(0.02)))
    assert len(seen) == 2
    assert m.each == pytest.approx(2 * 0.02 * 5 + 0.01 * sum(
        data.lengths[b].sum() for b in batches.plan(data.lengths, 8, 0, 0.04, 0)))


def test_an_artefact_that_exists_costs_nothing_and_a_missing_one_its_whole_stage(meter, places):
    m, data = meter()
    m.build = places / "build"

    def make(folder):
        m.wait(4.0)  # reading text, say
        m.train(None, None, data, training.Settings(max_tokens=300, batch_size=8, epochs=3))
        return {"seconds": 0, "tokens": 0}

    m.make("head", {"a": 1}, make)
    plan = batches.plan(data.lengths, 8, 0, 3, 300)
    assert m.once == pytest.approx(4.0 + 0.01 * sum(data.lengths[b].sum() for b in plan))
    assert m.built == pytest.approx(4.0)
    assert (m.each, m.per_token) == (0, 0)
    artefacts.build("head", {"a": 2}, lambda folder: {"seconds": 1, "tokens": 1})
    before = m.once
    assert m.make("head", {"a": 2}, lambda folder: pytest.fail("built again")).meta["seconds"] == 1
    assert m.once == before


def test_answers_of_the_teacher_are_charged_for_the_rows_left_out(meter, places):
    m, _ = meter()
    m.rows = 4.0  # the full training set holds four times the tokens

    def make(folder):
        m.wait(2.0)
        return {}

    m.make("teacher-answers", {"a": 1}, make)
    assert m.each == pytest.approx(2.0 * 3)


def test_measuring_leaves_everything_as_it_was(places, films, backbone, monkeypatch):
    monkeypatch.setattr(cost, "SECONDS", 0.05)
    request = compare_plan.arguments(ask(films, backbone=backbone))
    base = compare_plan.check(request)
    before = (training.train, artefacts.build, evaluation.predict, dict(os.environ))
    state = tiny.state(teacher := bert.compress(base.with_parameters(epochs=0.1))[0])
    for m in ("truncated", "theseus"):
        found, model = cost.measure(base, m, compare_plan.parameters(request, m, max_tokens=5000), 1.0, teacher)
        assert found.per_token > 0
        assert found.once > 1.0
        assert found.each > 0
        assert model.config.num_hidden_layers == 2
    with pytest.raises(InputError):
        cost.measure(base, "theseus", compare_plan.parameters(request, "theseus", max_tokens=5000).model_copy(
            update={"layers": 3}), 1.0, teacher)
    assert before == (training.train, artefacts.build, evaluation.predict, dict(os.environ))
    assert tiny.same(state, tiny.state(teacher))
    assert not (places / "results").exists()
