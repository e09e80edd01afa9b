"""The tables of the Theseus paper in its own layout, beside the runs of ours that ask the same question.

A study's runs are variants of the method (`lib.methods.theseus_studies`); the names are matched here.
"""

from __future__ import annotations

import re

from markupsafe import Markup

from lib.beside import beside, module_impact, variants_beside
from lib.pages import Study
from lib.reported import reported_table
from lib.tables import details, frame

PAPER = "theseus"
# Heading, table of the paper, and our label -> its row there. The first line is what the differences refer to.
ABLATIONS = (
    ("Table 6: which replacement strategy", "Table 6", {
        "theseus-constant": "Theseus constant rate",
        "theseus-anti": "Theseus anti-curriculum",
        "theseus": "Theseus curriculum",
    }),
    ("Table 4: compress on another task first", "Table 4", {
        "bert": "BERT-base",
        "theseus-transfer": "BERT-of-Theseus-MNLI",
    }),
)  # fmt: skip
# Ours only: the paper prints no number, or its rows do not match a backbone of another depth.
OWN = (
    ("Table 5: replacing one module alone", "Table 5", r"bert|theseus-module\d+"),
    ("Table 7: how many layers are left", "Table 7", r"(truncated|theseus)(-layers\d+)?"),
    ("Figure 3: the replacing rate", "Table 6", r"theseus-rate[\d.]+(-equivalent)?"),
    ("Section 3: where substitutes start; paper and official code", "Table 6", r"theseus(-init-\w+|-code)?"),
)
NOTES = {
    "Table 5": "The paper cuts 12 layers into six modules; a smaller backbone has fewer, so the rows do not match.",
    "Table 7": "Rows compare by the share of layers kept: their 6 layers are half, as our plain runs are.",
    "Figure 3": "The paper draws these numbers and does not print them.",
    "Section 3": "The paper says that the other starts were worse, without numbers.",
}


def tables(study: Study) -> Markup:
    """Tables 2 and 3, then the studies; each printed table can be opened whole."""
    head = Markup('<h2 id="{}">{}</h2>')
    out = head.format("table-2", "Table 2: development sets") + beside(PAPER, "theseus", "Table 2", study)
    out += _whole(study, "Table 2") + _whole(study, "Table 3")
    for title, where, systems in ABLATIONS:
        out += head.format(_anchor(title), title) + variants_beside(PAPER, where, systems, study) + _whole(study, where)
    for title, where, pattern in OWN:
        key = title.split(":")[0]
        out += head.format(_anchor(title), title)
        out += Markup("<p>{}</p>").format(NOTES[key])
        out += _ours(study, title, where, pattern)
        if key == "Table 5":
            out += module_impact("theseus", study)
        if key == where:
            out += _whole(study, where)
    return out


def _anchor(title: str) -> str:
    return re.sub(r"\W+", "-", title.split(":")[0].lower())


def _whole(study: Study, where: str) -> Markup:
    data = reported_table(PAPER, where, study.reported)
    return details(f"{where} as printed", frame(f"{where} as printed ({data.attrs['split']})", data))


def _ours(study: Study, title: str, where: str, pattern: str) -> Markup:
    """Variants of ours without a printed row; at least one must be a variant, or there is nothing to see."""
    found = sorted({r.label for r in study.records if re.fullmatch(pattern, r.label)}, key=_natural)
    if not any("-" in label for label in found):
        return Markup("<p>Ours: not run.</p>")
    return variants_beside(PAPER, where, dict.fromkeys(found), study, title.split(":")[0])


def _natural(label: str) -> list:
    """Plain methods first, then by number: module2 before module10."""
    return ["-" in label, *(float(x) if x[0].isdigit() else x for x in re.findall(r"\d+(?:\.\d+)?|\D+", label))]
