"""The generated tables of the efficiency page: printed sizes, operations and speeds beside ours."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from markupsafe import Markup

from lib.efficiency import machines, match
from lib.errors import InputError
from lib.paths import ROOT, results_dir
from lib.reporting import figures
from lib.reporting.reported import Reported
from lib.reporting.tables import details, flag, lines, small, table

NOT_YET = Markup('<span class="bc-none">not measured yet</span>')
TITLES = {"params_m": "parameters, million", "params_m_without_projection": "parameters, million",
          "params_embedding_m": "parameters of embeddings, million",
          "params_layers_m": "parameters of layers, million",
          "params_change": "change of parameters, percent", "flops_b": "FLOPs, 10⁹", "size_ratio": "times smaller",
          "memory_ratio": "times smaller in memory", "speedup": "times faster",
          "throughput_ratio": "times the throughput",
          "latency_ms": "times faster, from the printed latencies"}  # fmt: skip
CURVES = ("BERT-base", "BERT, 6 layers", "TinyBERT4", "MobileBERT", "EfficientBERT", "TrimBERT n=2", "TrimBERT BANDD",
          "TrimBERT n=inf")
SHOWN = ("eager", "sdpa", "compile", "bf16", "onnx", "onnx-int8")


def csv(name: str) -> pd.DataFrame | None:
    """A table of the results, or of the repository's own results where there is none; None where neither is."""
    for folder in (results_dir(), ROOT / "results"):
        if (folder / name).exists():
            try:
                return pd.read_csv(folder / name)
            except (OSError, ValueError) as e:
                raise InputError(f"{folder / name}: cannot be read ({e})") from e
    return None


def _rows(reported: list[Reported], metrics: tuple[str, ...]) -> list[Reported]:
    """Printed numbers of these metrics that belong to one of our shapes; no other is passed over in silence."""
    found = [r for r in reported if r.metric in metrics and (r.paper, r.system) not in match.NOT_OURS]
    unknown = [f"{r.paper} {r.system}" for r in found if (r.paper, r.system) not in match.OURS]
    if unknown:
        raise InputError(f"lib/efficiency/match.py: no shape for the printed {', '.join(sorted(set(unknown)))}")
    return found


def counted(reported: list[Reported], metrics: tuple[str, ...], caption: str, sizes: pd.DataFrame) -> Markup:
    """Printed | ours in every way of counting | difference of the nearest way | whether it agrees, and why not."""
    body, agreed = [], {"rounded": 0, "cut off": 0, "": 0}
    for r in _rows(reported, metrics):
        ways = match.ways(r, sizes)
        verdicts = [match.agreement(r.value, w.value) for w in ways]
        best = "rounded" if "rounded" in verdicts else "cut off" if "cut off" in verdicts else ""
        agreed[best] += 1
        ours = lines(*(Markup("<b>{}</b> {}" if best and v == best else "{} {}").format(
            _number(w.value), small(w.words)) for w, v in zip(ways, verdicts, strict=True)))
        near = "bound" if r.number is None else f"{min((w.value - r.number for w in ways), key=abs):+.3g}"
        verdict = {"rounded": "agrees", "cut off": "agrees if cut off, not rounded", "":
                   lines(flag("no"), small(match.reason(r)))}[best]
        body.append([lines(r.paper, small(r.where)), _system(r), lines(r.value, small(TITLES[r.metric])), ours, near,
                     verdict])
    head = ["Paper", "System", "Printed", "Ours, each way of counting", "Nearest minus printed", "Agrees"]
    total = sum(agreed.values())
    words = (f"{agreed['rounded']} of {total} printed numbers agree within their rounding, {agreed['cut off']} more if "
             f"they were cut off instead of rounded, {agreed['']} in no way.")
    return Markup("<p>{}</p>").format(words) + table(caption, head, body)


def _number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 1000 else f"{value:.0f}"


def _system(r: Reported) -> Markup | str:
    ours = match.OURS[r.paper, r.system]
    name = r.system if r.verified else lines(r.system, flag("unverified"))
    return name if ours == r.system else lines(name, small(f"our shape: {ours}"))


def blocks(frame: pd.DataFrame, reported: list[Reported], times: pd.DataFrame | None) -> Markup:
    """Cost of the FFN over that of attention in one BERT-base block by length: FLOPs, and time where it was taken."""
    printed = next(r for r in reported if r.metric == "ffn_over_mha_cost_ratio")
    body = []
    for row in frame.itertuples():
        line = [row.length, f"{row.attention_flops / 1e9:.3f}", f"{row.ffn_flops / 1e9:.3f}", f"{row.ratio:.2f}"]
        if times is not None:
            found = times[times.length == row.length]
            line.append(lines(*(f"{t.ratio:.2f} ({t.backend}, {t.ratio_low:.2f} to {t.ratio_high:.2f})"
                                for t in found.itertuples())) or NOT_YET)
        body.append(line)
    head = ["Tokens", "Attention, GFLOPs", "FFN, GFLOPs", "FFN / attention in FLOPs"]
    head += [] if times is None else ["in time (quartiles)"]
    said = Markup("<p>Printed by EfficientBERT: {} ({}).{}</p>").format(
        printed.value, printed.where, Markup(" Time: {}.").format(NOT_YET) if times is None else "")
    return said + table("One BERT-base block: FFN against attention with its four linear layers", head, body)


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
    for r in _rows(reported, match.TIMED):
        ratio, name = _printed_ratio(r, reported), match.OURS[r.paper, r.system]
        if ratio is None or name == match.BASE:
            continue
        length = 1024 if "1024" in r.where else 128
        words = r.value if r.metric != "latency_ms" else f"{ratio:.2f} ({r.value} ms)"
        body.append([lines(r.paper, small(r.where)), _system(r), lines(words, small(TITLES[r.metric])),
                     r.hardware or "not stated", f"{predicted(name, length, sizes):.2f}",
                     *([] if measured is None else [_measured(measured, name, length)])])
    head = ["Paper", "System", "Printed", "Paper's hardware", "Predicted: FLOP ratio"]
    head += [] if measured is None else ["Measured here, batch 1"]
    return table("Speed-up over BERT-base", head, body)


def faster_than_work(reported: list[Reported], sizes: pd.DataFrame) -> Markup:
    """The printed speed-ups that exceed the ratio of operations, in one sentence."""
    found = []
    for r in _rows(reported, match.TIMED):
        ratio, name = _printed_ratio(r, reported), match.OURS[r.paper, r.system]
        work = predicted(name, 1024 if "1024" in r.where else 128, sizes)
        if ratio and name != match.BASE and ratio > 1.01 * work:
            where = r.where.split(" (")[0]
            found.append(f"{r.paper} {r.system} ({ratio:.2f} printed in {where}, {work:.2f} by operations)")
    if not found:
        return Markup("<p>No printed speed-up exceeds the ratio of operations.</p>")
    return Markup("<p>Printed speed-ups above the ratio of operations, where something else than matrix products was "
                  "saved, too: {}.</p>").format("; ".join(dict.fromkeys(found)))


def constant_surplus(reported: list[Reported], sizes: pd.DataFrame) -> Markup:
    """What is printed above the products of the layers for models as wide as BERT-base, beside one dense layer."""
    surplus = {}
    for r in _rows(reported, ("flops_b",)):
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


def _measured(measured: pd.DataFrame, name: str, length: int) -> Markup | str:
    found = measured[(measured.system == name) & (measured.batch == 1) & (measured.length == length)]
    cells = [f"{m.backend} {m.speedup_vs_bert_base:.2f} ({m.speedup_low:.2f} to {m.speedup_high:.2f})"
             for backend in SHOWN for m in found[found.backend == backend].itertuples()]
    return lines(*cells) if cells else NOT_YET


def shapes(sizes: pd.DataFrame) -> Markup:
    """Every system: parameters by part, FLOPs, weights."""
    body = [[lines(name, small(r.variant), small(f"in: {r.papers}")), int(r.layers), f"{r.parameters / 1e6:.2f}",
             f"{r.embeddings / 1e6:.2f}", f"{r.pooler / 1e6:.2f}", f"{r.flops_128 / 1e9:.2f}",
             f"{r.flops_128 / 2e9:.2f}", f"{r.flops_512 / r.flops_128:.2f}", f"{r.file_mb:.0f}",
             f"{r.file_int8_mb:.0f}"]
            for name, r in sizes.iterrows()]
    head = ["System", "Layers", "Parameters, M", "of them embeddings", "of them pooler", "GFLOPs, 128 tokens",
            "GMACs, 128 tokens", "FLOPs 512 / 128", "fp32, MB", "int8, MB (by arithmetic)"]
    return table("Sizes and operations, counted from the shapes", head, body)


def stsb(reported: list[Reported], measured: pd.DataFrame | None) -> Markup:
    """The pass over STS-B's development pairs at batch 1: printed and measured seconds, and the ratio to DistilBERT."""
    printed = {r.system: r for r in reported if r.metric == "inference_seconds" and r.system != "ELMo"}
    body = []
    for name, r in printed.items():
        own = None if measured is None else measured[measured.system == name]
        ours = NOT_YET if own is None or own.empty else lines(
            *(f"{m.seconds:.0f} s, {m.backend}, {m.threads} threads ({m.pairs} pairs, {m.passes} passes)"
              for m in own.itertuples()))
        body.append([name, f"{r.value} s", r.hardware, ours])
    gain = [f"{printed['BERT-base'].number / printed['DistilBERT'].number:.2f}"]
    if measured is None:
        gain.append(NOT_YET)
    else:
        medians = measured.groupby(["backend", "system"]).seconds.median().unstack()
        gain.append(lines(*(f"{row['BERT-base'] / row['DistilBERT']:.2f} ({b})" for b, row in medians.iterrows())))
    body.append(["BERT-base / DistilBERT", gain[0], printed["DistilBERT"].hardware, gain[1]])
    return table("A pass over STS-B's development pairs, batch 1, CPU", ["System", "Printed", "Paper's hardware",
                                                                        "Here"], body)


def students(frame: pd.DataFrame | None) -> Markup:
    """Trained students: score in float32 and int8, the drop, and latency of both; means over seeds."""
    if frame is None or frame.empty:
        return Markup("<p>{} (<code>python -m lib.efficiency.run students</code> scores the students of a grid)</p>"
                      ).format(NOT_YET)
    body = []
    keys = ["profile", "backbone", "task", "method", "variant"]
    for key, rows in frame.fillna({"variant": ""}).groupby(keys, sort=False):
        profile, backbone, task, method, variant = key
        body.append([lines("-".join(x for x in (method, variant) if x), small(f"{profile}, {backbone}")), task,
                     len(rows), f"{rows.score_onnx.mean():.2f}", f"{rows.score_int8.mean():.2f}",
                     lines(f"{rows.drop_int8.mean():+.2f}", small(f"{rows.drop_int8.min():+.2f} to "
                                                                  f"{rows.drop_int8.max():+.2f}")),
                     f"{rows.standard_error.mean():.2f}", f"{rows.latency_ms.median():.2f}",
                     f"{rows.latency_int8_ms.median():.2f}", f"{rows.speedup_int8.median():.2f}",
                     f"{rows.file_mb.mean():.0f} to {rows.file_int8_mb.mean():.0f}"])
    head = ["Student", "Task", "Seeds", "Score, fp32", "Score, int8", "int8 minus fp32, points (range)",
            "Standard error of a score, points", "Latency, PyTorch, ms", "Latency, ONNX int8, ms", "Times faster",
            "File, MB"]
    return table("Trained students after dynamic quantisation, batch 1, 128 tokens", head, body)


def pareto(frame: pd.DataFrame | None) -> Markup:
    """Score against latency of the trained students, a panel a task; nothing where none was measured."""
    if frame is None or frame.empty:
        return Markup("")  # `students` says it
    tasks = list(dict.fromkeys(frame.task))
    rows = frame.fillna({"variant": ""}).groupby(["task", "method", "variant"], sort=False)[["score", "latency_ms"]]
    means = rows.mean().reset_index()
    with plt.rc_context(figures.STYLE):
        figure, axes = plt.subplots(1, len(tasks), figsize=(1.2 + 3 * len(tasks), 3.2), squeeze=False)
        for ax, task in zip(axes.flat, tasks, strict=True):
            for m in means[means.task == task].itertuples():
                name = "-".join(x for x in (m.method, m.variant) if x)
                ax.plot(m.latency_ms, m.score, figures.mark_of(name), color=figures.colour_of(name), markersize=8)
                ax.annotate(name, (m.latency_ms, m.score), textcoords="offset points", xytext=(5, 4), fontsize=8)
            ax.set_title(task, fontsize=10)
            ax.margins(0.25)
        figure.supxlabel("latency, ms (batch 1, 128 tokens, PyTorch)", fontsize=10)
        figure.supylabel("score, percent", fontsize=10)
        figure.tight_layout()
    words = "; ".join(f"{m.method}{'-' + m.variant if m.variant else ''} on {m.task}: {m.score:.1f} at "
                      f"{m.latency_ms:.1f} ms" for m in means.itertuples())
    return figures.svg(figure, f"Score against latency. {words}.", "students")


def curves(measured: pd.DataFrame | None) -> Markup:
    """Latency over length at batch 1, systems of Fig. 6 and students, on the back ends eager and sdpa."""
    if measured is None or measured.empty:
        return Markup("")
    chosen = [n for n in CURVES if n in set(measured.system)]
    ends = [b for b in ("eager", "sdpa", "onnx-int8") if b in set(measured.backend)]
    one = measured[(measured.batch == 1) & measured.system.isin(chosen) & measured.backend.isin(ends)]
    if one.empty:
        return Markup("")
    with plt.rc_context(figures.STYLE):
        figure, axes = plt.subplots(1, len(ends), figsize=(1.5 + 3.2 * len(ends), 3.6), squeeze=False, sharey=True)
        for ax, backend in zip(axes.flat, ends, strict=True):
            for name, rows in one[one.backend == backend].groupby("system", sort=False):
                rows = rows.sort_values("length")
                ax.errorbar(rows.length, rows.latency_ms, yerr=rows.latency_iqr_ms / 2, marker="o", markersize=4,
                            linewidth=1.2, label=name, capsize=2)
            ax.set(xscale="log", yscale="log", title=backend)
        axes.flat[0].legend(fontsize=7, frameon=False)
        figure.supxlabel("tokens", fontsize=10)
        figure.supylabel("latency, ms (interquartile range)", fontsize=10)
        figure.tight_layout()
    words = "; ".join(f"{r.system} on {r.backend} at {r.length}: {r.latency_ms:.0f} ms" for r in one.itertuples())
    return figures.svg(figure, f"Latency over length at batch 1. {words}.", "latency")


def machine(measured: pd.DataFrame | None, every: pd.DataFrame | None = None) -> Markup:
    """What the timings were taken on, and how many of the table (`every`) were taken elsewhere, in a sentence each."""
    if measured is None or measured.empty:
        return Markup("<p>Speed of ours: {}. The table holds what is printed and what the operations predict. "
                      "<code>make efficiency</code> times every system on a quiet machine; the <a href=\"executed/"
                      "efficiency.html\">notebook</a> times a few.</p>").format(NOT_YET)
    words = (f"{len(measured)} timings. Processor: {'; '.join(sorted(measured.processor.unique()))}. Threads: "
             f"{', '.join(map(str, sorted(measured.threads.unique())))}. Dates: {measured.date.min()} to "
             f"{measured.date.max()}. Load of the machine beside it (1-minute average): median "
             f"{measured.load.median():.1f}, highest {measured.load.max():.1f}. Versions: "
             f"{'; '.join(sorted(measured.versions.unique()))}.")
    if every is not None and len(every) > len(measured):
        words += (f" {len(every) - len(measured)} timings of other machines or thread counts stand in "
                  "results/efficiency.csv and are not mixed with these.")
    return Markup("<p>{}</p>").format(words)


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


# What the names of results/bench.csv stand for (lib/bench.py); another name is shown as it is.
COMPARED = {
    "ours vs trainer best": "the study's loop | transformers' Trainer, rows grouped by length",
    "ours vs bare loop": "the study's loop | a plain loop over the same batches",
    "bf16 vs fp32": "the study's loop in bf16 | the same in fp32",
    "cached vs uncached teacher": "distillation with the teacher's outputs kept | with the teacher run on every batch",
    "two runs of one thread vs one run of two": "two runs at once, a thread each | one run of two threads",
    "ours vs matrix peak (TFLOP/s)": "the study's loop | the fastest matrix product on the machine, 10¹² operations a "
                                     "second",
}


def compared(name: str) -> str:
    """The two sides of a row of bench.csv in words."""
    if name.startswith("ours vs trainer pad "):
        return f"the study's loop | transformers' Trainer, every row padded to {name.rsplit(' ', 1)[1]} tokens"
    return COMPARED.get(name, name)


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def training(bench: pd.DataFrame | None) -> Markup:
    """Rates of training and their ratios, as `make bench` measured them; one sentence where it was not run."""
    if bench is None or bench.empty:
        return Markup("<p>Training speed: {}: <code>make bench</code> does it in 20 minutes on a quiet machine. Until "
                      "then this book does not say what any part of the loop gains.</p>").format(NOT_YET)
    missing = [c for c in ("comparison", "ours", "other", "ratio", "low", "high", "machine", "date") if c not in bench]
    if missing:
        raise InputError(f"results/bench.csv: lacks the columns {', '.join(missing)}; `make bench` writes it anew")
    body = [[compared(b.comparison), _rate(b.ours), _rate(b.other), f"{b.ratio:.2f}",
             f"{b.low:.2f} to {b.high:.2f}" + (", holds 1" if b.low <= 1 <= b.high else "")]
            for b in bench.itertuples()]
    head = ["First side | second side", "First", "Second", "First / second", "95% interval"]
    where = "; ".join(sorted({f"{b.machine}, {b.date}" for b in bench.itertuples()}))
    return Markup("<p>Measured on {}.</p>").format(where) + table(
        "Speed of training, real tokens a second unless the row says otherwise", head, body)


def fragments(reported: list[Reported]) -> dict[str, Markup]:
    """The page's parts by name. Raises `InputError` where sizes.csv cannot be read or a printed number has no shape."""
    sizes, timed = match.sizes(), csv("efficiency.csv")
    measured = None if timed is None else machines.of_one(timed)
    trained, block_flops = csv("students.csv"), csv("blocks.csv")
    if block_flops is None:
        raise InputError("results/blocks.csv is not there; `make sizes` writes it")
    parameters = (*match.PARAMETERS, "params_embedding_m", "params_layers_m", "params_change")
    return {
        "efficiency-parameters": counted(reported, parameters, "Parameters", sizes),
        "efficiency-ratios": counted(reported, ("size_ratio", "memory_ratio"), "Size ratios to BERT-base", sizes),
        "efficiency-flops": constant_surplus(reported, sizes) + counted(
            reported, ("flops_b",), "Operations at 128 tokens", sizes),
        "efficiency-blocks": blocks(block_flops, reported, csv("blocks_time.csv")),
        "efficiency-speed": machine(measured, timed) + faster_than_work(reported, sizes) + speeds(
            reported, sizes, measured) + curves(measured) + whole(measured),
        "efficiency-students": pareto(trained) + students(trained),
        "efficiency-stsb": stsb(reported, csv("stsb_pass.csv")),
        "efficiency-shapes": shapes(sizes),
        "efficiency-training": training(csv("bench.csv")),
    }
