"""The claims of the papers: `results/claims.yaml`, loaded with a check of every reference.

A claim says in our words what a paper states, where, on which printed numbers, whether it can be tested here, and how:
one test over records, printed numbers or tables of sizes (`lib.claims.language`). It was declared before its runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from lib.backbones import BACKBONES
from lib.claims.language import ON_ROWS, PRINTED, RUNS, TABLES, Expression, Test, expression, test
from lib.errors import InputError, one_of
from lib.parameters import describe
from lib.paths import ROOT, component, results_dir
from lib.reporting import reported
from lib.reporting.reported import Reported
from lib.systems import BY_NAME
from lib.tasks import TASKS

TEACHER = "bert"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Evidence(_Part):
    """A reference to printed numbers: rows of one system in one table. Of several tasks the mean is meant."""

    where: str
    system: str
    paper: str = ""  # empty: the claim's
    task: str | list[str] = ""  # empty: whatever the one row has
    split: str = ""
    metric: str = ""  # empty: any but a difference ("delta_...")

    @property
    def tasks(self) -> list[str]:
        return [self.task] if isinstance(self.task, str) else self.task


class Group(_Part):
    profile: str
    backbone: str


class Declared(_Part):
    """One claim as it stands in the file."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]{2,79}$")
    paper: str
    claim: str = Field(min_length=10)
    where: str = Field(min_length=1)
    evidence: dict[str, Evidence] = {}
    reported: str = ""  # the paper's own effect, over the evidence
    testable: Literal["full", "scaled", "no"]
    why: str = ""  # of "no"
    cost: str = ""  # of "no": what testing it would take
    how: str = ""  # what the test here does otherwise than the paper
    revised: str = ""  # what was changed after its runs had been seen, when and why
    profile: str = ""  # empty: the group's
    backbone: str = ""
    tasks: list[str] = []
    margin: float | None = Field(default=None, ge=0)
    test: str | list[str] = []

    @model_validator(mode="before")
    @classmethod
    def _yaml_no(cls, values: dict) -> dict:
        # YAML 1.1 reads `testable: no` as false.
        return {**values, "testable": "no"} if isinstance(values, dict) and values.get("testable") is False else values


class File(_Part):
    version: Literal[1] = Field(alias="schema")
    group: Group
    sets: dict[str, list[str]] = {}  # tasks by name; YAML's own anchors use them
    claims: list[Declared] = Field(min_length=1)


@dataclass(frozen=True)
class Claim:
    """A claim whose references were all found. `rows`: evidence name -> its printed rows."""

    declared: Declared
    group: Group
    tests: tuple[Test, ...]
    rows: dict[str, list[Reported]]
    own: Expression | None = field(default=None)

    def __getattr__(self, name: str):
        if name in Declared.model_fields:
            return getattr(self.declared, name)
        raise AttributeError(name)

    @property
    def kind(self) -> str:
        """What answers it: "runs", "tables", "printed", or "" where nothing does."""
        kinds = [t.kind for t in self.tests]
        return next((k for k in ("runs", "tables", "printed") if k in kinds), "")

    @property
    def of_training(self) -> bool:
        """Whether training answers it, or would: a sum of printed numbers that is true is no result made again."""
        return self.kind in ("runs", "")

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Methods and variants that the test needs a run of, the teacher included where retention is asked for."""
        found: dict[str, None] = {}
        for t in self.tests:
            for c in t.calls:
                if c.name in RUNS:
                    found[c.arguments[0]] = None
                if c.name == "retention":
                    found[TEACHER] = None
        return tuple(found)

    @property
    def on_rows(self) -> bool:
        """Whether the scored rows decide its effect, unlike a number of the record, such as memory."""
        return any(call.name in ON_ROWS for call in self.tests[0].calls)

    def printed(self, name: str) -> float:
        """The number of the evidence `name`: of several tasks the mean; of a bound the number without its sign."""
        values = [float(r.value.lstrip("<>")) for r in self.rows[name]]
        return sum(values) / len(values)

    def printed_retention(self, student: str, teacher: str, tasks: Iterable[str] = ()) -> float:
        """Percent of a printed teacher that a printed student keeps, averaged over tasks (of `tasks` those printed)."""
        theirs = {r.task: float(r.value) for r in self.rows[teacher]}
        own = {r.task: 100 * float(r.value) / theirs[r.task] for r in self.rows[student]}
        chosen = own.keys() & set(tasks) or own.keys()
        return sum(own[t] for t in chosen) / len(chosen)

    def functions(self, tasks: Iterable[str] = ()) -> dict:
        """What answers the calls for printed numbers."""
        return {"printed": self.printed, "printed_retention": partial(self.printed_retention, tasks=tuple(tasks))}

    @property
    def reported_effect(self) -> float | None:
        """The paper's own effect, from the printed numbers; None where the claim names none."""
        return None if self.own is None else float(self.own.value(self.functions(), self.margin or 0.0))


def path() -> Path:
    """`results/claims.yaml`, of the repository where `BERT_RESULTS` holds none."""
    own = results_dir() / "claims.yaml"
    return own if own.exists() else ROOT / "results" / "claims.yaml"


def load(file: Path | None = None, rows: list[Reported] | None = None) -> list[Claim]:
    """All claims in file order, each reference resolved.

    Raises `InputError` naming file and claim for: no YAML, an unknown or missing field, an id that occurs twice, a test
    that cannot be read, a printed number that `reported.csv` holds not exactly once, an unknown task or method.
    """
    file = path() if file is None else file
    rows = reported.load() if rows is None else rows
    try:
        raw = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as e:  # ValueError: no UTF-8, a date that is none
        raise InputError(f"{file}: cannot be read as YAML ({' '.join(str(e).split())[:200]})") from e
    try:
        declared = File.model_validate(raw)
    except ValidationError as e:
        raise InputError(f"{file}: {_place(raw, e)}{describe(e, {})}") from None
    seen: set[str] = set()
    for c in declared.claims:
        if c.id in seen:
            raise InputError(f"{file}: claim {c.id} stands there twice")
        seen.add(c.id)
    return [_claim(file, c, declared.group, rows) for c in declared.claims]


def _place(raw: object, e: ValidationError) -> str:
    loc = e.errors()[0]["loc"]
    try:
        return f"claim {raw['claims'][loc[1]]['id']}: " if loc[0] == "claims" else ""
    except (TypeError, KeyError, IndexError):
        return ""


def _claim(file: Path, c: Declared, group: Group, rows: list[Reported]) -> Claim:
    what = f"{file}: claim {c.id}"
    papers = sorted({r.paper for r in rows})
    one_of(f"{what}: paper", c.paper, papers)
    if (c.testable == "no") != (not c.test):
        raise InputError(f"{what}: a claim has a test exactly where it is testable; testable is {c.testable!r}")
    if c.testable == "no" and not (c.why and c.cost):
        raise InputError(f"{what}: a claim that is not testable says why, and what it would cost")
    texts = [c.test] if isinstance(c.test, str) else c.test
    tests = tuple(test(t, f"{what}: test") for t in texts)
    own = expression(c.reported, f"{what}: reported") if c.reported else None
    found = {name: _find(f"{what}: evidence {name}", e, e.paper or c.paper, rows) for name, e in c.evidence.items()}
    for call in [call for part in (*tests, *([own] if own else [])) for call in part.calls]:
        if call.name in PRINTED:
            for name in call.arguments:
                one_of(f"{what}: {call.name}", name, found)
            if len({tuple(sorted(r.task for r in found[name])) for name in call.arguments}) > 1:
                raise InputError(f"{what}: {call.name} needs the same tasks in {' and '.join(call.arguments)}")
        elif call.name in RUNS:
            one_of(f"{what}: method", call.arguments[0].partition("-")[0], BY_NAME)
            component(f"{what}: run", call.arguments[0])
    runs_of = Group(profile=c.profile or group.profile, backbone=c.backbone or group.backbone)
    one_of(f"{what}: backbone", runs_of.backbone, BACKBONES)
    claim = Claim(c, runs_of, tests, found, own)
    if own and any(call.name not in PRINTED for call in own.calls):
        raise InputError(f"{what}: reported may hold {', '.join(PRINTED)} only")
    if claim.kind == "runs":
        if any(call.name in TABLES for t in tests for call in t.calls):
            raise InputError(f"{what}: runs and tables of sizes cannot stand in one test")
        if len(tests) != 1:
            raise InputError(f"{what}: a claim that runs answer has one test, its primary endpoint; {len(tests)} given")
        if not c.tasks or len(set(c.tasks)) < len(c.tasks):
            raise InputError(f"{what}: tasks are {c.tasks}; needed: each task of the endpoint once")
        for t in c.tasks:
            one_of(f"{what}: task", t, TASKS)
    elif c.tasks:
        raise InputError(f"{what}: tasks are {c.tasks}, but no run answers it")
    uses = any(t.effect.margin or t.bound.margin for t in tests)
    if uses != (c.margin is not None):
        raise InputError(f"{what}: margin is {c.margin}, and the test {'names' if uses else 'does not name'} it")
    return claim


def _find(what: str, e: Evidence, paper: str, rows: list[Reported]) -> list[Reported]:
    """The printed row of each task; `InputError` where there is not exactly one."""
    table = reported.select(rows, paper, e.where, e.system)
    out = []
    for task in e.tasks:
        found = [r for r in table if task in ("", r.task) and e.split in ("", r.split)
                 and (r.metric == e.metric if e.metric else not r.metric.startswith("delta_"))]
        if len(found) != 1:
            have = ", ".join(f"{r.task}/{r.split}/{r.metric}" for r in (found or table)[:8]) or "none"
            raise InputError(f"{what}: {len(found)} printed numbers for {paper}, {e.where!r}, {e.system!r}, "
                             f"{task or 'any task'}; exactly one is needed (rows: {have})")
        out += found
    return out
