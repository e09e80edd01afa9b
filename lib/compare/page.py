"""The page of a comparison: one HTML file that asks nothing of the network. Everything of the user's is escaped."""

from __future__ import annotations

import json

import matplotlib.pyplot as plt
from markupsafe import Markup

from lib import results, stats
from lib.compare.request import TRIAL, Request
from lib.compare.rows import DRAWS, Found, Interval, Row
from lib.efficiency.timing import Summary
from lib.reporting.figures import INK, STYLE, colour_of, mark_of, svg
from lib.reporting.tables import code, details, lines, small, table
from lib.systems import title_of

BUSY = 1.5  # upper by lower quartile of a speed-up from which on the page warns of the machine's load

STYLES = """
:root { color-scheme: light dark; --ink: #1b1b1f; --paper: #fff; --soft: #55585f; --line: #c6c9d0; --band: #f1f2f5; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e9eaee; --paper: #16181d; --soft: #a9adb7; --line: #41454f; --band: #22252c; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto; padding: 1rem;
  max-width: 70rem; }
h1, code, td, th, li, p { overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
.bc-scroll { overflow-x: auto; margin: 1rem 0; }
.bc-scroll:focus-visible { outline: 2px solid currentColor; }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; }
caption { text-align: left; font-weight: 600; padding-bottom: 0.3rem; }
th, td { border: 1px solid var(--line); padding: 0.3rem 0.5rem; text-align: left; vertical-align: top;
  min-width: 6.5rem; }
th { background: var(--band); }
code { font-size: 0.9em; background: var(--band); padding: 0 0.2em; }
.bc-small { color: var(--soft); font-size: 0.9em; }
svg { width: 34rem; max-width: none; height: auto; }
summary { cursor: pointer; }
"""
FRAME = Markup("""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>Which method for {task}?</title><style>{styles}</style></head><body><main>
<h1>Which method for {task}?</h1>
{body}
</main></body></html>
""")


def interval(i: Interval, sign: str = "") -> str:
    return f"{i.value:{sign}.1f} ({i.low:{sign}.1f} to {i.high:{sign}.1f})"


def milliseconds(s: Summary) -> Markup:
    return lines(f"{s.median:.3g} ms", small(f"IQR {s.iqr:.2g} ms"))


def times(s: Summary) -> Markup:
    return lines(f"{s.median:.2f} times", small(f"middle half {s.low:.2f} to {s.high:.2f}"))


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} minutes" if seconds < 7200 else \
        f"{seconds / 3600:.1f} hours"


def listed(names: list[str]) -> str:
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else names[0]


def paragraphs(sentences: list[object]) -> Markup:
    return Markup("").join(Markup("<p>{}</p>\n").format(s) for s in sentences if s)


def verdict(found: Found) -> list[str]:
    """What may be concluded, in sentences."""
    out, students = [], found.students
    if not found.clear:
        out.append(f"The teacher's interval ({found.teacher.score.low:.1f} to {found.teacher.score.high:.1f}) does not "
                   f"clear the majority ({found.majority:.1f}): on these rows nothing can be said of any method, and "
                   "what is retained of the teacher's score is withheld.")
    elif students:
        best = max(students, key=lambda r: r.score.value)
        lead = {r.title: stats.percentile_interval(best.draws - r.draws)[0] for r in students if r is not best}
        out.append(f"Best student by score: {best.title}, {interval(best.score)} percent.")
        if tied := [t for t, low in lead.items() if low <= 0]:
            out.append(f"Not told apart from it by these {found.scored} rows: {listed(tied)}.")
        if behind := [t for t, low in lead.items() if low > 0]:
            out.append(f"Behind it by more than the chance of these rows: {listed(behind)}.")
        if lost := [r.title for r in students if r.score.low <= found.majority]:
            out.append(f"Not clear of the majority ({found.majority:.1f}), so perhaps nothing was learned at this "
                       f"budget: {listed(lost)}.")
    if students:
        least, quickest = min(r.size.parameters for r in students), max(r.speedups[1].median for r in students)
        smallest = [r for r in students if r.size.parameters == least]
        # as quick as the quickest, as far as the rounds can tell: the middle half of its speed-ups reaches that median
        fast = [r for r in students if r.speedups[1].high >= quickest]
        out.append(f"Smallest: {listed([r.title for r in smallest])}, {smallest[0].size.file_mb:.1f} MB against the "
                   f"teacher's {found.teacher.size.file_mb:.1f} MB. Fastest at batch 1: "
                   f"{listed([r.title for r in fast])}, {quickest:.2f} times the teacher's speed.")
        s = max((s for r in students for s in r.speedups.values()), key=lambda s: s.high / s.low)
        if s.high > BUSY * s.low:
            out.append(f"The machine was busy while the models were timed: the middle half of one speed-up runs from "
                       f"{s.low:.2f} to {s.high:.2f}. Run the command again when it is quiet; it only times again.")
    return out


def rows_mean(found: Found) -> list[str]:
    """What the number of scored rows means for the intervals."""
    n, t = found.scored, found.teacher.score
    out = [f"{n} rows were scored. " + ("" if found.regression else
           f"One row more or less is {100 / n:.2g} points of accuracy. ") +
           f"The teacher's 95% interval is {t.high - t.low:.1f} points wide; four times as many scored rows would make "
           "it about half as wide. It covers the chance that lies in these rows, not the chance that lies in training: "
           "every method was trained with one seed."]
    if n < 100:
        out.append(f"{n} rows are few. Take differences of a few points for chance until you have scored more.")
    if any(r.score.low == r.score.high for r in found.rows):
        out.append("An interval without width means that all resamples gave the same score, not that the score is "
                   f"certain: where all {n} rows are right, up to about {min(100, 300 / n):.2g} percent of new rows "
                   "may still be wrong (the rule of three).")
    return out


def score_table(found: Found) -> Markup:
    head = ["model", f"{found.headline}, percent (95% interval)", "difference from the teacher, points (95% interval)",
            "retention, percent of the teacher's score", "of what the teacher gains on the majority, percent"]
    held = "withheld: the teacher does not clear the majority"
    body = [["always the mean" if found.regression else "always the commonest class", f"{found.majority:.1f}",
             f"{found.majority - found.teacher.score.value:+.1f}", "not a model", "not a model"]]
    for r in found.rows:
        if r.difference is None:
            body.append([r.title, interval(r.score), "itself", "100", "100"])
            continue
        parts = [held if not found.clear or v is None else f"{v:.1f}"
                 for v in (r.record.retention, r.record.retention_above_majority)]
        body.append([r.title, interval(r.score), interval(r.difference, "+"), *parts])
    body += [[title_of(m), "failed", why, "not run", "not run"] for m, why in found.failed.items()]
    return table(f"Scores on {found.scored} rows ({found.split})", head, body)


def cost_table(found: Found) -> Markup:
    head = ["model", "parameters, millions (without embeddings)", "layers", "file, MB (fp32)", "latency, batch 1",
            "speed-up, batch 1", "latency, batch 32", "speed-up, batch 32"]
    body = [[r.title, f"{r.size.parameters / 1e6:.2f} ({r.size.parameters_without_embeddings / 1e6:.2f})", r.layers,
             f"{r.size.file_mb:.1f}", *(cell for b in r.times for cell in (
                 milliseconds(r.times[b]), "is the measure" if r is found.teacher else times(r.speedups[b])))]
            for r in found.rows]
    return table(f"Size and speed at {found.length} tokens, fp32, {found.device}", head, body)


def rate(record: results.Record) -> Markup:
    """The learning rate of a run; marked where it stands at an end of the grid, so that a further one may be better."""
    chosen, grid = record.hyperparameters["lr"], record.hyperparameters["lr_grid"]
    ends = {min(grid): "lowest tried", max(grid): "highest tried"} if grid else {}
    return lines(f"{chosen:g}", small(ends[chosen]) if chosen in ends else "")


def training_table(found: Found, budget: int) -> Markup:
    head = ["model", "tokens trained on", "learning rate", "training time", "with the teacher's",
            "peak training memory", "tokens a second", "state kept"]
    body = []
    for r in found.rows:
        if r.record is None:
            body.append([r.title, *["brought by you"] * 7])
            continue
        k = r.record
        own = sum(a.seconds for a in k.artefacts if a.kind != "teacher")
        whole = k.wall_seconds + own + (k.teacher.seconds if k.teacher else 0)
        others = [small(f"+ {a.kind}: {duration(a.seconds)}, {a.tokens:,} tokens, built once and shared")
                  for a in k.artefacts if a.kind != "teacher"]
        trials = small(f"+ {k.selection.tuning_tokens:,} in trials") if k.selection.tuning_tokens else ""
        body.append([r.title, lines(f"{k.tokens:,}", trials), rate(k), lines(duration(k.wall_seconds), *others),
                     "is the teacher" if r.method == "bert" else
                     "teacher brought by you" if k.teacher.artefact is None else duration(whole),
                     "not known" if k.peak_memory_mb is None else f"{k.peak_memory_mb:,.0f} MB",
                     f"{k.tokens_per_second:,.0f}", f"step {k.selection.step} of {k.steps}"])
    return table(f"Cost of training once, at most {budget:,} tokens", head, body)


def take_table(found: Found) -> Markup:
    body = [[r.title, code(r.folder), Markup("{} {}").format(*_loading(r)),
             "brought by you" if r.record is None else lines(
                 code(r.record.command), small("made by code that has changed since: stale")
                 if results.is_stale(r.record) else "")] for r in found.rows]
    return table("Take one away", ["model", "folder", "how to load it", "command that makes it again"], body)


def _loading(r: Row) -> tuple[str, Markup]:
    call = f"AutoModelForSequenceClassification.from_pretrained({json.dumps(r.folder)})"
    if not r.needs:
        return "Load it, tokenizer and label names with it, by transformers:", code(call)
    return (f"After import lib.methods.{r.method} (its architecture is not one of transformers' own; the modelling "
            "file lies in the folder) load it by transformers:", code(call))


def picture(found: Found) -> Markup:
    """Score with its interval against latency at batch 1; every model has its colour and its mark."""
    with plt.rc_context(STYLE):
        figure, ax = plt.subplots(figsize=(7.5, 3.4), layout="constrained")
        for r in found.rows:
            s = r.score
            ax.errorbar(r.times[1].median, s.value, yerr=[[max(0, s.value - s.low)], [max(0, s.high - s.value)]],
                        color=colour_of(r.method), marker=mark_of(r.method), markersize=8, capsize=3, linestyle="none",
                        label=r.title)
        ax.axhline(found.majority, color=INK, linestyle=":", linewidth=1, label="majority")
        ax.set(xlabel=f"latency at batch 1 and {found.length} tokens, ms", ylabel=f"{found.headline}, percent")
        ax.set_xlim(0, 1.1 * max(r.times[1].median for r in found.rows))
        figure.legend(loc="outside right upper", frameon=False, fontsize=9)
        alt = "; ".join(f"{r.title}: {r.score.value:.1f} percent at {r.times[1].median:.3g} ms" for r in found.rows)
        return svg(figure, f"Score with 95% interval against latency. {alt}.", "compare")


def rate_words(found: Found, made: dict) -> str:
    """How the learning rates came about."""
    if made["grid"]:
        return (f"Each method's learning rate is the one of {', '.join(f'{lr:g}' for lr in made['grid'])} that scored "
                f"best on the held-out rows, in trials of {TRIAL:g} times the budget with another seed; {found.lr:g} "
                "stays where it is not worse than the best by more than one standard error. All methods had the same "
                "effort. Times and memory are those of the training after it.")
    return (f"All methods used the learning rate {found.lr:g}. It was not tuned, and it suits some methods better than "
            "others: a method that looks bad here may be good at another rate. More MINUTES, and no --lr, let each "
            "method's rate be chosen on the held-out rows.")


def method_words(found: Found, request: Request, made: dict, estimate: float) -> list[object]:
    """How it was done, and what to know before believing it."""
    e, counts = found.machine, ", ".join(f"{v:,} {k.replace('_', '-')}" for k, v in found.counts.items())
    brought = bool(request.values.get("teacher"))
    return [
        f"Rows: {counts}; source: {found.source}. Splits that were not given are made by a hash of the text, so that "
        "equal texts never stand on both sides.",
        f"The held-out rows ({found.selection}) chose which state of each training is kept. The scored rows chose "
        "nothing and were scored once, at the end.",
        f"Every method had the same budget of {made['budget']:,} tokens, and seed {found.seed}. " + (
            "The teacher is yours and was not trained." if brought else
            "The teacher was trained once, at the same budget, and shared by all."),
        rate_words(found, made),
        f"The intervals are the 2.5th and 97.5th percentile over {DRAWS:,} resamples of the scored rows (bootstrap, "
        f"seed {found.seed}). Differences are taken inside each resample, so their intervals are mostly narrower than "
        "the two scores' would suggest.",
        f"Latency is one forward pass over random tokens at length {found.length} (your median scored row has "
        f"{found.typical}), in fp32, with {e['threads']} thread{'s' * (e['threads'] != 1)}, after 3 rounds of "
        f"warm-up, in interleaved rounds (each model once, then again: {found.rounds[1]} rounds at batch 1, "
        f"{found.rounds[32]} at batch 32): the median, and the width of the middle half (IQR). A speed-up is the "
        "median of the ratios inside the rounds.",
        "Peak training memory is that of the " + ("GPU" if found.device != "CPU" else "training process alone") +
        "; each method was trained in a process of its own.",
        f"Machine: {e['processor']}; {e['platform']}; training in {e['precision']}; torch {e['versions']['torch']}, "
        f"transformers {e['versions']['transformers']}.",
        f"The estimate before training was {duration(estimate)} for all runs, of {request.minutes:g} minutes allowed.",
        Markup("The command of this page: {}. Run again it trains only what is missing.").format(code(request.command)),
    ]


def page(found: Found, request: Request, made: dict, estimate: float) -> str:
    """The whole page. `made`: the plan; `estimate`: seconds for all runs, as they were foreseen."""
    notes = list(dict.fromkeys(n for r in found.rows if r.record for n in r.record.notes))
    body = Markup("\n").join([
        paragraphs(verdict(found)),
        Markup('<div class="bc-scroll" role="region" tabindex="0" aria-label="Score against latency">{}</div>').format(
            picture(found)), score_table(found),
        Markup("<h2>What the number of rows means</h2>"), paragraphs(rows_mean(found)),
        Markup("<h2>What each costs in use</h2>"), cost_table(found),
        Markup("<h2>What each cost to train</h2>"), training_table(found, made["budget"]),
        Markup("<h2>The models</h2>"), take_table(found),
        Markup("<h2>How this was done</h2>"), paragraphs(method_words(found, request, made, estimate)),
        details("Notes of the runs", paragraphs(notes)) if notes else "",
    ])
    return str(FRAME.format(task=found.task, styles=Markup(STYLES), body=body))

