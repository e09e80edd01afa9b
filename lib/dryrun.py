"""What a run would be, without training: `python -m lib.dryrun --profile paper --tasks "mnli squad1"`.

Every method's parameters are read and its plan is made from configurations alone; then steps, memory and GPU-hours are
estimated, all as upper bounds: a student is counted as large as its teacher, and every batch as asking the teacher.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from dataclasses import dataclass

from transformers import BertConfig, PretrainedConfig

from lib import grid, models, profiles
from lib.efficiency import counts
from lib.errors import InputError, one_line, one_of
from lib.parameters import Parameters, validate
from lib.runs import SPAN_METHODS
from lib.tasks import TASKS

# Rows of the training sets on the hub (GLUE: Wang et al. 2019, Table 1, exact numbers as counted; SQuAD: its papers).
ROWS = {"cola": 8551, "sst2": 67349, "mrpc": 3668, "stsb": 5749, "qqp": 363846, "mnli": 392702, "qnli": 104743,
        "rte": 2490, "wnli": 635, "squad1": 87599, "squad2": 130319}
# bert-base-uncased and bert-large-uncased by their configurations, for a machine that does not reach the hub.
KNOWN = {"bert-base": BertConfig, "bert-base-uncased": BertConfig,
         "bert-large-uncased": lambda: BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16,
                                                  intermediate_size=4096)}
KEPT = 100.0  # TFLOP/s that a GPU is taken to keep up where nothing else is said; an A100 has a peak of 312 in bf16
STATE = 16  # bytes a trained parameter: float32 weight, gradient and Adam's two moments


@dataclass(frozen=True)
class Stage:
    """Part of a run: tokens it trains on at most, tokens in one optimiser step, how often it is repeated."""

    name: str
    tokens: float
    step: float
    times: int = 1

    @property
    def steps(self) -> int:
        return max(1, round(self.tokens / self.step))


def configuration(name: str) -> tuple[PretrainedConfig, str]:
    """(configuration of a backbone, where it is from). A known name needs no hub."""
    if name in KNOWN:
        return KNOWN[name](), "built in"
    return models.configuration(name), "read"


def parameters(profile: str, task: str, method: str, **given) -> tuple[Parameters, list[str]]:
    """(validated parameters of a run under a profile, the files they come from)."""
    values = profiles.values(profile, method, task)
    try:
        module = importlib.import_module(f"lib.methods.{method}_studies")
        config = module.Config
    except (ModuleNotFoundError, AttributeError):
        config = importlib.import_module(f"lib.methods.{method}").Config
    return validate(config, {**values, "task": task, **given}), [f.name for f in profiles.files(profile, method, task)]


def stages(p: Parameters, method: str, rows: int, length: int) -> list[Stage]:
    """The stages of a run, in order; `length` tokens a row."""
    def fine_tuning(epochs: float, cap: int) -> float:
        tokens = rows * length * epochs
        return min(tokens, cap) if cap else tokens

    batch = p.batch_size * p.accumulation * length
    if method == "bert":
        return [Stage("fine-tuning", fine_tuning(p.epochs, p.max_tokens), batch, 1 + len(p.lr_grid))]
    out = [Stage("teacher", fine_tuning(p.teacher_epochs, p.teacher_tokens), batch, 1 + len(p.teacher_lr_grid))]
    if getattr(p, "reads_text", False):
        step = p.general_batch_size * p.general_accumulation * p.text_length
        for name in ("supernet_epochs", "ib_epochs", "transfer_epochs", "general_epochs"):
            if hasattr(p, name):
                out.append(Stage(name.replace("_epochs", " stage"), getattr(p, name) * p.text_tokens, step))
        if getattr(p, "architecture", "") == "search":
            out.append(Stage("candidates", sum(p.candidates) * (p.candidate_text_tokens + p.candidate_tokens), batch))
    passes = p.epochs * getattr(p, "fold", 1)  # a pass of TinyBERT's own recipe reads new rows too
    out.append(Stage("student", fine_tuning(passes, p.max_tokens), batch, 1 + len(p.lr_grid)))
    return out


def memory_gb(config: PretrainedConfig, tokens: int, length: int) -> float:
    """GB to train a model of this configuration beside a teacher as large, `tokens` in one micro-batch, bf16.

    Weights and optimiser at 16 bytes, the teacher at 4; activations of a layer by Korthikanti et al. 2022 (arXiv
    2205.05198), equation 1: tokens * hidden * (34 + 5 * heads * length / hidden) bytes; logits of language modelling
    not counted.
    """
    n = counts.counts(config).parameters
    h, a = config.hidden_size, config.num_attention_heads
    activations = config.num_hidden_layers * tokens * h * (34 + 5 * a * length / h)
    return ((STATE + 4) * n + activations) / 1e9


def describe(profile: str, task: str, method: str, tflops: float, **given) -> dict:
    """One line of the table for one run. Raises `InputError` for what is wrong with its parameters."""
    p, files = parameters(profile, task, method, **given)
    config, origin = configuration(p.backbone)
    rows = min(ROWS[task], p.max_rows) if p.max_rows else ROWS[task]
    if check := getattr(importlib.import_module(f"lib.methods.{method}"), "check", None):
        check(p, config)
    found = stages(p, method, rows, p.max_length)
    longest = max(p.max_length, getattr(p, "text_length", 0) if getattr(p, "reads_text", False) else 0)
    if longest > config.max_position_embeddings:
        raise InputError(f"text_length: {longest} is more than the {config.max_position_embeddings} positions of "
                         f"{p.backbone}")
    forward = counts.flops(config, 1, longest) / longest  # a token
    work = {s.name: s.times * s.tokens * forward * (3 if s.name in ("teacher", "fine-tuning") else 4) for s in found}
    micro = max([p.batch_size * p.max_length] + ([p.general_batch_size * p.text_length] if len(found) > 2 else []))
    return {"method": method, "task": task, "files": files, "backbone": f"{p.backbone} ({origin})", "stages": found,
            "memory_gb": memory_gb(config, micro, longest),
            "hours": {k: v / (tflops * 1e12) / 3600 for k, v in work.items()}}


def show(line: dict) -> str:
    """The estimate of one run as text."""
    parts = []
    for s in line["stages"]:
        times = f"{s.times} x " if s.times > 1 else ""
        parts.append(f"{s.name} {times}{s.steps:,} steps ({s.tokens / 1e6:,.1f}M tokens), "
                     f"{line['hours'][s.name]:,.2f} h")
    total = sum(line["hours"].values())
    return (f"{line['method']} on {line['task']} ({', '.join(line['files'])}): {line['backbone']}, at most "
            f"{line['memory_gb']:.1f} GB and {total:,.1f} GPU-hours\n    " + "\n    ".join(parts))


@one_line()
def main(arguments: list[str] | None = None) -> int:
    """Print the estimates; exit code 2 where a run could not start."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="paper")
    parser.add_argument("--tasks", default="")
    parser.add_argument("--methods", default="")
    parser.add_argument("--tflops", type=float, default=KEPT, help="TFLOP/s that the GPU keeps up; an A100 has a peak "
                        "of 312 in bf16")
    a = parser.parse_args(arguments)
    one_of("PROFILE", a.profile, profiles.names())
    tasks = a.tasks.split() or [t for t in ROWS if t != "wnli"]
    names = a.methods.split() or ["bert", *(m for m in grid.methods() if m != "bert")]
    if a.tflops <= 0:
        raise InputError(f"--tflops: {a.tflops} must be above 0")
    for task in tasks:
        one_of("TASKS", task, [t for t in TASKS if t in ROWS])
        for method in names:
            one_of("METHODS", method, grid.methods())
            if TASKS[task].span and method not in SPAN_METHODS:
                if a.methods:
                    raise InputError(f"METHODS: {method} does not answer with spans; allowed for {task}: "
                                     f"{', '.join(SPAN_METHODS)}")
                continue
            print(show(describe(a.profile, task, method, a.tflops)))
    print(f"Upper bounds at {a.tflops:g} TFLOP/s: rows at full length, students as large as their teachers.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
