"""Printed speeds beside what the operations predict and what was timed."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from markupsafe import Markup
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from lib.efficiency import match
from lib.reporting import efficiency_parts as parts
from lib.reporting import figures
from lib.reporting.reported import Reported, paper_title
from lib.reporting.tables import count, details, lines, small, table

CURVES = ("BERT-base", "BERT, 6 layers", "TinyBERT4", "MobileBERT", "EfficientBERT", "TrimBERT n=2", "TrimBERT BANDD",
          "TrimBERT n=inf")
SHOWN = ("eager", "sdpa", "compile", "bf16", "onnx", "onnx-int8")
TOKENS = (32, 128, 384, 1024)  # named on the axis of the curves
FEW = 5  # rounds; quartiles of fewer are nearly the lowest and the highest


def _printed_ratio(r: Reported, reported: list[Reported]) -> float | None:
    """Printed speed-up; for a latency the ratio to BERT-base's in the same table (None where there is none)."""
    if r.metric != "latency_ms":
        return r.number
    base = [b for b in reported if (b.paper, b.metric, b.where) == (r.paper, r.metric, r.where)
            and match.OURS.get((b.paper, b.system)) == match.BASE and b.number]
    return base[0].number / r.number if base and r.number else None


def predicted(name: str, length: int, sizes: pd.DataFrame) -> float:
    """FLOPs of BERT-base over those of a system, at batch 1 and one length."""
    return sizes.loc[match.BASE, f"flops_{length}"] / sizes.loc[name, f"flops_{length}"]


def speeds(reported: list[Reported], sizes: pd.DataFrame, measured: pd.DataFrame | None) -> Markup:
    """Printed speed-up and its hardware | predicted by FLOPs | measured on each back end at batch 1, if any was."""
    body = []
    for r in parts.rows(reported, match.TIMED):
        ratio, name = _printed_ratio(r, reported), match.OURS[r.paper, r.system]
        if ratio is None or name == match.BASE:
            continue
        length = 1024 if "1024" in r.where else 128
        words = r.value if r.metric != "latency_ms" else f"{ratio:.2f} ({r.value} ms)"
        body.append([lines(paper_title(r.paper), small(r.where)), parts.system(r),
                     lines(words, small(parts.TITLES[r.metric])), r.hardware or "not stated",
                     f"{predicted(name, length, sizes):.2f}",
                     *([] if measured is None else [_measured(measured, name, length)])])
    head = ["Paper", "System", "Printed", "Paper's hardware", "Predicted: FLOP ratio"]
    head += [] if measured is None else ["Measured here, batch 1"]
    return table("Speed-up over BERT-base, at 128 tokens (rows of Fig. 6: at 1024)", head, body)


def _measured(measured: pd.DataFrame, name: str, length: int) -> Markup | str:
    found = measured[(measured.system == name) & (measured.batch == 1) & (measured.length == length)]
    cells = [f"{m.backend} {m.speedup_vs_bert_base:.2f} ({m.speedup_low:.2f} to {m.speedup_high:.2f})"
             for backend in SHOWN for m in found[found.backend == backend].itertuples()]
    return lines(*cells) if cells else parts.NOT_YET


def faster_than_work(reported: list[Reported], sizes: pd.DataFrame) -> Markup:
    """The printed speed-ups that exceed the ratio of operations, in one sentence."""
    found = []
    for r in parts.rows(reported, match.TIMED):
        ratio, name = _printed_ratio(r, reported), match.OURS[r.paper, r.system]
        work = predicted(name, 1024 if "1024" in r.where else 128, sizes)
        if ratio and name != match.BASE and ratio > 1.01 * work:
            where = r.where.split(" (")[0]
            found.append(f"{_of_paper(r)} ({ratio:.2f} printed in {where}, {work:.2f} by operations)")
    if not found:
        return Markup("<p>No printed speed-up exceeds the ratio of operations.</p>")
    return Markup("<p>Printed speed-ups above the ratio of operations, where something else than matrix products was "
                  "saved, too: {}.</p>").format("; ".join(dict.fromkeys(found)))


def _of_paper(r: Reported) -> str:
    """The system with its paper, whose name need not stand twice."""
    title = paper_title(r.paper)
    return r.system if r.system.startswith(title) else f"{r.system} of {title}"


def stsb(reported: list[Reported], measured: pd.DataFrame | None) -> Markup:
    """The pass over STS-B's development pairs at batch 1: printed and measured seconds, and the ratio to DistilBERT."""
    printed = {r.system: r for r in reported if r.metric == "inference_seconds" and r.system != "ELMo"}
    body = []
    for name, r in printed.items():
        own = None if measured is None else measured[measured.system == name]
        ours = parts.NOT_YET if own is None or own.empty else lines(
            *(f"{m.seconds:.0f} s, {m.backend}, {count(m.threads, 'thread')} ({m.pairs} pairs, {m.passes} passes)"
              for m in own.itertuples()))
        body.append([name, f"{r.value} s", r.hardware, ours])
    gain = [f"{printed['BERT-base'].number / printed['DistilBERT'].number:.2f}"]
    if measured is None:
        gain.append(parts.NOT_YET)
    else:
        ours = measured[measured.system == "DistilBERT"]  # its ratio: the median of those inside the rounds
        gain.append(lines(*(f"{m.ratio:.2f} ({m.backend})" for m in ours.itertuples())))
    body.append(["BERT-base / DistilBERT", gain[0], printed["DistilBERT"].hardware, gain[1]])
    return table("A pass over STS-B's development pairs, batch 1, CPU", ["System", "Printed", "Paper's hardware",
                                                                        "Here"], body)


def machine(measured: pd.DataFrame | None, every: pd.DataFrame | None = None) -> Markup:
    """What the timings were taken on, and how many of the table (`every`) were taken elsewhere, in a sentence each."""
    if measured is None or measured.empty:
        return Markup("<p>Speed of ours: {}. The table holds what is printed and what the operations predict. "
                      "<code>make efficiency</code> times every system on a quiet machine; the <a href=\"executed/"
                      "efficiency.html\">notebook</a> times a few.</p>").format(parts.NOT_YET)
    (threads,) = measured.threads.unique()  # of one machine, at one number of threads
    words = (f"{count(len(measured), 'timing')}. Processor: {'; '.join(sorted(measured.processor.unique()))}. Threads: "
             f"{threads}. Dates: {measured.date.min()} to {measured.date.max()}. 1-minute load average, the timing's "
             f"own {count(threads, 'thread')} included: median {measured.load.median():.1f}, highest "
             f"{measured.load.max():.1f}. Versions: {'; '.join(sorted(measured.versions.unique()))}.")
    if every is not None and len(every) > len(measured):
        words += (f" {count(len(every) - len(measured), 'timing')} of other machines or thread counts are not "
                  "mixed with these; they stand below, under Other processors.")
    return Markup("<p>{}</p>").format(words)


def timed(measured: pd.DataFrame | None, sizes: pd.DataFrame) -> Markup:
    """How many of the systems of `sizes` were timed, by back end, batch and length, and in how many rounds."""
    if measured is None or measured.empty:
        return Markup("")  # `machine` says it
    points = sorted(set(zip(measured.batch, measured.length, strict=True)))
    body = []
    for backend in SHOWN:
        own = measured[measured.backend == backend]
        cells = [own[(own.batch == b) & (own.length == n)] for b, n in points]
        body.append([backend, *(_of_point(c) for c in cells)])
    missing = [b for b in SHOWN if b not in set(measured.backend)]
    few = measured.rounds.min()
    said = (f"Not timed at all: {', '.join(missing)}. " if missing else "") + (
        f"Of {len(sizes)} systems the table says how many were timed, and in how many rounds; the fewest were {few}, "
        "whose quartiles say little." if few < FEW else
        f"Of {len(sizes)} systems the table says how many were timed, and in how many rounds.")
    head = ["Back end", *(f"batch {b}, {n} tokens" for b, n in points)]
    return Markup("<p>{}</p>").format(said) + table("Systems timed", head, body)


def _of_point(rows: pd.DataFrame) -> Markup | str:
    if rows.empty:
        return Markup('<span class="bc-none">none</span>')
    low, high = rows.rounds.min(), rows.rounds.max()
    return lines(f"{rows.system.nunique()}", small(f"{low} rounds" if low == high else f"{low} to {high} rounds"))


def curves(measured: pd.DataFrame | None) -> Markup:
    """Latency over length at batch 1, systems of Fig. 6 and students, a panel for each of three back ends."""
    if measured is None or measured.empty:
        return Markup("")
    ends = [b for b in ("eager", "sdpa", "onnx-int8") if b in set(measured.backend)]
    one = measured[(measured.batch == 1) & measured.system.isin(CURVES) & measured.backend.isin(ends)]
    if one.empty:
        return Markup("")
    words = "; ".join(f"{r.system} on {r.backend} at {r.length}: {r.latency_ms:.0f} ms" for r in one.itertuples())
    return figures.svg(drawn(one, ends), f"Latency over length at batch 1. {words}.", "latency")


def drawn(one: pd.DataFrame, ends: list[str]):
    """The figure of `curves`; its names stand once, above the panels."""
    with plt.rc_context(figures.STYLE):
        figure, axes = plt.subplots(1, len(ends), figsize=(1.5 + 3.2 * len(ends), 3.6), squeeze=False, sharey=True)
        named = {}
        for ax, backend in zip(axes.flat, ends, strict=True):
            for name, rows in one[one.backend == backend].groupby("system", sort=False):
                rows = rows.sort_values("length")
                named[name] = ax.errorbar(rows.length, rows.latency_ms, yerr=rows.latency_iqr_ms / 2,
                                          marker="osv^D<>P"[CURVES.index(name)], markersize=4,
                                          linewidth=1.2, color=f"C{CURVES.index(name)}", capsize=2)
            ax.set(xscale="log", yscale="log", title=backend)
            ax.xaxis.set_major_locator(FixedLocator(TOKENS))
            ax.xaxis.set_minor_locator(NullLocator())
            ax.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            ax.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        figure.legend(list(named.values()), list(named), fontsize=8, frameon=False, ncols=4, loc="lower center",
                      bbox_to_anchor=(0.5, 0.99))
        figure.supxlabel("tokens", fontsize=10)
        figure.supylabel("latency, ms (interquartile range)", fontsize=10)
        figure.tight_layout()
    return figure


def whole(measured: pd.DataFrame | None) -> Markup:
    """All timings, folded."""
    if measured is None or measured.empty:
        return Markup("")
    head = ["System", "Back end", "Batch", "Length", "Latency, ms (IQR)", "Speed-up (quartiles)", "Peak memory, MB",
            "File, MB", "Rounds"]
    body = [[m.system, f"{m.backend}, {m.precision}", m.batch, m.length, f"{m.latency_ms:.1f} ({m.latency_iqr_ms:.1f})",
             f"{m.speedup_vs_bert_base:.2f} ({m.speedup_low:.2f} to {m.speedup_high:.2f})",
             "-" if pd.isna(m.peak_memory_mb) else f"{m.peak_memory_mb:.0f}", f"{m.file_mb:.0f}", m.rounds]
            for m in measured.itertuples()]
    return details(f"All {len(measured)} timings", table("All timings", head, body))
