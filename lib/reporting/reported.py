"""The numbers that the papers print: `results/reported.csv`, loaded with a check.

No value without metric, split, table (`where`) and source. A row that lacks one stops the report with one line that
names the file and the line: a number that nobody can look up must not reach a page.
"""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass, fields
from pathlib import Path

import pandas as pd

from lib.errors import InputError, one_of, shorten
from lib.paths import ROOT, results_dir

# Scores of a model on the rows of a split; without its split such a number cannot be compared with anything.
_SCORES = (
    "accuracy f1 em matthews pearson spearman unstated f1_acc_mean pearson_spearman_mean perplexity meta_score "
    "glue_leaderboard_score macro_mean_8 macro_mean_9 mean_4_columns mean_6_columns mean_9_columns mean_as_reprinted "
    "retained_of_predecessor retained_of_teacher accuracy_loss_most_tasks inference_seconds train_examples_k "
    "delta_macro delta_vs_predecessor delta_vs_constant delta_vs_MobileBERT-TINY delta_f1_vs_bert_base "
    "delta_f1_vs_TinyBERT4"
)
SCORES = frozenset(_SCORES.split())
# Properties of a model or of its training: no split belongs to them, and the column holds "-".
_PROPERTIES = (
    "params_m params_embedding_m params_layers_m params_m_without_projection params_ratio params_change layers "
    "flops_b size_ratio model_size_mb memory_ratio speedup speedup_low speedup_high speed_gain "
    "speed_gain_excl_tokenisation throughput_ratio latency_ms train_time_h train_gpu_hours train_gpu_hours_max "
    "train_speedup search_gpu_days energy_efficiency_ratio ffn_over_mha_cost_ratio drop_rate inter_block_width "
    "intra_block_width intermediate_blocks stacked_ffn pretrain_batch pretrain_iterations pretrain_lr "
    "pretrain_seq_len pretrain_warmup"
)
PROPERTIES = frozenset(_PROPERTIES.split())
SPLITS = ("train", "dev", "test")
MAY_BE_EMPTY = ("hardware",)
# Bounds and ranges are printed too: "<0.5", ">96.8", "2-3".
NUMBER = re.compile(r"[<>]?-?\d+(\.\d+)?(e-?\d+)?(-\d+(\.\d+)?)?")


@dataclass(frozen=True)
class Reported:
    """One printed number. `value` is the text as printed; `number` is None where it is a bound or a range."""

    paper: str
    arxiv_id: str
    system: str
    task: str
    split: str
    metric: str
    value: str
    unit: str
    where: str  # table or section of the paper
    hardware: str
    source: str  # where the number was read
    verified: bool  # read in a stored text, not only remembered
    line: int = 0  # in the CSV

    @property
    def number(self) -> float | None:
        try:
            return float(self.value)
        except ValueError:
            return None


COLUMNS = tuple(f.name for f in fields(Reported) if f.name != "line")


def _check(row: dict, line: int, path: Path) -> Reported:
    """One row as `Reported`, else `InputError` with file and line."""
    place = f"{path}, line {line}"
    if None in row or None in row.values():
        raise InputError(f"{place}: has more or fewer than the {len(COLUMNS)} columns {', '.join(COLUMNS)}")
    row = {k: v.strip() for k, v in row.items()}
    for column, value in row.items():
        if column not in MAY_BE_EMPTY and (not value or value == "-" and column in ("metric", "where", "source")):
            raise InputError(f"{place}: {column} is empty; a reported value needs metric, split, where and source")
    one_of(f"{place}: metric", row["metric"], sorted(SCORES | PROPERTIES))
    one_of(f"{place}: split", row["split"], SPLITS if row["metric"] in SCORES else ("-",))
    one_of(f"{place}: verified", row["verified"], ("yes", "no"))
    digits = re.findall(r"\d+(?:\.\d+)?(?:e-?\d+)?", row["value"])
    if not NUMBER.fullmatch(row["value"]) or not all(math.isfinite(float(d)) for d in digits):
        raise InputError(f"{place}: value is {shorten(row['value'])}; allowed: a number, a bound (<2) or a range (2-3)")
    return Reported(**(row | {"verified": row["verified"] == "yes"}), line=line)


def load(path: Path | None = None) -> list[Reported]:
    """All reported numbers in file order. Raises `InputError` (one line, with the line number) for a bad file.

    Without a path: the file among the results, or the repository's own where `BERT_RESULTS` points to a folder of runs
    alone (what papers print does not depend on where records go).
    """
    own = results_dir() / "reported.csv"
    path = path or (own if own.exists() else ROOT / "results" / "reported.csv")
    try:
        with open(path, newline="", encoding="utf-8") as f:
            reader = csv.DictReader(f, strict=True)
            if tuple(reader.fieldnames or ()) != COLUMNS:
                header = shorten(reader.fieldnames)
                raise InputError(f"{path}, line 1: columns are {header}; wanted {','.join(COLUMNS)}")
            rows = [_check(row, reader.line_num, path) for row in reader]
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror})") from e
    except (UnicodeDecodeError, csv.Error) as e:
        raise InputError(f"{path}: is not CSV in UTF-8 ({e})") from e
    if not rows:
        raise InputError(f"{path}: holds no reported number")
    seen: dict[tuple, int] = {}
    for r in rows:
        key = (r.paper, r.system, r.task, r.split, r.metric, r.where)
        if key in seen:
            raise InputError(f"{path}, line {r.line}: repeats {'/'.join(key)} of line {seen[key]}")
        seen[key] = r.line
    return rows


def in_table(where: str, prefix: str) -> bool:
    """Whether `where` names the table `prefix`: "Table 1" takes "Table 1 (dev)" but neither "Table 10" nor a header."""
    rest = where.removeprefix(prefix)
    return where.startswith(prefix) and not rest[:1].isalnum() and not rest.startswith(" header")


def select(rows: list[Reported], paper: str, where: str, system: str | None = None) -> list[Reported]:
    """Rows of one table of one paper, in file order, of one system where it is given."""
    return [r for r in rows if r.paper == paper and in_table(r.where, where) and system in (None, r.system)]


TASK_TITLES = {
    "cola": "CoLA", "mnli": "MNLI", "mnli-m": "MNLI-m", "mnli-mm": "MNLI-mm", "mrpc": "MRPC", "qnli": "QNLI",
    "qqp": "QQP", "rte": "RTE", "sst2": "SST-2", "stsb": "STS-B", "wnli": "WNLI", "squad1": "SQuAD 1.1",
    "squad2": "SQuAD 2.0", "glue_avg": "Average", "imdb": "IMDb", "wikitext103": "WikiText-103", "-": "",
}  # fmt: skip
METRIC_TITLES = {
    "matthews": "Matthews", "accuracy": "accuracy", "f1": "F1", "em": "exact match", "unstated": "metric not stated",
    "f1_acc_mean": "mean of F1 and accuracy", "pearson": "Pearson", "spearman": "Spearman",
    "pearson_spearman_mean": "mean of Pearson and Spearman", "perplexity": "perplexity",
    "macro_mean_8": "mean of 8 tasks", "macro_mean_9": "mean of 9 tasks", "mean_4_columns": "mean of 4 columns",
    "mean_6_columns": "mean of 6 columns", "mean_9_columns": "mean of 9 columns",
    "mean_as_reprinted": "mean as reprinted", "meta_score": "meta-score",
    "glue_leaderboard_score": "GLUE server score", "retained_of_predecessor": "% of the teacher's score",
    "retained_of_teacher": "% of the teacher's score", "inference_seconds": "time of the pass (s)",
    "train_examples_k": "training rows (thousand)",
    "accuracy_loss_most_tasks": "loss of accuracy on most tasks (points or %, not said which)",
    "delta_macro": "change of the mean over tasks (points)", "delta_vs_predecessor": "difference to the teacher",
    "delta_vs_constant": "difference to constant", "delta_vs_MobileBERT-TINY": "difference to MobileBERT-TINY (points)",
    "delta_f1_vs_bert_base": "difference of F1 to BERT-base (points)",
    "delta_f1_vs_TinyBERT4": "difference of F1 to TinyBERT4 (points)",
    "params_m": "parameters (million)", "params_embedding_m": "parameters of the embeddings (million)",
    "params_layers_m": "parameters of the layers (million)",
    "params_m_without_projection": "parameters without the projection (million)",
    "params_ratio": "fewer parameters (x)", "params_change": "change of parameters (%)", "layers": "layers",
    "flops_b": "FLOPs (10⁹)", "size_ratio": "smaller (x)", "memory_ratio": "smaller in memory (x)",
    "model_size_mb": "size of the model (MB)", "speedup": "speed-up (x)", "speedup_low": "speed-up, lowest (x)",
    "speedup_high": "speed-up, highest (x)", "speed_gain": "faster (%)",
    "speed_gain_excl_tokenisation": "faster without the tokeniser (%)", "throughput_ratio": "throughput (x)",
    "latency_ms": "latency (ms)", "train_time_h": "training (hours)", "train_gpu_hours": "training (GPU-hours)",
    "train_gpu_hours_max": "training at most (GPU-hours)", "train_speedup": "training faster (x)",
    "search_gpu_days": "search (GPU-days)", "energy_efficiency_ratio": "energy efficiency (x)",
    "ffn_over_mha_cost_ratio": "cost of the FFN over that of attention (x)", "drop_rate": "rate of dropping layers",
    "inter_block_width": "width between blocks", "intra_block_width": "width inside a block",
    "intermediate_blocks": "intermediate blocks", "stacked_ffn": "FFNs in a block",
    "pretrain_batch": "batch of pre-training (sequences)", "pretrain_iterations": "steps of pre-training",
    "pretrain_lr": "learning rate of pre-training", "pretrain_seq_len": "length in pre-training (tokens)",
    "pretrain_warmup": "warm-up of pre-training (steps)",
}  # fmt: skip
PAPER_TITLES = {
    "bert": "BERT", "theseus": "BERT-of-Theseus", "distilbert": "DistilBERT", "tinybert": "TinyBERT",
    "mobilebert": "MobileBERT", "efficientbert": "EfficientBERT", "trimbert": "TrimBERT", "pkd": "BERT-PKD",
    "pdbert": "PD-BERT", "layerdrop": "LayerDrop", "minilm": "MiniLM",
}  # fmt: skip


def paper_title(paper: str) -> str:
    """Name of a paper by its code in reported.csv; an unknown code stays as it is."""
    return PAPER_TITLES.get(paper, paper)


def metric_title(metric: str) -> str:
    """One of `SCORES` or `PROPERTIES` in words, with its unit; scores without one are in percent."""
    return METRIC_TITLES[metric]


def reported_table(paper: str, where_prefix: str, rows: list[Reported] | None = None) -> pd.DataFrame:
    """A paper's table in its own layout: one line a system, one column a task and metric, in the order printed.

    Cells hold the text as printed; "-" where the paper prints nothing; " (unverified)" is added to a number that was
    not read in a stored text. Raises `InputError` where the paper has no such table.
    """
    rows = load() if rows is None else rows
    found = select(rows, paper, where_prefix)
    if not found:
        tables = sorted({r.where for r in rows if r.paper == paper})
        raise InputError(f"{paper} {shorten(where_prefix)}: no reported number; tables: {'; '.join(tables) or 'none'}")
    splits = {r.split for r in found if r.split != "-"}
    cells: dict[str, dict[str, str]] = {}
    columns: dict[tuple[str, str, str], str] = {}
    for r in found:
        title = ", ".join(t for t in (TASK_TITLES.get(r.task, r.task), metric_title(r.metric)) if t)
        if len(splits) > 1 and r.split != "-":
            title += f" ({r.split})"
        column = columns.setdefault((r.task, r.split, r.metric), title)
        line = cells.setdefault(r.system, {})
        if column in line:
            raise InputError(f"{paper} {where_prefix}: two numbers for {r.system}, {column}; give a longer prefix")
        line[column] = r.value + ("" if r.verified else " (unverified)")
    # The average stands last in the papers; a property of the model after it.
    order = sorted(columns, key=lambda k: (k[0] == "-", k[0] == "glue_avg"))
    frame = pd.DataFrame.from_dict(cells, orient="index").reindex(columns=[columns[k] for k in order])
    frame = frame.fillna("-").rename_axis("System")
    frame.attrs["split"] = ", ".join(sorted(splits)) or "-"
    return frame
