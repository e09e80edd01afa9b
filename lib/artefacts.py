"""What does not depend on one run (a teacher, an MLM head, a supernet): built once, under a lock, shared.

An artefact lies at `build/artefacts/<kind>/<key>/`, the key a hash of its configuration, its data and the code that
makes it. It is whole when its `artefact.json` exists, which is written last; the folder is filled under another name
and then renamed.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from lib import distributed
from lib.errors import InputError
from lib.paths import build_dir, component, write_atomic
from lib.provenance import digest, modules_hash


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
    artefact wait at the lock, which the system releases when its holder dies. Where several processes share a run
    (`lib.distributed`) all of them call `make`, since it may train; what the main one made is kept.
    """
    configuration = {**configuration, "made_by": _code(kind, make)}
    key = digest(configuration)
    folder = build_dir() / "artefacts" / component("kind", kind) / key
    done = folder / "artefact.json"
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(str(folder) + ".lock")
    try:
        if distributed.from_main(lambda: _lacking(kind, key, done, lock)):
            _make(kind, key, folder, configuration, make)
    finally:
        lock.release()
    distributed.wait()
    try:
        return Artefact(kind, key, folder, json.loads(done.read_text()))
    except (OSError, ValueError) as e:
        raise InputError(f"artefact {done}: cannot be read ({e}); delete its folder and it is built again") from e


def _code(kind: str, make: Callable[[Path], dict]) -> str:
    """Hash of the code behind an artefact: that of the module where `make` stands, and of the method of that kind."""
    return modules_hash(make.__module__.removeprefix("lib.").replace(".", "/"), f"methods/{kind}")


def _lacking(kind: str, key: str, done: Path, lock: FileLock) -> bool:
    """Whether the artefact must be made; the lock is held then."""
    if done.exists():
        return False
    try:
        lock.acquire(timeout=0.1)
    except Timeout:
        print(f"waiting for {kind} {key}, which another process is building", file=sys.stderr)
        lock.acquire()
    return not done.exists()


def _make(kind: str, key: str, folder: Path, configuration: dict, make) -> None:
    partial = folder.with_name(folder.name + ".partial")
    partial.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        if distributed.main():
            print(f"building {kind} {key}", file=sys.stderr)
            place = partial
        else:  # a copy of what a killed attempt had left, but for checkpoints, which the main process reads for all
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(
                dir=folder.parent, prefix=f".{key}.", ignore_cleanup_errors=True)))
            shutil.copytree(partial, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("checkpoints"))
        distributed.wait()  # until all have their copy
        try:
            meta = make(place)
        except (OSError, SafetensorError) as e:
            if "No space left" not in str(e):
                raise
            raise InputError(f"cannot write {kind} {key}: no space left in {folder.parent}; free some or set "
                             "BERT_BUILD") from e
        distributed.wait()
    if not distributed.main():
        return
    for left in folder.parent.glob(f".{key}.*"):  # of killed processes that shared an attempt
        shutil.rmtree(left, ignore_errors=True)
    shutil.rmtree(partial / "checkpoints", ignore_errors=True)
    if folder.exists():  # killed between rename and artefact.json
        shutil.rmtree(folder)
    partial.rename(folder)
    write_atomic(folder / "artefact.json",
                 json.dumps({"configuration": configuration, **meta}, indent=1, sort_keys=True, default=str).encode())
