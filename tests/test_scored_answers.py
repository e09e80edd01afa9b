"""The teacher's answers to the scored rows: its own, asked once, and asked anew where anything differs."""

import pandas as pd
import pytest
import tiny
import torch
from method_runs import start

from lib import runs, scored_answers
from lib.methods import kd, truncated


@pytest.fixture
def asked(monkeypatch):
    """The models that were asked for the scored rows, in order."""
    models, answers = [], runs.Run.answers

    def watching(run, model, part, *args, **kwargs):
        if part == "scored":
            models.append(model)
        return answers(run, model, part, *args, **kwargs)

    monkeypatch.setattr(runs.Run, "answers", watching)
    return models


@pytest.mark.parametrize("regression", [False, True])
def test_kept_answers_are_those_of_a_forward_pass(places, regression):
    run = start("kd", kd.Config, places, regression=regression)
    teacher = run.teacher().model
    metrics, frame = run.answers(teacher, "scored")
    for _ in range(2):  # made, then read
        kept, lines = scored_answers.of(run, teacher)
        assert kept == metrics
        pd.testing.assert_frame_equal(lines, frame, check_exact=True)


def test_asked_once_for_all_students(places, asked):
    records, students = [], []
    for method, module in (("truncated", truncated), ("kd", kd)):
        run = start(method, module.Config, places)
        student, history = run.compress(module.compress)
        students.append(student)
        records.append(run.finish(student, history))
    assert [m in students for m in asked] == [True, False, True]  # student, teacher, student
    assert records[0].teacher == records[1].teacher
    assert records[0].loyalty != records[1].loyalty


def test_asked_anew_where_teacher_or_rows_differ(places, asked):
    run = start("kd", kd.Config, places)
    teacher = run.teacher().model
    scored_answers.of(run, teacher)
    with torch.no_grad():
        next(teacher.parameters())[7, 0] += 1e-3
    scored_answers.of(run, teacher)
    other = start("kd", kd.Config, places, task=str(tiny.films(places / "fewer.csv", n=100)))
    assert len(other.sets["scored"]) < len(run.sets["scored"])
    scored_answers.of(other, teacher)
    assert len(asked) == 3
    scored_answers.of(run, teacher)
    assert len(asked) == 3
