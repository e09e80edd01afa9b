"""The grid on a real SLURM, its daemons on loopback, started and stopped here. Slow; skips where it cannot."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lib import grid, slurm
from lib.errors import InputError
from lib.paths import ROOT, results_dir

SYSTEM = Path("/etc/slurm/slurm.conf")
CONFIG = """
ClusterName=study
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthInfo=socket={place}/munge.socket
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.pid
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MinJobAge=600
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} RealMemory=9000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    for s in held:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


@pytest.fixture
def cluster(tmp_path_factory):
    """A SLURM of one node; skips with the reason where it cannot be started."""
    missing = [c for c in ("munged", "slurmctld", "slurmd", "sbatch", "squeue") if shutil.which(c) is None]
    if missing:
        pytest.skip(f"SLURM is not installed ({', '.join(missing)}); apt-get install slurm-wlm munge")
    if os.geteuid() != 0:
        pytest.skip("SLURM's daemons are started as root")
    if not slurm_plugin():
        pytest.skip("snakemake-executor-plugin-slurm is not installed (requirements-slurm.txt)")
    place, host = tmp_path_factory.mktemp("slurm"), socket.gethostname().split(".")[0]
    place.chmod(0o755)
    if SYSTEM.exists():
        pytest.skip(f"{SYSTEM} is there: a SLURM of this machine's own")
    config = CONFIG.format(place=place, host=host, ports=free_ports(2), cores=os.cpu_count())
    (place / "munge.key").write_bytes(os.urandom(128))
    (place / "munge.key").chmod(0o400)
    commands = {
        "munged": ["munged", "--foreground", "--force", f"--key-file={place}/munge.key",
                   f"--socket={place}/munge.socket", f"--pid-file={place}/munge.pid", f"--seed-file={place}/munge.seed",
                   f"--log-file={place}/munge.log"],
        "slurmctld": ["slurmctld", "-D", "-i"], "slurmd": ["slurmd", "-D", "-N", host]}
    daemons = []
    try:
        SYSTEM.parent.mkdir(exist_ok=True)
        SYSTEM.write_text(config)  # the plugin takes SLURM_CONF away from its jobs
        for name, command in commands.items():
            log = open(place / f"{name}.log", "w")  # noqa: SIM115 - for the life of the daemon
            daemons.append(subprocess.Popen(command, stdout=log, stderr=log))
            time.sleep(2)
        for _ in range(60):
            state = subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True).stdout.strip()
            if state in ("idle", "mixed"):
                break
            time.sleep(1)
        else:
            logs = " | ".join((place / f"{n}.log").read_text()[-300:] for n in commands)
            pytest.skip(f"SLURM did not start here (state {state!r}): {logs}")
        yield place
    finally:
        SYSTEM.unlink(missing_ok=True)
        for daemon in reversed(daemons):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()


def slurm_plugin() -> bool:
    import importlib.util

    return importlib.util.find_spec("snakemake_executor_plugin_slurm") is not None


@pytest.mark.slow
def test_a_run_of_the_grid_as_a_job(cluster, places, films, backbone):
    done = subprocess.run(["sbatch", "--wait", "--wrap", "true", "-o", "/dev/null"], capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0, done.stderr
    assert slurm.status() == "squeue"  # no accounts are kept here
    small = f"extra=-p max_tokens 300 -p evaluations 1 -p max_length 32 -r precision fp32 -r backbone {backbone}"
    done = subprocess.run(
        [sys.executable, "-m", "lib.grid", "--profile", "ci", "--tasks", films, "--methods", "bert", "--seeds", "0",
         "--executor", "slurm", "--jobs", "2", "--threads", "1", "--snakemake",
         f"--config backbone=tiny-bert given_backbone={backbone} '{small}'"],
        cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (results_dir() / "runs" / "ci" / "tiny-bert" / "films" / "bert" / "seed-0.json").exists()
    jobs = subprocess.run(["scontrol", "show", "jobs"], capture_output=True, text=True).stdout
    assert jobs.count("JobState=COMPLETED") == 2  # the trial above and the run


def test_without_slurm_it_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(slurm.shutil, "which", lambda c: None)
    monkeypatch.setattr(slurm.importlib.util, "find_spec", lambda n: object())
    with pytest.raises(InputError, match="sbatch is not on PATH"):
        slurm.arguments(3)
    monkeypatch.setattr(slurm.importlib.util, "find_spec", lambda n: None)
    assert grid.main(["--executor", "slurm"]) == 2
    error = capsys.readouterr().err
    assert "requirements-slurm.txt" in error
    assert error.count("\n") == 1
    assert grid.main(["--executor", "slrum"]) == 2
    assert "did you mean 'slurm'?" in capsys.readouterr().err


def test_words_for_snakemake(places, monkeypatch):
    monkeypatch.setattr(slurm, "arguments", lambda jobs: ["--executor", "slurm", "--jobs", str(jobs)])
    seen = []
    monkeypatch.setattr(subprocess, "call", lambda command, **k: seen.append(command) or 0)
    assert grid.main(["--tasks", "rte", "--methods", "bert", "--executor", "slurm", "--jobs", "5", "--snakemake",
                      "--default-resources 'slurm_extra=--gres=gpu:1'"]) == 0
    (command,) = seen
    assert command[command.index("--executor") :][:4] == ["--executor", "slurm", "--jobs", "5"]
    assert command[-2:] == ["--default-resources", "slurm_extra=--gres=gpu:1"]
    assert "--cores" not in command
