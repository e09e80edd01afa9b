"""ONNX files of any encoder or classifier, and their int8 copies.

    python -m lib.efficiency.export path/to/student out_folder

leaves `model.onnx` and `model-int8.onnx`, the first checked against PyTorch. onnx and onnxruntime are imported only
where they are used.
"""

from __future__ import annotations

import copy
import inspect
import json
import logging
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn

from lib.errors import one_line

SHAPES = ((1, 5), (1, 17), (3, 5), (3, 17))  # (batch, length) at which an export is checked
TOLERANCE = 1e-4
ROUNDING = 4
OPSET = 17


def inputs_of(model: nn.Module) -> list[str]:
    """Inputs of its ONNX file: ids, mask, and token types where it tells the sentences of a pair apart by them."""
    takes = inspect.signature(model.forward).parameters
    types = "token_type_ids" in takes and getattr(model.config, "type_vocab_size", 0) > 1
    return ["input_ids", "attention_mask", *(["token_type_ids"] if types else [])]


class _Outputs(nn.Module):
    """A model with positional inputs and the tensors among its outputs: what an ONNX graph can have."""

    def __init__(self, model: nn.Module, inputs: list[str], outputs: list[str]):
        super().__init__()
        self.model, self.inputs, self.outputs = model, inputs, outputs

    def forward(self, *given):
        out = self.model(**dict(zip(self.inputs, given, strict=True)))
        return tuple(out[n] for n in self.outputs)


def random_inputs(model: nn.Module, batch: int, length: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """What `inputs_of` names, (batch, length) each: every row but the first ends in padding of its own length, and the
    second half of each is another sentence.
    """
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, model.config.vocab_size, (batch, length), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(1, batch):
        mask[row, length - min(row, length - 1):] = 0
    padding = getattr(model.config, "pad_token_id", None) or 0
    ids[ids == padding] = padding + 1 if padding + 1 < model.config.vocab_size else padding - 1
    types = mask * (torch.arange(length) >= length // 2)
    given = {"input_ids": torch.where(mask.bool(), ids, torch.full_like(ids, padding)), "attention_mask": mask,
             "token_type_ids": types}
    return {n: given[n] for n in inputs_of(model)}


def _names(model: nn.Module, given: dict) -> list[str]:
    """Outputs that are tensors and come from a fresh computation: logits, hidden state, pooled state."""
    with torch.inference_mode():
        found = _tensors(model(**given))
    if not found:
        raise ValueError(f"{type(model).__name__}: its output holds no tensor")
    return found


def _tensors(out) -> list[str]:
    return [k for k, v in out.items() if isinstance(v, torch.Tensor)]


def export(model: nn.Module, path: Path) -> float:
    """Write `model` (float32, any device) as ONNX with free batch and length; the largest difference to PyTorch.

    A copy with written-out attention is exported; fused kernels have no ONNX counterpart. Inputs: `inputs_of`, int64
    (batch, length). Raises `ValueError` where the file's outputs differ from PyTorch's by more than `TOLERANCE` at one
    of `SHAPES`, with padding in all rows but the first; the file is then removed. A network that amplifies rounding
    (TrimBERT's normalised attention with random weights does) may differ by `ROUNDING` times what PyTorch's own float32
    differs from float64.
    """
    model = copy.deepcopy(model).cpu().eval()
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = "eager"
    given = random_inputs(model, 2, 9)
    names = _names(model, given)
    free = {n: {0: "batch", 1: "length"} for n in given}
    for n in names:
        free[n] = {0: "batch", 1: "length"} if n == "last_hidden_state" else {0: "batch"}
    path.parent.mkdir(parents=True, exist_ok=True)
    # torch's tracing exporter: its successor takes 50 times as long (88 s instead of 2 for a 4-layer BERT of width 32)
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        torch.onnx.export(_Outputs(model, list(given), names).eval(), tuple(given.values()), str(path), dynamo=False,
                          input_names=list(given), output_names=names, dynamic_axes=free, opset_version=OPSET)
    worst = difference(model, path)
    if not worst <= TOLERANCE and not worst <= (allowed := ROUNDING * rounding(model)):
        path.unlink()
        raise ValueError(f"{path.name}: outputs differ from PyTorch's by {worst:.2g}, more than {TOLERANCE:g} and than "
                         f"rounding explains ({allowed:.2g})")
    return worst


def session(path: Path, threads: int | None = None):
    """An ONNX Runtime session on the CPU. `threads`: as torch uses, if None."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or torch.get_num_threads()
    options.log_severity_level = 3
    # A session's idle threads spin for a while after a run, on the cores of the next session in interleaved rounds: on
    # two cores that cost each call some 30 ms, most of a small model's time. Within a run they may spin
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def feeds(runtime, given: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """What a session takes of `given`; tracing drops an input that a model does not use."""
    return {i.name: given[i.name].numpy() for i in runtime.get_inputs()}


def rounding(model: nn.Module, shapes=SHAPES) -> float:
    """Largest difference of the model's float32 outputs to the same weights in float64, over real tokens."""
    exact, worst = copy.deepcopy(model).double(), 0.0
    for batch, length in shapes:
        given = random_inputs(model, batch, length, seed=length)
        with torch.inference_mode():
            single, double = model(**given), exact(**given)
        for name in _tensors(single):
            apart = (single[name].double() - double[name]).abs()
            if name == "last_hidden_state":
                apart = apart[given["attention_mask"].bool()]
            worst = max(worst, apart.max().item())
    return worst


def difference(model: nn.Module, path: Path, shapes=SHAPES) -> float:
    """Largest absolute difference between an ONNX file's outputs and the model's, over real tokens at `shapes`."""
    runtime, worst = session(path, 1), 0.0
    for batch, length in shapes:
        given = random_inputs(model, batch, length, seed=length)
        with torch.inference_mode():
            wanted = model(**given)
        got = runtime.run(None, feeds(runtime, given))
        real = given["attention_mask"].bool().numpy()
        for output, value in zip(runtime.get_outputs(), got, strict=True):
            want = wanted[output.name].float().numpy()
            if want.shape != value.shape:
                return float("inf")
            apart = np.abs(want - value)
            apart = apart[real] if output.name == "last_hidden_state" else apart
            # max() of Python would pass over a NaN
            worst = float(np.max([worst, apart.max()]))
    return worst


def quantise(path: Path, target: Path) -> Path:
    """A copy of an ONNX file with int8 matrices and tables; activations are quantised as they come (dynamic)."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    level = logging.getLogger().level
    logging.getLogger().setLevel(logging.ERROR)  # it asks for a step that dynamic quantisation does not need
    try:
        quantize_dynamic(str(path), str(target), weight_type=QuantType.QInt8)
    finally:
        logging.getLogger().setLevel(level)
    return target


@one_line()
def main(arguments: list[str] | None = None) -> int:
    """Export a student's folder; exit code 2 and one line where it cannot be opened."""
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) != 2:
        print("usage: python -m lib.efficiency.export path/to/model out_folder", file=sys.stderr)
        return 2
    from lib import models

    source, out = given[0], Path(given[1])
    model = models.load_any(source)
    worst = export(model, out / "model.onnx")
    quantise(out / "model.onnx", out / "model-int8.onnx")
    print(json.dumps({"onnx": str(out / "model.onnx"), "int8": str(out / "model-int8.onnx"),
                      "largest difference to PyTorch": worst,
                      "mb": {p.name: round(p.stat().st_size / 1e6, 2) for p in sorted(out.glob("*.onnx"))}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
