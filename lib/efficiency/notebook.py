"""Tables and plots of the efficiency notebook."""

from __future__ import annotations

import pandas as pd
from matplotlib import pyplot as plt

from lib import models, plots
from lib.efficiency import block as efficiency_block
from lib.efficiency import counts, shapes, timing
from lib.efficiency import run as efficiency_run
from lib.efficiency import table as efficiency_table
from lib.efficiency.run import Config
from lib.errors import InputError
from lib.reporting.tables import count


def sizes(names: list[str]) -> pd.DataFrame:
    """Parameters, operations and weights of systems, counted now."""
    rows = {}
    for name in names:
        r = efficiency_run.size_row(shapes.get(name))
        rows[name] = {
            "layers": r["layers"], "parameters, M": round(r["parameters"] / 1e6, 2),
            "without embeddings, M": round((r["parameters"] - r["embeddings"]) / 1e6, 2),
            "without pooler, M": round((r["parameters"] - r["pooler"]) / 1e6, 2),
            "GFLOPs, 128 tokens": round(r["flops_128"] / 1e9, 2), "GMACs": round(r["flops_128"] / 2e9, 2),
            "GFLOPs, 512 tokens": round(r["flops_512"] / 1e9, 2), "fp32, MB": round(r["file_mb"]),
            "int8, MB (arithmetic)": round(r["file_int8_mb"])}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("system")  # a column's whole numbers stay whole


def block(p: Config) -> pd.DataFrame:
    """One BERT-base block by length: operations and time of FFN over attention, fused and written out."""
    lengths = (32, 128, 512)
    out = pd.DataFrame([efficiency_block.row(n) for n in lengths]).set_index("length")
    frame = pd.DataFrame({"FFN / attention, operations": out["ratio"]})
    for attention in ("sdpa", "eager"):
        times = efficiency_block.times(lengths, 4 * p.rounds, 60 * p.minutes / 30, attention).set_index("length")
        frame[f"in time, {attention}"] = times["ratio"].map("{:.2f}".format)
        frame[f"quartiles, {attention}"] = [f"{r.ratio_low:.2f} to {r.ratio_high:.2f}" for r in times.itertuples()]
    return frame


def latency(table: pd.DataFrame) -> pd.DataFrame:
    """What was timed, one line each."""
    return pd.DataFrame({
        "back end": table.backend, "batch": table.batch, "length": table.length,
        "latency, ms": table.latency_ms.round(2),
        "interquartile range, ms": table.latency_iqr_ms.round(2),
        "tokens a second": table.tokens_per_second.round().astype("Int64"),
        "speed-up over BERT-base": table.speedup_vs_bert_base.round(2),
        "quartiles": [f"{r.speedup_low:.2f} to {r.speedup_high:.2f}" for r in table.itertuples()],
        "peak memory, MB": table.peak_memory_mb, "file, MB": table.file_mb, "rounds": table.rounds,
        "load": table["load"],
    }).set_index(table.system.rename("system"))


def load(table: pd.DataFrame) -> str:
    """A sentence on the machine's load beside the timings: a warning where it is above the threads that were timed."""
    if table.empty:
        return "Nothing was timed."
    above = table["load"] - table.threads
    row = table.loc[above.idxmax()]
    said = f"load at most {row.load:.1f}, {count(row.threads, 'thread')} of the timing included"
    if above.max() <= timing.QUIET:
        return f"{said}: no sign of other programs"
    return (f"WARNING: {said}: other programs ran beside it. Times are longer than on a quiet machine and are not to "
            "be set beside those of another page; speed-ups, taken inside rounds, suffer less.")


def missing(p: Config, table: pd.DataFrame, skips: efficiency_table.Skips) -> pd.DataFrame | str:
    """What was asked for and not timed, with the reason: the back end cannot run here, or the minutes were over."""
    have = set(zip(table.system, table.backend, table.batch, table.length, strict=True))
    lines = []
    for backend in p.backends:
        for name in dict.fromkeys([shapes.BASE, *p.systems]):
            points = [(b, n) for b in p.batches for n in p.lengths if (name, backend, b, n) not in have]
            if points:
                why = skips.reasons.get((name, backend)) or "the minutes were over"
                lines.append({"system": name, "back end": backend, "reason": why,
                              "batch x length": ", ".join(f"{b} x {n}" for b, n in points)})
    return pd.DataFrame(lines).set_index("system") if lines else "Everything that was asked for was timed."


def predicted(table: pd.DataFrame) -> pd.DataFrame | str:
    """Ratio of operations beside the measured speed-up by back end, smallest batch, length next to 128."""
    if table.empty:
        return "Nothing was timed."
    one = table[table.batch == table.batch.min()]
    one = one[one.length == min(one.length, key=lambda n: abs(n - 128))]
    wide = one.pivot_table(index="system", columns="backend", values="speedup_vs_bert_base", sort=False)
    work = {s: counts.flops(shapes.get(s).config()) for s in wide.index}  # the table's own are rounded
    wide.insert(0, "predicted by FLOPs", [work[shapes.BASE] / work[s] for s in wide.index])
    wide.columns = [c if c.startswith("predicted") else f"measured, {c}" for c in wide.columns]
    return wide.round(2)


def curves(table: pd.DataFrame):
    """Latency over length at the smallest batch on the first back end; a sentence where there is one length only."""
    if table.empty or table.length.nunique() < 2:
        return "One length was timed; lengths=[32, 128, 384] draws the curve."
    one = table[(table.batch == table.batch.min()) & (table.backend == table.backend.iloc[0])]
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    for name, rows in one.groupby("system", sort=False):
        rows = rows.sort_values("length")
        axes.errorbar(rows.length, rows.latency_ms, yerr=rows.latency_iqr_ms / 2, marker="o", label=name, capsize=2)
    axes.set(xlabel="tokens", ylabel="latency, ms (median, interquartile range)", xscale="log", yscale="log",
             title=f"{one.backend.iloc[0]}, batch {one.batch.iloc[0]}")
    axes.legend(fontsize=8)
    said = [f"{name}: {', '.join(f'{r.latency_ms:.4g} ms at {r.length} tokens' for r in rows.itertuples())}."
            for name, rows in one.sort_values("length").groupby("system", sort=False)]
    return plots.described(figure, f"Latency over length, {one.backend.iloc[0]}, batch {one.batch.iloc[0]}. "
                                   + " ".join(said))


def own(p: Config) -> pd.DataFrame | str:
    """The user's own model: size, operations, and latency on every back end in the same rounds."""
    if not p.model:
        return "No model was given; model=path/to/folder times your own on every back end."
    subject = efficiency_run.own_subject(p.model)
    limit = getattr(models.configuration(p.model, "model"), "max_position_embeddings", None)
    if limit and max(p.lengths) > limit:
        raise InputError(f"lengths: {max(p.lengths)} is more than the {limit} positions of model {p.model}")
    facts = subject.facts
    print(f"{subject.name}: {facts['variant']}, {facts['layers']} layers, {facts['params_m']} M parameters "
          f"({facts['params_no_embeddings_m']} M without embeddings), {facts['flops_g']} GFLOPs for "
          f"{efficiency_run.own_length(subject.make('eager').config)} tokens")
    skips = efficiency_table.Skips({})
    points = [(b, n) for b in p.batches for n in p.lengths]
    frame = efficiency_table.across(
        subject, p.backends, points, folder=efficiency_run.onnx_folder(), rounds=p.rounds, skips=skips,
        seconds=60 * p.minutes / len(points) / 2)
    for (_, backend), why in skips.reasons.items():
        print(f"{backend}: skipped, {why}")
    return frame
