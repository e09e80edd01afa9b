"""Many runs by Snakemake: `python -m lib.grid --profile glue --tasks "rte mrpc" --methods theseus --seeds "0 1 2"`.

Names are checked before Snakemake starts, so that a mistyped one is a line and not a page.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

from lib import profiles, slurm
from lib.backbones import label
from lib.errors import InputError, one_line, one_of, shorten
from lib.paths import ROOT, as_path, build_dir, component, results_dir
from lib.provenance import digest
from lib.tasks import TASKS, own_label

LOCAL = ("demo", "ci")  # profiles whose records are made on each machine and not committed
EXTRA_PAGES = ("efficiency",)  # notebooks that belong to no method and leave no record; the Snakefile has their rules


def methods() -> list[str]:
    """Methods that have a notebook."""
    names = (p.stem for p in (ROOT / "notebooks").glob("*.ipynb"))
    return sorted(n for n in names if (ROOT / "lib" / "methods" / f"{n}.py").exists())


def plan(profile: str, tasks: str = "", method_names: str = "", seeds: str = "", pages: bool = False) -> dict:
    """Snakemake's configuration for a grid. Empty words take the profile's own (profiles/grid.yaml).

    Raises `InputError` for an unknown profile, task, method or seed.
    """
    one_of("PROFILE", profile, profiles.names())
    own, settings = profiles.grid(profile), profiles.values(profile)
    chosen = tasks.split() or own.get("tasks", [])
    names = method_names.split() or own.get("methods", [])
    numbers = seeds.split() or own.get("seeds", [0])
    for m in names:
        one_of("METHODS", m, methods())
    given = {}
    for t in chosen:
        if not as_path(t, "TASKS").exists():
            one_of("TASKS", t, [*TASKS, "a path to a file or folder"])
        name = component("TASKS", t if t in TASKS else own_label(Path(t).stem))
        if given.get(name, t) != t:
            raise InputError(f"TASKS: {given[name]} and {t} would leave their records in the same place; rename one")
        given[name] = t
    for s in numbers:
        if not str(s).isdecimal():
            raise InputError(f"SEEDS: {s!r} is not a whole number of 0 or more")
    if not (given and names):
        raise InputError(f"profile {profile} has no grid of its own in profiles/grid.yaml; give TASKS and METHODS")
    numbers = [int(s) for s in numbers]
    backbone = settings.get("backbone", "minilm-l6")
    return {
        "profile": settings["profile"], "tasks": given, "backbone": label(backbone), "given_backbone": backbone,
        "jobs": [[t, m, s] for t in given for s in numbers for m in names],
        # papermill's files of each run, the teachers' too
        "settings": {f"{t}/{m}": shlex.join(profiles.words(profiles.files(profile, m, path)))
                     for t, path in given.items() for m in {"bert", *names}},
        "records": str(results_dir() / "runs"), "build": str(build_dir()), "extra": "",
        "pages": [*names, *EXTRA_PAGES] if pages else [], "page_task": next(iter(given)), "page_seed": numbers[0],
    }


def _make_room(profile: str, configuration: dict) -> None:
    """Drop pages of another profile, and local records whose executed notebook is gone: the page needs it."""
    pages = ROOT / "book" / "executed"
    pages.mkdir(parents=True, exist_ok=True)
    mark = pages / ".profile"
    if not mark.exists() or mark.read_text() != profile:
        for old in pages.glob("*.ipynb"):
            old.unlink()
        mark.write_text(profile)
    for task, method, seed in configuration["jobs"]:
        name = Path(profile) / configuration["backbone"] / task / method / f"seed-{seed}"
        executed = build_dir() / "executed" / name.with_suffix(".ipynb")
        record = results_dir() / "runs" / name.with_suffix(".json")
        if record.exists() and not executed.exists() and not (pages / f"{method}.ipynb").exists():
            print(f"{record.name} of {method} on {task}: its executed notebook is gone; it is run again for the page")
            record.unlink()


def _claim(configuration: dict) -> list[int]:
    """Wait until no other grid makes records of these tasks; open files whose locks say that this one does.

    Snakemake deletes a job's output before it runs it, so two grids must not have the same job. The locks are the
    system's: they end with the processes that hold the files, whatever kills them.
    """
    held = []
    for task in sorted(configuration["tasks"]):
        name = component("lock", f"{configuration['profile']}+{configuration['backbone']}+{task}"[:110])
        path = build_dir() / "locks" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        held.append(os.open(path, os.O_RDWR | os.O_CREAT, 0o666))
        try:
            fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print(f"waiting for another grid, which makes records of {task}", file=sys.stderr)
            fcntl.flock(held[-1], fcntl.LOCK_EX)
    return held


@one_line()
def main(arguments: list[str] | None = None) -> int:
    """Run the grid; Snakemake's exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="glue")
    parser.add_argument("--tasks", default="")
    parser.add_argument("--methods", default="")
    parser.add_argument("--seeds", default="")
    parser.add_argument("--pages", action="store_true", help="also leave the executed notebooks for the book")
    parser.add_argument("--cores", default=str(os.cpu_count() or 1))
    parser.add_argument("--threads", default="0", help="of one run; fewer than the cores: several runs at once. 0: "
                        "all, half of them with --pages")
    parser.add_argument("--executor", default="local", help="local or slurm (lib/slurm.py)")
    parser.add_argument("--jobs", default="16", help="of SLURM at once")
    parser.add_argument("--snakemake", default="", help="further words for Snakemake, such as --default-resources ...")
    parser.add_argument("--dry-run", action="store_true")
    a = parser.parse_args(arguments)
    if a.pages:
        one_of("--pages with --profile", a.profile, LOCAL)
    for name, value in (("--cores", a.cores), ("--threads", a.threads), ("--jobs", a.jobs)):
        if not value.isdecimal() or (name != "--threads" and int(value) == 0):
            least = int(name != "--threads")
            raise InputError(f"{name}: {shorten(value)} is not a whole number of {least} or more")
    one_of("EXECUTOR", a.executor, ("local", "slurm"))
    where = slurm.arguments(int(a.jobs)) if a.executor == "slurm" else ["--cores", a.cores]
    configuration = plan(a.profile, a.tasks, a.methods, a.seeds, a.pages)
    cores = int(a.cores)
    # The book's short runs leave half of the machine idle, so two of them share it; their one teacher, which all wait
    # for, has it alone
    threads = min(int(a.threads), cores) or (max(1, cores // 2) if a.pages else cores)
    configuration |= {"threads": threads, "teacher_threads": cores if a.pages else threads, "cores": cores}
    if a.executor == "slurm":  # there a job asks for its own cores; those here say nothing
        configuration["threads"] = configuration["teacher_threads"] = int(a.threads) or cores
    if a.pages:
        _make_room(a.profile, configuration)
    # Named by what it holds, because two grids of one profile may run at once
    file = build_dir() / "grids" / f"{a.profile}-{digest(configuration)}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(configuration))
    # --nolock: Snakemake's own lock outlives a killed grid; `_claim` does what it is for
    command = ["snakemake", "--snakefile", str(ROOT / "Snakefile"), "--directory", str(ROOT), "--configfile", str(file),
               *where, "--nolock", "--rerun-incomplete", "--rerun-triggers", "mtime", "--quiet", "rules",
               *(["--dry-run"] if a.dry_run else []), *shlex.split(a.snakemake)]
    environment = os.environ | {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])}
    held = [] if a.dry_run else _claim(configuration)
    try:
        return subprocess.call(command, env=environment, cwd=ROOT, pass_fds=held)
    finally:
        for lock in held:
            os.close(lock)


if __name__ == "__main__":
    sys.exit(main())
