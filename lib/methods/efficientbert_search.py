"""EfficientBERT's coarse-to-fine search (paper section 3; official code; methods.md 11.4, 11.8).

1. operators and sizes of every layer together, from plain gelu functions; 2. operators, sizes fixed; 3. sizes,
operators fixed, ranked inside a weight-sharing supernet. New candidates come from mutation, in which a layer keeps its
function with probability 1/2; once enough were scored they must fall into the best leaf of a learned partition of the
space.

The n-th candidate of a stage is a function of (seed, stage, n, the candidates before it), and what was scored is kept
in a JSON file after each one: a search that was killed goes on where it was and ends as the uninterrupted one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.model_selection import StratifiedKFold, cross_val_score

from lib.methods import efficientbert_space as space
from lib.methods.efficientbert_model import PLAIN, EfficientBertConfig, parse
from lib.paths import write_atomic
from lib.tuning import DIVERGED

LEVELS = (400, 800, 1600, 3200)  # with more candidates than these the partition grows a level (official code)
# The official code tries 10 settings of LightGBM; a few of scikit-learn's gradient boosting serve here.
SETTINGS = [{"max_depth": depth, "n_estimators": trees, "learning_rate": 0.1} for depth in (1, 3) for trees in (20, 60)]
TRIES = 2000
KEPT = 0.5  # chance that a proposal keeps a layer's function: about what the official code's mutation leaves unchanged


@dataclass(frozen=True)
class Plan:
    """How far the search goes. Paper (official code): 80 first candidates, refitted every 10, stopped by hand."""

    candidates: tuple[int, int, int]  # scored in each stage; 0: the search ends before it
    first: int = 80  # before the partition is used
    interval: int = 10
    seed: int = 0

    @property
    def stages(self) -> int:
        """Number of stages before the first that has no candidates."""
        return [*self.candidates, 0].index(0)


def partition(x: list[list[float]], y: list[float], levels: int | None = None) -> list[GradientBoostingClassifier]:
    """Classifiers on the way to the best leaf: each tells the upper half, by the median score, of what the one before
    lets through.

    x: features, y: scores of the candidates. The official code keeps the whole tree, and always descends to the half
    with the higher median. A half of fewer than 4 candidates, or one that the median does not split, is a leaf.
    """
    levels = int(np.searchsorted(LEVELS, len(y), side="left")) + 1 if levels is None else levels
    data, scores, chain = np.asarray(x, dtype=float), np.asarray(y, dtype=float), []
    while len(chain) < levels and len(scores) >= 4:
        upper = scores >= np.median(scores)
        if upper.all():
            break
        folds = min(3, int(upper.sum()), int((~upper).sum()))
        quality = [cross_val_score(GradientBoostingClassifier(random_state=0, **s), data, upper,
                                   cv=StratifiedKFold(folds, shuffle=True, random_state=0)).mean()
                   if folds > 1 else 0.0 for s in SETTINGS]
        chain.append(GradientBoostingClassifier(random_state=0, **SETTINGS[int(np.argmax(quality))]).fit(data, upper))
        data, scores = data[upper], scores[upper]
    return chain


def in_best_leaf(chain: list[GradientBoostingClassifier], architecture: space.Architecture) -> bool:
    """Whether every classifier on the way puts it into the upper half."""
    row = np.asarray([space.features(architecture)], dtype=float)
    return all(bool(c.predict(row)[0]) for c in chain)


Proposal = Callable[[np.random.Generator], space.Architecture]
Score = Callable[[space.Architecture], dict]  # {"score": percent or any number to be high, ...}


class Search:
    """The state of a search: what was scored, in a JSON file."""

    def __init__(self, config: EfficientBertConfig, plan: Plan, file: Path):
        self.config, self.plan, self.file = config, plan, Path(file)
        self._fitted: tuple = (None, [])  # the partition in use, and what it was fitted on
        self.scored: list[dict] = json.loads(self.file.read_text()) if self.file.exists() else []

    def stage(self, number: int) -> list[dict]:
        return [c for c in self.scored if c["stage"] == number]

    def best(self, number: int) -> space.Architecture:
        """The best of a stage; among equals the earlier."""
        return space.from_json(max(self.stage(number), key=lambda c: (c["score"], -c["number"]))["architecture"])

    def result(self) -> space.Architecture:
        """What the search found: the best of its last stage."""
        return self.best(self.plan.stages)

    def run(self, number: int, starts: list[space.Architecture], propose: Proposal, score: Score) -> space.Architecture:
        """Score candidates of one stage up to the plan's number: `starts`, then proposals. Returns the best."""
        wanted = self.plan.candidates[number - 1]
        starts = list({space.key(a): a for a in reversed(starts)}.values())[::-1]  # the plain one may be the best
        while (n := len(done := self.stage(number))) < wanted:
            if n < len(starts):
                candidate, how = starts[n], "start"
            else:
                candidate, how = self._propose(number, n, done, propose)
            if candidate is None:
                print(f"stage {number}: no new architecture in {TRIES} proposals; the stage ends with {n} candidates")
                break
            key = space.key(candidate)
            # Stages 1 and 2 score in the same way, so that a function met again need not be trained again.
            known = [c for c in self.scored if c["key"] == key and (c["stage"] == 3) == (number == 3)]
            numbers = {**{k: known[0][k] for k in ("score", "diverged") if k in known[0]}, "seconds": 0.0,
                       "tokens": 0} if known else score(candidate)
            if not np.isfinite(numbers["score"]):
                numbers |= {"score": DIVERGED, "diverged": True}
            self.scored.append({
                "stage": number, "number": n, "how": how, "key": key, "architecture": space.to_json(candidate),
                "ffn_parameters": space.ffn_parameters(self.config, [g[:2] for g in candidate]), **numbers})
            write_atomic(self.file, json.dumps(self.scored, indent=1).encode())
        return self.best(number)

    def _propose(self, number: int, n: int, done: list[dict], propose: Proposal):
        """(architecture not met in this stage, where it came from); the partition is the one fitted last."""
        rng = np.random.default_rng([self.plan.seed, number, n])
        known = {c["key"] for c in done}
        chain = []
        if n >= self.plan.first:
            count = self.plan.first + (n - self.plan.first) // self.plan.interval * self.plan.interval
            if self._fitted[0] != (number, count):
                seen = done[:count]
                self._fitted = ((number, count), partition(
                    [space.features(space.from_json(c["architecture"])) for c in seen], [c["score"] for c in seen]))
            chain = self._fitted[1]
        for chosen, how in ((chain, "best leaf"), ([], "mutation")) if chain else (([], "mutation"),):
            for _ in range(TRIES):
                candidate = propose(rng)
                if space.admitted(self.config, candidate) and in_best_leaf(chosen, candidate) \
                        and space.key(candidate) not in known:
                    return candidate, how
        return None, ""


def search(config: EfficientBertConfig, plan: Plan, file: Path, score: Score,
           supernet: Callable[[space.Architecture], Score]) -> Search:
    """All stages of the plan, three in the paper; with the first alone operators and sizes are searched in one go.

    `score` trains and scores a candidate; `supernet(best of stage 2)` trains a weight-sharing supernet of its operators
    and returns what scores sizes inside it.
    """
    state = Search(config, plan, file)
    plain = parse(PLAIN)

    def coarse(rng):
        return tuple((s, d, plain if rng.random() < KEPT else space.sample(rng)) for s, d in space.sizes(config, rng))

    first = state.run(1, [tuple((s, d, plain) for s, d in space.even_sizes(config))], coarse, score)
    if plan.stages == 1:
        return state
    same_sizes = tuple((s, d, plain) for s, d, _ in first)

    def operators(rng):
        starts = ((s, d, space.pick(rng, (t, plain))) for s, d, t in first)
        return tuple((s, d, t if rng.random() < KEPT else space.mutate(t, rng)) for s, d, t in starts)

    second = state.run(2, [first, same_sizes], operators, score)
    if plan.stages == 2:
        return state

    def resized(rng):
        return tuple((s, d, g[2]) for (s, d), g in zip(space.sizes(config, rng), second, strict=True))

    if len(state.stage(3)) < plan.candidates[2]:
        state.run(3, [second], resized, supernet(second))
    return state
