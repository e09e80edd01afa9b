"""Verdicts from printed numbers and from tables of sizes and students; the command that writes them all."""

import pandas as pd
import pytest
from claim_records import PRINTED, judge, runs

from lib import claims
from lib.claims import verdicts
from lib.errors import InputError
from lib.paths import ROOT


def test_what_eight_bits_change_comes_from_the_table_of_students(places):
    test = ("int8", "int8_drop(mobilebert) > -margin", "margin: 1", "tasks: [rte]")
    runs("mobilebert", "rte", 0.8)
    (v,) = judge(places, test)
    assert v.verdict == verdicts.UNTESTED
    assert v.reason == "rte: seed 0, 1, 2 not measured (no row in results/students.csv)"
    head = "profile,backbone,task,method,variant,seed,drop_int8\n"
    line = "glue,minilm-l6,rte,mobilebert,{},{},{}\n"
    own = "".join(line.format("", s, -0.1 * s) for s in range(3))
    file = places / "results" / "students.csv"
    file.write_text(head + own + line.format("joint", 0, -50))
    (v,) = judge(places, test)
    assert v.verdict == verdicts.HOLDS
    assert v.value == pytest.approx(-0.1)
    assert v.effect.rows == {"rte": 0}
    file.write_text(head + line.format("", 0, -0.1) + line.format("", 2, -0.2))
    (v,) = judge(places, test)  # the students of seed 1 are no longer there to be measured
    assert (v.verdict, v.value, v.effect.seeds) == (verdicts.HOLDS, pytest.approx(-0.15), {"rte": 2})
    assert "rte: seed 1 not measured" in v.reason
    file.write_text(head + line.format("joint", 0, -50))
    (v,) = judge(places, test)
    assert (v.verdict, "seed 0, 1, 2 not measured" in v.reason) == (verdicts.UNTESTED, True)


def test_printed_numbers_and_reasons_of_the_real_claims(places):
    found = {v.claim.id: v for v in verdicts.judge(claims.load(rows=PRINTED), [])}
    text = found["tinybert-text-against-own-averages"]
    assert text.verdict == verdicts.PART
    assert "part 1: -1.5 > 0 is false; part 2: 2.5 > 0 is true" in text.reason
    assert text.parts == (False, True)
    assert found["mobilebert-squad-gains-printed"].verdict == verdicts.HOLDS
    assert found["distilbert-squad-text-and-table"].verdict == verdicts.NOT
    never = found["efficientbert-squad-gains"]
    assert never.verdict == verdicts.UNTESTED
    assert "cost:" in never.reason
    assert "cost not known: no run of this group yet" in found["theseus-beats-truncated"].reason


def test_tables_of_sizes(places):
    size = ("size", 'abs(size("TinyBERT4", "parameters") / 14500000 - 1) <= 0.05', "how: counted")
    file = places / "results" / "sizes.csv"
    file.parent.mkdir()
    assert "does not exist yet" in judge(places, size)[0].reason
    file.write_text("system,parameters\nBERT-base,109482240\nTinyBERT4,14350248\n")
    assert judge(places, size)[0].verdict == verdicts.HOLDS
    file.write_text("system,parameters\nTinyBERT4,24350248\n")
    assert judge(places, size)[0].verdict == verdicts.NOT
    for text, words in (("system,parameters\nBERT-base,1\n", "no row of system TinyBERT4"),
                        ("system,weights\nTinyBERT4,1\n", "no column 'parameters'"),
                        ("system,parameters\nTinyBERT4,1\nTinyBERT4,2\n", "2 rows"),
                        ("system,parameters\nTinyBERT4,many\n", "no number")):
        file.write_text(text)
        v = judge(places, size)[0]
        assert (v.verdict, words in v.reason) == (verdicts.UNTESTED, True), v.reason


def test_the_studys_own_tables_answer_the_claims_about_size():
    """With the real results/sizes.csv and blocks.csv: a name that fits no row would stay untested for ever."""
    if not (ROOT / "results" / "sizes.csv").exists():
        pytest.skip("results/sizes.csv is not written yet (python -m lib.efficiency.run sizes)")
    asked = [c for c in claims.load(rows=PRINTED) if c.kind == "tables"]
    counted = [c for c in asked if all(call.name != "latency" for t in c.tests for call in t.calls)]
    assert len(counted) >= 6
    for v in verdicts.judge(counted, []):
        assert v.verdict != verdicts.UNTESTED, f"{v.claim.id}: {v.reason}"


def test_the_command_writes_the_table(places, capsys):
    runs("theseus", "rte", 0.9)
    runs("truncated", "rte", 0.7)
    assert verdicts.main() == 0
    assert f"{len(claims.load(rows=PRINTED))} claims from 6 records" in capsys.readouterr().out
    frame = pd.read_csv(places / "results" / "verdicts.csv")
    assert list(frame.columns) == list(verdicts.COLUMNS)
    assert set(frame["verdict"]) <= set(verdicts.WORDS)
    line = frame.set_index("claim").loc["theseus-beats-truncated"]
    assert line["verdict"] == verdicts.PART
    assert line["tasks"] == "rte"
    assert line["low"] > 0
    assert line["reported"] == 4.0
    assert len(line["records"].split()) == 6
    assert all((places / "results" / "runs" / r).exists() for r in line["records"].split())
    first = (places / "results" / "verdicts.csv").read_bytes()
    assert verdicts.main() == 0
    assert (places / "results" / "verdicts.csv").read_bytes() == first


def test_a_bad_claims_file_is_one_line(places, capsys):
    (places / "results").mkdir()
    (places / "results" / "claims.yaml").write_text("schema: 1\n")
    assert verdicts.main() == 2
    assert capsys.readouterr().err.startswith("verdicts: ")
    with pytest.raises(InputError):
        claims.load(rows=PRINTED)
