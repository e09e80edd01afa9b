"""MobileBERT as a run: bad input, the whole chain, what is shared, and every strategy and shape."""

import json

import numpy as np
import pytest
import tiny
import torch
from mobilebert_models import settings
from transformers import AutoModelForSequenceClassification

from lib import parameters, runs
from lib.errors import InputError
from lib.methods import mobilebert, mobilebert_shapes, mobilebert_stages


def started(places, films, backbone, **changes):
    """A run with a text of its own."""
    own = places / "own.txt"
    own.write_text("\n\n".join(t for t, _, _ in tiny.rows(2000, seed=5)))
    p = parameters.validate(mobilebert.Config, {
        "task": films, "backbone": backbone, "profile": "test", "precision": "fp32", "epochs": 2, "teacher_epochs": 1,
        "evaluations": 1, "text": str(own), "text_tokens": 1500, "text_length": 16, "transfer_epochs": 1, **changes})
    return runs.start("mobilebert", p)


def test_a_whole_run_and_what_is_shared(places, films, backbone):
    run = started(places, films, backbone)
    student, history = run.compress(mobilebert.compress)
    record = run.finish(student, history)
    saved = json.loads(run.record_path.read_text())
    assert {a["kind"] for a in saved["artefacts"]} == {"ib-teacher", "mobilebert", "teacher"}
    assert saved["layers"] == 4  # as deep as its teacher
    distilled = saved["study"]["distillation"]
    assert len(distilled["transfer"]) == 4
    gap = distilled["student"]["gap"]
    assert set(gap) == set(mobilebert_shapes.STAGES)
    assert np.mean([b["feature"] for b in gap["after transfer"]]) < np.mean([b["feature"] for b in gap["start"]])
    assert list(mobilebert_shapes.stages(record).index)[-3:] == ["student, start", "student, after transfer",
                                                                 "student, after distillation"]
    assert mobilebert_shapes.gap(record).shape == (4, 6)
    again, info = AutoModelForSequenceClassification.from_pretrained(run.output, output_loading_info=True)
    assert not info["missing_keys"]
    b = run.sets["scored"].batch(np.arange(4))
    inputs = {k: b[k] for k in ("input_ids", "attention_mask")}
    assert torch.allclose(again(**inputs).logits, student.eval()(**inputs).logits, atol=1e-5)
    assert not again.get_input_embeddings().weight[0].any()
    dropout = {n: m.p for n, m in student.named_modules() if isinstance(getattr(m, "p", None), float)}
    assert dropout["dropout"] == 0.1  # on the pooled output, in fine-tuning alone
    assert {v for n, v in dropout.items() if "attention.self" in n} == {0.1}
    assert not any(v for n, v in dropout.items() if n != "dropout" and "attention.self" not in n)

    other = started(places, films, backbone, seed=1, lr=0.0005)
    other.compress(mobilebert.compress)
    first, second = ({a.kind: a.key for a in r.artefacts} for r in (run, other))
    assert [first[k] == second[k] for k in ("ib-teacher", "mobilebert", "teacher")] == [True, True, False]


@pytest.mark.parametrize("changes", [{"strategy": "joint", "variant": "code"}, {"strategy": "auxiliary", "tiny": True},
                                     {"normalisation": "layer_norm", "activation": "gelu", "inside": 16, "ffns": 1},
                                     {"attention_transfer": False}])
def test_strategies_and_shapes_give_a_student(places, films, backbone, changes):
    run = started(places, films, backbone, **changes)
    student, history = mobilebert.compress(run)
    assert np.isfinite(history.kept_score)
    assert student.config.num_feedforward_networks == changes.get("ffns", 2 if "tiny" in changes else 4)
    curves = run.artefacts[-1].meta["curve"]
    assert ("feature" in curves) is (changes.get("strategy") == "auxiliary")
    stages = run.artefacts[-1].meta.get("stages", [])
    assert len(stages) == {"joint": 1, "auxiliary": 0}.get(changes.get("strategy"), 4)
    assert all(("attention" in c) is changes.get("attention_transfer", True) for c in stages)
    assert all(b["attention"] > 0 for b in run.artefacts[-1].meta["gap"]["after distillation"])  # measured all the same


def test_variants_do_not_share_a_student(places, films, backbone):
    keys = {mobilebert_stages.distilled(r.p, r.tokenizer, mobilebert_stages.teacher(r.p, r.tokenizer), code).key
            for changes, code in (({}, False), ({}, True), ({"attention_transfer": False}, False))
            for r in [started(places, films, backbone, strategy="joint", **changes)]}
    assert len(keys) == 3


@pytest.mark.parametrize(("values", "words"), [
    ({"strategy": "both"}, "strategy"), ({"alpha": 1.5}, "alpha"), ({"lower_rate": "slow"}, "lower_rate"),
    ({"ffns": -1}, "ffns"), ({"normalisation": "batch"}, "normalisation"), ({"nonorm": True}, "nonorm: unknown")])
def test_bad_parameters_are_one_line(values, words):
    with pytest.raises(InputError, match=words) as e:
        parameters.validate(mobilebert.Config, values)
    assert "\n" not in str(e.value)


def test_both_off_leave_distillation_alone_or_nothing(places, films, backbone):
    off = {"feature_transfer": False, "attention_transfer": False}
    assert mobilebert_stages.parts(settings(strategy="auxiliary", **off)) == ()
    run = started(places, films, backbone, strategy="joint", **off)
    with pytest.raises(InputError, match="^feature_transfer and attention_transfer: both are false") as e:
        mobilebert.compress(run)
    assert "\n" not in str(e.value)
    assert not (places / "build" / "artefacts").exists()


def test_another_architecture_is_refused_in_one_line(places, films, encoder):
    run = started(places, films, encoder("roberta"))
    with pytest.raises(InputError, match="the backbone is a roberta"):
        mobilebert.compress(run)


@pytest.mark.parametrize(("changes", "words"), [({"inside": 10}, "inside: 10"), ({"between": 32}, "between: 32")])
def test_widths_that_do_not_fit_are_refused_before_anything_is_built(places, films, backbone, changes, words):
    run = started(places, films, backbone, **changes)
    with pytest.raises(InputError, match=words):
        mobilebert.compress(run)
    assert not (places / "build" / "artefacts").exists()
