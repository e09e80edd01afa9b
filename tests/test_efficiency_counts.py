"""Counting: hand-computed layers, the printed numbers of every paper, and the committed sizes."""

from __future__ import annotations

import pandas as pd
import pytest
import tiny
import torch
from transformers import AutoModelForSequenceClassification, BertConfig, DistilBertConfig

from lib.efficiency import block, counts, match, shapes
from lib.efficiency import run as efficiency_run
from lib.errors import InputError
from lib.paths import ROOT
from lib.reporting import efficiency_counts
from lib.reporting.reported import load

H, F, V, P = 16, 48, 50, 40


def small(layers: int = 1, **changes) -> BertConfig:
    return BertConfig(vocab_size=V, hidden_size=H, num_hidden_layers=layers, num_attention_heads=2,
                      intermediate_size=F, max_position_embeddings=P, **changes)


def hand(batch: int, length: int) -> int:
    """FLOPs of one such layer: four H x H maps, two products of T x T, two H x F maps; a multiply-add is two."""
    tokens = batch * length
    return 2 * (4 * tokens * H * H + 2 * batch * length * length * H + 2 * tokens * H * F)


@pytest.mark.parametrize(("batch", "length"), [(1, 7), (3, 7), (2, 40)])
def test_flops_of_layers_are_those_counted_by_hand(batch, length):
    pooler = 2 * batch * H * H
    assert counts.flops(small(1), batch, length) == hand(batch, length) + pooler
    assert counts.flops(small(3), batch, length) == 3 * hand(batch, length) + pooler


def test_flops_by_module_add_up_and_name_attention_and_ffn():
    found = counts.flops_by_module(counts.skeleton(small(2)), 1, 8)
    layer = "BertModel.encoder.layer.1."
    assert found[layer + "attention"] == 2 * (4 * 8 * H * H + 2 * 8 * 8 * H)
    assert found[layer + "intermediate"] + found[layer + "output"] == 2 * 2 * 8 * H * F
    assert found["Global"] == found["BertModel"] == 2 * hand(1, 8) + 2 * H * H


def test_flops_refuse_what_would_count_wrong():
    with pytest.raises(InputError, match="length: 41 is more than the model's 40 positions"):
        counts.flops(small(), 1, 41)
    real = tiny.classifier(attention="sdpa", install=False)
    with pytest.raises(ValueError, match="'sdpa'"):
        counts.flops_by_module(real, 1, 8)


def test_parameters_by_part_are_the_hand_count_and_the_real_models():
    layer = 4 * (H * H + H) + 2 * H + (H * F + F) + (F * H + H) + 2 * H
    tables, pooler = (V + P + 2) * H, H * H + H
    c = counts.counts(small(2))
    assert (c.parameters, c.embeddings, c.pooler) == (tables + 2 * H + 2 * layer + pooler, tables, pooler)
    assert c.without_pooler == c.parameters - pooler
    assert c.without_embeddings == c.parameters - tables
    # heads of pre-training: a dense layer with LayerNorm, a bias for each word (the matrix is tied), next sentence
    assert c.pretraining == c.parameters + (H * H + H) + 2 * H + V + 2 * H + 2
    assert c.file_mb == 4 * c.parameters / 1e6
    matrices = 2 * (4 * H * H + 2 * H * F) + H * H
    assert c.bytes_int8 == matrices + tables + 4 * (c.parameters - matrices - tables)
    torch.manual_seed(0)
    real = AutoModelForSequenceClassification.from_config(small(2)).bert
    assert c.parameters == sum(p.numel() for p in real.parameters())


def test_a_model_without_pooler_has_none():
    c = counts.counts(DistilBertConfig(vocab_size=V, dim=H, n_layers=1, n_heads=2, hidden_dim=F))
    assert c.pooler == 0


def test_a_skeleton_takes_no_memory_and_leaves_the_configuration_alone():
    config = small()
    config._attn_implementation = "sdpa"
    model = counts.skeleton(config)
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert config._attn_implementation == "sdpa"


@pytest.mark.parametrize(("printed", "ours", "says"), [
    ("66", 66.36, "rounded"), ("66", 66.96, "cut off"), ("66", 67.0, ""), ("66", 65.4, ""), ("66", 65.6, "rounded"),
    ("14.5", 14.48, "rounded"), ("14.5", 14.35, ""), ("15.74", 15.737, "rounded"), ("15.74", 15.73, ""),
    ("15.74", 15.748, "cut off"), (">2", 2.07, "rounded"), (">2", 1.99, ""), ("<2", 1.99, "rounded"), ("<2", 2.0, ""),
    ("2-3", 1.96, "rounded"), ("2-3", 1.4, ""), ("2-3", 3.6, ""), ("0", 0.0003, "rounded"), ("22.5", 22.45, "rounded"),
])
def test_agreement(printed, ours, says):
    assert match.agreement(printed, ours) == says


# Printed numbers that no way of counting gives; the page says why, as far as it is known.
NOT_MET = {
    ("theseus", "TinyBERT4", "15"), ("bert", "BERT-large", "340"), ("tinybert", "BERT-SMALL", "29.2"),
    ("tinybert", "MobileBERT-TINY", "15.1"), ("mobilebert", "MobileBERT-TINY", "15.1"),
    ("efficientbert", "MobileBERT-TINY", "15.1"), ("mobilebert", "MobileBERT", "25.3"),
    ("mobilebert", "MobileBERT w/o OPT", "25.3"), ("mobilebert", "DistilBERT 6L", "62.2"),
    ("mobilebert", "IB-BERT-large (teacher)", "293"), ("mobilebert", "MobileBERT", "5.7"),
    ("mobilebert", "MobileBERT w/o OPT", "5.7"), ("tinybert", "TinyBERT4", "7.5"), ("mobilebert", "MobileBERT", "4.3"),
}  # fmt: skip
CUT_OFF = {("theseus", "BERT-of-Theseus", "42"), ("minilm", "MiniLM-L6-H384", "22")}


def test_every_printed_count_agrees_but_those_that_are_listed():
    sizes = match.sizes()
    verdicts = {}
    for r in load():
        if r.metric in match.COUNTED and (r.paper, r.system) not in match.NOT_OURS:
            found = {match.agreement(r.value, w.value) for w in match.ways(r, sizes)}
            verdicts[r.paper, r.system, r.value] = "rounded" if "rounded" in found else max(found)
    assert len(verdicts) > 60
    assert {k for k, v in verdicts.items() if v == ""} == NOT_MET
    assert {k for k, v in verdicts.items() if v == "cut off"} == CUT_OFF


def test_every_printed_size_and_speed_belongs_to_a_shape():
    """A row of reported.csv that nobody placed would be missing on the page."""
    sizes = match.sizes()
    assert set(match.OURS.values()) <= set(sizes.index) == set(shapes.BY_NAME)
    placed = match.OURS.keys() | match.NOT_OURS.keys()
    wanted = {(r.paper, r.system) for r in load() if r.metric in (*match.COUNTED, *match.TIMED)}
    assert wanted <= placed
    assert not match.OURS.keys() & match.NOT_OURS.keys()


def test_reasons_belong_to_printed_numbers():
    printed = {(r.paper, r.metric, r.system) for r in load()}
    assert match.REASONS.keys() <= printed


@pytest.mark.parametrize("name", ["BERT, 3 layers", "DistilBERT", "TinyBERT4", "EfficientBERT", "TrimBERT BANDD, n=2"])
def test_committed_sizes_are_what_is_counted(name):
    _same(pd.read_csv(ROOT / "results" / "sizes.csv"), name)


@pytest.mark.slow
def test_all_committed_sizes_are_what_is_counted():
    frame = pd.read_csv(ROOT / "results" / "sizes.csv")
    assert list(frame.system) == list(shapes.BY_NAME)
    for name in shapes.BY_NAME:
        _same(frame, name)


def _same(frame: pd.DataFrame, name: str) -> None:
    row = frame.set_index("system").loc[name]
    for column, value in efficiency_run.size_row(shapes.get(name)).items():
        if column != "system":
            assert pd.isna(row[column]) if value is None else row[column] == value, column


def test_committed_blocks_are_what_is_counted():
    frame = pd.read_csv(ROOT / "results" / "blocks.csv")
    assert list(frame.length) == list(block.LENGTHS)
    assert frame.to_dict("records") == [block.row(n) for n in frame.length]
    hidden, inner = 768, 3072
    for row in frame.itertuples():
        assert row.attention_flops == 2 * (4 * row.length * hidden**2 + 2 * row.length**2 * hidden)
        assert row.ffn_flops == 2 * 2 * row.length * hidden * inner


def test_sizes_that_cannot_be_read_are_one_line(places):
    (places / "results").mkdir()
    (places / "results" / "sizes.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"sizes.csv: cannot be read"):
        match.sizes()


def test_an_unknown_system_is_one_line():
    with pytest.raises(InputError, match=r"systems: 'MobilBERT' is unknown \(did you mean 'MobileBERT'\?\)"):
        shapes.get("MobilBERT")


def test_the_linear_layers_of_attention_cost_half_of_the_ffn_at_every_length():
    """By hand: 4 h^2 against 2 * 4 h^2 multiply-adds a token, whatever the products of queries and keys cost."""
    h, lengths = 768, (32, 128, 1024)
    frame = pd.DataFrame({"length": lengths, "attention_flops": [2 * (4 * h * h * n + 2 * h * n * n) for n in lengths],
                          "ffn_flops": [2 * 8 * h * h * n for n in lengths]})
    assert efficiency_counts._linear_ratio(frame) == pytest.approx(2.0)
    assert efficiency_counts._linear_ratio(frame.iloc[::2]) == pytest.approx(2.0)
