"""The paper profile starts for every method, and its steps are the papers' own."""

from __future__ import annotations

import pytest
from transformers import BertConfig

from lib import dryrun, grid
from lib.errors import InputError

METHODS = grid.methods()


def named(method, task="mnli"):
    line = dryrun.describe("paper", task, method, 100.0)
    return {s.name: s for s in line["stages"]}, line


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("task", ["mnli", "stsb"])
def test_every_method_has_a_plan_that_fits_a_gpu(method, task):
    _, line = named(method, task)
    assert line["files"][0] == "paper.yaml"
    assert 1 < line["memory_gb"] < 80
    assert 0 < sum(line["hours"].values()) < 8000  # MobileBERT, whose teacher is as large as BERT-large, takes 5,300


def test_steps_are_those_that_the_papers_print():
    assert named("trimbert")[0]["general stage"].steps == 900_000  # arXiv 2202.12411, section 3
    assert named("mobilebert")[0]["general stage"].steps == 500_000  # arXiv 2004.02984, section 4.2
    assert named("mobilebert")[0]["transfer stage"].steps == 240_000  # 10,000 a block
    assert named("pdbert")[0]["general stage"].steps == pytest.approx(1_000_000, rel=0.01)  # Devlin et al. 2019, A.2
    student = named("theseus", "mrpc")[0]["student"]
    assert student.steps == pytest.approx(1725, rel=0.01)  # 15 passes of 115 batches
    p, _ = dryrun.parameters("paper", "mrpc", "theseus")
    assert p.replacing_share * 1725 == pytest.approx(1167, abs=1)  # where k = 0.0006 reaches 1 from b = 0.3
    assert [s.times for s in named("theseus")[0].values()] == [4, 3]


def test_estimate_by_hand():
    config = BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, vocab_size=10,
                        max_position_embeddings=16)
    n = (10 + 16 + 2 + 2) * 8 + 2 * (4 * 72 + 16 + 8 * 16 + 16 + 16 * 8 + 8 + 16) + 72
    expected = 20 * n + 2 * (3 * 16) * 8 * (34 + 5 * 2 * 16 / 8)
    assert dryrun.memory_gb(config, 3 * 16, 16) == pytest.approx(expected / 1e9)
    _, line = named("bert", "rte")
    tokens = 2490 * 128 * 3
    per_token = 12 * (2 * 12 * 768**2 + 4 * 128 * 768)  # matrices and attention of a block, two operations each
    per_token += 2 * 768**2 / 128  # the pooler, once a row
    assert sum(line["hours"].values()) == pytest.approx(4 * 3 * tokens * per_token / 1e14 / 3600, rel=1e-3)


def test_what_cannot_start_is_one_line(capsys):
    assert dryrun.main(["--tasks", "mrpc", "--methods", "theesus"]) == 2
    assert "did you mean 'theseus'" in capsys.readouterr().err
    assert dryrun.main(["--tasks", "squad1", "--methods", "kd"]) == 2
    assert "kd does not answer with spans" in capsys.readouterr().err
    with pytest.raises(InputError, match="inside: 100 is not a multiple of 16, the number of heads"):
        dryrun.describe("paper", "mrpc", "mobilebert", 100.0, inside=100)
    with pytest.raises(InputError, match="replacing_share"):
        dryrun.parameters("paper", "mrpc", "theseus", replacing_share=2)
    with pytest.raises(InputError, match="text_length: 1024 is more than the 512 positions"):
        dryrun.describe("paper", "mrpc", "pdbert", 100.0, text_length=1024)


def test_the_command_prints_every_run_of_a_task(capsys):
    assert dryrun.main(["--tasks", "squad1"]) == 0
    out = capsys.readouterr().out
    assert out.count("GPU-hours\n") == 4
    assert "paper-squad1.yaml" in out
    assert "Upper bounds at 100 TFLOP/s" in out
