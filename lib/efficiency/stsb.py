"""DistilBERT's measurement (Table 3): a full pass over STS-B's development pairs at batch 1 on the CPU.

The pairs are real and so are their lengths; weights are random, which changes no time. Tokenising is not timed (the
paper does not say whether it was). Each round is a whole pass of BERT-base and one of DistilBERT.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import torch
from tqdm import tqdm

from lib import data, models
from lib.efficiency import shapes, timing
from lib.paths import results_dir, write_atomic

SYSTEMS = ("BERT-base", "DistilBERT")
MAX_LENGTH = 128


def pairs() -> list[torch.Tensor]:
    """Token ids (1, length) of every development pair, by BERT's uncased vocabulary; nothing is padded at batch 1.

    Raises `InputError` where STS-B cannot be had.
    """
    rows = data.load("stsb").scored
    tokenizer = models.load_tokenizer("minilm-l6")  # the vocabulary of BERT uncased
    ids = tokenizer(list(rows["text"]), list(rows["text_2"]), truncation=True, max_length=MAX_LENGTH)["input_ids"]
    return [torch.tensor([row]) for row in ids]


def measure(batches: list[torch.Tensor], attention: str, passes: int, build: Callable = shapes.build) -> list[dict]:
    """Seconds of a pass over `batches` (ids, (1, length) each) for each of `SYSTEMS`, one row a system."""
    bar = tqdm(total=len(batches) * len(SYSTEMS) * (passes + 1), desc=f"STS-B, {attention}", unit="pair",
               file=sys.stderr, mininterval=10)

    def whole(model) -> Callable[[], None]:
        def run() -> None:
            for ids in batches:
                model(input_ids=ids, attention_mask=torch.ones_like(ids))
                bar.update()

        return run

    calls = {name: whole(build(shapes.get(name), attention)) for name in SYSTEMS}
    with torch.inference_mode(), bar:
        times = timing.interleaved(calls, rounds=passes, warmup=1)
    ratio = timing.speedup(times["BERT-base"], times["DistilBERT"])
    rows = []
    for name, seconds in times.items():
        s = timing.summary(seconds)
        rows.append({"system": name, "backend": attention, "pairs": len(batches),
                     "tokens": sum(b.numel() for b in batches), "passes": len(seconds), "seconds": round(s.median, 3),
                     "seconds_low": round(s.low, 3), "seconds_high": round(s.high, 3),
                     "ratio": round(ratio.median, 4) if name == "DistilBERT" else 1.0,
                     **timing.stamp()})
    return rows


def write(threads: int = 0, passes: int = 3) -> Path:
    """Measure with attention written out and fused, and write stsb_pass.csv below the results.

    Each is written when it is done, and one that this machine has is not measured again: half an hour each on two slow
    cores. Rows of another machine are replaced, for the page shows one.
    """
    if threads:
        torch.set_num_threads(threads)
    path, batches, here = results_dir() / "stsb_pass.csv", pairs(), timing.stamp()
    rows = pd.read_csv(path).to_dict("records") if path.exists() else []
    rows = [r for r in rows if all(r.get(k) == here[k] for k in ("processor", "threads"))]
    for attention in ("eager", "sdpa"):
        if attention not in {r["backend"] for r in rows}:
            rows += measure(batches, attention, passes)
            write_atomic(path, pd.DataFrame(rows).to_csv(index=False, lineterminator="\n").encode())
    return path
