"""Ways to run a model, each a small function from "a way to build it" to something that can be called and timed.

A back end that cannot run here raises `Skipped` with the reason; nothing is timed in its place.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from lib import training
from lib.efficiency import export

Make = Callable[[str], nn.Module]  # attention ("eager", "sdpa") -> the model, float32, evaluation mode


class Skipped(Exception):
    """A back end that cannot run here; the message says why."""


@dataclass(frozen=True)
class Ready:
    """A model on a back end. `run` takes `input_ids` and `attention_mask`, int64 (batch, length), and waits."""

    run: Callable[[torch.Tensor, torch.Tensor], object]
    precision: str
    file_mb: float  # weights or ONNX file, MB (10**6 bytes)
    lazy: bool = False  # its first call does other work (compiling), which is no property of the model


def _torch(model: nn.Module, precision: str, compile: Callable | None = None) -> Ready:
    call = compile(model) if compile else model
    size = sum(p.numel() * p.element_size() for p in model.parameters()) / 1e6

    def run(ids, mask):
        with torch.inference_mode():
            return call(input_ids=ids, attention_mask=mask)

    return Ready(run, precision, size, lazy=compile is not None)


def eager(make: Make, folder: Path) -> Ready:
    """Attention in elementary operations with softmax as one kernel."""
    return _torch(make("eager"), "fp32")


def sdpa(make: Make, folder: Path) -> Ready:
    """torch's fused attention."""
    return _torch(_fused(make), "fp32")


def compiled(make: Make, folder: Path) -> Ready:
    """`torch.compile` over fused attention, shapes dynamic: one compilation serves all lengths of a batch size."""
    if not (shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")):
        raise Skipped("torch.compile needs a C++ compiler, and there is none on the PATH")
    return _torch(_fused(make), "fp32", lambda model: torch.compile(model, dynamic=True))


def bf16(make: Make, folder: Path) -> Ready:
    """Fused attention, all weights and activations in bfloat16.

    Skipped where nothing computes in it: torch then emulates it, tens of times slower than fp32, which says nothing.
    """
    if training.precision() != "bf16":
        raise Skipped("this processor has no bf16 arithmetic (AVX512-BF16 or AMX)")
    return _torch(_fused(make).to(torch.bfloat16), "bf16")


def onnx(make: Make, folder: Path) -> Ready:
    """ONNX Runtime in float32. `folder` keeps the file, checked against PyTorch when it was made."""
    return _onnx(_file(make, folder), "fp32")


def onnx_int8(make: Make, folder: Path) -> Ready:
    """ONNX Runtime after dynamic quantisation to int8."""
    path = folder / "model-int8.onnx"
    if not path.exists():
        temporary = path.with_suffix(".part")
        export.quantise(_file(make, folder), temporary)
        temporary.replace(path)
    return _onnx(path, "int8")


def _fused(make: Make) -> nn.Module:
    try:
        return make("sdpa")
    except (ValueError, ImportError) as e:
        raise Skipped(f"no fused attention for this architecture ({' '.join(str(e).split())[:100]})") from e


def _file(make: Make, folder: Path) -> Path:
    _runtime()
    path = folder / "model.onnx"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:  # a killed export leaves no half file
            try:
                export.export(make("eager"), Path(scratch) / path.name)
            except ValueError as e:  # a wrong file would be timed otherwise
                raise Skipped(f"its ONNX file is not what PyTorch computes: {e}") from e
            (Path(scratch) / path.name).replace(path)
    return path


def _runtime() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as e:
        raise Skipped(f"ONNX needs onnx and onnxruntime ({e})") from e


def _onnx(path: Path, precision: str) -> Ready:
    _runtime()
    runtime = export.session(path)

    def run(ids, mask):
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
        return runtime.run(None, export.feeds(runtime, given))

    return Ready(run, precision, path.stat().st_size / 1e6)


BACKENDS: dict[str, Callable[[Make, Path], Ready]] = {
    "eager": eager, "sdpa": sdpa, "compile": compiled, "bf16": bf16, "onnx": onnx, "onnx-int8": onnx_int8}
