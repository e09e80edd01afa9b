"""Where things lie. `results/` is committed; `build/` is scratch that can be deleted and made again."""

from __future__ import annotations

import contextlib
import glob
import os
import re
from pathlib import Path

import psutil

from lib.errors import InputError, shorten

ROOT = Path(__file__).resolve().parent.parent

SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]{0,119}")


def results_dir() -> Path:
    """Folder of records and tables: `$BERT_RESULTS`, else `results/` of the repository."""
    return Path(os.environ.get("BERT_RESULTS") or ROOT / "results").resolve()


def build_dir() -> Path:
    """Folder of artefacts, checkpoints, students and executed notebooks: `$BERT_BUILD`, else `build/`."""
    return Path(os.environ.get("BERT_BUILD") or ROOT / "build").resolve()


def as_path(text: str, what: str) -> Path:
    """`text` as a path with `~` expanded; `InputError` where the system could not even look for it."""
    try:
        path = Path(text).expanduser()
        path.exists()
    except (OSError, ValueError, RuntimeError) as e:
        raise InputError(f"{what}: {shorten(text)} cannot be a path ({getattr(e, 'strerror', None) or e})") from e
    return path


def component(name: str, value: str) -> str:
    """`value` if it may stand as one component of a path, else `InputError`.

    Letters, digits and `. _ - = +`, at most 120, not beginning with a dot: nothing can climb out of the folder.
    """
    if not SAFE.fullmatch(value) or ".." in value:
        raise InputError(f"{name}: {shorten(value)} cannot name a folder; allowed: letters, digits and . _ - = +")
    return value


def slug(text: str) -> str:
    """A path component made from any text: unsafe characters become `-`, never empty, at most 60 characters."""
    safe = re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-._+") or "unnamed"
    return re.sub(r"\.{2,}", ".", safe)[:60]


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that after a kill the file is either the old one or the new one, never half.

    What a killed process had left of an earlier attempt is removed. Raises `InputError` where the disk is full or the
    folder cannot be written to.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
        for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
            pid = left.name.split(".")[-2]
            if pid.isdecimal() and not psutil.pid_exists(int(pid)):
                left.unlink(missing_ok=True)
    except OSError as e:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise InputError(f"cannot write {path}: {e.strerror or e}; free some space or set BERT_RESULTS/BERT_BUILD"
                         ) from e


def check_space(folder: Path, size: int = 1 << 20) -> None:
    """`InputError` where `size` bytes cannot be written below `folder`: better before training than after it."""
    probe = folder / f".space-{os.getpid()}"
    write_atomic(probe, os.urandom(size))
    probe.unlink(missing_ok=True)
