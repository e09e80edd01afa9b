"""TinyBERT's rows and budgets: what each step reads and learns from, how many rows are new, and what they keep."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
from tinybert_runs import started
from torch.nn import functional as F

from lib import augmentation, batches, dryrun, evaluation, layers, parameters, profiles, teacher_cache
from lib.methods import tinybert, tinybert_data, tinybert_studies

# Budgets


def test_budget_is_that_of_the_other_methods(places):
    """Both steps together have what vanilla KD's plan holds, short of a batch where `max_tokens` ends it."""
    run = started(places, epochs=3, intermediate_share=0.25)
    lengths = run.train.lengths
    for max_tokens in (0, 700, 10**6):
        kd = run.with_parameters(max_tokens=max_tokens)
        s = kd.settings()
        plan = batches.plan(lengths, s.batch_size, s.seed, s.epochs, s.max_tokens)
        want = sum(int(lengths[b].sum()) for b in plan)
        first, second = tinybert_data.budget(kd)
        assert 0 <= first + second - want < (s.batch_size * lengths.max() if max_tokens == 700 else 1)
        assert first == pytest.approx(0.25 * (first + second), abs=1)


@pytest.mark.parametrize(("values", "folds"), [
    ({}, (4, 4)), ({"regression": True}, (4, 1)), ({"without": ["prediction"]}, (4, 1)),
    ({"without": ["augmentation"]}, (1, 1)), ({"augmented_share": 0.9}, (1, 1)),
])  # fmt: skip
def test_a_step_on_original_rows_has_the_paper_s_passes(places, values, folds):
    """With every new row used and no cap, a pass goes over the rows that a step reads, (1 + N_a)-fold or not."""
    run = started(places, **{"epochs": 5, "intermediate_share": 0.6, "new_rows": 3, "augmented_share": 1, **values})
    own = int(run.train.lengths.sum())
    assert tinybert_data.budget(run) == (3 * folds[0] * own, 2 * folds[1] * own)
    assert sum(tinybert_data.budget(run.with_parameters(max_tokens=300))) == 300


@pytest.mark.parametrize(("task", "regression", "second"), [("mrpc", False, 3 * 21), ("stsb", True, 3)])
def test_the_paper_s_profile_makes_the_paper_s_passes(task, regression, second):
    """20 passes of step a over 21-fold rows, then 3; on STS-B those over the original rows."""
    p = parameters.validate(tinybert_studies.Config, {**profiles.values("paper", "tinybert", task), "task": task})
    train = tiny.encoded(200)
    run = SimpleNamespace(p=p, train=train, task=SimpleNamespace(regression=regression))
    own = int(train.lengths.sum())
    assert tinybert_data.budget(run) == (pytest.approx(20 * 21 * own, rel=1e-5), pytest.approx(second * own, rel=1e-5))
    tokens = tinybert_data.budget(run)[0]
    assert tinybert_data.shares(own, tokens, p.new_rows, p.augmented_share) == (own, 20 * own)  # every new row
    assert dryrun.stages(p, "tinybert", 100, 64)[-1].tokens == 23 * 21 * 6400


@pytest.mark.parametrize(("values", "step"), [
    ({}, 1), ({"regression": True}, 0), ({"without": ["general", "prediction"]}, 0), ({"intermediate_share": 0.75}, 0),
])  # fmt: skip
def test_new_rows_are_made_for_the_steps_that_read_them(places, monkeypatch, values, step):
    """Step b is the longer one here, and counts where it reads new rows."""
    run = started(places, **{"intermediate_share": 0.25, "epochs": 2, "without": ["general"], **values})
    asked = []

    def stop(run, tokens, code):
        asked.append(tokens)
        raise InterruptedError

    monkeypatch.setattr(tinybert_data, "augmented", stop)
    with pytest.raises(InterruptedError):
        tinybert.compress(run, run.teacher().model)
    assert asked == [tinybert_data.budget(run)[step]]


# Rows


@pytest.mark.parametrize(("original", "tokens", "new_rows", "share", "want"), [
    (100, 1000, 20, 0.25, (750, 250)), (100, 1000, 20, 0.5, (500, 500)),  # long: original rows come again
    (100, 1000, 3, 0.5, (300, 300)),  # N_a is the cap, and the share stays
    (1000, 500, 20, 0.5, (250, 250)),  # short: not every original row is there
    (1000, 500, 20, 0.0, (500, 0)), (100, 1000, 20, 0.0, (100, 0)),
    (100, 42000, 20, 1.0, (100, 2000)), (1000, 2100, 20, 1.0, (100, 2000)),  # the paper's mixture, whole and in part
])  # fmt: skip
def test_shares(original, tokens, new_rows, share, want):
    assert tinybert_data.shares(original, tokens, new_rows, share) == want


def test_repeated_rows_are_whole_passes_and_a_drawn_rest():
    lengths = np.array([5, 10, 20, 5, 10])
    for tokens in (0, 4, 33, 50, 130):
        found = tinybert_data.repeated(lengths, tokens, 0)
        counts = np.bincount(found, minlength=5)
        assert counts.max() - counts.min() <= 1
        assert counts.min() == tokens // 50
        assert len(found)
        assert lengths[found].sum() <= tokens or len(found) == 1
    drawn = {tuple(tinybert_data.repeated(lengths, 15, s)) for s in range(20)}
    assert len(drawn) > 1


def saved_rows(run):
    return [augmentation.New(*r) for r in json.loads((run.artefacts[-1].folder / "rows.json").read_text())]


def test_augmented_rows_of_a_run(places):
    run = started(places, max_tokens=1200)
    made = tinybert_data.augmented(run, 900, False)
    rows, new = made.data, made.new
    assert rows.inputs == tinybert_data.augmented(run, 900, False).data.inputs
    saved = saved_rows(run)
    old = len(rows) - len(saved)
    assert len(new) == len(saved) > 0
    assert rows.inputs["input_ids"][old:] == new.inputs["input_ids"]
    assert rows.lengths[old:].sum() <= 1.3 * 450 + 20
    assert rows.lengths[:old].sum() <= 450
    parents = [n.row for n in saved]
    np.testing.assert_array_equal(made.parents, parents)
    np.testing.assert_array_equal(rows.labels[old:], run.train.labels[parents])
    texts = run.data.train["text"]
    assert all(len(n.text.split()) == len(texts[n.row].split()) and n.text != texts[n.row] for n in saved)
    decoded = [run.tokenizer.decode(ids, skip_special_tokens=True) for ids in rows.inputs["input_ids"][old:]]
    assert decoded == [n.text for n in saved]
    assert any(f"{len(saved)} new rows beside" in n and "for a step of 900" in n for n in run.notes)
    assert any("no GloVe file" in n for n in run.notes)
    assert tinybert_data.augmented(run.with_parameters(seed=1), 900, False).data.inputs != rows.inputs


def test_a_long_step_repeats_original_rows_not_new_ones(places):
    """Five passes' worth of tokens, a quarter of them new; then the paper's rows, each of them once."""
    run = started(places, epochs=10, augmented_share=0.25)
    own, tokens = int(run.train.lengths.sum()), tinybert_data.budget(run)[0]
    made = tinybert_data.augmented(run, tokens, False)
    counts = np.bincount(made.data.index)
    original, new = counts[: len(run.train)], counts[len(run.train) :]
    assert set(original) == {3, 4}  # 3.75 passes
    assert set(new) == {1}
    share = made.new.lengths.sum() / made.data.lengths.sum()
    assert 0.2 < share <= 0.25 + 1e-3
    assert 0.9 * tokens < made.data.lengths.sum() <= tokens
    first = made.data.inputs["input_ids"][0]
    assert first == run.train.inputs["input_ids"][0] == made.data.inputs["input_ids"][1]

    papers = run.with_parameters(augmented_share=1, new_rows=3, epochs=4)
    made = tinybert_data.augmented(papers, tinybert_data.budget(papers)[0], False)
    np.testing.assert_array_equal(made.data.index[: len(run.train)], np.arange(len(run.train)))
    assert set(np.bincount(made.data.index)) == {1}
    assert papers.artefacts[-1].meta["configuration"]["tokens"] == 3 * own


def test_no_new_rows_where_the_share_is_0(places):
    run = started(places, epochs=2, augmented_share=0, without=["general"])
    made = tinybert_data.augmented(run, 4000, False)
    assert len(made.new) == len(made.parents) == 0
    assert made.data.inputs == run.train.inputs
    teacher = tiny.classifier(layers=4)
    assert tinybert_data.described(run, teacher, made) == {
        "new_rows": 0, "share_of_tokens": 0.0, "asked": 0, "masked_words_right": run.artefacts[-2].meta["quality"][
            "accuracy"]}  # fmt: skip


# What the teacher makes of them


def test_a_row_that_comes_again_is_asked_about_once(monkeypatch):
    rows = tinybert_data.take(tinybert_data.joined(tiny.encoded(10), tiny.encoded(6, seed=1)),
                              np.array([0, 0, 3, 3, 3, 9, 12, 12, 15]))
    teacher, sizes, compute = tiny.classifier(layers=2), [], teacher_cache.compute

    def counted(teacher, data, which, precision):
        sizes.append(len(which))
        return compute(teacher, data, which, precision)

    monkeypatch.setattr(teacher_cache, "compute", counted)
    which = np.array([0, 1, 2, 4, 5, 6, 7, 8])
    kept = tinybert_data.answers(teacher, rows, which, "fp32")
    assert sizes == [5]  # of rows 0, 3, 9, 12 and 15
    batch = rows.batch(which[::-1].copy())
    with torch.no_grad():
        torch.testing.assert_close(kept(batch).logits, layers.classify(teacher, batch), rtol=1e-4, atol=1e-5)
    with pytest.raises(RuntimeError, match="every row of this batch"):
        kept(rows.batch(np.array([3])))


@pytest.mark.parametrize("regression", [False, True])
def test_what_new_rows_keep_of_their_rows(places, monkeypatch, regression):
    """Oracle: the teacher's predictions for the new rows beside those for the rows that they were made from."""
    run = started(places, regression=regression, epochs=4, replace=0.9)
    teacher = tiny.classifier(layers=4, seed=3, classes=1 if regression else 2)
    if not regression:  # one class would be the teacher's answer to all rows otherwise
        apart = evaluation.predict(teacher, run.train)
        with torch.no_grad():
            teacher.classifier.bias[1] += float(np.median(apart[:, 0] - apart[:, 1]))
    made = tinybert_data.augmented(run, 2000, False)
    after, before = evaluation.predict(teacher, made.new), evaluation.predict(teacher, run.train)
    before = before[[n.row for n in saved_rows(run)]]
    assert regression or 0 < (after.argmax(-1) == before.argmax(-1)).mean() < 1
    for asked in (len(made.new), 7):
        monkeypatch.setattr(tinybert_data, "ASKED", asked)
        found = tinybert_data.described(run, teacher, made)
        assert found["new_rows"] == len(made.new)
        assert found["asked"] == asked
        if regression:
            want = np.abs(after - before)[:asked].mean()
            assert found["difference"] == pytest.approx(want, rel=1e-4)
            assert want > 0
        else:
            want = (after.argmax(-1) == before.argmax(-1))[:asked].mean()
            assert found["same_class"] == pytest.approx(want)
    table = tinybert_data.augmentation_table(SimpleNamespace(study={"augmentation": found}))
    assert len(table) == 4
    assert any("of 7" in line for line in table.index)
    assert tinybert_data.augmentation_table(SimpleNamespace(study=None)).iloc[0, 0] == "left out"


# What step b learns from


def step_b(run, teacher, rows=None, code=False):
    """Step b's loss function and rows, offered twice the original rows or `rows`."""
    offered = tinybert_data.joined(run.train, run.train) if rows is None else rows
    loss, rows, _ = tinybert.prediction(run, teacher, offered, tinybert_data.settings(run, 4000), code)
    student = tinybert.start(run, teacher, tinybert.plan(run.p)).student.eval()
    return loss, rows, student, rows.batch(np.arange(6))


def logits(student, teacher, batch):
    with torch.no_grad():
        return layers.classify(student, batch), layers.classify(teacher, batch)


@pytest.mark.parametrize("variant", ["", "code"])
def test_regression_uses_original_rows_in_step_b(places, variant):
    run = started(places, regression=True, variant=variant, epochs=2, without=["general"])
    teacher = run.teacher().model
    loss, rows, student, batch = step_b(run, teacher, code=variant == "code")
    assert rows is run.train
    own, theirs = logits(student, teacher.eval(), batch)
    want = ((own[:, 0] - (batch["labels"] if variant == "code" else theirs[:, 0])) ** 2).mean()
    assert float(loss(student, batch, None).detach()) == pytest.approx(want.item(), rel=1e-4)


def test_without_the_prediction_loss_labels_of_original_rows_teach(places):
    run = started(places, without=["prediction", "general"])
    teacher = run.teacher().model
    loss, rows, student, batch = step_b(run, teacher)
    assert rows is run.train
    own, _ = logits(student, teacher, batch)
    assert float(loss(student, batch, None).detach()) == pytest.approx(F.cross_entropy(own, batch["labels"]).item())
    flipped = {**batch, "labels": 1 - batch["labels"]}
    assert float(loss(student, flipped, None).detach()) == pytest.approx(F.cross_entropy(own, flipped["labels"]).item())


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_labels_never_teach_step_b_of_classes(places, temperature):
    """Soft cross-entropy of the teacher's logits by hand, whatever the labels are."""
    run = started(places, without=["general"], temperature=temperature)
    teacher, rows = run.teacher().model, tinybert_data.joined(run.train, run.train)
    loss, given, student, batch = step_b(run, teacher, rows)
    assert given is rows
    own, theirs = logits(student, teacher, batch)
    want = -((theirs / temperature).softmax(-1) * (own / temperature).log_softmax(-1)).sum(-1).mean()
    got = float(loss(student, batch, None).detach())
    assert got == pytest.approx(want.item(), rel=1e-4)
    rows.labels[:] = 1 - rows.labels
    loss, _, _, flipped = step_b(run, teacher, rows)
    assert not torch.equal(flipped["labels"], batch["labels"])
    assert float(loss(student, flipped, None).detach()) == got


def test_the_code_s_step_b_of_classes(places):
    """A mean over the classes too, and the teacher's dropout is active: no two answers are the same."""
    run = started(places, without=["general"], variant="code")
    teacher = run.teacher().model
    assert not teacher.training
    loss, _, student, batch = step_b(run, teacher, run.train, code=True)
    assert teacher.training
    torch.manual_seed(0)
    own, theirs = logits(student, teacher, batch)  # the student is in evaluation mode and draws nothing
    want = -(theirs.softmax(-1) * own.log_softmax(-1)).sum(-1).mean() / 2
    torch.manual_seed(0)
    assert float(loss(student, batch, None).detach()) == pytest.approx(want.item(), rel=1e-4)
    assert len({float(loss(student, batch, None).detach()) for _ in range(3)}) == 3
