"""ONNX export of every architecture of the study, against PyTorch; int8 copies; what must be refused."""

from __future__ import annotations

import json

import pytest
import tiny
import torch
from transformers import AutoModel, AutoModelForSequenceClassification

from lib.efficiency import export, shapes

pytest.importorskip("onnxruntime")

KINDS = ("BERT, 3 layers", "DistilBERT", "MobileBERT", "MobileBERT-TINY", "IB-BERT-large", "EfficientBERT",
         "TrimBERT n=inf", "TrimBERT BANDD, n=2", "TrimBERT NoMLPLN")


def small(name: str, cls=AutoModel, attention: str = "sdpa"):
    """A system with two layers of small width and 60 words, its architecture otherwise untouched."""
    config = shapes.get(name).config()
    width = {"hidden_size": 32, "dim": 32, "num_attention_heads": 4, "n_heads": 4, "intermediate_size": 48,
             "hidden_dim": 48, "intra_bottleneck_size": 16, "embedding_size": 12, "true_hidden_size": 16,
             "num_hidden_layers": 2, "n_layers": 2, "vocab_size": 60, "ffn_size": 32, "num_labels": 3}
    values = config.to_dict()
    changed = {k: v for k, v in width.items() if k in values}
    if "ffns" in values:
        changed["ffns"] = config.ffns[:1] + config.ffns[4:5]  # one stacked, one with a binary operation
    if config.model_type in ("mobilebert", "ibbert"):
        changed["intermediate_size"] = 64
    torch.manual_seed(0)
    changed.pop("num_labels", None)
    made = type(config)(**{**values, **changed, "id2label": dict(enumerate("abc"))})
    model = cls.from_config(made, attn_implementation=attention).eval()
    for p in model.parameters():  # small initial weights would let a wrong graph pass
        if p.ndim > 1:
            torch.nn.init.normal_(p, std=0.2)
    return model


@pytest.mark.parametrize("name", KINDS)
def test_onnx_gives_what_torch_gives(name, tmp_path):
    model = small(name, AutoModelForSequenceClassification)
    path = tmp_path / "model.onnx"
    assert export.export(model, path) <= export.TOLERANCE
    assert export.SHAPES == ((1, 5), (1, 17), (3, 5), (3, 17))
    assert [o.name for o in export.session(path).get_outputs()] == ["logits"]
    # else one session's idle threads take the cores of the next in interleaved rounds
    options = export.session(path).get_session_options()
    assert options.get_session_config_entry("session.force_spinning_stop") == "1"
    # at a batch and a length that were not checked on export
    assert export.difference(model, path, [(5, 29)]) <= export.TOLERANCE
    assert model.config._attn_implementation == "sdpa"
    assert not model.training


def test_encoders_keep_both_outputs(tmp_path):
    model = small("BERT, 3 layers")
    export.export(model, tmp_path / "model.onnx")
    found = {o.name: o.shape for o in export.session(tmp_path / "model.onnx").get_outputs()}
    assert list(found) == ["last_hidden_state", "pooler_output"]
    assert found["last_hidden_state"][:2] == ["batch", "length"]


def test_the_check_sees_other_weights_and_padding(tmp_path):
    model = small("BERT, 3 layers")
    export.export(model, tmp_path / "model.onnx")
    other = small("BERT, 3 layers")
    with torch.no_grad():
        other.encoder.layer[1].output.dense.bias[0] += 0.5
    assert export.difference(other, tmp_path / "model.onnx") > 1e-3
    with torch.no_grad():
        other.embeddings.word_embeddings.weight.fill_(float("nan"))
    assert not export.difference(other, tmp_path / "model.onnx") <= export.TOLERANCE
    given = export.random_inputs(model, 3, 5)
    assert given["attention_mask"].tolist() == [[1] * 5, [1] * 4 + [0], [1] * 3 + [0] * 2]
    assert given["token_type_ids"].tolist() == [[0, 0, 1, 1, 1], [0, 0, 1, 1, 0], [0, 0, 1, 0, 0]]


def test_pairs_keep_their_token_types(tmp_path):
    """Without them an exported student of a pair task would take both sentences for one."""
    model = small("BERT, 3 layers", AutoModelForSequenceClassification)
    export.export(model, tmp_path / "model.onnx")
    runtime = export.session(tmp_path / "model.onnx", 1)
    assert [i.name for i in runtime.get_inputs()] == ["input_ids", "attention_mask", "token_type_ids"]
    given = export.random_inputs(model, 1, 9)
    pair, = runtime.run(None, export.feeds(runtime, given))
    single, = runtime.run(None, export.feeds(runtime, {**given, "token_type_ids": 0 * given["token_type_ids"]}))
    assert abs(pair - single).max() > 1e-3
    assert export.inputs_of(small("DistilBERT")) == ["input_ids", "attention_mask"]


class Lengths(torch.nn.Module):
    """A model whose trace is wrong: it takes the length that it was traced with for a constant."""

    def __init__(self):
        super().__init__()
        self.config = tiny.config()
        self.table = torch.nn.Embedding(tiny.SIZE, 3)

    def forward(self, input_ids, attention_mask):
        return {"logits": (self.table(input_ids) * attention_mask[..., None]).sum(1) / int(input_ids.shape[1])}


class Amplifier(Lengths):
    """A model whose float32 outputs are rounding for the most part: a small difference of large numbers."""

    def __init__(self, scale: float = 3e4):
        super().__init__()
        self.scale = scale

    def forward(self, input_ids, attention_mask):
        state = (self.table(input_ids) * attention_mask[..., None]).sum(1)
        return {"logits": (state + self.scale) / 3 * 3 - self.scale}


def test_rounding_of_the_network_itself_is_allowed_for(tmp_path):
    torch.manual_seed(0)
    model = Amplifier()
    assert export.rounding(model) > 3 * export.TOLERANCE
    export.export(model, tmp_path / "model.onnx")
    assert export.rounding(Lengths()) < 1e-6


def test_a_graph_that_differs_is_refused_and_removed(tmp_path):
    with pytest.raises(ValueError, match=r"model.onnx: outputs differ from PyTorch's by"):
        export.export(Lengths(), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_int8_is_smaller_and_near(tmp_path):
    model = small("BERT, 3 layers", AutoModelForSequenceClassification)
    path = tmp_path / "model.onnx"
    export.export(model, path)
    small_path = export.quantise(path, tmp_path / "model-int8.onnx")
    apart = export.difference(model, small_path)
    scale = model(**export.random_inputs(model, 3, 17)).logits.abs().max().item()
    assert 0 < apart < 0.5 * scale
    assert small_path.stat().st_size < 0.75 * path.stat().st_size


def test_the_command_exports_a_students_folder(tmp_path, capsys):
    folder = tiny.save_classifier(tmp_path / "student", ["no", "yes"])
    assert export.main([str(folder), str(tmp_path / "out")]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["largest difference to PyTorch"] <= export.TOLERANCE
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"model.onnx", "model-int8.onnx"}
    assert export.main(["/nowhere/student", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith("error: model '/nowhere/student': no such folder")
    assert export.main([]) == 2
