"""Tables of LayerDrop's notebook."""

from __future__ import annotations

import pandas as pd

from lib.results import Record


def pruning(record: Record) -> pd.DataFrame:
    """Held-out score of each way to prune; with a search also the best and the worst set that it looked at.

    A run with LayerDrop in pre-training is pruned before it has seen the task: there only the layers that stayed.
    """
    study = record.study or {}
    ways = dict(study.get("pruning", {}))
    sets = ways.pop("candidates", [])
    if not ways:
        return pd.DataFrame([{"layers that stayed (from 1)": _numbers(study["kept"])}]).set_index(
            pd.Index(["pruned before fine-tuning"]))
    rows = {name: (way["layers"], way["held_out"]) for name, way in ways.items()}
    if sets:
        ordered = sorted(sets, key=lambda s: s["held_out"])
        for words, one in (("worst", ordered[0]), ("best", ordered[-1])):
            rows[f"{words} of the {len(sets)} sets searched"] = (one["layers"], one["held_out"])
    whole = ways["all layers"]["held_out"]
    return pd.DataFrame({name: {"layers that stay (from 1)": _numbers(kept), "held-out score, percent": round(score, 1),
                                "difference to all layers, points": round(score - whole, 1)}
                         for name, (kept, score) in rows.items()}).T


def _numbers(kept: list[int]) -> str:
    return " ".join(str(i + 1) for i in kept)
