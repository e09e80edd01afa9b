"""The plan names each run that a claim waits for once, with all the claims that wait for it."""

import claim_records

from lib import claims
from lib.claims import plan as claims_plan
from lib.results import load_all

TEXT = """schema: 1
group: {profile: glue, backbone: minilm-l6}
claims:
- {id: first, paper: theseus, claim: One is better., where: Table 2, testable: scaled, tasks: [rte, mrpc],
   test: score(theseus) - score(truncated) > 0}
- {id: second, paper: theseus, claim: Much is kept here., where: Table 2, testable: scaled, tasks: [rte],
   test: retention(theseus) > 90}
- {id: third, paper: theseus, claim: Cannot be tested., where: Table 2, testable: no, why: size, cost: a week}
"""


def test_each_missing_run_once_with_its_claims(places, capsys):
    file = places / "results" / "claims.yaml"
    file.parent.mkdir()
    file.write_text(TEXT)
    for seed in (0, 1):
        claim_records.put("theseus", "rte", seed, 0.8)
    for seed in range(3):
        claim_records.put("truncated", "rte", seed, 0.8)
    found = claims_plan.plan(claims.load(file), load_all()[0])
    assert found.to_dict("records") == [
        {"profile": "glue", "backbone": "minilm-l6", "run": "theseus", "tasks": "rte(2/3) mrpc(0/3)", "runs": 4,
         "claims": 2, "waiting": "first second"},
        {"profile": "glue", "backbone": "minilm-l6", "run": "bert", "tasks": "rte(0/3)", "runs": 3, "claims": 1,
         "waiting": "second"},
        {"profile": "glue", "backbone": "minilm-l6", "run": "truncated", "tasks": "mrpc(0/3)", "runs": 3, "claims": 1,
         "waiting": "first"},
    ]  # fmt: skip
    assert claims_plan.main() == 0
    assert "10 runs to make" in capsys.readouterr().out


def test_nothing_is_missing(places, capsys):
    file = places / "results" / "claims.yaml"
    file.parent.mkdir()
    file.write_text(TEXT.replace("[rte, mrpc]", "[rte]"))
    for label in ("theseus", "truncated", "bert"):
        for seed in range(3):
            claim_records.put(label, "rte", seed, 0.8)
    assert claims_plan.main() == 0
    assert capsys.readouterr().out == "no claim waits for a run\n"
