"""The grid on a SLURM cluster: `make grid EXECUTOR=slurm`. Each run is a job; files are shared by all nodes."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess

from lib.errors import InputError


def arguments(jobs: int) -> list[str]:
    """Snakemake's words for its SLURM executor with at most `jobs` jobs at once.

    Raises `InputError` where the plugin or SLURM's commands are missing.
    """
    if importlib.util.find_spec("snakemake_executor_plugin_slurm") is None:
        raise InputError("--executor slurm: snakemake-executor-plugin-slurm is not installed; "
                         "pip install -r requirements-slurm.txt (`make grid EXECUTOR=slurm` does it)")
    if missing := [c for c in ("sbatch", "squeue") if shutil.which(c) is None]:
        raise InputError(f"--executor slurm: {missing[0]} is not on PATH; run this on a node of the cluster")
    return ["--executor", "slurm", "--jobs", str(jobs), "--latency-wait", "60", "--slurm-status-command", status()]


def status() -> str:
    """The command that knows of ended jobs: "sacct" where the cluster keeps accounts, else "squeue"."""
    try:
        kept = subprocess.run(["sacct", "--noheader", "--starttime", "now"], capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return "squeue"
    return "sacct" if kept.returncode == 0 else "squeue"
