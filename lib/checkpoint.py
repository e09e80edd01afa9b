"""Checkpoints of a training run: safetensors, atomic, checked, the last two kept."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from lib import distributed
from lib.paths import write_atomic


def _digest(tensors: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class Checkpoints:
    """Checkpoints in one folder. `identity` ties them to one configuration: another's are not taken up."""

    def __init__(self, folder: Path, identity: str):
        self.folder, self.identity = Path(folder), identity

    def _files(self) -> list[Path]:
        """Own files, newest first. Another configuration's in the same folder are not counted among the last two."""
        return sorted(self.folder.glob(f"step-*.{self.identity}.safetensors"), reverse=True)

    def save(self, step: int, tensors: dict[str, torch.Tensor], state: dict) -> None:
        """Write the state after `step` optimiser steps; older files than the last two go."""
        if not distributed.main():
            return
        tensors = {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
        meta = {"identity": self.identity, "state": json.dumps(state), "sha256": _digest(tensors)}
        write_atomic(self.folder / f"step-{step:08d}.{self.identity}.safetensors", save(tensors, metadata=meta))
        for old in self._files()[2:]:
            old.unlink(missing_ok=True)

    def load(self) -> tuple[dict[str, torch.Tensor], dict] | None:
        """The newest whole checkpoint of this configuration, or None. A damaged one is named and passed over.

        Of several processes (`lib.distributed`) the main one reads, so that all go on from the same state.
        """
        return distributed.from_main(self._load)

    def _load(self) -> tuple[dict[str, torch.Tensor], dict] | None:
        for path in self._files():
            try:
                with safe_open(path, "pt") as f:
                    meta = f.metadata() or {}
                    if meta.get("identity") != self.identity:
                        continue
                    tensors = {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118 - safe_open is no dict
            except (SafetensorError, OSError, ValueError) as e:
                print(f"checkpoint {path.name} is damaged ({e}); trying the one before", file=sys.stderr)
                continue
            if _digest(tensors) != meta.get("sha256"):
                print(f"checkpoint {path.name} does not match its checksum; trying the one before", file=sys.stderr)
                continue
            return tensors, json.loads(meta["state"])
        return None

    def clear(self) -> None:
        """Delete the folder's checkpoints, of every configuration, once what they led to is safely written."""
        if not distributed.main():
            return
        left = [*self.folder.glob("step-*.safetensors"), *self.folder.glob(".step-*.tmp")]  # .tmp: killed while writing
        for path in left:
            path.unlink(missing_ok=True)
