"""The command that makes a run again."""

from __future__ import annotations

import shlex

from lib import profiles
from lib.parameters import Parameters


def command(method: str, p: Parameters) -> str:
    """papermill with the profile's files, then what differs from them and from the defaults."""
    found = profiles.files(p.profile, method, p.task)
    words = ["papermill", f"notebooks/{method}.ipynb", "out.ipynb", *profiles.words(found)]
    files = {k: v for k, v in profiles.values(p.profile, method, p.task).items() if k in type(p).model_fields}
    without = type(p).model_validate(files).model_dump()  # what the files and the defaults alone would give
    # Not said: where the student goes, a rate that the grid chooses, the study whose run has a variant's name
    silent = {"output", "study"} | ({"lr"} if p.lr_grid else set())
    for k, v in p.model_dump().items():
        if k in ("task", "seed", "backbone") or (k not in silent and v != without[k]):
            if isinstance(v, list):
                words += ["-y", shlex.quote(f"{k}: {v}")]
            else:
                words += ["-r" if isinstance(v, str) else "-p", k, shlex.quote(str(v))]
    return " ".join(words)
