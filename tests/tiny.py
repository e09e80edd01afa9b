"""Tiny random encoders, a real small tokenizer and made-up rows. Helpers of the tests; nothing here is a result."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import torch
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, BertTokenizerFast

from lib import batches, fast, parameters, runs
from lib.layers import output_layer
from lib.tasks import Task

GOOD, BAD = ["good", "great", "fine", "lovely"], ["bad", "awful", "poor", "sad"]
FILLER = ["film", "plot", "actor", "scene", "music", "the", "a", "this", "that", "is", "was", "very", "not", "really",
          "quite", "and", "but", "with", "of", "in", "it", "he", "she", "saw", "made", "long", "short", "old", "new"]
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,?!'"
VOCABULARY = list(dict.fromkeys([*SPECIAL, *LETTERS, *("##" + c for c in LETTERS), *GOOD, *BAD, *FILLER]))
SIZE, LAYERS, WIDTH, POSITIONS = len(VOCABULARY), 4, 32, 64
FILMS = Task("films", ("text",), "label", ("negative", "positive"), ("accuracy",), source="own", scored="test")
TRIPLE = Task("triple", ("text",), "label", ("a", "b", "c"), ("accuracy",), source="own", scored="test")
RATING = Task("rating", ("text",), "label", None, ("pearson", "spearman"), source="own", scored="test")
KINDS = ("bert", "roberta", "distilbert", "electra")


def config(kind: str = "bert", *, layers: int = LAYERS, dropout: float = 0.1, **changes):
    """Configuration of a tiny encoder of one architecture."""
    if kind == "distilbert":
        own = {"dim": WIDTH, "n_layers": layers, "n_heads": 4, "hidden_dim": 2 * WIDTH, "dropout": dropout,
               "attention_dropout": dropout, "seq_classif_dropout": dropout, "initializer_range": 0.2}
    else:
        own = {"hidden_size": WIDTH, "num_hidden_layers": layers, "num_attention_heads": 4,
               "intermediate_size": 2 * WIDTH, "hidden_dropout_prob": dropout,
               "attention_probs_dropout_prob": dropout, "initializer_range": 0.2}
    if kind == "electra":
        own["embedding_size"] = 16
    if kind == "modernbert":
        own = {"hidden_size": WIDTH, "num_hidden_layers": layers, "num_attention_heads": 4,
               "intermediate_size": 2 * WIDTH, "global_attn_every_n_layers": 2, "local_attention": 16,
               "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
    positions = POSITIONS + (1 if kind == "roberta" else 0)  # RoBERTa's positions begin after the padding's number
    return AutoConfig.for_model(kind, vocab_size=SIZE, max_position_embeddings=positions, pad_token_id=0,
                                **{**own, **changes})


def tokenizer() -> BertTokenizerFast:
    return BertTokenizerFast(vocab={w: i for i, w in enumerate(VOCABULARY)}, do_lower_case=True,
                             model_max_length=POSITIONS)


def save_tokenizer(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer().save_pretrained(folder)
    return folder


def save_encoder(folder: Path, kind: str = "bert", *, seed: int = 0, **changes) -> Path:
    """A pre-trained backbone as the hub would give it: encoder without a head, tokenizer with it."""
    torch.manual_seed(seed)
    model = AutoModel.from_config(config(kind, **changes))
    model.save_pretrained(folder)
    return save_tokenizer(folder)


def save_classifier(folder: Path, labels, kind: str = "bert", *, seed: int = 0, **changes) -> Path:
    """A fine-tuned classifier as a user would bring it; `labels` a list of names, or a number for unnamed outputs."""
    torch.manual_seed(seed)
    names = {"num_labels": labels} if isinstance(labels, int) else {
        "id2label": dict(enumerate(labels)), "label2id": {n: i for i, n in enumerate(labels)}}
    model = AutoModelForSequenceClassification.from_config(config(kind, **names, **changes))
    torch.nn.init.normal_(output_layer(model).weight, std=0.5)
    model.save_pretrained(folder)
    return save_tokenizer(folder)


def classifier(kind: str = "bert", *, seed: int = 0, classes: int = 2, dropout: float = 0.0,
               attention: str = fast.ATTENTION, install: bool = True, **changes):
    """A tiny classifier in memory with large enough weights that its outputs differ between rows."""
    torch.manual_seed(seed)
    c = config(kind, dropout=dropout, num_labels=classes, **changes)
    model = AutoModelForSequenceClassification.from_config(c, attn_implementation=attention)
    return (fast.install(model) if install else model).eval()


def encoded(n: int = 24, *, seed: int = 0, classes: int = 2, low: int = 4, high: int = 14) -> batches.Encoded:
    """Made-up tokenised rows of mixed lengths. The class (or the target, `classes=1`) shows in the words."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(low, high + 1, n)
    labels = rng.integers(0, max(2, classes), n)
    ids = [[2, *(rng.integers(SIZE // 2, SIZE, length - 2)), 3] for length in lengths]
    for row, label in zip(ids, labels, strict=True):
        row[1] = SIZE - 1 - int(label)
    values = labels.astype(np.float32) + rng.normal(0, 0.1, n).astype(np.float32) if classes == 1 else labels
    inputs = {"input_ids": [[int(i) for i in row] for row in ids], "attention_mask": [[1] * len(row) for row in ids]}
    return batches.Encoded(inputs, np.asarray(values), lengths, np.arange(n), {"input_ids": 0})


def rows(n: int = 150, seed: int = 0) -> list[tuple[str, str, float]]:
    """(text, class, rating) of made-up reviews, every text different."""
    rng, out = np.random.default_rng(seed), {}
    while len(out) < n:
        good = bool(rng.integers(2))
        filler = list(rng.choice(FILLER, rng.integers(3, 12)))
        filler.insert(int(rng.integers(len(filler))), str(rng.choice(GOOD if good else BAD)))
        out[" ".join(filler)] = (("positive" if good else "negative"), round(float(rng.normal(2 if good else -2)), 3))
    return [(t, c, r) for t, (c, r) in out.items()]


def write_csv(path: Path, header, lines, sep: str = ",") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as f:
        w = csv.writer(f, delimiter=sep)
        w.writerow(header)
        w.writerows(lines)
    return path


def films(path: Path, n: int = 150, seed: int = 0) -> Path:
    """A two-class CSV file."""
    return write_csv(path, ("text", "label"), [(t, c) for t, c, _ in rows(n, seed)])


def ratings(path: Path, n: int = 150, seed: int = 0) -> Path:
    """A regression CSV file."""
    return write_csv(path, ("text", "label"), [(t, r) for t, _, r in rows(n, seed)])


def state(model) -> dict[str, torch.Tensor]:
    """A copy of everything that a model holds."""
    return {k: v.detach().clone() for k, v in model.state_dict().items()}


def same(a: dict, b: dict, names=None) -> bool:
    """Whether two states are bit-identical (NaN equal to NaN)."""
    names = a.keys() | b.keys() if names is None else names
    return all(torch.equal(a[k].view(-1), b[k].view(-1)) or
               (a[k].shape == b[k].shape and torch.equal(a[k].isnan(), b[k].isnan())
                and torch.equal(a[k].nan_to_num(), b[k].nan_to_num())) for k in names)


def record_without_times(record: dict) -> str:
    """A record as text without what depends on the clock, the place, the load, or who commits meanwhile."""
    record = json.loads(json.dumps(record))
    for k in ("created", "wall_seconds", "tokens_per_second", "peak_memory_mb", "command"):
        record.pop(k)
    for k in ("git_commit", "git_dirty"):
        record["environment"].pop(k)
    if record["teacher"]:
        record["teacher"].pop("seconds")
    for a in record["artefacts"]:
        a.pop("seconds")
    return json.dumps(record, sort_keys=True, indent=1)


def run(method: str, config_class, task: str, backbone: str, **changes):
    """A run of a method at the scale of the tests. Results and build must point to the test's own folder."""
    base = {"task": task, "backbone": backbone, "epochs": 1, "batch_size": 16, "precision": "fp32", "lr": 3e-3,
            "teacher_epochs": 1, "teacher_lr": 3e-3, "evaluations": 2, "max_rows": 64, "max_length": 32,
            "profile": "test"}
    return runs.start(method, parameters.validate(config_class, {**base, **changes}))


def finish(started: runs.Run, compress):
    """(student, record) of a started run that a method's `compress` takes to its end."""
    student, history = started.compress(compress)
    return student, started.finish(student, history)
