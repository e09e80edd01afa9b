"""Parameters as papermill and YAML hand them over: what is taken, what is refused, and in which words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from lib.errors import InputError
from lib.methods import bert, theseus, theseus_studies, truncated
from lib.parameters import Parameters, read, validate
from lib.paths import ROOT


def refused(*words: str, cls=Parameters, **values) -> None:
    with pytest.raises(InputError) as e:
        validate(cls, values)
    text = str(e.value)
    assert "\n" not in text
    for w in words:
        assert w in text, text


# --- what YAML and papermill make of a word


@pytest.mark.parametrize("text", ["2e-5", "0.00002", "2.0e-05", "'2e-5'"])
def test_learning_rate_as_yaml_reads_it(text):
    assert validate(Parameters, yaml.safe_load(f"lr: {text}")).lr == 2e-5


@pytest.mark.parametrize(("name", "value", "expected"), [
    ("seed", "7", 7), ("seed", 7.0, 7), ("seed", "007", 7), ("epochs", 3, 3.0), ("epochs", "2.5", 2.5),
    ("epochs", "1e1", 10.0), ("lr_grid", "1e-4 2e-4", [1e-4, 2e-4]), ("lr_grid", "1e-4, 2e-4", [1e-4, 2e-4]),
    ("lr_grid", 5e-5, [5e-5]), ("lr_grid", ["5e-5", 1e-4], [5e-5, 1e-4]), ("lr_grid", [], []),
    ("score_curve", True, True),
    ("score_curve", "true", True), ("score_curve", "False", False),  # papermill -p score_curve true, or -r
])
def test_values_that_are_taken(name, value, expected):
    assert getattr(validate(Parameters, {name: value}), name) == expected


@pytest.mark.parametrize(("name", "value", "words"), [
    ("seed", True, ("whole number", "true/false")), ("seed", 1.5, ("whole number",)),
    ("seed", "1e3", ("whole number",)),
    ("seed", -1, ("greater than or equal to 0",)), ("seed", 2**31, ("2147483647",)), ("seed", "", ("whole number",)),
    ("seed", None, ("whole number",)), ("seed", [1], ("whole number",)), ("seed", float("inf"), ("whole number",)),
    ("lr", "fast", ("number",)), ("lr", 0, ("greater than 0",)), ("lr", 1.5, ("less than or equal to 1",)),
    ("lr", False, ("number",)), ("lr", "nan", ("finite",)), ("lr", float("nan"), ("finite",)),
    ("lr", "inf", ("finite",)),
    ("lr", None, ("number",)), ("lr", 10**400, ("number",)), ("lr", [1e-4], ("number",)),
    ("epochs", 0, ("greater than 0",)), ("batch_size", 0, ("greater than or equal to 1",)),
    ("warmup", 1, ("less than 1",)),
    ("score_curve", "yes", ("true or false",)), ("score_curve", "", ("true or false",)),
    ("score_curve", 1, ("true or false",)), ("task", 7, ("text",)),
    ("task", False, ("text", "-r")), ("task", None, ("text",)), ("precision", "fp16", ("auto", "bf16", "fp32")),
    ("kind", "multi", ("classification",)), ("lr_grid", [1e-4, "x"], ("number",)), ("lr_grid", {"a": 1}, ("number",)),
    ("max_length", 4, ("greater than or equal to 8",)), ("lr_grid", [True], ("number",)),
])
def test_values_that_are_refused(name, value, words):
    refused(name, *words, **{name: value})


@pytest.mark.parametrize(("cls", "name", "value"), [
    (theseus.Config, "rate", 1.5), (theseus.Config, "rate", 0), (theseus.Config, "base_rate", -0.1),
    (theseus.Config, "replacing_share", 2), (theseus.Config, "schedule", "cosine"),
    (theseus.Config, "initial", "teacher"), (theseus.Config, "equivalent_lr", "no"),
    (truncated.Config, "layers", -1), (theseus_studies.Config, "study", "all"),
])
def test_values_of_methods_that_are_refused(cls, name, value):
    refused(name, repr(value), cls=cls, **{name: value})


def test_a_list_names_the_member_that_is_wrong():
    refused("modules.1", "2.5", "whole number", cls=theseus.Config, modules=[1, 2.5])


def test_a_long_hostile_value_does_not_flood_the_message():
    with pytest.raises(InputError) as e:
        validate(Parameters, {"lr": "x" * 10_000})
    assert len(str(e.value)) < 300
    with pytest.raises(InputError) as e:
        validate(Parameters, {"lr": "line\nbreak"})
    assert "\n" not in str(e.value)


def test_unknown_names_are_refused_with_the_nearest_or_all():
    refused("learning_rte", "unknown", "3", learning_rte=3)
    refused("Seed", "did you mean 'seed'", Seed=1)
    refused("batchsize", "batch_size", batchsize=8)
    refused("zzz", "allowed", "seed", "task", zzz=1)
    refused("rate", "unknown", cls=bert.Config, rate=0.5)  # a parameter of another method


def test_nothing_can_be_changed_afterwards():
    p = validate(Parameters, {})
    with pytest.raises(ValueError):
        p.lr = 1.0


def test_defaults_are_valid_and_typed():
    for cls in (bert.Config, truncated.Config, theseus.Config, theseus_studies.Config):
        p = validate(cls, {})
        assert isinstance(p.epochs, float)
        assert p.backbone == "minilm-l6"


def test_a_brought_teacher_is_the_backbone_unless_another_is_given():
    assert validate(Parameters, {"teacher": "/t"}).backbone == "/t"
    assert validate(Parameters, {"teacher": "/t", "backbone": ""}).backbone == "/t"
    assert validate(Parameters, {"teacher": "/t", "backbone": "b"}).backbone == "b"


# --- a notebook's namespace


def namespace(**values) -> dict:
    class Thing(BaseModel):
        x: int = 0

    return {"In": ["", "x"], "Out": {}, "exit": print, "quit": print, "open": open, "get_ipython": print, "_": 1,
            "_i": "x", "re": re, "Path": Path, "read": read, "p": validate(Parameters, {}), "record": Thing(),
            "history": object(), "records": [Thing()], **values}


def test_namespace_is_read_and_printed(capsys):
    p = read(Parameters, namespace(seed="007", task="rte", lr="2e-5"))
    assert (p.seed, p.task, p.lr) == (7, "rte", 2e-5)
    printed = capsys.readouterr().out
    assert "seed=7" in printed
    assert "lr=2e-05" in printed
    assert "task='rte'" in printed


@pytest.mark.parametrize(("name", "value"), [("sed", 1), ("epoch", 2.0), ("Task", "rte"), ("grid", [1, 2]), ("x", None),
                                             ("settings", {"lr": 1}), ("flag", True)])
def test_a_mistyped_name_in_the_namespace_is_found(name, value):
    with pytest.raises(InputError, match=f"parameter {name}"):
        read(Parameters, namespace(**{name: value}))


def test_the_cell_can_be_executed_twice_in_one_session():
    values = namespace(seed=1)
    values["p"] = read(Parameters, values)
    values["records"] = [values["p"]]
    assert read(Parameters, values | {"seed": 2}).seed == 2


# --- profiles


@pytest.mark.parametrize("path", sorted(p for p in (ROOT / "notebooks" / "profiles").glob("*.yaml")
                                        if p.stem != "grid" and "-" not in p.stem), ids=lambda p: p.stem)
def test_profiles_hold_valid_parameters_and_their_own_name(path):
    values = yaml.safe_load(path.read_text())
    p = validate(Parameters, values)
    assert p.profile == path.stem
    if p.lr_grid:
        assert p.tuning_seed not in (0, 1, 2)  # none of the reported seeds


def test_message_gives_name_value_and_what_is_allowed():
    with pytest.raises(InputError, match=r"^parameter lr: 2 should be less than or equal to 1$"):
        validate(Parameters, {"lr": 2})
