"""What the report is made of, corrupted by Hypothesis: claims, printed numbers, records and predictions.

Every outcome is a result or one line that names the file.
"""

from __future__ import annotations

import copy
import csv
import functools
import io
import json
import tempfile
from pathlib import Path

import claim_records
import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_records import record
from test_hostile import CELL, HOSTILE, TEXT, VALUE, encodable, told

from lib import claims, report, results
from lib.claims import language, verdicts
from lib.claims.claim_runs import Runs
from lib.errors import InputError
from lib.paths import ROOT
from lib.reporting import pages, reported
from lib.reporting.pages import Study

NUMBERS = st.sampled_from(["1e999", "9" * 400, "-0", "nan", "inf", 10**400, 1e308, -1, 0, float("nan"), float("inf"),
                           "<script>alert(1)</script>", "<0.5", "2-3"])
ANY = st.one_of(VALUE, NUMBERS)


def named(file: str, function) -> str | None:
    """The message of a refusal, which must name the file; None where there was a result."""
    message = told(function)
    assert message is None or file in message, message
    return message


# --- claims.yaml


@functools.cache
def whole() -> tuple[dict, tuple]:
    """(a few claims of every kind as YAML holds them, the printed numbers)."""
    raw = yaml.load((ROOT / "results" / "claims.yaml").read_text(), yaml.CSafeLoader)
    seen: dict[object, dict] = {}
    for c in raw["claims"]:
        seen.setdefault((c["testable"], bool(c.get("tasks")), "margin" in c), c)
    raw["claims"] = list(seen.values())
    return raw, tuple(reported.load())


def places(node, at=()) -> list[tuple]:
    """Paths of everything in a tree."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [at] * bool(at) + [p for k, v in items for p in places(v, (*at, k))]


def changed(tree, at: tuple, how: str, value):
    tree = copy.deepcopy(tree)
    parent = functools.reduce(lambda node, k: node[k], at[:-1], tree)
    if how == "put":
        parent[at[-1]] = value
    elif how == "take":
        del parent[at[-1]]
    elif isinstance(parent, list):  # again
        parent.append(parent[at[-1]])
    else:
        parent[str(value)] = parent[at[-1]]
    return tree


def judged(path: Path):
    found = claims.load(path, rows=list(whole()[1]))
    for c in found:
        _ = c.reported_effect
    return verdicts.judge(found, [], draws=10)


def test_the_sample_of_claims_is_whole(tmp_path):
    (tmp_path / "claims.yaml").write_text(yaml.safe_dump(whole()[0]))
    assert len(judged(tmp_path / "claims.yaml")) == len(whole()[0]["claims"]) > 3


@settings(HOSTILE, max_examples=25)
@given(st.data(), st.sampled_from(["put", "put", "take", "again"]))
def test_any_claim(data, how):
    tree = whole()[0]
    at = data.draw(st.sampled_from(places(tree)))
    tree = changed(tree, at, how, data.draw(ANY))
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "claims.yaml"
        path.write_bytes(yaml.safe_dump(tree).encode("utf-8", "surrogatepass"))
        named("claims.yaml", lambda: judged(path))


HARD = ["9" * 800, "1e999", "-" * 800 + "1", "(" * 300 + "1" + ")" * 300, "+".join("1" * 400), "1/0", "abs(abs(1))",
        "score(theseus) - score(theseus)", "printed(nothing)", "0x10", "1_000", "True", "margin", "1j", "f'{1}'",
        "().__class__", "lambda: 1", "score(*a)", "score(**a)", "size('a', 'b', 'c')", "score(x) for x in y",
        "1 if 1 else 2"]


@pytest.mark.parametrize("frame", ["{} > 0", "0 < {}", "{0} < {0}", "{}"])
@pytest.mark.parametrize("hard", HARD)
def test_hard_expressions(hard, frame):
    def worked_out():
        found = language.test(frame.format(hard), "claim x")
        functions = {name: lambda *a, **k: 1.0 for name in language.CALLS}
        for side in (found.effect, found.bound):
            side.value(functions, 1.0)

    told(worked_out)


@HOSTILE
@given(st.integers(0, 4000), st.binary(max_size=6), st.booleans())
def test_any_bytes_in_claims(at, content, cut):
    text = yaml.safe_dump(whole()[0]).encode()
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "claims.yaml"
        path.write_bytes(text[:at] + content + (b"" if cut else text[at:]))
        named("claims.yaml", lambda: judged(path))


@pytest.mark.parametrize("text", ["", "[" * 1500, "a: 2020-13-45", "claims: &a [*a]", "!!python/object:os.system x",
                                  "\0"])
def test_yaml_that_is_none(tmp_path, text):
    (tmp_path / "claims.yaml").write_text(text)
    assert named("claims.yaml", lambda: judged(tmp_path / "claims.yaml"))


# --- reported.csv


@functools.cache
def printed() -> list[list[str]]:
    with open(ROOT / "results" / "reported.csv", newline="", encoding="utf-8") as f:
        return list(csv.reader(f))[:25]


def shown(path: Path) -> str:
    rows = reported.load(path)
    for r in rows:
        assert r.number is None or np.isfinite(r.number)
    for paper, where in {(r.paper, r.where) for r in rows}:
        told(lambda paper=paper, where=where: reported.reported_table(paper, where, rows))
    return pages.sources(Study((), (), rows))


def as_csv(rows) -> bytes:
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    return out.getvalue().encode("utf-8", "surrogatepass")


@settings(HOSTILE, max_examples=40)
@given(st.integers(0, 24), st.integers(0, 11), st.one_of(CELL, NUMBERS),
       st.sampled_from(["put", "put", "put", "drop", "more", "again", "column"]))
def test_any_printed_number(line, column, value, how):
    rows = copy.deepcopy(printed())
    if how == "put":
        rows[line][column] = value
    elif how == "drop":
        del rows[line][column]
    elif how == "more":
        rows[line].append(value)
    elif how == "again":
        rows.append(rows[line])
    else:
        for r in rows:
            del r[column]
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "reported.csv"
        path.write_bytes(as_csv(rows))
        html = None

        def show():
            nonlocal html
            html = shown(path)

        message = named("reported.csv", show)
        assert message or "<script>alert" not in html
        assert how == "put" or message  # a ragged line, a row twice, a missing column are never taken


@pytest.mark.parametrize("value", ["1e999", "9" * 400, "nan", "<", "2-", "1,5", "<script>"])
def test_a_printed_value_is_a_finite_number_a_bound_or_a_range(tmp_path, value):
    rows = copy.deepcopy(printed())
    rows[3][6] = value
    (tmp_path / "reported.csv").write_bytes(as_csv(rows))
    with pytest.raises(InputError, match=r"reported\.csv, line 4: value is"):
        reported.load(tmp_path / "reported.csv")


@HOSTILE
@given(st.integers(0, 3000), st.binary(max_size=6), st.booleans())
def test_any_bytes_in_printed_numbers(at, content, cut):
    text = as_csv(printed())
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "reported.csv"
        path.write_bytes(text[:at] + content + (b"" if cut else text[at:]))
        named("reported.csv", lambda: shown(path))


# --- records


FIELDS = st.sampled_from(places(record().model_dump(mode="json")))


@settings(HOSTILE, max_examples=30)
@given(FIELDS, st.sampled_from(["put", "put", "take"]), ANY)
def test_what_is_taken_for_a_record_can_be_shown(monkeypatch, at, how, value):
    tree = changed(record().model_dump(mode="json"), at, how, value)
    with tempfile.TemporaryDirectory() as place:
        monkeypatch.setenv("BERT_RESULTS", place)
        path = results.record_path("glue", "minilm-l6", "rte", "theseus", "", 0)
        path.parent.mkdir(parents=True)
        path.write_bytes(json.dumps(tree, default=str).encode())
        records, skipped = results.load_all()
        assert len(records) + len(skipped) == 1
        assert all("seed-0.json" in s and s.isprintable() for s in skipped)
        study = Study(tuple(records), tuple(skipped), [])
        html = pages.comparison(study, local=False) + pages.provenance(study) + pages.glance(study)
        assert "<script>alert" not in html
        assert len(report.tidy(records)) == len(records)


@HOSTILE
@given(st.integers(0, 3000))
def test_a_record_that_was_cut_off(monkeypatch, at):
    with tempfile.TemporaryDirectory() as place:
        monkeypatch.setenv("BERT_RESULTS", place)
        path = results.write(record(), pd.DataFrame({"idx": [0]}))
        text = path.read_bytes()
        path.write_bytes(text[: min(at, len(text) - 3)])
        message = named("seed-0.json", lambda: results.read(path))
        assert message


# --- predictions


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(folder of results, record, its predictions)."""
    folder = tmp_path_factory.mktemp("predictions")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERT_RESULTS", str(folder))
        made = claim_records.put("theseus", "rte", 0, 0.8)
        return folder, made, results.predictions(made, 2)


def rows_changed(frame: pd.DataFrame, how: str, column: str, value) -> pd.DataFrame:
    frame = frame.copy()
    if how == "cell":
        frame[column] = frame[column].astype(object)
        frame.loc[3, column] = value
    elif how == "all":
        frame[column] = [value] * len(frame)
    elif how == "drop":
        frame = frame.drop(columns=column)
    elif how == "name":
        frame = frame.rename(columns={column: str(value)})
    elif how == "fewer":
        frame = frame.iloc[:-1]
    elif how == "twice":
        frame.loc[0, "idx"] = frame.loc[1, "idx"]
    elif how == "type":
        frame[column] = frame[column].astype(str)
    return frame


@settings(HOSTILE, max_examples=60)
@given(st.sampled_from(["cell", "cell", "all", "drop", "name", "fewer", "twice", "type"]),
       st.sampled_from(["idx", "label", "logit_0", "logit_1"]),
       st.one_of(NUMBERS, st.none(), st.booleans(), st.integers(-9, 9), TEXT.filter(encodable)))
def test_any_predictions(run, monkeypatch, how, column, value):
    folder, made, frame = run
    monkeypatch.setenv("BERT_RESULTS", str(folder))
    frame = rows_changed(frame, how, column, value)
    path = results.path_of(made).with_suffix(".parquet")
    try:
        frame.to_parquet(path, index=False)
    except Exception:  # noqa: BLE001 - what parquet cannot hold cannot be in the file; as text it can
        frame.astype({column: str}).to_parquet(path, index=False)
    message = named("theseus/seed-0.json", lambda: Runs([made], draws=10).scores(made))
    assert message or how in ("cell", "all", "name")
    if how in ("drop", "fewer", "twice", "type"):
        assert message


@HOSTILE
@given(st.integers(0, 5000), st.binary(max_size=8), st.booleans())
def test_any_bytes_in_predictions(run, monkeypatch, at, content, cut):
    folder, made, frame = run
    monkeypatch.setenv("BERT_RESULTS", str(folder))
    out = io.BytesIO()
    frame.to_parquet(out, index=False)
    text = out.getvalue()
    results.path_of(made).with_suffix(".parquet").write_bytes(text[:at] + content + (b"" if cut else text[at:]))
    named("theseus/seed-0.json", lambda: Runs([made], draws=10).scores(made))


def test_predictions_of_other_rows_and_none(run, monkeypatch):
    folder, made, frame = run
    monkeypatch.setenv("BERT_RESULTS", str(folder))
    path = results.path_of(made).with_suffix(".parquet")
    other = frame.assign(label=1 - frame["label"])
    for content, message in ((other, "its predictions give"), (frame.assign(label=frame["label"] + 5), "none of the 2"),
                             (frame.assign(logit_0=np.nan), "no finite number")):
        content.to_parquet(path, index=False)
        with pytest.raises(InputError, match=message):
            Runs([made], draws=10).scores(made)
    path.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        Runs([made], draws=10).scores(made)
