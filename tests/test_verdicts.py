"""Verdicts from made-up runs with known effects; the records lie in a temporary folder."""

import claim_records
import numpy as np
import pandas as pd
import pytest
from claim_records import BETTER, judge, runs

from lib import results
from lib.claims import effects, verdicts

NO_LOSS = ("no-loss", "score(theseus) - score(truncated) > -margin", "margin: 1", "tasks: [rte]")


def test_a_clear_effect_holds_and_its_opposite_does_not(places):
    runs("theseus", "rte", 0.9)
    runs("truncated", "rte", 0.7)
    holds, fails = judge(places, BETTER, ("worse", "score(theseus) - score(truncated) < 0"))
    assert (holds.verdict, fails.verdict) == (verdicts.HOLDS, verdicts.NOT)
    assert holds.value == pytest.approx(20, abs=1)
    low, high = holds.interval
    assert 0 < low < holds.value < high
    assert len(holds.records) == 6
    assert holds.effect.seeds == {"rte": 3}
    assert holds.effect.rows == {"rte": 400}
    assert holds.scale == "scaled down: minilm-l6, 6 layers to 3"
    assert holds.reason == ""


def test_no_effect_is_undecided_and_says_what_it_would_take(places):
    runs("theseus", "rte", 0.805)
    runs("truncated", "rte", 0.80)
    (v,) = judge(places, BETTER)
    low, high = v.interval
    assert low < 0 < high
    assert v.verdict == verdicts.UNDECIDED
    assert "it would take" in v.reason
    assert v.needed == effects.needed(v.effect, 0.0, v.level)


def test_no_loss_holds_within_its_margin_and_fails_beyond(places):
    frames = [claim_records.predictions("rte", 0.8, s) for s in range(3)]
    for s in range(3):  # the very same answers: nothing lost
        claim_records.put("theseus", "rte", s, 0, frame=frames[s])
        claim_records.put("truncated", "rte", s, 0, frame=frames[s])
    runs("kd", "rte", 0.6)
    same, lost = judge(places, NO_LOSS, ("lost", "score(kd) - score(truncated) > -margin", "margin: 1", "tasks: [rte]"))
    assert (same.verdict, same.value, same.interval) == (verdicts.HOLDS, 0.0, (0.0, 0.0))
    assert lost.verdict == verdicts.NOT
    assert lost.bound == -1


def test_one_seed_decides_nothing(places):
    runs("theseus", "rte", 0.95, seeds=[0])
    runs("truncated", "rte", 0.6, seeds=[0])
    (v,) = judge(places, BETTER)
    assert v.verdict == verdicts.UNDECIDED
    assert v.interval is None
    assert v.value > 30
    assert "one seed on rte" in v.reason
    assert verdicts.table([v])["low"].isna().all()


def test_only_seeds_with_a_partner_count(places):
    runs("theseus", "rte", 0.9, seeds=[0, 1, 2, 5])
    runs("truncated", "rte", 0.7, seeds=[1, 2, 7])
    (v,) = judge(places, BETTER)
    assert {(r.label, r.seed) for r in v.records} == {(x, s) for x in ("theseus", "truncated") for s in (1, 2)}
    (w,) = judge(places, ("other", "score(theseus) - score(kd) > 0"))
    assert w.verdict == verdicts.UNTESTED


def test_a_missing_task_leaves_part_of_a_claim_and_states_the_cost(places):
    runs("theseus", "rte", 0.9)
    runs("truncated", "rte", 0.7)
    runs("theseus", "mrpc", 0.9)
    (v,) = judge(places, (*BETTER, "tasks: [rte, mrpc]"))
    assert v.verdict == verdicts.PART
    assert "not run: truncated on mrpc (3 runs of 3 seeds, about 0.0 hours at the median of 9 runs" in v.reason
    assert set(v.by_task) == {"rte"}


def test_a_task_that_goes_the_other_way_leaves_part_of_a_claim(places):
    for task, ours, theirs in (("rte", 0.95, 0.55), ("mrpc", 0.75, 0.9)):
        runs("theseus", task, ours)
        runs("truncated", task, theirs)
    (v,) = judge(places, (*BETTER, "tasks: [rte, mrpc]"))
    assert v.verdict == verdicts.PART
    assert "other way on mrpc" in v.reason
    assert v.value == pytest.approx(np.mean([x for x, _, _ in v.by_task.values()]))


def test_a_task_whose_teacher_knows_nothing_is_left_out(places):
    for label, quality in (("theseus", 0.9), ("truncated", 0.7)):
        runs(label, "rte", quality)
        for s in range(3):
            claim_records.put(label, "mrpc", s, quality, teacher=50.0 + s, majority=51.5)
    (v,) = judge(places, (*BETTER, "tasks: [rte, mrpc]"))
    assert set(v.by_task) == {"rte"}
    assert v.verdict == verdicts.PART
    assert "mrpc left out: teacher's 95% interval" in v.reason


def test_students_that_all_learnt_nothing_are_not_compared(places):
    """One that did is enough, and what the rows do not decide counts anyway."""
    for label, on_rte, on_mrpc in (("theseus", 0.9, 0.65), ("theseus-constant", 0.7, 0.6)):
        runs(label, "rte", on_rte, majority=74.8)
        runs(label, "mrpc", on_mrpc, majority=74.8)
    runs("truncated", "mrpc", 0.6, majority=74.8)
    runs("kd", "mrpc", 0.9, majority=74.8)
    two = "tasks: [rte, mrpc]"
    ablation, methods, learnt, kept, memory = judge(
        places, ("ablation", 'score(theseus) - score("theseus-constant") > 0', two), (*BETTER, "tasks: [mrpc]"),
        ("learnt", "score(kd) - score(truncated) > 0", "tasks: [mrpc]"),
        ("kept", "score(theseus) > 60", "tasks: [mrpc]"),
        ("memory", 'value(theseus, steps) - value("theseus-constant", steps) > -1', two))
    assert set(ablation.by_task) == {"rte"}
    assert "mrpc left out: none of theseus, theseus-constant clears the majority class (74.8" in ablation.reason
    assert not methods.by_task
    assert "mrpc left out: none of theseus, truncated clears" in methods.reason
    assert set(learnt.by_task) == set(kept.by_task) == {"mrpc"}
    assert set(memory.by_task) == {"rte", "mrpc"}


def teacher_and_student(task="rte", teachers=(0.9, 0.91, 0.89)):
    for s, quality in enumerate(teachers):
        own = claim_records.put("bert", task, s, quality)
        claim_records.put("theseus", task, s, quality - 0.05, teacher=own.score)


def test_retention_is_of_the_teacher_of_the_same_seed(places):
    teacher_and_student()
    (v,) = judge(places, ("keeps", "retention(theseus) > 80"))
    by_seed = {(r.label, r.seed): r.score for r in v.records}
    assert v.value == pytest.approx(np.mean([100 * by_seed["theseus", s] / by_seed["bert", s] for s in range(3)]))
    assert v.verdict == verdicts.HOLDS


def test_another_teacher_is_refused(places):
    teacher_and_student()
    claim_records.put("theseus", "rte", 1, 0.8, teacher=70.0)
    (v,) = judge(places, ("keeps", "retention(theseus) > 80"))
    assert v.verdict == verdicts.UNTESTED
    assert "must be one model" in v.reason


def test_a_teacher_that_answers_beside_its_student_is_the_one_that_counts(places):
    """The `bert` run is of another arithmetic and so another model: retention is of the student's own teacher."""
    teacher_and_student()
    own = [claim_records.predictions("rte", q, 40 + s) for s, q in enumerate((0.8, 0.82, 0.84))]
    right = [100 * float((results.logits(f).argmax(1) == f["label"]).mean()) for f in own]
    made = [claim_records.put("theseus", "rte", s, 0.75, teacher=right[s], beside=own[s]) for s in range(3)]
    (v,) = judge(places, ("keeps", "retention(theseus) > 80"))
    assert v.value == pytest.approx(np.mean([100 * r.score / t for r, t in zip(made, right, strict=True)]))
    assert v.verdict == verdicts.HOLDS
    said = f"rte: not one teacher, BERT-of-Theseus: seed 0 {right[0]:.1f} (fp32) instead of 85.5 (fp32); seed 1"
    assert said in v.reason
    claim_records.put("theseus", "rte", 1, 0.75, teacher=70.0, beside=own[1])
    (v,) = judge(places, ("keeps", "retention(theseus) > 80"))
    assert v.verdict == verdicts.UNTESTED
    assert f"its teacher's predictions give {right[1]:.4f}, the record says 70.0000" in v.reason


def test_another_teacher_is_named_where_a_score_depends_on_it(places):
    for s in range(3):
        claim_records.put("theseus", "rte", s, 0.9)
        for label in ("truncated", "kd"):
            claim_records.put(label, "rte", s, 0.7, teacher=88.0)
    plain, taught = judge(places, BETTER, ("over-kd", "score(theseus) - score(kd) > 0"))
    assert plain.reason == ""
    assert "rte: not one teacher, Vanilla KD: seed 0 88.0 (fp32) instead of 90.0 (fp32)" in taught.reason


def test_a_task_with_one_seed_waits_while_another_has_more(places):
    for label, quality in (("theseus", 0.9), ("truncated", 0.7)):
        runs(label, "rte", quality)
        runs(label, "mrpc", quality, seeds=(1,))
    both, alone = judge(places, (*BETTER, "tasks: [rte, mrpc]"), ("alone", BETTER[1], "tasks: [mrpc]"))
    assert set(both.by_task) == {"rte"}
    assert both.verdict == verdicts.PART
    assert "mrpc left out: one seed so far" in both.reason
    assert {r.task for r in both.records} == {"rte"}
    assert alone.verdict == verdicts.UNDECIDED
    assert "one seed on mrpc" in alone.reason


def test_a_number_of_the_record(places):
    for s in range(3):
        claim_records.put("theseus", "rte", s, 0.8, peak_memory_mb=1000.0 + s)
        claim_records.put("bert", "rte", s, 0.8, peak_memory_mb=980.0 + 2 * s)
    test = 'value(theseus, "peak_memory_mb") / value(bert, "peak_memory_mb") < 1.1'
    (v,) = judge(places, ("memory", test))
    assert v.verdict == verdicts.HOLDS
    assert v.value == pytest.approx(1.02, abs=0.01)
    assert v.effect.rows == {"rte": 0}
    assert verdicts.table([v])["n_rows"].isna().all()
    claim_records.put("theseus", "rte", 0, 0.8)  # without a measurement
    (v,) = judge(places, ("memory", test))
    assert (v.verdict, "has no peak_memory_mb" in v.reason) == (verdicts.UNTESTED, True)


@pytest.mark.parametrize("harm", ["gone", "torn", "columns", "other score", "other rows", "repeated"])
def test_predictions_that_do_not_fit_are_named_not_used(places, harm):
    runs("theseus", "rte", 0.9)
    runs("truncated", "rte", 0.7)
    path = results.record_path("glue", "minilm-l6", "rte", "theseus", "", 1).with_suffix(".parquet")
    frame = pd.read_parquet(path)
    if harm == "gone":
        path.unlink()
    elif harm == "torn":
        path.write_bytes(path.read_bytes()[:100])
    elif harm == "columns":
        frame.rename(columns={"logit_1": "logit_9"}).to_parquet(path)
    elif harm == "other score":
        frame.assign(logit_0=9.0).to_parquet(path)
    elif harm == "other rows":
        frame.assign(idx=frame["idx"] + 1).to_parquet(path)
    else:
        frame.assign(idx=0).to_parquet(path)
    (v,) = judge(places, BETTER)
    assert v.verdict == verdicts.UNTESTED
    assert "seed-1" in v.reason
    assert "\n" not in v.reason


def test_the_order_of_rows_does_not_matter(places):
    runs("theseus", "rte", 0.9)
    runs("truncated", "rte", 0.7)
    (before,) = judge(places, BETTER)
    path = results.record_path("glue", "minilm-l6", "rte", "theseus", "", 1).with_suffix(".parquet")
    pd.read_parquet(path).sample(frac=1, random_state=0).to_parquet(path, index=False)
    (after,) = judge(places, BETTER)
    assert verdicts.as_csv([before]) == verdicts.as_csv([after])


def test_pairing_on_rows_narrows_the_interval(places):
    """Two methods that fail on the same rows differ by less than their own scores vary."""
    runs("theseus", "rte", 0.8)
    runs("truncated", "rte", 0.78)
    paired, alone = judge(places, BETTER, ("alone", "score(theseus) > 0"))
    assert paired.effect.row_part < 0.5 * alone.effect.row_part


def test_correlations_are_resampled_too(places):
    runs("theseus", "stsb", 0.8)
    runs("truncated", "stsb", 0.4)
    (v,) = judge(places, (*BETTER, "tasks: [stsb]"))
    assert v.verdict == verdicts.HOLDS
    assert v.effect.row_part > 0


def test_holm_counts_the_claims_of_a_paper_that_runs_answered(places):
    runs("theseus", "rte", 0.9)
    runs("truncated", "rte", 0.7)
    runs("kd", "rte", 0.895)
    found = judge(places, BETTER, ("second", "score(theseus) - score(kd) > 0"),
                  ("untested", "score(theseus) - score(pkd) > 0"))
    ps = {v.claim.id: v.p for v in found if v.p is not None}
    assert set(ps) == {"better", "second"}
    for v in found[:2]:
        assert (v.p_holm, v.level) == effects.holm(ps)[v.claim.id]
    assert found[0].level == pytest.approx(0.975)


def test_a_true_null_is_rarely_called_an_effect(places):
    """Two methods with the same quality, over many made-up studies: 5 percent may err."""
    wrong = 0
    for i in range(20):
        for label in ("theseus", "truncated"):
            runs(label, "rte", 0.8, seeds=[10 * i, 10 * i + 1, 10 * i + 2], profile=f"world{i}")
    found = judge(places, *((f"null{i:02}", BETTER[1], "tasks: [rte]", f"profile: world{i}") for i in range(20)),
                  draws=100)
    plain = [effects.Effect.interval(v.effect, 0.95) for v in found]
    wrong = sum(not low <= 0 <= high for low, high in plain)
    assert wrong <= 4  # of 20; more has a probability of 0.3 percent at a rate of 5 percent
    assert sum(v.verdict != verdicts.UNDECIDED for v in found) == 0


def test_stale_records_are_counted(places):
    runs("theseus", "rte", 0.9, code_hash="f" * 16)
    runs("truncated", "rte", 0.7)
    (v,) = judge(places, BETTER)
    assert "3 of 6 records are stale" in v.reason
