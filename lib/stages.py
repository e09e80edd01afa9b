"""Training in two stages under one budget: settings of a share of it, and two histories as one."""

from __future__ import annotations

from lib.training import History, Settings


def share_of(run, share: float) -> Settings:
    """The settings of a run (`lib.runs.Run`) with a share of its epochs and tokens."""
    cap = max(1, round(run.p.max_tokens * share)) if run.p.max_tokens else 0
    return run.settings(epochs=run.p.epochs * share, max_tokens=cap)


def joined(first: History, second: History) -> History:
    """Two stages as one history; the kept state is the second's."""
    curve = {k: list(v) for k, v in first.curve.items()}
    for name, points in second.curve.items():
        curve.setdefault(name, []).extend([step + first.steps, value] for step, value in points)
    tokens = first.tokens + second.tokens
    padding = (first.padding_share * first.tokens + second.padding_share * second.tokens) / max(tokens, 1)
    peaks = [m for m in (first.peak_memory_mb, second.peak_memory_mb) if m is not None]
    best = [s for s in (first.best_scored, second.best_scored) if s is not None]
    return History(
        steps=first.steps + second.steps, tokens=tokens, seconds=first.seconds + second.seconds, padding_share=padding,
        kept_step=first.steps + second.kept_step, kept_score=second.kept_score, highest_score=second.highest_score,
        best_scored=max(best, default=None), idle_steps=first.idle_steps + second.idle_steps,
        peak_memory_mb=max(peaks, default=None), curve=curve)
