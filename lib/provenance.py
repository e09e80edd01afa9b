"""What made a number: hashes of configuration and code, git state, versions, processor."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path

from lib.paths import ROOT

PACKAGES = ("torch", "transformers", "tokenizers", "datasets", "evaluate", "numpy", "scipy", "scikit-learn", "pandas")
# The shared modules whose code can change a number. Data and initial weights have hashes of their own in a record;
# loading, records, reports and the book cannot change one.
SHARED = ("batches", "fast", "layers", "training", "evaluation")
NEUTRAL = {"artefacts", "backbones", "checkpoint", "data", "distributed", "errors", "hub", "models", "parameters",
           "paths", "plots", "provenance", "record", "results", "runs", "tasks", "tuning", "userdata"}


def digest(value: object) -> str:
    """First 16 hex digits of the SHA-256 of `value` as canonical JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def hash_share(text: str, salt: str) -> float:
    """A number in [0, 1) fixed by the text: equal texts always fall into the same split."""
    return int.from_bytes(hashlib.sha256(f"{salt}\0{text}".encode()).digest()[:8], "big") / 2**64


def _code(path: Path) -> str:
    """Source without comments, layout and docstrings: only what runs counts."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            constant = body[0].value
            if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                node.body = body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def _imports(path: Path) -> set[str]:
    """What a module imports whose code can change a number: "methods/<name>" and "<name>" below `lib`.

    The shared modules, which always count, and the neutral ones are left out.
    """
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "lib.methods":
            names |= {f"methods/{a.name}" for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "lib":
            names |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lib."):
            names.add("/".join(node.module.split(".")[1:3]))
    return names - {"methods", *SHARED, *NEUTRAL}


def code_hash(method: str) -> str:
    """Hash of the lib code that can change a record of `method`: shared modules, the method, and what it imports."""
    return modules_hash(f"methods/{method}")


@functools.cache
def modules_hash(*modules: str) -> str:
    """Hash of the shared modules, of `modules` ("methods/<name>" or "<name>" below `lib`) and of what they import.

    A module that does not exist counts for nothing.
    """
    lib = ROOT / "lib"
    found, todo = set(), set(modules)
    while todo:
        name = todo.pop()
        path = lib / f"{name}.py"
        if name in found or not path.exists():
            continue
        found.add(name)
        todo |= _imports(path)
    files = [lib / f"{m}.py" for m in (*SHARED, *sorted(n for n in found if "/" not in n),
                                       *sorted(n for n in found if "/" in n))]
    return digest([(f.name, _code(f)) for f in files if f.exists()])


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(("git", "-C", str(ROOT), *arguments), capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def processor() -> str:
    """The processor's model name with the instruction sets that matter to the speed of bf16."""
    name, flags = platform.processor() or platform.machine(), ""
    try:
        text = Path("/proc/cpuinfo").read_text()
        lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        found = {k.strip(): v for k, v in lines.items()}
        name = found.get("model name", name).strip()
        known = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
        flags = " ".join(f for f in known if f in found.get("flags", "").split())
    except OSError:
        pass
    return f"{name} ({flags})" if flags else name


def environment(precision: str, threads: int) -> dict:
    """Fields of `results.Environment`."""
    commit = _git("rev-parse", "HEAD")
    dirty = _git("status", "--porcelain", "--", "lib", "notebooks")
    return {
        "git_commit": commit,
        "git_dirty": None if commit is None or dirty is None else bool(dirty),
        "versions": {"python": platform.python_version()} | {p: importlib.metadata.version(p) for p in PACKAGES},
        "platform": platform.platform(terse=True),
        "processor": f"{processor()}, {os.cpu_count()} cores",
        "threads": threads,
        "precision": precision,
    }
