"""The ablations of the TinyBERT paper as lists of runs that a notebook goes through (methods.md 9.5).

Each run is a record of its own; its `variant` says what was changed. The plain run is the whole method.
"""

from __future__ import annotations

from typing import Literal

from lib.errors import InputError
from lib.methods import tinybert


def _without(name: str, *parts: str) -> dict:
    return {"without": list(parts), "variant": f"no-{name}"}


STUDIES: dict[str, list[dict]] = {
    "none": [{}],
    "procedures": [{}, _without("general", "general"), _without("task", "task"),  # Table 2
                   _without("augmentation", "augmentation")],
    "objectives": [{}, _without("embedding", "embedding"), _without("prediction", "prediction"),  # Table 3
                   _without("transformer", "attention", "hidden"), _without("attention", "attention"),
                   _without("hidden", "hidden")],
    "mapping": [{}, {"mapping": "top", "variant": "top"}, {"mapping": "bottom", "variant": "bottom"}],  # Table 4
    "code": [{}, {"variant": "code"}],
}


class Config(tinybert.Config):
    """Parameters of the notebook: one run, or one of the paper's studies."""

    study: Literal["none", "procedures", "objectives", "mapping", "code"] = "none"


def variants(p: Config) -> list[Config]:
    """The runs of a study, each with its variant name. `InputError` where a variant or a part is set beside it."""
    if p.study != "none" and (p.variant or p.without):
        name = "variant" if p.variant else "without"
        raise InputError(f"{name}: {getattr(p, name)!r} cannot be set together with study={p.study!r}, which sets it")
    return [type(p).model_validate({**p.model_dump(), **c}) for c in STUDIES[p.study]]
