"""Rows and budgets of TinyBERT's task distillation: how many new rows a run makes, and which rows its steps see."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import numpy as np
import pandas as pd

from lib import artefacts, augmentation, batches, mlm, models, training
from lib.batches import Encoded
from lib.training import Settings

UNBOUNDED = 1e6  # epochs, where the token budget decides


def budget(run) -> tuple[int, int]:
    """Tokens of step a and of step b: together what any method of this study gets, `epochs` passes over the original
    rows or `max_tokens`, whichever is less."""
    whole = round(run.p.epochs * int(run.train.lengths.sum()))
    whole = min(whole, run.p.max_tokens) if run.p.max_tokens else whole
    first = max(1, round(run.p.intermediate_share * whole))
    return first, max(1, whole - first)


def settings(run, tokens: int, **changes) -> Settings:
    """Settings of a step that ends when its tokens are used up, however many rows there are."""
    return run.settings(**{"epochs": UNBOUNDED, "max_tokens": tokens, **changes})


def shares(original: int, tokens: int, new_rows: int, least: float) -> tuple[int, int]:
    """(tokens of original rows, tokens of new rows) for a step of `tokens`.

    New rows fill what the original ones leave, at least the share `least`, at most `new_rows` for each row.
    """
    new = min(new_rows * original, max(round(least * tokens), tokens - original))
    return min(original, max(1, tokens - new)), new


def augmented(run, tokens: int, code: bool) -> Encoded:
    """Original and new rows for steps of at most `tokens`; a note says how many. New rows carry their row's label.

    The new rows are an artefact of backbone, language-modelling head, data, seed and budget.
    """
    p = run.p
    kept, wanted = shares(int(run.train.lengths.sum()), tokens, p.new_rows, p.augmented_share)
    artefact, new = new_rows(run, wanted, code)
    labels = run.train.labels[[n.row for n in new]]
    order = np.random.default_rng([p.seed, 7]).permutation(len(run.train))
    chosen = np.sort(order[: max(1, int(np.searchsorted(np.cumsum(run.train.lengths[order]), kept, "right")))])
    original = take(run.train, chosen)
    m = artefact.meta
    run.notes += [
        f"augmentation: {len(new):,} new rows beside {len(chosen):,} of {len(run.train):,} original ones, capped by "
        f"the token budget of {tokens:,}; N_a = {p.new_rows} would give up to {p.new_rows * len(run.train):,}",
        f"augmentation: candidates by a language-modelling head {m['head']}, {100 * m['accuracy']:.0f}% of held-out "
        f"masked words right; words of several pieces by {m['vectors']}"
        + ("" if p.word_vectors else " (no GloVe file was given)")]
    if not new:
        return original
    texts = datasets.Dataset.from_dict({"idx": list(range(len(new))), "text": [n.text for n in new],
                                        "text_2": [n.text_2 for n in new], "label": labels})
    return joined(original, batches.encode(texts, run.tokenizer, p.max_length))


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


def examples(run, count: int = 4) -> pd.DataFrame:
    """A few new rows beside the rows that they were made from; empty where augmentation was left out."""
    found = next((a for a in run.artefacts if a.kind == "augmented-rows"), None)
    rows = json.loads((found.folder / "rows.json").read_text())[:count] if found else []
    old = run.data.train
    return pd.DataFrame([{"row": " / ".join(filter(None, (old[i]["text"], old[i]["text_2"]))),
                          "new row": " / ".join(filter(None, (a, b)))} for i, a, b in rows],
                        columns=["row", "new row"])
