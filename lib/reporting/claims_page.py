"""The page of claims: every claim with its verdict, the effect with its interval, the printed evidence and the runs."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from itertools import starmap

from markupsafe import Markup

from lib.claims import claim_tables
from lib.claims.language import Call
from lib.claims.verdicts import HOLDS, NOT, PART, UNDECIDED, UNTESTED, WORDS, Verdict
from lib.reporting.cells import anchor, record_page
from lib.reporting.comparison import task_title
from lib.reporting.reported import Reported, metric_title, paper_title
from lib.reporting.tables import Keyed, code, controls, count, details, flag, lines, small, table, wide
from lib.tasks import TASKS

NAME = "claims-table"
ORDER = ("theseus", "pkd", "pdbert", "layerdrop", "distilbert", "tinybert", "mobilebert", "efficientbert", "trimbert")
PAPERS = {p: paper_title(p) for p in ORDER} | {"pkd": "KD and BERT-PKD"}  # its claims are about both
SIGNS = {HOLDS: "✓", PART: "◐", NOT: "✗", UNDECIDED: "?", UNTESTED: "–"}  # beside the word, never alone

def page(found: list[Verdict]) -> Markup:
    """Counts by paper and verdict, the filters, and one line a claim; the page takes the whole window (study.css)."""
    return wide(_counts(found), _filters(found), _table(found))


def key(verdict: str) -> str:
    """A verdict as one word, for filters."""
    return verdict.replace(" ", "-")


def _counts(every: list[Verdict]) -> Markup:
    """A table of what runs answer, and one of the rest: a true sum of printed numbers is no reproduced result."""
    titles = {True: "Claims that training answers, by paper and verdict",
              False: "Claims that printed numbers, counts or timings answer, by paper and verdict"}
    return Markup("").join(_counted(title, found) for training, title in titles.items()
                           if (found := [v for v in every if v.claim.of_training == training]))


def _counted(title: str, found: list[Verdict]) -> Markup:
    counted = Counter((v.claim.paper, v.verdict) for v in found)
    papers = [p for p in PAPERS if any(v.claim.paper == p for v in found)]
    papers += sorted({v.claim.paper for v in found} - set(papers))
    rows = [[PAPERS.get(p, p), *(str(counted[p, w]) for w in WORDS), str(sum(counted[p, w] for w in WORDS))]
            for p in papers]
    rows.append(["All", *(str(sum(counted[p, w] for p in papers)) for w in WORDS), str(len(found))])
    return table(title, ["Paper", *(f"{SIGNS[w]} {w}" for w in WORDS), "All"], rows)


def _filters(found: list[Verdict]) -> Markup:
    """Fields for the script of the book; without scripts the same by radio buttons and a style sheet."""
    papers = {p: PAPERS.get(p, p) for p in dict.fromkeys(v.claim.paper for v in found)}
    verdicts = {key(w): w for w in WORDS}
    out = controls(NAME, filters={"paper": ("Paper", papers), "verdict": ("Verdict", verdicts)}, search="Search")
    out += Markup('<noscript><div class="bc-radios"><style>{}</style>').format(
        Markup("").join([*_rules("paper", papers), *_rules("verdict", verdicts)]))
    for name, options in (("paper", papers), ("verdict", verdicts)):
        out += Markup("<fieldset><legend>{}</legend>").format(name.title())
        for value, title in {"": "all", **options}.items():
            out += Markup('<label><input type="radio" name="claims-{}" id="claims-{}-{}"{}> {}</label> ').format(
                name, name, value or "all", "" if value else Markup(" checked"), title)
        out += Markup("</fieldset>")
    return out + Markup("</div></noscript>\n")


def _rules(name: str, values) -> list[Markup]:
    rule = 'body:has(#claims-{}-{}:checked) #{} tbody tr:not([data-{}="{}"]) {{ display: none; }}\n'
    return [Markup(rule.format(name, v, NAME, name, v)) for v in values]


def _table(found: list[Verdict]) -> Markup:
    head = ["Claim", "Verdict", "Effect here", "Effect printed", "Runs"]
    return table(
        "Every claim, in the order of the papers", head, [_row(v) for v in found],
        [f"claim-{v.claim.id}" for v in found], sortable=True, name=NAME,
        data=[{"paper": v.claim.paper, "verdict": key(v.verdict)} for v in found],
    )  # fmt: skip


def _row(v: Verdict) -> list:
    c = v.claim
    tests = lines(*(code(t.text) for t in c.tests))
    about = [small(f"{PAPERS.get(c.paper, c.paper)}, {c.where}"), small(f"here: {c.how}") if c.how else "",
             small(f"revised: {c.revised}") if c.revised else ""]
    if c.tests:
        about.append(details("test", lines(tests, f"tasks: {', '.join(map(task_title, c.tasks))}" if c.tasks else "",
                                           f"margin: {c.margin:g}" if c.margin is not None else "")))
    scaled = small("at this scale") if v.effect and c.testable == "scaled" else ""
    if c.kind == "tables" and any(call.name == "latency" for t in c.tests for call in t.calls):
        scaled = small("on this machine")
    stale = flag("stale records") if " stale " in v.reason else ""
    return [
        lines(c.claim, *about),
        Keyed(lines(Markup("<strong>{} {}</strong>").format(SIGNS[v.verdict], v.verdict), scaled, stale,
                    small(_named(v.reason))), WORDS.index(v.verdict)),
        Keyed(_effect(v), v.value),
        Keyed(_reported(v), c.reported_effect),
        _runs(v),
    ]


def _named(reason: str) -> str:
    """A verdict's reason with the titles of tasks; the names of runs, such as theseus-rate0.5, stay as they are."""
    return re.sub(r"(?<![\w-])[a-z0-9]+(?![\w-])", lambda m: task_title(m[0]) if m[0] in TASKS else m[0], reason)


def _number(x: float, unit: str = "") -> str:
    """A difference with its sign; what is no difference (a ratio, a share that was kept) without one."""
    text = f"{x:.2f}" if unit in ("ratio", "percent of the teacher's score") else f"{x:+.2f}"
    return text.replace("-", "\N{MINUS SIGN}")


def _effect(v: Verdict) -> Markup | str:
    if v.value is None:
        return f"{sum(v.parts)} of {len(v.parts)} comparisons are true" if v.parts else "none"
    test = v.claim.tests[0]
    number = partial(_number, unit=test.unit)
    out = [lines(Markup("<strong>{}</strong>").format(number(v.value)), small(test.unit) if test.unit else "")]
    if v.interval:
        low, high = v.interval
        out.append(f"{100 * v.level:.3g}% interval {number(low)} to {number(high)}")
    elif v.timed:
        out.append(f"{number(v.timed[0])} to {number(v.timed[1])} within the quartiles of the timings")
    elif v.effect:
        out.append("no interval")
    out.append(small(f"claimed: {test.sign} {v.bound:.4g}"))
    if v.effect:
        seeds, rows = v.effect.seeds, v.effect.rows
        each = (lines(f"{task_title(t)}: {number(x)}" + ("" if a is None else f" ({number(a)} to {number(b)})"),
                      small(count(seeds[t], "seed") + (f", {rows[t]} rows" if rows[t] else "")))
                for t, (x, a, b) in v.by_task.items())
        out.append(details("by task, 95%", lines(*each)))
    return lines(*out)


def _reported(v: Verdict) -> Markup | str:
    c = v.claim
    unit = c.tests[0].unit if c.tests else ""
    effect = "" if c.reported_effect is None else Markup("<strong>{}</strong>").format(_number(c.reported_effect, unit))
    rows = [_evidence(name, r) for name, part in c.rows.items() for r in part]
    if not rows:
        return lines(effect) or "no printed number"
    rule = code(c.reported) if c.reported else ""  # how the effect comes from the numbers below it
    return lines(effect, details(count(len(rows), "printed number"), lines(rule, *rows)))


def _evidence(name: str, r: Reported) -> Markup:
    what = ", ".join(x for x in (r.system, task_title(r.task) if r.task != "-" else "", metric_title(r.metric),
                                 r.split if r.split != "-" else "") if x)
    mark = "" if r.verified else flag("unverified")
    return Markup("{}: <strong>{}</strong> {} {} {}").format(
        name, r.value, "" if r.unit == "-" else r.unit, mark, small(f"{what}; {r.paper}, {r.where}"))


def _runs(v: Verdict) -> Markup | str:
    if not v.records:
        instead = "timings" if v.timed else {"printed": "printed numbers", "tables": "counts"}.get(v.claim.kind)
        said = f"none: {instead}" if instead else "none"
        found = claim_tables.cells(c for t in v.claim.tests for c in t.calls)
        return lines(said, details(f"the {instead}", lines(*starmap(_cell, found)))) if found else said
    items = Markup("").join(
        Markup('<li><a href="provenance.html#{}">{}, {}, seed {}</a>, <a href="{}">record</a></li>').format(
            anchor(r), r.label, task_title(r.task), r.seed, record_page(r)) for r in v.records)
    return details(count(len(v.records), "run"), Markup("<ul>{}</ul>").format(items))


def _cell(call: Call, number: float) -> Markup:
    """A count or timing that a claim reads: what it is of, and its value."""
    what = " ".join([call.name, *call.arguments, *(f"{k} {v}" for k, v in call.named)])
    return Markup("{}: <strong>{}</strong>{}").format(
        what, f"{number:,.0f}" if number >= 1000 else f"{number:.4g}", " ms" if call.name == "latency" else "")
