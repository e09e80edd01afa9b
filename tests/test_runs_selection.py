"""What a run chooses, it chooses on held-out rows: the learning rate of a grid. Scored rows decide nothing."""

from __future__ import annotations

import pytest
import tiny

from lib import training, tuning
from lib.methods import theseus, truncated


def test_scored_rows_decide_nothing(places, backbone):
    """Two folders that differ in the labels of the scored rows only: the same student, bit for bit."""
    students = []
    for i in range(2):
        folder = places / f"{i}" / "films"
        lines = tiny.rows(120)
        tiny.write_csv(folder / "train.csv", ("text", "label"), [(t, c) for t, c, _ in lines[:100]])
        flipped = [(t, c if i == 0 else {"positive": "negative", "negative": "positive"}[c]) for t, c, _ in lines[100:]]
        tiny.write_csv(folder / "test.csv", ("text", "label"), flipped)
        run = tiny.run("theseus", theseus.Config, str(folder), backbone, epochs=2, score_curve=True,
                       lr_grid=[1e-3, 3e-3])
        student, record = tiny.finish(run, theseus.compress)
        students.append((tiny.state(student), record))
    (a, ra), (b, rb) = students
    assert tiny.same(a, b)
    assert ra.score == pytest.approx(100 - rb.score)
    assert ra.selection == rb.selection


def scored_by_lr(scores: dict, tokens=10):
    """A method whose held-out score is decided by its learning rate."""
    def method(run, teacher):
        model = run.backbone()
        score = scores[run.p.lr]
        if score == "diverges":
            raise RuntimeError("x: the loss was not finite for 10 steps in a row (step 12, lr 1); lower lr")
        return model, training.History(kept_score=score, tokens=tokens)

    return method


@pytest.mark.parametrize(("scores", "default", "chosen"), [
    ({1e-4: 60.0, 2e-4: 90.0, 4e-4: 70.0}, 1e-4, 2e-4),  # far better than the default
    ({1e-4: 80.0, 2e-4: 81.0, 4e-4: 70.0}, 1e-4, 1e-4),  # within one standard error of it
    ({1e-4: 80.0, 2e-4: 81.0, 4e-4: 70.0}, 3e-4, 2e-4),  # the default is not in the grid
    ({1e-4: "diverges", 2e-4: 55.0, 4e-4: None}, 1e-4, 2e-4),  # what diverged loses, and stops nothing
])
def test_rate_is_chosen_on_the_held_out_rows(places, films, backbone, scores, default, chosen):
    run = tiny.run("truncated", truncated.Config, films, backbone, lr=default, lr_grid=list(scores), tuning_tokens=100)
    run.teacher()
    picked = run.tuned(scored_by_lr(scores))
    assert picked.p.lr == chosen
    assert picked.p.seed == 0
    assert picked.selection["chosen"] == {"lr": chosen}
    assert picked.selection["grid"] == {"lr": list(scores)}
    assert [s["score"] for s in picked.selection["scores"]] == [
        tuning.DIVERGED if s in ("diverges", None) else s for s in scores.values()]
    assert picked.selection["tuning_seed"] == 1000


def test_an_error_that_is_no_divergence_stops_the_grid(places, films, backbone):
    run = tiny.run("truncated", truncated.Config, films, backbone, lr_grid=[1e-4])

    def broken(run, teacher):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1"):
        run.tuned(broken)


def test_trials_are_shared_by_all_seeds_and_use_the_tuning_seed(places, films, backbone, monkeypatch):
    seen = []

    def method(run, teacher):
        seen.append((run.p.seed, run.p.lr, run.p.max_tokens, run.trial, run.p.score_curve))
        return truncated.compress(run)

    chosen = set()
    for seed in (0, 1):
        run = tiny.run("truncated", truncated.Config, films, backbone, seed=seed, lr_grid=[1e-3, 3e-3],
                       tuning_tokens=300, score_curve=True)
        run.compress(method)
        chosen.add(run.p.lr)
    assert seen[:2] == [(1000, 1e-3, 300, True, False), (1000, 3e-3, 300, True, False)]
    assert [s[0] for s in seen[2:]] == [0, 1]
    assert len(chosen) == 1
    assert [s[3] for s in seen[2:]] == [False, False]
    monkeypatch.setattr(tuning, "code_hash", lambda method: "of mended code")
    tiny.run("truncated", truncated.Config, films, backbone, seed=0, lr_grid=[1e-3, 3e-3],
             tuning_tokens=300, score_curve=True).compress(method)
    assert [s[0] for s in seen[4:]] == [1000, 1000, 0]  # what other code found out is found out again
