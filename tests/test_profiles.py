"""Which profile files a run takes: asked in one place by the grid, the command of a record, the dry run and compare."""

from __future__ import annotations

import pytest
import yaml

from lib import grid, mlm, profiles
from lib.parameters import Parameters
from lib.runs import TEACHER_LOCAL


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(profiles, "FOLDER", tmp_path)
    for name, text in (("small", "epochs: 1\nlr: 1"), ("small-kd", "lr: 2"), ("small-rte", "lr: 3"),
                       ("small-mine", "lr: 4"),
                       ("empty", ""), ("grid", "small: {tasks: [rte]}")):
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path


def test_the_later_file_wins_and_a_users_file_brings_none(folder):
    def stems(*words):
        return [f.stem for f in profiles.files(*words)]

    assert stems("small") == ["small"]
    assert stems("small", "kd", "rte") == ["small", "small-kd", "small-rte"]
    assert stems("small", "pkd", "mine") == ["small"]
    assert stems("none", "kd") == []
    assert profiles.values("small", "kd") == {"epochs": 1, "lr": 2}
    assert profiles.values("small", "kd", "rte") == {"epochs": 1, "lr": 3}
    assert profiles.values("empty") == {}
    assert profiles.names() == ["empty", "small"]
    assert profiles.grid("small") == {"tasks": ["rte"]}
    assert profiles.grid("empty") == {}


def test_every_students_grid_on_glue_has_three_rates_and_the_middle_one_is_the_default():
    for method in profiles.grid("demo")["methods"]:
        values = profiles.values("glue", method)
        assert len(values["lr_grid"]) == 3, method
        if method != "bert":
            assert values["lr"] == values["lr_grid"][1], method


def test_students_of_the_backbones_width_share_one_grid_of_rates():
    own = {m: tuple(profiles.values("glue", m)["lr_grid"]) for m in profiles.grid("demo")["methods"]}
    thin = {"tinybert", "mobilebert", "efficientbert"}  # they start from random weights
    assert len({own[m] for m in own if m not in {"bert", *thin}}) == 1
    assert len({own[m] for m in thin}) == 1


def test_words_name_files_that_papermill_finds_from_the_repository():
    words = profiles.words(profiles.files("glue", "theseus"))
    assert words == ["-f", "notebooks/profiles/glue.yaml", "-f", "notebooks/profiles/glue-theseus.yaml"]
    assert all(isinstance(yaml.safe_load((profiles.ROOT / w).read_text()), dict) for w in words[1::2])


@pytest.mark.parametrize("profile", ["demo", "ci", "glue"])
def test_one_language_modelling_head_serves_all_methods_of_a_profile(profile):
    """Each other text, budget or number of epochs would train another one: a minute of `make book` each."""
    keys = {"text", "text_tokens", "text_length", "head_lr", "head_epochs"}
    own = [{k: v for k, v in profiles.values(profile, m).items() if k in keys}
           for m in ("distilbert", "tinybert", "trimbert")]
    filled = [mlm.General(**values) for values in own]
    assert len({tuple(getattr(p, k) for k in sorted(keys)) for p in filled}) == 1, own


def test_the_rates_are_searched_as_pdberts_page_says():
    """The same grid as truncation's at `glue`; at `paper` up to 3e-4, above every other method's."""
    glue, paper = ({m: profiles.values(name, m).get("lr_grid") for m in grid.methods()} for name in ("glue", "paper"))
    assert glue["pdbert"] == glue["truncated"]
    assert max(paper.pop("pdbert")) == 3e-4 > max(rate for found in paper.values() for rate in found)


@pytest.mark.parametrize("profile", ["demo", "ci", "glue"])
def test_the_teachers_own_run_has_the_budget_of_the_others_teacher(profile):
    """Else the book shows two teachers, and what stands beside the students is not what they had."""
    own, others = profiles.values(profile, "bert"), profiles.values(profile)
    for mine, theirs in TEACHER_LOCAL.items():
        default = Parameters.model_fields
        assert own.get(mine, default[mine].default) == others.get(theirs, default[theirs].default), mine
    assert all(own[k] == v for k, v in others.items() if k not in (*TEACHER_LOCAL, "max_tokens"))
