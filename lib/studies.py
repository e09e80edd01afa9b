"""A study: several runs of one method that differ in a few parameters, each a record of its own."""

from __future__ import annotations

from lib.errors import InputError
from lib.parameters import Parameters


def variants(p: Parameters, changes: list[dict]) -> list[Parameters]:
    """The runs of `p.study` from the changes of each. `InputError` where the run has a variant name of its own too.

    The plain run is `{}`: it is the same run, with the same hash, whether a study asked for it or not.
    """
    if p.study != "none" and p.variant:
        raise InputError(f"variant: {p.variant!r} cannot be set together with study={p.study!r}, which names its runs")
    return [type(p).model_validate({**p.model_dump(), "study": "none", **c}) for c in changes]
