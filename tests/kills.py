"""Two runs that share a teacher, killed with -9 at many moments and started again: helper of test_kill.py.

`python tests/kills.py FOLDER FILMS BACKBONE SEED`: libraries are loaded once; each attempt is a forked process.
"""

from __future__ import annotations

import collections
import json
import multiprocessing
import os
import random
import re
import signal
import sys
import time
from pathlib import Path

import tiny
from transformers import PreTrainedTokenizerBase

from lib import runs
from lib.methods import theseus, truncated

METHODS = {"truncated": truncated, "theseus": theseus}
# While a file of this kind is half written, or right after it has its name: (kind, the how many-th of an attempt).
IN_WRITES = [("checkpoint", 1), ("checkpoint", 3), ("checkpoint", 5), ("checkpoint named", 2), ("artefact", 1),
             ("artefact named", 1), ("folder", 1), ("folder named", 1), ("student", 1), ("predictions", 1),
             ("record", 1), ("record named", 1)]
TIMED = 8
KINDS = (("step-", "checkpoint"), ("artefact.json", "artefact"), (".json", "record"), (".parquet", "predictions"))


def kind_of(name: str) -> str:
    return next((kind for mark, kind in KINDS if mark in name), "other")


def deadly(moment: tuple[str, int] | None) -> None:
    """Make this process kill itself at a moment."""
    seen = collections.Counter()

    def tick(place: str, before=lambda: None) -> None:
        seen[place] += 1
        if moment == (place, seen[place]):
            before()
            os.kill(os.getpid(), signal.SIGKILL)

    fsync, replace, rename, save = os.fsync, os.replace, Path.rename, PreTrainedTokenizerBase.save_pretrained

    def half(fd):
        tick(kind_of(os.readlink(f"/proc/self/fd/{fd}")), lambda: os.ftruncate(fd, os.fstat(fd).st_size // 2))
        fsync(fd)

    def named(source, target):
        replace(source, target)
        tick(kind_of(str(target)) + " named")

    def moved(self, target):
        tick("folder")
        out = rename(self, target)
        tick("folder named")
        return out

    def saved(self, folder, **kwargs):
        tick("student")  # the model is there, its tokenizer is not
        return save(self, folder, **kwargs)

    os.fsync, os.replace, Path.rename, PreTrainedTokenizerBase.save_pretrained = half, named, moved, saved


def attempt(method: str, films: str, backbone: str, moment, pause: float) -> None:
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for the life of the process
    deadly(moment)
    settings, seed = runs.Run.settings, runs.training._seed
    runs.Run.settings = lambda self, **k: settings(self, **{"checkpoint_seconds": 0.0, **k})

    def slow(*arguments):
        time.sleep(pause)
        seed(*arguments)

    runs.training._seed = slow  # at every micro-batch
    run = tiny.run(method, METHODS[method].Config, films, backbone, epochs=2, score_curve=True)
    student, history = run.compress(METHODS[method].compress)
    run.finish(student, history)


def start(folder: Path, films: str, backbone: str, moment, pause: float) -> dict:
    """Processes of the runs that have no record yet, as the grid would start them."""
    os.environ["BERT_RESULTS"], os.environ["BERT_BUILD"] = str(folder / "results"), str(folder / "build")
    context, out = multiprocessing.get_context("fork"), {}
    for method in METHODS:
        if not (folder / f"results/runs/test/tiny-bert/films/{method}/seed-0.json").exists():
            out[method] = context.Process(target=attempt, args=(method, films, backbone, moment, pause))
            out[method].start()
    return out


def outcome(folder: Path) -> dict:
    """Everything that two equal runs must have in common."""
    out = {}
    for path in sorted(folder.rglob("results/**/*.json")):
        out[path.parent.name] = tiny.record_without_times(json.loads(path.read_text()))
        out[path.parent.name + " predictions"] = path.with_suffix(".parquet").read_bytes().hex()
    for path in sorted(folder.rglob("*.safetensors")):
        if not path.name.startswith("step-"):
            out[str(path.relative_to(folder))] = path.read_bytes().hex()
    return out


def left(folder: Path, what: str) -> list[str]:
    """Files below a folder whose path matches."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and re.search(what, str(p)))


def damage(folder: Path, rng: random.Random) -> int:
    """Turn one byte of the newest checkpoint of each run; how many there were."""
    newest = {p.parent: p for p in sorted(folder.rglob("step-*.safetensors"))}
    for path in newest.values():
        content = bytearray(path.read_bytes())
        content[rng.randrange(len(content))] ^= 0xFF
        path.write_bytes(bytes(content))
    return len(newest)


def main(folder: Path, films: str, backbone: str, seed: int) -> dict:
    rng = random.Random(seed)
    began = time.perf_counter()
    for process in start(folder / "whole", films, backbone, None, 0).values():
        process.join()
        assert process.exitcode == 0
    seconds, wanted = time.perf_counter() - began, outcome(folder / "whole")
    moments = [*IN_WRITES, *[("timed", 0)] * TIMED]
    rng.shuffle(moments)
    report = {"killed": [], "missed": 0, "rounds": 0, "damaged": 0, "unequal": [],
              "left": left(folder / "whole", r"\.tmp$|step-|\.partial")}
    here, tries = folder / "round-0", 0
    while True:
        moment = moments[0] if moments else None
        processes = start(here, films, backbone, moment, 0.01 if moments else 0)
        end = time.perf_counter() + (rng.uniform(0.02, 0.9) * seconds if moment and moment[0] == "timed" else 300)
        while any(p.is_alive() for p in processes.values()) and time.perf_counter() < end:
            if any(p.exitcode not in (None, 0) for p in processes.values()):
                break
            time.sleep(0.005)
        struck = any(p.is_alive() or p.exitcode != 0 for p in processes.values())
        for p in processes.values():
            p.kill()
            p.join()
        assert all(p.exitcode in (0, -signal.SIGKILL) for p in processes.values()), [
            p.exitcode for p in processes.values()]
        if struck:
            report["killed"].append(" ".join(map(str, moments.pop(0))))
            print(len(report["killed"]), report["killed"][-1], file=sys.stderr)
            tries = 0
            if len(report["killed"]) % 7 == 0:
                report["damaged"] += damage(here, rng)
            continue
        # All records are there: they must be those of the runs that were left alone
        found = outcome(here)
        report["rounds"] += 1
        # A run killed between its record and the clearing of its checkpoints is whole and not started again
        report["left"] += left(here / "results", r"\.tmp$") + left(here, r"\.partial")
        report["unequal"] += [k for k in wanted.keys() | found.keys() if wanted.get(k) != found.get(k)]
        if not moments:
            return report
        tries += 1
        assert tries < 8, f"never came to {moment}"
        here = folder / f"round-{report['rounds']}"


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))))
