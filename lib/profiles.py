"""Profiles: the YAML files of papermill parameters that fix the scale of a run, and which of them a run takes."""

from __future__ import annotations

from pathlib import Path

import yaml

from lib.paths import ROOT
from lib.tasks import TASKS

FOLDER = ROOT / "notebooks" / "profiles"


def names() -> list[str]:
    """Profiles that have a file."""
    return sorted(p.stem for p in FOLDER.glob("*.yaml") if p.stem != "grid" and "-" not in p.stem)


def grid(profile: str) -> dict:
    """What a grid of the profile runs where nothing is given: "tasks", "methods", "seeds"; empty where it has none."""
    return read(FOLDER / "grid.yaml").get(profile, {})


def files(profile: str, method: str = "", task: str = "") -> list[Path]:
    """Files of a run in papermill's order, the later wins: the profile's own, the method's, the declared task's.

    A user's own file brings none, whatever its name. Empty for a profile that has no file.
    """
    own = FOLDER / f"{profile}.yaml"
    words = [w for w in (method, task if task in TASKS else "") if w]
    return [f for f in (own, *(FOLDER / f"{profile}-{w}.yaml" for w in words)) if f.exists()] if own.exists() else []


def values(profile: str, method: str = "", task: str = "") -> dict:
    """What those files set together."""
    return {k: v for f in files(profile, method, task) for k, v in read(f).items()}


def words(found: list[Path]) -> list[str]:
    """papermill's words for the files, relative to the repository."""
    return [w for f in found for w in ("-f", str(f.relative_to(ROOT)))]


def read(file: Path) -> dict:
    """A profile file as a mapping; an empty one is an empty mapping."""
    return yaml.safe_load(file.read_text(encoding="utf-8")) or {}
