"""What does not depend on one run (a teacher, an MLM head, a supernet): built once, under a lock, shared.

An artefact lies at `build/artefacts/<kind>/<key>/`, the key a hash of its configuration and data. It is whole when
its `artefact.json` exists, which is written last; the folder is filled under another name and then renamed.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from lib.errors import InputError
from lib.paths import build_dir, component, write_atomic
from lib.provenance import digest


@dataclass(frozen=True)
class Artefact:
    """A finished artefact: where it lies and what `artefact.json` says of it."""

    kind: str
    key: str
    folder: Path
    meta: dict

    def record(self) -> dict:
        """Fields of `results.Artefact`."""
        return {"kind": self.kind, "key": self.key, "seconds": self.meta.get("seconds", 0.0),
                "tokens": self.meta.get("tokens", 0)}


def build(kind: str, configuration: dict, make: Callable[[Path], dict]) -> Artefact:
    """The artefact of `configuration`, made by `make(folder)` if it is not there yet.

    `make` fills the folder and returns what to keep in `artefact.json` ("seconds" and "tokens" at least). It may find
    its own checkpoints in the folder's `checkpoints/` from an attempt that was killed. Others that need the same
    artefact wait at the lock, which the system releases when its holder dies.
    """
    key = digest(configuration)
    folder = build_dir() / "artefacts" / component("kind", kind) / key
    done = folder / "artefact.json"
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(str(folder) + ".lock")
    if not done.exists():
        try:
            lock.acquire(timeout=0.1)
        except Timeout:
            print(f"waiting for {kind} {key}, which another process is building", file=sys.stderr)
            lock.acquire()
        try:
            if not done.exists():
                _make(kind, key, folder, configuration, make)
        finally:
            lock.release()
    try:
        return Artefact(kind, key, folder, json.loads(done.read_text()))
    except (OSError, ValueError) as e:
        raise InputError(f"artefact {done}: cannot be read ({e}); delete its folder and it is built again") from e


def _make(kind: str, key: str, folder: Path, configuration: dict, make) -> None:
    partial = folder.with_name(folder.name + ".partial")
    partial.mkdir(parents=True, exist_ok=True)
    print(f"building {kind} {key}", file=sys.stderr)
    meta = make(partial)
    shutil.rmtree(partial / "checkpoints", ignore_errors=True)
    if folder.exists():  # killed between rename and artefact.json
        shutil.rmtree(folder)
    partial.rename(folder)
    write_atomic(folder / "artefact.json",
                 json.dumps({"configuration": configuration, **meta}, indent=1, sort_keys=True, default=str).encode())
