"""Parameters of a run: the command that makes them again, the identity that they give it, the loop that they reach."""

from __future__ import annotations

import json
import shlex
import shutil

import pytest
import tiny
import yaml

from lib import models, runs, training
from lib.command import command
from lib.methods import bert, theseus_studies, truncated
from lib.parameters import Parameters, validate
from lib.paths import ROOT

# --- the command


def told(command: str) -> dict:
    """Parameters as papermill would hand them over from a command line."""
    words, values = shlex.split(command), {}
    assert words[0] == "papermill"
    notebook = ROOT / words[1]
    assert notebook.exists()
    files, rest, i = [], {}, 3
    while i < len(words):
        if words[i] == "-f":
            files.append(yaml.safe_load((ROOT / words[i + 1]).read_text()))
            i += 2
        elif words[i] == "-y":
            rest |= yaml.safe_load(words[i + 1])
            i += 2
        else:
            rest[words[i + 1]] = words[i + 2] if words[i] == "-r" else yaml.safe_load(words[i + 2])
            i += 3
    for f in files:
        values |= f
    return values | rest


@pytest.mark.parametrize(("method", "cls", "changes"), [
    ("bert", bert.Config, {}),
    ("truncated", truncated.Config, {"layers": 3, "text_column": "my text", "seed": 5, "warmup": 0.0}),
    ("theseus", theseus_studies.Config, {"schedule": "constant", "variant": "constant", "equivalent_lr": True}),
    ("theseus", theseus_studies.Config, {"modules": [1, 3], "lr_grid": [1e-4, 2e-4], "epochs": 0.5}),
    ("theseus", theseus_studies.Config, {"task": "/a b/it's.csv", "teacher": "/t", "output": "/o"}),
    ("theseus", theseus_studies.Config, {"profile": "glue", "task": "rte", "seed": 2}),
    ("theseus", theseus_studies.Config, {"profile": "glue", "epochs": 1, "max_tokens": 0, "score_curve": False}),
    ("truncated", truncated.Config, {"profile": "demo", "batch_size": 8}),
    ("theseus", theseus_studies.Config, {"profile": "glue", "task": "squad1", "stride": 40}),
    ("bert", bert.Config, {"profile": "no-such-profile", "lr": 5e-5}),
])
def test_command_makes_the_same_parameters_again(method, cls, changes):
    profile = ROOT / "notebooks" / "profiles" / f"{changes.get('profile', 'custom')}.yaml"
    task = changes.get("task", "movies").replace("/", "")
    own = [profile.with_name(f"{profile.stem}-{name}.yaml") for name in (method, task)]
    files = {k: v for f in (profile, *own) if f.exists() for k, v in yaml.safe_load(f.read_text()).items()}
    p = validate(cls, {**files, **changes})
    run = runs.Run(method, p, None, None, {})
    again = validate(cls, told(command(run.method, run.p)))
    chosen = {"lr": p.lr} if p.lr_grid else {}  # the grid decides
    assert again.model_copy(update={"output": p.output, **chosen}) == p


def test_command_of_a_run_of_a_study_can_be_run(monkeypatch):
    """A study's run has its changes and a variant's name; with both again the notebook would refuse."""
    monkeypatch.setattr(models, "depth", lambda name: 6)
    for study in theseus_studies.STUDIES:
        for p in theseus_studies.variants(validate(theseus_studies.Config, {"study": study})):
            again = validate(theseus_studies.Config, told(command("theseus", p)))
            one, = theseus_studies.variants(again)
            assert one == p.model_copy(update={"study": "none"})


# --- identity


def test_identity_sees_what_is_computed_and_not_what_it_is_called(places, films, backbone):
    def key(**changes):
        run = tiny.run("truncated", truncated.Config, **{"task": films, "backbone": backbone, **changes})
        return json.dumps(run.identity, sort_keys=True)

    first = key()
    assert key(profile="other") == key(output=str(places / "o")) == first
    study = [json.dumps(tiny.run("theseus", theseus_studies.Config, films, backbone, study=s).identity)
             for s in ("none", "strategy")]
    assert study[0] == study[1]  # the plain run of a study is the plain run
    assert len({first, key(seed=1), key(lr=1e-4), key(epochs=2), key(max_rows=20), key(layers=3), key(variant="x"),
                key(backbone=str(tiny.save_encoder(places / "b", seed=9)))}) == 8


def test_two_configurations_in_one_place_do_not_take_up_each_other(places, films, backbone, monkeypatch):
    settings = runs.Run.settings
    monkeypatch.setattr(runs.Run, "settings", lambda self, **k: settings(self, **{"checkpoint_seconds": 0.0, **k}))
    wanted, _ = truncated.compress(tiny.run("truncated", truncated.Config, films, backbone, epochs=2))
    shutil.rmtree(places / "build")
    supervised = bert.supervised

    def failing(model, batch, step):
        if step.index == 5:
            raise KeyboardInterrupt
        return supervised(model, batch, step)

    with monkeypatch.context() as m:
        m.setattr(bert, "supervised", failing)
        with pytest.raises(KeyboardInterrupt):
            truncated.compress(tiny.run("truncated", truncated.Config, films, backbone, epochs=2, lr=1e-4))
    assert len(list(places.rglob("step-*"))) == 2
    got, _ = truncated.compress(tiny.run("truncated", truncated.Config, films, backbone, epochs=2))
    assert tiny.same(tiny.state(got), tiny.state(wanted))


# --- the loop


def test_profile_parameters_reach_the_loop(places, films, backbone):
    run = tiny.run("truncated", truncated.Config, films, backbone, batch_size=4, accumulation=2, warmup=0.2,
                   weight_decay=0.01, max_grad_norm=0.5, adam_epsilon=1e-6, max_tokens=100, epochs=1.5, seed=3)
    s = run.settings()
    for name in ("batch_size", "accumulation", "warmup", "weight_decay", "max_grad_norm", "adam_epsilon", "max_tokens",
                 "epochs", "seed", "lr", "evaluations", "precision"):
        assert getattr(s, name) == getattr(run.p, name)


def test_every_setting_of_the_loop_that_is_a_parameter_is_passed_on():
    shared = set(training.Settings.__dataclass_fields__) & set(Parameters.model_fields)
    assert {"lr", "epochs", "max_tokens", "batch_size", "accumulation", "warmup", "weight_decay", "max_grad_norm",
            "adam_epsilon", "precision", "evaluations", "seed"} == shared
