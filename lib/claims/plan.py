"""Which runs the claims still wait for: what to run next.

    python -m lib.claims.plan

One line a method or variant, backbone and profile: the tasks where runs are missing, how many runs that is at three
seeds, and the claims that wait for it; the line that the most claims wait for comes first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import pandas as pd

from lib.claims import Claim, load
from lib.claims.claim_runs import Runs
from lib.claims.verdicts import SEEDS
from lib.errors import one_line
from lib.results import Record, load_all

COLUMNS = ("profile", "backbone", "run", "tasks", "runs", "claims", "waiting")


def plan(claims: list[Claim], records: Iterable[Record], seeds: int = SEEDS) -> pd.DataFrame:
    """Columns `COLUMNS`: `tasks` with the seeds that exist of each, `runs` to be made, `claims` counted and named."""
    runs = Runs(records)
    lacking: dict[tuple[str, str, str], dict[str, int]] = {}
    waiting: dict[tuple[str, str, str], dict[str, None]] = {}
    for c in claims:
        if c.kind != "runs":
            continue
        for label in c.labels:
            key = (c.group.profile, c.group.backbone, label)
            for task in c.tasks:
                have = len(runs.seeds(c, task, label))
                if have < seeds:
                    lacking.setdefault(key, {})[task] = have
                    waiting.setdefault(key, {})[c.id] = None
    lines = [[*key, " ".join(f"{t}({have}/{seeds})" for t, have in tasks.items()),
              sum(seeds - have for have in tasks.values()), len(waiting[key]), " ".join(waiting[key])]
             for key, tasks in lacking.items()]
    return pd.DataFrame(lines, columns=list(COLUMNS)).sort_values(
        ["claims", "runs", "run"], ascending=[False, True, True], ignore_index=True)


@one_line("claims_plan")
def main() -> int:
    found = plan(load(), load_all()[0])
    if found.empty:
        print("no claim waits for a run")
        return 0
    print(found.to_string(index=False))
    print(f"{found['runs'].sum()} runs to make")
    return 0


if __name__ == "__main__":
    sys.exit(main())
