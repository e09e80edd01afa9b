"""Made-up studies, and what a page made of one says: for the tests of pages. Nothing here is a result."""

from __future__ import annotations

import re

from bs4 import BeautifulSoup
from synthetic_records import record

from lib.paths import ROOT
from lib.reporting.pages import Study
from lib.reporting.reported import load

REPORTED = load(ROOT / "results" / "reported.csv")


def study(*records):
    return Study(tuple(records), (), REPORTED)


def three(method="theseus", scores=(60.0, 61.0, 62.0), **changes):
    return [record(method, seed=i, score=s, teacher=66.0 + i / 10, **changes) for i, s in enumerate(scores)]


def text(html) -> str:
    return re.sub(r"\s+", " ", BeautifulSoup(str(html), "html.parser").get_text(" ")).replace("\u00a0", " ")


def row(html, caption, head) -> list[str]:
    soup = BeautifulSoup(str(html), "html.parser")
    table = next(t for t in soup.find_all("table") if caption in t.caption.get_text())
    found = next(r for r in table.tbody.find_all("tr") if r.th.get_text(" ", strip=True) == head)
    return [text(c).strip() for c in found.find_all("td")]


def rows_of(html, caption) -> list[list[str]]:
    soup = BeautifulSoup(str(html), "html.parser")
    table = next(t for t in soup.find_all("table") if caption in t.caption.get_text())
    return [[text(c).strip() for c in r.find_all("td")] for r in table.tbody.find_all("tr")]
