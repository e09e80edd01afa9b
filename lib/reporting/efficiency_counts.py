"""Printed sizes and operations beside what was counted from the shapes."""

from __future__ import annotations

import pandas as pd
from markupsafe import Markup

from lib.efficiency import match
from lib.reporting import efficiency_parts as parts
from lib.reporting.reported import Reported, paper_title
from lib.reporting.tables import count, flag, lines, small, table
from lib.systems import BY_NAME, title_of

CLAIMED = 0.05  # share by which results/claims.yaml lets a count differ from a printed size
WITHIN = f"within {CLAIMED:.0%} though, which is what a claim about sizes asks"


def counted(reported: list[Reported], metrics: tuple[str, ...], caption: str, sizes: pd.DataFrame) -> Markup:
    """Printed | ours in every way of counting | difference of the nearest way | whether it agrees, and why not."""
    body, agreed = [], {"rounded": 0, "cut off": 0, "": 0}
    for r in parts.rows(reported, metrics):
        ways = match.ways(r, sizes)
        verdicts = [match.agreement(r.value, w.value) for w in ways]
        best = "rounded" if "rounded" in verdicts else "cut off" if "cut off" in verdicts else ""
        agreed[best] += 1
        ours = lines(*(Markup("<b>{}</b> {}" if best and v == best else "{} {}").format(
            _number(w.value), small(w.words)) for w, v in zip(ways, verdicts, strict=True)))
        nearest = None if r.number is None else min((w.value - r.number for w in ways), key=abs)
        near = "bound" if nearest is None else f"{nearest:+.3g}"
        close = r.metric != "flops_b" and nearest is not None and abs(nearest) <= CLAIMED * abs(r.number)
        verdict = {"rounded": "agrees", "cut off": "agrees if cut off, not rounded", "":
                   lines(flag("no"), small(match.reason(r)), small(WITHIN) if close else "")}[best]
        body.append([lines(paper_title(r.paper), small(r.where)), parts.system(r),
                     lines(r.value, small(parts.TITLES[r.metric])), ours, near, verdict])
    head = ["Paper", "System", "Printed", "Ours, each way of counting", "Nearest minus printed", "Agrees"]
    total = sum(agreed.values())
    words = (f"{agreed['rounded']} of {total} printed numbers agree within their rounding, {agreed['cut off']} more if "
             f"they were cut off instead of rounded, {agreed['']} in no way.")
    return Markup("<p>{}</p>").format(words) + table(caption, head, body)


def _number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 1000 else f"{value:.0f}"


def blocks(frame: pd.DataFrame, reported: list[Reported], times: pd.DataFrame | None) -> Markup:
    """Cost of the FFN over that of attention in one BERT-base block by length: FLOPs, and time where it was taken."""
    printed = next(r for r in reported if r.metric == "ffn_over_mha_cost_ratio")
    body = []
    for row in frame.itertuples():
        line = [row.length, f"{row.attention_flops / 1e9:.3f}", f"{row.ffn_flops / 1e9:.3f}", f"{row.ratio:.2f}"]
        if times is not None:
            found = times[times.length == row.length]
            line.append(lines(*(f"{t.ratio:.2f} ({t.backend}, {t.ratio_low:.2f} to {t.ratio_high:.2f})"
                                for t in found.itertuples())) or parts.NOT_YET)
        body.append(line)
    head = ["Tokens", "Attention, GFLOPs", "FFN, GFLOPs", "FFN / attention in FLOPs"]
    head += [] if times is None else ["in time (quartiles)"]
    time = Markup(" Time: {}.").format(parts.NOT_YET)
    if times is not None:
        where = "; ".join(f"{p}, {count(n, 'thread')}, {d}"
                          for p, n, d in sorted(set(zip(times.processor, times.threads, times.date, strict=True))))
        time = f" Timed on {where}."
    said = Markup("<p>Printed by EfficientBERT: {} ({}), without a length and without saying whether the products of "
                  "queries, keys and values count as attention. They do in this table; the linear layers alone give "
                  "{:.2f} at every length. FLOPs count a multiply-add as two.{}</p>").format(
        printed.value, printed.where, _linear_ratio(frame), time)
    return said + table("One BERT-base block: FFN against attention with its four linear layers", head, body)


def _linear_ratio(frame: pd.DataFrame) -> float:
    """FFN over the linear layers of attention: what of attention's FLOPs grows with the length and not its square.

    Solved from the first and the last length of the table.
    """
    first, last = frame.iloc[0], frame.iloc[-1]
    n, m = first.length, last.length
    linear = (first.attention_flops * m**2 - last.attention_flops * n**2) / (n * m**2 - m * n**2)  # of a token
    return first.ffn_flops / (linear * n)


def _paper(key: str) -> str:
    """A system's title where it is one of the study, else that of the paper."""
    return title_of(key) if key in BY_NAME else paper_title(key)


def constant_surplus(reported: list[Reported], sizes: pd.DataFrame) -> Markup:
    """What is printed above the products of the layers for models as wide as BERT-base, beside one dense layer."""
    surplus = {}
    for r in parts.rows(reported, ("flops_b",)):
        name = match.OURS[r.paper, r.system]
        dense = sizes.loc[name, "flops_128_dense"] - sizes.loc[name, "flops_128"]
        if dense == sizes.loc[match.BASE, "flops_128_dense"] - sizes.loc[match.BASE, "flops_128"]:  # the same width
            surplus[f"{int(sizes.loc[name, 'layers'])} layers"] = r.number - sizes.loc[name, "flops_128"] / 1e9
    base = sizes.loc[match.BASE]
    words = ", ".join(f"{v:.2f} ({k})" for k, v in surplus.items())
    return Markup("<p>For models as wide as BERT-base the printed numbers lie above the products of their layers by "
                  "about the same, whatever the depth, in 10⁹: {}. One more layer of that width over all tokens is "
                  "{:.3f} (masked language modelling's head has one). That is our guess; no paper says it.</p>").format(
        words, (base.flops_128_dense - base.flops_128) / 1e9)


def shapes(sizes: pd.DataFrame) -> Markup:
    """Every system: parameters by part, FLOPs, weights."""
    body = [[lines(name, small(r.variant), small("in: " + ", ".join(map(_paper, r.papers.split())))),
             int(r.layers), f"{r.parameters / 1e6:.2f}", f"{r.embeddings / 1e6:.2f}", f"{r.pooler / 1e6:.2f}",
             f"{r.flops_128 / 1e9:.2f}", f"{r.flops_128 / 2e9:.2f}", f"{r.flops_512 / r.flops_128:.2f}",
             f"{r.file_mb:.0f}", f"{r.file_int8_mb:.0f}"]
            for name, r in sizes.iterrows()]
    head = ["System", "Layers", "Parameters, M", "of them embeddings", "of them pooler", "GFLOPs, 128 tokens",
            "GMACs, 128 tokens", "FLOPs 512 / 128", "fp32, MB", "int8, MB (by arithmetic)"]
    return table("Sizes and operations, counted from the shapes", head, body)
