"""The page of claims: each stands there whole, with and without scripts, and nothing of it is trusted as HTML."""

import claim_records
import pytest
from bs4 import BeautifulSoup

from lib import claims
from lib.claims import verdicts
from lib.reporting import claims_page, reported
from lib.results import load_all

ROWS = reported.load()


@pytest.fixture
def found(places):
    for s in range(3):
        claim_records.put("theseus", "rte", s, 0.9)
        claim_records.put("truncated", "rte", s, 0.7)
    return verdicts.judge(claims.load(rows=ROWS), load_all()[0], draws=100)


@pytest.fixture
def soup(found):
    return BeautifulSoup(str(claims_page.page(found)), "html.parser")


def row(soup, name):
    return soup.find(id=f"claim-{name}")


def test_every_claim_has_a_line_with_its_verdict(found, soup):
    lines = soup.select(f"#{claims_page.NAME} tbody tr")
    assert [x["id"] for x in lines] == [f"claim-{v.claim.id}" for v in found]
    for line, v in zip(lines, found, strict=True):
        assert line["data-paper"] == v.claim.paper
        assert line["data-verdict"] == v.verdict.replace(" ", "-")
        words = line.find_all("td")[0].get_text(" ")
        assert v.verdict in words
        assert v.claim.claim in line.find("th").get_text()


def test_counts_by_paper_add_up(found, soup):
    sums = []
    for table in soup.find_all("table")[:2]:  # what training answers, and the rest
        numbers = [int(td.get_text()) for td in table.find_all("tr")[-1].find_all("td")]
        assert sum(numbers[:-1]) == numbers[-1]
        sums.append(numbers[-1])
    assert sums == [sum(v.claim.of_training == training for v in found) for training in (True, False)]
    assert sum(sums) == len(found)


def test_what_was_changed_after_the_runs_is_said(found, soup):
    v = next(v for v in found if v.claim.id == "theseus-keeps-98")
    assert v.claim.revised in " ".join(row(soup, v.claim.id).get_text(" ", strip=True).split())


def test_a_share_and_a_ratio_have_no_sign_and_every_effect_its_unit():
    assert claims_page._number(97.8, "percent of the teacher's score") == "97.80"
    assert claims_page._number(-1.5, "points") == "\N{MINUS SIGN}1.50"
    assert claims_page._number(0.01, "relative difference") == "+0.01"


def test_reasons_name_tasks_by_their_titles_and_leave_runs_as_they_are():
    assert claims_page._named("rte left out: a; not run: kd-rte, theseus-rate0.1 on mrpc, stsb (3 runs)") == (
        "RTE left out: a; not run: kd-rte, theseus-rate0.1 on MRPC, STS-B (3 runs)")


def test_an_effect_stands_with_its_interval_runs_and_evidence(found, soup):
    v = next(v for v in found if v.claim.id == "theseus-beats-truncated")
    line = row(soup, v.claim.id)
    text = line.get_text(" ", strip=True)
    low, high = v.interval
    assert f"{v.value:+.2f}" in text
    assert f"interval {low:+.2f} to {high:+.2f}" in text
    assert "at this scale" in text
    assert "RTE:" in text
    assert "81.2" in text
    assert "+4.00" in text
    links = [a["href"] for a in line.find_all("a")]
    assert "provenance.html#run-glue-minilm-l6-rte-theseus-0" in links
    assert "records/glue/minilm-l6/rte/truncated/seed-2.json" in links
    assert len(links) == 12


def test_a_claim_over_printed_numbers_shows_both_sides(soup):
    text = row(soup, "tinybert-text-against-own-averages").get_text(" ", strip=True)
    assert "holds in part" in text
    assert "1 of 2 comparisons are true" in text
    for printed in ("72.5", "71.0", "68.5"):
        assert printed in text


def test_a_claim_about_size_shows_the_counts_it_reads(places):
    one = [c for c in claims.load(rows=ROWS) if c.id == "tinybert-7.5-smaller"]
    (v,) = verdicts.judge(one, [])
    assert "the counts" not in str(claims_page.page([v]))  # there is no table yet
    file = places / "results" / "sizes.csv"
    file.parent.mkdir()
    file.write_text("system,parameters\nBERT-base,109482240\nTinyBERT4,14350248\nDistilBERT,1\n")
    (v,) = verdicts.judge(one, [])
    cell = row(BeautifulSoup(str(claims_page.page([v])), "html.parser"), "tinybert-7.5-smaller").find_all("td")[-1]
    assert cell.get_text(" ", strip=True) == ("none: counts the counts size BERT-base parameters: 109,482,240 "
                                              "size TinyBERT4 parameters: 14,350,248")


def test_filters_work_by_script_and_without(found, soup):
    papers = {v.claim.paper for v in found}
    box = soup.select_one(f'.bc-controls[data-for="{claims_page.NAME}"]')
    options = {o["value"] for o in box.select('select[data-filter="paper"] option')}
    assert options == papers | {""}
    plain = soup.find("noscript")
    radios = {i["id"] for i in plain.find_all("input")}
    style = plain.find("style").string
    assert {f"claims-paper-{p}" for p in papers | {"all"}} <= radios
    for word in verdicts.WORDS:
        key = claims_page.key(word)
        assert f"claims-verdict-{key}" in radios
        assert f'#claims-verdict-{key}:checked) #{claims_page.NAME} tbody tr:not([data-verdict="{key}"])' in style
    assert [i["id"] for i in plain.find_all("input", checked=True)] == ["claims-paper-all", "claims-verdict-all"]


def test_text_of_a_claim_is_shown_as_text(places):
    file = places / "claims.yaml"
    file.write_text("schema: 1\ngroup: {profile: glue, backbone: minilm-l6}\nclaims:\n- id: odd\n  paper: theseus\n"
                    "  claim: '<script>alert(1)</script> is better'\n  where: '<b>1'\n  testable: no\n"
                    "  why: '<img src=x>'\n  cost: none\n")
    html = str(claims_page.page(verdicts.judge(claims.load(file, ROWS), [])))
    assert "<script>" not in html
    assert "<img" not in html
    assert "&lt;script&gt;" in html


def test_the_page_asks_nothing_of_another_place(soup):
    assert not soup.find_all(["script", "img", "link", "iframe"])
    assert all(not a["href"].startswith(("http", "//")) for a in soup.find_all("a"))
