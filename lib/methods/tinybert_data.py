"""Rows and budgets of TinyBERT's task distillation: how many new rows a run makes, and which rows its steps see."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
from torch import nn

from lib import artefacts, augmentation, batches, mlm, models, teacher_cache, training
from lib.batches import Encoded
from lib.training import Settings

UNBOUNDED = 1e6  # epochs, where the token budget decides
ASKED = 2000  # new rows that `described` asks the teacher about at most; they stand in random order


@dataclass(frozen=True)
class Rows:
    """Rows with augmentation: `data` is what a step trains on, `new` the new rows in it.

    `parents`: for each new row the row of `run.train` that it was made from. Rows of equal `data.index` are the same.
    """

    data: Encoded
    new: Encoded
    parents: np.ndarray


def reads_new(run) -> tuple[bool, bool]:
    """Whether step a and step b read new rows: step b reads the original ones in regression and learning from labels.
    """
    new = "augmentation" not in run.p.without
    return new, new and not run.task.regression and "prediction" not in run.p.without


def budget(run) -> tuple[int, int]:
    """Tokens of step a and of step b: together what any method of this study gets, `epochs` passes over the original
    rows or `max_tokens`, whichever is less.

    In the paper's recipe (`Config.fold`) a step has `epochs` times its share of passes over the rows that it reads.
    """
    p, own = run.p, int(run.train.lengths.sum())
    sizes = [own * (p.fold if new else 1) for new in reads_new(run)]
    first = p.intermediate_share * p.epochs * sizes[0]
    whole = round(first + (1 - p.intermediate_share) * p.epochs * sizes[1])
    if p.max_tokens and whole > p.max_tokens:
        whole = p.max_tokens
        first = p.intermediate_share * whole
    first = max(1, round(first))
    return first, max(1, whole - first)


def settings(run, tokens: int, **changes) -> Settings:
    """Settings of a step that ends when its tokens are used up, however many rows there are."""
    return run.settings(**{"epochs": UNBOUNDED, "max_tokens": tokens, **changes})


def shares(original: int, tokens: int, new_rows: int, share: float) -> tuple[int, int]:
    """(tokens of original rows, tokens of new rows) in the rows of a step of `tokens`.

    New rows are the share `share` of both, or fewer: a row has at most `new_rows` of them, so that their share is at
    most new_rows / (1 + new_rows). `original`: tokens of all original rows, which come again where that is too few.
    """
    share = min(share, new_rows / (1 + new_rows))
    new = min(new_rows * original, round(share * tokens))
    return round(new * (1 - share) / share) if new else min(original, tokens), new


def repeated(lengths: np.ndarray, tokens: int, seed: int) -> np.ndarray:
    """Sorted numbers of rows of up to `tokens` tokens, at least one row: whole passes over all of them, then as many
    as fit of an order drawn from the seed."""
    passes, rest = divmod(tokens, int(lengths.sum()))
    order = np.random.default_rng([seed, 7]).permutation(len(lengths))
    part = order[: int(np.searchsorted(np.cumsum(lengths[order]), rest, "right"))]
    chosen = np.concatenate([np.tile(np.arange(len(lengths)), passes), part])
    return np.sort(chosen) if len(chosen) else order[:1]


def augmented(run, tokens: int, code: bool) -> Rows:
    """Original and new rows for steps of at most `tokens`; a note says how many. New rows carry their row's label.

    The new rows are an artefact of backbone, language-modelling head, data, seed and budget.
    """
    p = run.p
    old, wanted = shares(int(run.train.lengths.sum()), tokens, p.new_rows, p.augmented_share)
    artefact, made = new_rows(run, wanted, code)
    parents = np.array([n.row for n in made], dtype=np.int64)
    chosen = repeated(run.train.lengths, old, p.seed)
    new = take(run.train, parents)  # their labels; the texts come next
    if made:
        new = batches.encode(datasets.Dataset.from_dict(
            {"idx": list(range(len(made))), "text": [n.text for n in made], "text_2": [n.text_2 for n in made],
             "label": new.labels}), run.tokenizer, p.max_length)
    everything = joined(run.train, new)
    data = take(everything, np.concatenate([chosen, len(run.train) + np.arange(len(new))]))
    m = artefact.meta
    run.notes += [
        f"augmentation: {len(new):,} new rows beside {len(np.unique(chosen)):,} of {len(run.train):,} original ones, "
        f"{100 * new.lengths.sum() / data.lengths.sum():.0f}% of the tokens, for a step of {tokens:,}; "
        f"N_a = {p.new_rows} would give up to {p.new_rows * len(run.train):,}",
        f"augmentation: candidates by a language-modelling head {m['head']}, {100 * m['accuracy']:.0f}% of held-out "
        f"masked words right; words of several pieces by {m['vectors']}"
        + ("" if p.word_vectors else " (no GloVe file was given)")]
    return Rows(data, new, parents)


def answers(teacher: nn.Module, rows: Encoded, which: np.ndarray, precision: str) -> teacher_cache.Cached:
    """The teacher's answers to the rows `which`; a row that stands there several times is asked about once."""
    _, first, place = np.unique(rows.index[which], return_index=True, return_inverse=True)
    once = teacher_cache.compute(teacher, rows, which[first], training.precision(precision))
    return teacher_cache.Cached(which, teacher_cache.Answer(once.logits[place]))


def described(run, teacher: nn.Module, rows: Rows) -> dict[str, float]:
    """What augmentation did, for the run's `study`: new rows, their share of the tokens, and what the teacher makes of
    up to `ASKED` of them: the share whose class is still that of the row they were made from, or in regression the
    mean absolute difference of the two answers. Without new rows those are left out.
    """
    found = next(a for a in run.artefacts if a.kind == "augmented-rows").meta
    out = {"new_rows": len(rows.new), "share_of_tokens": float(rows.new.lengths.sum() / rows.data.lengths.sum()),
           "masked_words_right": found["accuracy"], "asked": min(len(rows.new), ASKED)}
    if not out["asked"]:
        return out
    precision = training.precision(run.p.precision)
    after = teacher_cache.compute(teacher, rows.new, np.arange(out["asked"]), precision).logits
    parents, place = np.unique(rows.parents[: out["asked"]], return_inverse=True)
    before = teacher_cache.compute(teacher, run.train, parents, precision).logits[place]
    if run.task.regression:
        return out | {"difference": float((after - before).abs().mean())}
    return out | {"same_class": float((after.argmax(-1) == before.argmax(-1)).float().mean())}


def new_rows(run, tokens: int, code: bool) -> tuple[artefacts.Artefact, list[augmentation.New]]:
    """New rows of about `tokens` tokens. Raises `InputError` for an unreadable file of word vectors."""
    p = run.p
    head, used = mlm.head_for(p.backbone, run.tokenizer, p)
    run.artefacts.append(used)
    vectors = augmentation.Vectors.read(p.word_vectors) if p.word_vectors else None
    precision = training.precision(p.precision)
    own = augmentation.file_hash(p.word_vectors) if p.word_vectors else ""
    configuration = {"backbone": models.content_hash(models.resolve(p.backbone)), "head": used.key, "code": code,
                     "data": run.data.key, "rows": len(run.train), "max_length": p.max_length, "new_rows": p.new_rows,
                     "replace": p.replace, "candidates": p.candidates, "seed": p.seed, "tokens": tokens,
                     "vectors": own, "precision": precision}

    def make(folder: Path) -> dict:
        model = mlm.MaskedLM(models.load_encoder(p.backbone), head).to(training.device())
        maker = augmentation.Augmenter(model, run.tokenizer, candidates=p.candidates, replace=p.replace,
                                       max_length=p.max_length, vectors=vectors, with_original=code,
                                       skip_stop_words=code, precision=precision)
        which = augmentation.schedule(run.train.lengths, p.new_rows, tokens, p.seed)
        pairs = list(zip(run.data.train["text"], run.data.train["text_2"], strict=True))
        rows, seconds = augmentation.timed(lambda: maker.make(pairs, which, p.seed))
        (folder / "rows.json").write_text(json.dumps([[n.row, n.text, n.text_2] for n in rows]))
        return {"seconds": seconds, "tokens": maker.masked_tokens, "rows": len(rows), "vectors": maker.vectors.source,
                "accuracy": used.meta["quality"]["accuracy"], "head": used.meta["source"]}

    artefact = artefacts.build("augmented-rows", configuration, make)
    run.artefacts.append(artefact)
    return artefact, [augmentation.New(*r) for r in json.loads((artefact.folder / "rows.json").read_text())]


def take(data: Encoded, rows: np.ndarray) -> Encoded:
    """The rows of tokenised data, renumbered."""
    return Encoded({k: [v[i] for i in rows] for k, v in data.inputs.items()}, data.labels[rows], data.lengths[rows],
                   data.index[rows], data.pad)


def joined(first: Encoded, second: Encoded) -> Encoded:
    """Both, one after the other."""
    return Encoded({k: [*v, *second.inputs[k]] for k, v in first.inputs.items()},
                   np.concatenate([first.labels, second.labels.astype(first.labels.dtype)]),
                   np.concatenate([first.lengths, second.lengths]), np.arange(len(first) + len(second)), first.pad)


def general_table(run) -> pd.DataFrame:
    """Losses of general distillation on held-out text before and after, one row a term; empty where it was left out."""
    found = next((a for a in run.artefacts if a.kind == "tinybert-general"), None)
    if found is None:
        return pd.DataFrame({"general distillation": ["left out"]})
    m = found.meta["general"]
    frame = pd.DataFrame({"before": m["before"], "after": m["after"]}).round(3)
    frame.index.name = f"{found.meta['tokens']:,} tokens of {m['text']} in {found.meta['seconds']:.0f} s"
    return frame


def augmentation_table(record) -> pd.DataFrame:
    """How many new rows there were, and what they kept of the rows they were made from; a line where there were none.
    """
    found = (record.study or {}).get("augmentation")
    if found is None:
        return pd.DataFrame({"augmentation": ["left out"]})
    lines = {"new rows": f"{found['new_rows']:,}",
             "share of the tokens": f"{100 * found['share_of_tokens']:.0f}%",
             "held-out masked words that the head has right": f"{100 * found['masked_words_right']:.0f}%"}
    if "same_class" in found:
        lines[f"class by the teacher as before (of {found['asked']:,})"] = f"{100 * found['same_class']:.0f}%"
    if "difference" in found:
        lines[f"mean difference of the teacher's answer (of {found['asked']:,})"] = f"{found['difference']:.2f}"
    return pd.DataFrame({"augmentation": lines})


def examples(run, count: int = 4) -> pd.DataFrame:
    """A few new rows beside the rows that they were made from; empty where augmentation was left out."""
    found = next((a for a in run.artefacts if a.kind == "augmented-rows"), None)
    rows = json.loads((found.folder / "rows.json").read_text())[:count] if found else []
    old = run.data.train
    return pd.DataFrame([{"row": " / ".join(filter(None, (old[i]["text"], old[i]["text_2"]))),
                          "new row": " / ".join(filter(None, (a, b)))} for i, a, b in rows],
                        columns=["row", "new row"])
