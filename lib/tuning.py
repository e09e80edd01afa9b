"""Choosing a run's learning rate on held-out rows, with the same effort for every method."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lib import artefacts
from lib.errors import InputError
from lib.provenance import code_hash

if TYPE_CHECKING:
    from lib.runs import Compress, Run

DIVERGED = -1e9  # the score of a trial that has none


def tuned(run: Run, method: Compress) -> Run:
    """The run with that rate of its grid which scores best on the held-out rows, tuning seed.

    It stays with `lr` itself where that is in the grid and not worse by more than one standard error.

    Each trial is an artefact (a score, kept) shared by all seeds. Its teacher is the one of the tuning seed.
    """
    p = run.p
    if run.trial or len(p.lr_grid) == 0:
        return run
    scores, tokens = [], 0
    if p.tuning_seed == p.seed:
        raise InputError(f"parameter tuning_seed: {p.tuning_seed} is also the run's seed; it must be another")
    for lr in p.lr_grid:
        cap = p.tuning_tokens or p.max_tokens
        teacher_cap = p.tuning_tokens or p.teacher_tokens
        t = run.with_parameters(trial=True, lr=lr, seed=p.tuning_seed, lr_grid=[], max_tokens=cap,
                                teacher_tokens=teacher_cap, score_curve=False)
        if run.method != "bert" and not p.teacher and p.teacher_lr_grid:
            t = t.with_parameters(teacher_lr=_teacher_lr(run), teacher_lr_grid=[])
        meta = _trial(t, method)
        scores.append({"lr": lr, "score": meta["score"]})
        tokens += meta["tokens"]
    best = max(scores, key=lambda s: s["score"])
    # The default stays where the held-out rows cannot tell it from the best: a rate chosen by noise helps nobody
    default = next((s for s in scores if s["lr"] == p.lr), best)
    if best["score"] - default["score"] <= run.tolerance(best["score"]):
        best = default
    # max_tokens and lr_grid stay as given: they are part of the run's identity; only the rate is filled in
    chosen = run.with_parameters(lr=best["lr"])
    chosen.selection = {"grid": {"lr": list(p.lr_grid)}, "scores": scores, "chosen": {"lr": best["lr"]},
                        "tuning_seed": p.tuning_seed, "tuning_tokens": tokens}
    return chosen


def _teacher_lr(run: Run) -> float:
    """The rate that the teacher's own grid chose; a trial's teacher uses it at the tuning budget."""
    from lib.methods import bert

    return run.as_teacher().tuned(bert.compress).p.lr


def _trial(run: Run, method: Compress) -> dict:
    """Score and cost of one grid point, kept as an artefact. A teacher's trial is a teacher: students' use it."""
    from lib.methods import bert

    def make(folder: Path) -> dict:
        _, history = method(run, run.teacher().model)
        run.clear()
        return {"score": history.kept_score, "tokens": history.tokens, "seconds": history.seconds}

    try:
        if run.method == "bert":
            meta = bert.teacher(run).meta
            meta = {"score": meta["history"]["kept_score"], "tokens": meta["tokens"]}
        else:
            meta = artefacts.build("trial", {**run.identity, "code": code_hash(run.method)}, make).meta
    except RuntimeError as e:
        if "not finite" not in str(e):
            raise
        meta = {"score": None, "tokens": 0}
    # A trial that diverged has no score: it must lose, not stop the others
    return meta if meta["score"] is not None else {**meta, "score": DIVERGED}
