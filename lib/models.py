"""Backbones, teachers and students: load, save, reload."""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import logging
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)
from transformers.utils import logging as transformers_logging

from lib import distributed, e5, fast, hub, layers, spans
from lib.backbones import BACKBONES, HELP
from lib.data import package_folder
from lib.errors import InputError, shorten
from lib.paths import as_path
from lib.tasks import Task

METHODS = Path(__file__).parent / "methods"


def quiet() -> None:
    """No load reports of transformers: a fresh head on a backbone is expected. Errors stay."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)


def resolve(name: str, what: str = "backbone") -> str:
    """Folder or hub id behind a name. `InputError` for a folder that holds no model that may be opened."""
    source = BACKBONES.get(name, name)
    if name in BACKBONES and ":" in source:
        package, inner = source.split(":", 1)
        if inner.endswith(".bin"):
            return str(e5.folder())
        return str(package_folder(package) / inner)
    folder = as_path(name, what) if source == name else Path(source)
    if folder.is_dir():
        if not (folder / "config.json").exists():
            raise InputError(f"{what} {name}: the folder has no config.json; {HELP}")
        if not any(folder.glob("*.safetensors")):
            pickled = [p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl")]
            reason = f"only {pickled[0]}, a pickle, which can run code when opened" if pickled else "no weights"
            raise InputError(f"{what} {name}: the folder has {reason}; *.safetensors is needed")
        return str(folder)
    if folder.exists():
        raise InputError(f"{what} {name}: is a file; {HELP}")
    if source.startswith((".", "/", "~")) or source.count("/") > 1 or not source.strip():
        raise InputError(f"{what} {shorten(name)}: no such folder; {HELP}")
    return source


def content_hash(source: str) -> str:
    """Identity of a model: hash of configuration and weights of a folder; id and commit for one on the hub."""
    folder = Path(source)
    if not folder.is_dir():
        # the commit that the id stands for today; None where the library does not know it
        return f"{source}@{getattr(configuration(source), '_commit_hash', None)}"
    digest = hashlib.sha256()
    for path in sorted([folder / "config.json", *folder.glob("*.safetensors")]):
        digest.update(path.name.encode())
        with open(path, "rb") as f:
            while chunk := f.read(1 << 22):
                digest.update(chunk)
    return digest.hexdigest()[:16]


@functools.cache
def backbone_hash(name: str) -> str:
    """`content_hash` of a backbone by its name, computed once a process."""
    return content_hash(resolve(name))


def _register_own(folder: Path) -> None:
    """Import the modelling file of an architecture of the study's own, which registers it with transformers.

    `lib/methods/<model_type>_model.py`; a modelling file that lies in the folder itself is never run.
    """
    try:
        kind = json.loads((folder / "config.json").read_text()).get("model_type", "")
    except (OSError, ValueError, AttributeError):
        return  # what is wrong with it the library says
    if isinstance(kind, str) and kind.isidentifier() and (METHODS / f"{kind}_model.py").exists():
        importlib.import_module(f"lib.methods.{kind}_model")


def _load(cls, source: str, what: str, name: str, **arguments):
    """`cls.from_pretrained`, its many kinds of errors as one line that says what would serve."""
    quiet()
    if not Path(source).is_dir():
        hub.reachable()
    _register_own(Path(source))
    try:
        return cls.from_pretrained(source, trust_remote_code=False, **arguments)
    except Exception as e:  # noqa: BLE001 - the library raises OSError, ValueError, KeyError, its own and safetensors'
        reason = " ".join(str(e).split())
        if not Path(source).is_dir():
            raise InputError(f"{what} {name}: cannot be had from the Hugging Face hub ({shorten(reason, 160)}); "
                             f"a local folder with config.json, tokenizer and *.safetensors would serve; {HELP}") from e
        raise InputError(f"{what} {name}: cannot be opened ({shorten(reason, 200)})") from e


def configuration(name: str, what: str = "backbone"):
    """The transformers configuration of a backbone or teacher. `InputError` where there is none."""
    return _load(AutoConfig, resolve(name, what), what, name)


def load_tokenizer(name: str, what: str = "backbone"):
    """Tokenizer of a backbone. `InputError` where it has none, an empty one, or one without padding.

    Its `model_max_length` is never more than the positions that the model has.
    """
    source = resolve(name, what)
    tokenizer = _load(AutoTokenizer, source, what, name)
    # For a folder without tokenizer files transformers 5 makes one of five special tokens: every word is unknown.
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise InputError(f"{what} {name}: it holds no tokenizer (tokenizer.json or a vocabulary file is needed)")
    if tokenizer.pad_token_id is None:
        raise InputError(f"{what} {name}: its tokenizer has no padding token")
    positions = getattr(configuration(name, what), "max_position_embeddings", None)
    if positions and tokenizer.model_max_length > positions:
        tokenizer.model_max_length = positions - 2  # RoBERTa's kin keep two positions for themselves
    return tokenizer


def names(task: Task) -> dict:
    """Configuration fields of the output layer for a task: label names, one regression output, or two for spans."""
    if task.span:
        return {"num_labels": 2}
    if task.regression:
        return {"num_labels": 1, "problem_type": "regression"}
    return {"num_labels": task.classes, "problem_type": "single_label_classification",
            "id2label": dict(enumerate(task.labels)), "label2id": {n: i for i, n in enumerate(task.labels)}}


def _head_for(task: Task):
    return AutoModelForQuestionAnswering if task.span else AutoModelForSequenceClassification


def _installed(model: nn.Module, task: Task) -> nn.Module:
    return fast.install(spans.install(model) if task.span else model)


def load_backbone(name: str, task: Task, seed: int) -> nn.Module:
    """The pre-trained encoder with a fresh head for `task`, drawn from `seed`. float32, study attention and dropout."""
    source = resolve(name)
    torch.manual_seed(seed)
    model, report = _load(_head_for(task), source, "backbone", name, use_safetensors=True, dtype=torch.float32,
                          attn_implementation=attention_for(source, name),
                          ignore_mismatched_sizes=True, output_loading_info=True, **names(task))
    _refuse_partial(report, model.base_model_prefix + ".", name)
    _refuse_decoder(model, f"backbone {name}")
    layers.fresh_head(model)  # a folder that is itself a classifier brings a head along; a backbone's is always fresh
    return _installed(model, task)


def load_encoder(name: str) -> nn.Module:
    """The pre-trained encoder without a task head, float32, study attention; a missing pooler is drawn from seed 0."""
    source = resolve(name)
    torch.manual_seed(0)
    model, report = _load(AutoModel, source, "backbone", name, use_safetensors=True, dtype=torch.float32,
                          attn_implementation=attention_for(source, name), output_loading_info=True)
    _refuse_partial(report, "", name)
    _refuse_decoder(model, f"backbone {name}")
    return fast.install(model)


def load_any(name: str, what: str = "model", attention: str = "eager") -> nn.Module:
    """Whatever model a folder or hub id holds, unchanged: its classifier if it is one, else the encoder. float32.

    Raises `InputError` where it cannot be opened, or where its weights do not fit its configuration.
    """
    source = resolve(name, what)
    config = _load(AutoConfig, source, what, name)
    classifier = any(a.endswith("ForSequenceClassification") for a in config.architectures or [])
    model, report = _load(AutoModelForSequenceClassification if classifier else AutoModel, source, what, name,
                          use_safetensors=True, dtype=torch.float32, attn_implementation=attention,
                          output_loading_info=True)
    _refuse_partial(report, "", name, what)
    return model.eval()


def load_masked_lm(name: str) -> tuple[nn.Module, set[str]]:
    """The backbone as transformers' masked language model, and the names of the weights that its checkpoint lacks."""
    model, info = _load(AutoModelForMaskedLM, resolve(name), "backbone", name, use_safetensors=True,
                        dtype=torch.float32, output_loading_info=True)
    return model, set(info["missing_keys"])


def _not_loaded(report: dict) -> list[str]:
    """Names of the parameters that `from_pretrained` drew at random."""
    return sorted({*report["missing_keys"], *(k[0] if isinstance(k, tuple) else k for k in report["mismatched_keys"])})


def _refuse_partial(report: dict, inside: str, name: str, what: str = "backbone") -> None:
    """`InputError` where encoder tensors, whose names begin with `inside`, were not in the checkpoint.

    transformers draws what it does not find at random, and only warns. A head and a pooler may be new, the rest not.
    """
    lacking = [k for k in _not_loaded(report) if k.startswith(inside) and "pooler" not in k]
    if lacking:
        raise InputError(f"{what} {name}: its weights do not fit its config.json: {len(lacking)} encoder tensors are "
                         f"missing or of another shape, such as {lacking[0]}")


def _refuse_decoder(model: nn.Module, what: str) -> None:
    """`InputError` for a model with causal attention: the study's attention is an encoder's."""
    if any(getattr(m, "is_causal", False) for m in model.modules()):
        raise InputError(f"{what}: {model.config.model_type} is a decoder (causal attention); an encoder is needed")


def check_tokens(name: str, size: int, sets) -> None:
    """`InputError` where a row holds a token that the backbone has no embedding for. `size`: of its tokenizer."""
    vocabulary = getattr(configuration(name), "vocab_size", size)
    if size > vocabulary:
        highest = max(max(row) for data in sets for row in data.inputs["input_ids"])
        if highest >= vocabulary:
            raise InputError(f"backbone {name}: its tokenizer gives token {highest}, it has {vocabulary} embeddings")


def depth(name: str) -> int:
    """Number of encoder layers of a backbone or teacher, from its configuration alone."""
    return configuration(name).num_hidden_layers


def width(name: str) -> int:
    """Width of the hidden states of a backbone or teacher, from its configuration alone."""
    return configuration(name).hidden_size


def attention_for(source: str, name: str = "", what: str = "backbone") -> str:
    """The study's attention where the architecture takes one from outside, else "eager"."""
    config = _load(AutoConfig, source, what, name or source)
    from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING as MAPPING

    cls = MAPPING.get(type(config), None)
    if cls is None:
        raise InputError(f"{what} {name or source}: {config.model_type} has no sequence classifier in transformers")
    # The study's attention has one key head a query head; grouped ones (EuroBERT's kin) go the library's way
    grouped = getattr(config, "num_key_value_heads", None) not in (None, getattr(config, "num_attention_heads", None))
    able = getattr(cls, "_supports_attention_backend", False) and cls._supports_sdpa and not grouped
    return fast.ATTENTION if able else "eager"


def load_classifier(folder: str, task: Task, what: str = "teacher") -> nn.Module:
    """A fine-tuned classifier for `task`; classes are matched by name and the head's rows put into the task's order.

    Raises `InputError` where its classes are not the task's.
    """
    source = resolve(folder, what)
    model, report = _load(_head_for(task), source, what, folder, use_safetensors=True, dtype=torch.float32,
                          attn_implementation=attention_for(source, folder, what),
                          output_loading_info=True)
    lacking = _not_loaded(report)
    if lacking:
        raise InputError(f"{what} {folder}: is no fine-tuned classifier: {len(lacking)} of its tensors are missing "
                         f"or of another shape, such as {lacking[0]}")
    _refuse_decoder(model, f"{what} {folder}")
    width = model.config.num_labels
    if width != task.classes:
        raise InputError(f"{what} {folder}: has {width} outputs, task {task.name} needs {task.classes}")
    if not (task.regression or task.span):
        match_labels(model, task, f"{what} {folder}")
    return _installed(model, task)


def match_labels(model: nn.Module, task: Task, what: str) -> None:
    """Reorder the output layer in place so that output i is the task's class i; names decide, not positions."""
    theirs = [str(model.config.id2label[i]) for i in range(task.classes)]
    generic = all(n == f"LABEL_{i}" for i, n in enumerate(theirs))
    if generic or theirs == list(task.labels):
        if generic:
            print(f"{what}: its classes have no names; they are taken in the task's order ({', '.join(task.labels)})")
        model.config.id2label, model.config.label2id = names(task)["id2label"], names(task)["label2id"]
        return
    exact = set(theirs) == set(task.labels)  # capitals count only where they must, to tell two classes apart
    have, want = ([n if exact else n.lower() for n in names_] for names_ in (theirs, task.labels))
    order = [have.index(n) if n in have else -1 for n in want]
    if -1 in order or len(set(order)) != len(order):
        raise InputError(f"{what}: its classes ({', '.join(theirs[:10])}) are not those of task {task.name} "
                         f"({', '.join(task.labels[:10])})")
    head = layers.output_layer(model)
    with torch.no_grad():
        head.weight.copy_(head.weight[order].clone())
        if head.bias is not None:
            head.bias.copy_(head.bias[order].clone())
    model.config.id2label, model.config.label2id = names(task)["id2label"], names(task)["label2id"]


def count_parameters(model: nn.Module) -> tuple[int, int]:
    """(all parameters, those outside the embedding tables of words, positions and token types)."""
    total = sum(p.numel() for p in model.parameters())
    tables = {id(m.weight): m.weight.numel() for m in model.modules() if isinstance(m, nn.Embedding)}
    return total, total - sum(tables.values())


def check_output(folder: Path) -> None:
    """`InputError` where a student could not be left in `folder`. Asked before training, too."""
    try:
        occupied = folder.exists() and any(folder.iterdir()) and not (folder / "config.json").exists()
    except OSError as e:
        raise InputError(f"output {folder}: is no folder that can be used ({e.strerror or e})") from e
    if occupied:
        raise InputError(f"output {folder}: the folder is not empty and holds no model; choose another")


def save_student(model: nn.Module, tokenizer, folder: Path) -> None:
    """Leave an ordinary Hugging Face folder: configuration, safetensors, tokenizer. Checked by loading it back.

    Raises `InputError` where the folder holds something that is no model. Of several processes the main one does it.
    """
    if not distributed.main():  # transformers itself saves nothing in the others
        return
    folder = Path(folder)
    check_output(folder)
    try:
        model.save_pretrained(folder, safe_serialization=True)
        tokenizer.save_pretrained(folder)
    except (OSError, SafetensorError) as e:
        raise InputError(f"output {folder}: cannot be written ({getattr(e, 'strerror', None) or e})") from e
    json.loads((folder / "config.json").read_text())  # half a file would show here, not at the user's
