"""Backbones, teachers, students: what is opened, what is refused, and that a student is an ordinary model."""

from __future__ import annotations

import json
import shutil
import time

import datasets
import pytest
import tiny
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from transformers import (
    AlbertConfig,
    AlbertModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    EuroBertConfig,
    GPT2Config,
    GPT2Model,
)

from lib import backbones, fast, hub, layers, models
from lib.errors import InputError
from lib.paths import component


def changed(folder, source, **values):
    """A copy of a model folder with other values in its config.json."""
    shutil.copytree(source, folder)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | values))
    return str(folder)


def refused(action, *words: str) -> str:
    with pytest.raises(InputError) as e:
        action()
    text = str(e.value)
    assert "\n" not in text
    for w in words:
        assert w in text
    return text


# --- what is opened


@pytest.mark.parametrize("kind", [*tiny.KINDS, "modernbert"])
def test_backbone_keeps_its_encoder_and_gets_a_fresh_head(encoder, kind):
    a, b, c = (models.load_backbone(encoder(kind), tiny.TRIPLE, seed) for seed in (0, 0, 1))
    stored = load_file(f"{encoder(kind)}/model.safetensors")
    inner = tiny.state(a.base_model)
    # what the classifier keeps of the encoder is the stored weights (RoBERTa and others drop the pooler)
    assert len(inner.keys() & stored.keys()) > 20
    assert all(torch.equal(inner[k], stored[k]) for k in inner.keys() & stored.keys())
    assert {k for k in inner if k not in stored and "pooler" not in k} == set()
    assert tiny.same(tiny.state(a), tiny.state(b))
    assert not torch.equal(layers.output_layer(a).weight, layers.output_layer(c).weight)
    assert layers.output_layer(a).weight.shape == (3, tiny.WIDTH)
    assert torch.count_nonzero(layers.output_layer(a).bias) == 0
    assert a.dtype == torch.float32
    assert a.config.id2label == {0: "a", 1: "b", 2: "c"}


def test_a_classifier_as_backbone_brings_no_head_along(tmp_path):
    folder = tiny.save_classifier(tmp_path / "done", ["positive", "negative"])
    model = models.load_backbone(str(folder), tiny.FILMS, 0)
    other = models.load_classifier(str(folder), tiny.FILMS)
    assert not torch.equal(layers.output_layer(model).weight, layers.output_layer(other).weight)
    assert layers.output_layer(model).weight.std() < 0.35  # the initialiser's deviation 0.2, not the stored head's 0.5
    wide = models.load_backbone(str(folder), tiny.TRIPLE, 0)
    assert layers.output_layer(wide).out_features == 3


def test_regression_backbone_has_one_output(backbone):
    model = models.load_backbone(backbone, tiny.RATING, 0)
    assert (model.config.num_labels, model.config.problem_type) == (1, "regression")
    assert layers.output_layer(model).out_features == 1


def test_content_hash_sees_weights_and_configuration(backbone, tmp_path):
    first = models.content_hash(backbone)
    copy = tmp_path / "copy"
    shutil.copytree(backbone, copy)
    assert models.content_hash(str(copy)) == first
    assert models.content_hash(changed(tmp_path / "b", backbone, layer_norm_eps=1e-5)) != first
    weights = load_file(copy / "model.safetensors")
    weights["embeddings.word_embeddings.weight"][0, 0] += 1e-3
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    assert models.content_hash(str(copy)) != first


def test_counts_parameters_and_leaves_embedding_tables_out():
    model = tiny.classifier()
    total, bare = models.count_parameters(model)
    w, n = tiny.WIDTH, tiny.LAYERS
    tables = (tiny.SIZE + tiny.POSITIONS + 2) * w
    layer = 4 * (w * w + w) + (w * 2 * w + 2 * w) + (2 * w * w + w) + 4 * w  # attention, feed-forward, two LayerNorms
    assert bare == n * layer + 2 * w + (w * w + w) + (2 * w + 2)  # layers, embedding LayerNorm, pooler, head
    assert total == bare + tables


# --- the student that is left


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_saved_student_opens_anywhere_with_equal_logits(encoder, kind, tmp_path):
    model = layers.cut(models.load_backbone(encoder(kind), tiny.TRIPLE, 3), [0, 2]).eval()
    tokenizer = models.load_tokenizer(encoder(kind))
    models.save_student(model, tokenizer, tmp_path / "student")
    again, report = AutoModelForSequenceClassification.from_pretrained(tmp_path / "student", output_loading_info=True)
    assert all(len(v) == 0 for v in report.values()), report
    assert again.config.num_hidden_layers == 2
    assert (again.config.id2label, again.config.label2id) == ({0: "a", 1: "b", 2: "c"}, {"a": 0, "b": 1, "c": 2})
    inputs = AutoTokenizer.from_pretrained(tmp_path / "student")(
        ["a good film", "bad", "the plot is not very good but long"], padding=True, return_tensors="pt")
    assert inputs["input_ids"].tolist() == tokenizer(
        ["a good film", "bad", "the plot is not very good but long"], padding=True)["input_ids"]
    with torch.no_grad():
        theirs = again.eval()(**inputs).logits
        ours = layers.classify(model, inputs)
    assert theirs.std() > 0
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-5)
    assert tiny.same(tiny.state(again), tiny.state(model))
    assert "study" not in (tmp_path / "student" / "config.json").read_text()
    again = models.load_classifier(str(tmp_path / "student"), tiny.TRIPLE)
    with torch.no_grad():
        torch.testing.assert_close(layers.classify(again.eval(), inputs), ours, atol=1e-6, rtol=1e-6)


def test_student_does_not_go_over_something_else(backbone, tmp_path):
    model, tokenizer = models.load_backbone(backbone, tiny.FILMS, 0), models.load_tokenizer(backbone)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    refused(lambda: models.save_student(model, tokenizer, tmp_path / "mine"), "output", "not empty")
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.tex"]
    (tmp_path / "file").write_text("x")
    refused(lambda: models.save_student(model, tokenizer, tmp_path / "file"), "output")
    refused(lambda: models.save_student(model, tokenizer, tmp_path / "file" / "below"), "output", "cannot be written")
    models.save_student(model, tokenizer, tmp_path / "again")
    models.save_student(model, tokenizer, tmp_path / "again")  # a model of before is replaced


# --- label order


def head_rows(folder, task):
    model = models.load_classifier(str(folder), task)
    return layers.output_layer(model), model.config


def test_classes_of_a_teacher_are_matched_by_name(tmp_path):
    plain = tiny.save_classifier(tmp_path / "abc", ["a", "b", "c"])
    head, _ = head_rows(plain, tiny.TRIPLE)
    stored = load_file(plain / "model.safetensors")
    assert torch.equal(head.weight, stored["classifier.weight"])
    mixed = tiny.save_classifier(tmp_path / "cAb", ["c", "A", "b"])
    with torch.no_grad():
        weights = load_file(mixed / "model.safetensors")
        weights["classifier.bias"] = torch.tensor([30.0, 10.0, 20.0])
        save_file(weights, mixed / "model.safetensors", metadata={"format": "pt"})
    head, config = head_rows(mixed, tiny.TRIPLE)
    assert head.bias.tolist() == [10.0, 20.0, 30.0]
    assert torch.equal(head.weight, weights["classifier.weight"][[1, 2, 0]])
    assert (config.id2label, config.label2id) == ({0: "a", 1: "b", 2: "c"}, {"a": 0, "b": 1, "c": 2})


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_answers_stay_the_same_under_their_names(kind, tmp_path):
    folder = tiny.save_classifier(tmp_path / kind, ["c", "a", "b"], kind)
    plain = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    ours = models.load_classifier(str(folder), tiny.TRIPLE).eval()
    inputs = tiny.tokenizer()(["good film", "the plot was awful"], padding=True, return_tensors="pt")
    if kind in ("roberta", "distilbert"):
        inputs.pop("token_type_ids")
    with torch.no_grad():
        torch.testing.assert_close(layers.classify(ours, inputs), plain(**inputs).logits[:, [1, 2, 0]],
                                   atol=1e-5, rtol=1e-5)


def test_classes_that_differ_in_capitals_only_are_told_apart(tmp_path):
    task = tiny.Task("caps", ("text",), "label", ("A", "a"), ("accuracy",), source="own")
    folder = tiny.save_classifier(tmp_path / "caps", ["a", "A"])
    head, _ = head_rows(folder, task)
    assert torch.equal(head.weight, load_file(folder / "model.safetensors")["classifier.weight"].flip(0))


def test_unnamed_classes_are_taken_in_order_and_it_is_said(tmp_path, capsys):
    folder = tiny.save_classifier(tmp_path / "plain", 2)
    head, config = head_rows(folder, tiny.FILMS)
    assert torch.equal(head.weight, load_file(folder / "model.safetensors")["classifier.weight"])
    assert "no names" in capsys.readouterr().out
    assert config.id2label == {0: "negative", 1: "positive"}


@pytest.mark.parametrize(("labels", "words"), [
    (["a", "b", "c"], ("3 outputs", "needs 2")),
    (["spam", "ham"], ("spam, ham", "negative, positive")),
    (["positive", "Positive"], ("not those",)),
    (["LABEL_0", "positive"], ("not those",)),
])
def test_teacher_of_other_classes_is_refused(tmp_path, labels, words):
    folder = tiny.save_classifier(tmp_path / "teacher", labels)
    refused(lambda: models.load_classifier(str(folder), tiny.FILMS), "teacher", str(folder), *words)


def test_teacher_for_regression_needs_one_output(tmp_path):
    folder = tiny.save_classifier(tmp_path / "teacher", 2)
    refused(lambda: models.load_classifier(str(folder), tiny.RATING), "2 outputs", "needs 1")


# --- what is refused: nothing random may pass for a model


def test_folder_without_weights_and_pickles(backbone, tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    refused(lambda: models.load_backbone(str(folder), tiny.FILMS, 0), "backbone", str(folder), "config.json")
    shutil.copy(f"{backbone}/config.json", folder)
    refused(lambda: models.load_backbone(str(folder), tiny.FILMS, 0), "no weights", "safetensors")
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    refused(lambda: models.load_backbone(str(folder), tiny.FILMS, 0), "pickle", "pytorch_model.bin")
    refused(lambda: models.load_backbone(f"{backbone}/config.json", tiny.FILMS, 0), "is a file")


@pytest.mark.parametrize("name", ["/nowhere/at/all", "./nothing", "~/nothing-here", "a/b/c", " "])
def test_paths_that_do_not_exist_are_not_sent_to_the_hub(name):
    refused(lambda: models.resolve(name), "backbone", "no such folder", "allowed")


@pytest.mark.parametrize("name", ["x" * 5000, "bert\0", "a:b", "a.b:c"])
def test_names_that_are_no_names(name):
    assert len(refused(lambda: models.load_backbone(name, tiny.FILMS, 0), "backbone")) < 6000


def test_weights_of_another_model_are_not_replaced_by_random_ones(backbone, encoder, tmp_path):
    folder = tmp_path / "odd"
    shutil.copytree(backbone, folder)
    save_file({"something.else": torch.zeros(3)}, folder / "model.safetensors", metadata={"format": "pt"})
    refused(lambda: models.load_backbone(str(folder), tiny.FILMS, 0), "do not fit", "missing")
    wide = changed(tmp_path / "wide", backbone, hidden_size=64)
    refused(lambda: models.load_backbone(wide, tiny.FILMS, 0), "do not fit", "another shape")
    deep = changed(tmp_path / "deep", backbone, num_hidden_layers=6)
    refused(lambda: models.load_backbone(deep, tiny.FILMS, 0), "do not fit", "layer.4")


def test_backbone_without_pooler_is_whole(backbone, tmp_path):
    folder = tmp_path / "nopooler"  # as left by a masked-language model
    shutil.copytree(backbone, folder)
    weights = {k: v for k, v in load_file(folder / "model.safetensors").items() if "pooler" not in k}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    a, b = (models.load_backbone(str(folder), tiny.FILMS, 5) for _ in range(2))
    assert tiny.same(tiny.state(a), tiny.state(b))


def test_half_a_weight_file(backbone, tmp_path):
    folder = tmp_path / "half"
    shutil.copytree(backbone, folder)
    data = (folder / "model.safetensors").read_bytes()
    for kept in (0, 4, 2000, len(data) // 2):
        (folder / "model.safetensors").write_bytes(data[:kept])
        refused(lambda: models.load_backbone(str(folder), tiny.FILMS, 0), "cannot be opened")


def test_headless_backbone_is_no_teacher(backbone):
    refused(lambda: models.load_classifier(backbone, tiny.FILMS), "no fine-tuned classifier", "classifier.bias")


def test_config_that_is_no_model(backbone, tmp_path):
    folder = changed(tmp_path / "strange", backbone, model_type="nonsense")
    refused(lambda: models.load_backbone(folder, tiny.FILMS, 0), "cannot be opened", "nonsense")
    folder = changed(tmp_path / "picture", backbone, model_type="vit")
    refused(lambda: models.load_backbone(folder, tiny.FILMS, 0), "backbone")
    (tmp_path / "picture" / "config.json").write_text("{")
    refused(lambda: models.load_backbone(folder, tiny.FILMS, 0), "cannot be opened")


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
def test_folder_without_tokenizer(encoder, kind, tmp_path):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(f"{encoder(kind)}/{name}", tmp_path)
    refused(lambda: models.load_tokenizer(str(tmp_path)), "tokenizer")


def test_tokenizer_without_padding(backbone, tmp_path):
    folder = tmp_path / "nopad"
    shutil.copytree(backbone, folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    refused(lambda: models.load_tokenizer(str(folder)), "no padding token")


def test_tokenizer_gives_no_more_tokens_than_the_model_has_positions(backbone, tmp_path):
    assert models.load_tokenizer(backbone).model_max_length == tiny.POSITIONS
    folder = tmp_path / "endless"
    shutil.copytree(backbone, folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("model_max_length")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert models.load_tokenizer(str(folder)).model_max_length <= tiny.POSITIONS


def test_a_decoder_is_refused(tmp_path):
    settings = GPT2Config(vocab_size=tiny.SIZE, n_positions=64, n_embd=32, n_layer=2, n_head=2, pad_token_id=0,
                          bos_token_id=2, eos_token_id=3)
    GPT2Model(settings).save_pretrained(tmp_path)
    tiny.save_tokenizer(tmp_path)
    refused(lambda: models.load_backbone(str(tmp_path), tiny.FILMS, 0), "gpt2", "decoder")


def test_layers_that_do_not_stand_in_a_list_are_named(tmp_path):
    AlbertModel(AlbertConfig(vocab_size=tiny.SIZE, embedding_size=16, hidden_size=32, num_attention_heads=2,
                             num_hidden_layers=4, intermediate_size=32, pad_token_id=0)).save_pretrained(tmp_path)
    model = models.load_backbone(str(tmp_path), tiny.FILMS, 0)
    refused(lambda: layers.encoder_layers(model), "AlbertForSequenceClassification", "list")


# --- the hub


def test_without_the_hub_a_folder_that_would_serve_is_named():
    for action in (lambda: models.load_tokenizer("bert-base"),
                   lambda: models.load_backbone("some/model", tiny.FILMS, 0)):
        refused(action, "backbone", "hub", "a local folder with config.json, tokenizer and *.safetensors would serve")


def test_a_hub_that_does_not_answer_is_found_out_at_once(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    hub.reachable.cache_clear()
    began = time.perf_counter()
    try:
        refused(lambda: models.load_backbone("bert-base", tiny.FILMS, 0), "bert-base", "hub")
        assert constants.HF_HUB_OFFLINE
        assert datasets.config.HF_HUB_OFFLINE
    finally:
        hub.reachable.cache_clear()
    assert time.perf_counter() - began < 10


def test_data_package_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(backbones.BACKBONES, "gone", "no_such_package:model")
    refused(lambda: models.load_backbone("gone", tiny.FILMS, 0), "no_such_package", "make setup")


@pytest.mark.parametrize(("name", "label"), [
    ("minilm-l6", "minilm-l6"), ("bert-base", "bert-base"), ("google/electra-small", "google-electra-small"),
    ("../../not/there", "not-there"), ("/nowhere/my model", "nowhere-my-model"), ("..", "unnamed"), ("_x", "x"),
])
def test_label_of_a_backbone_is_one_component(name, label):
    assert component("backbone", backbones.label(name)) == label


def test_a_folder_cannot_pass_for_a_declared_backbone(tmp_path):
    (tmp_path / "minilm-l6").mkdir()
    assert backbones.label(str(tmp_path / "minilm-l6")) == "own-minilm-l6"


def test_the_study_attention_is_taken_where_it_can_be(encoder):
    for kind in tiny.KINDS:
        assert models.attention_for(encoder(kind)) == fast.ATTENTION


def test_grouped_key_heads_go_the_librarys_way(tmp_path):
    EuroBertConfig(vocab_size=tiny.SIZE, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                   num_key_value_heads=2).save_pretrained(tmp_path)
    assert models.attention_for(str(tmp_path)) == "eager"


def test_the_default_backbone_answers_as_the_library_does():
    """The real one, where its package is installed: 6 layers, width 384, 22.7M parameters."""
    try:
        source = models.resolve("minilm-l6")
    except InputError as e:
        pytest.skip(str(e))
    ours = models.load_backbone("minilm-l6", tiny.FILMS, 0).eval()
    assert (len(layers.encoder_layers(ours)), ours.config.hidden_size) == (6, 384)
    assert abs(ours.base_model.num_parameters() / 1e6 - 22.7) < 0.05
    plain = AutoModelForSequenceClassification.from_pretrained(source, num_labels=2, attn_implementation="eager").eval()
    plain.load_state_dict(ours.state_dict())
    inputs = models.load_tokenizer("minilm-l6")(["A good film.", "Not at all what we had hoped for, but quite long."],
                                                padding=True, return_tensors="pt")
    with torch.no_grad():
        torch.testing.assert_close(layers.classify(ours, inputs), plain(**inputs).logits, atol=1e-5, rtol=1e-5)
