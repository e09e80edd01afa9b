"""The generated parts of the book's pages. Each function returns one HTML fragment that a page includes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from markupsafe import Markup

from lib import diverged
from lib.diverged import Diverged
from lib.paths import results_dir
from lib.provenance import code_hash
from lib.reporting import rates
from lib.reporting.cells import anchor, command, record_page, related, task_table
from lib.reporting.comparison import LOCAL, cell, groups, main_group, task_title, tasks_of
from lib.reporting.figures import retention_alt, retention_plot, svg
from lib.reporting.matrix import matrix
from lib.reporting.reported import TASK_TITLES, Reported, load, metric_title, paper_title
from lib.reporting.tables import Keyed, code, controls, count, details, flag, lines, small, table, wide
from lib.results import Record, is_stale, load_all, path_of
from lib.systems import BY_NAME, order_of, title_of
from lib.tasks import TASKS


@dataclass(frozen=True)
class Study:
    """All that the report shows: records, skipped files in words, printed numbers, runs that diverged."""

    records: tuple[Record, ...]
    skipped: tuple[str, ...]
    reported: list[Reported]
    diverged: tuple[Diverged, ...] = ()

    @property
    def committed(self) -> list[Record]:
        return [r for r in self.records if r.profile not in LOCAL]

    @property
    def local(self) -> list[Record]:
        return [r for r in self.records if r.profile in LOCAL]


def load_study() -> Study:
    """Records and reported numbers. Bad records are skipped.

    Raises `InputError` for a bad `reported.csv` or a bad file among what diverged.
    """
    records, skipped = load_all()
    return Study(tuple(records), tuple(skipped), load(), tuple(diverged.load_all()))


def hours(records: list[Record]) -> float:
    """Training time of the runs and of every artefact once, in hours. Records do not hold the time of tuning."""
    shared = {a.key: a.seconds for r in records for a in r.artefacts}
    shared |= {r.teacher.artefact: r.teacher.seconds for r in records if r.teacher and r.teacher.artefact}
    # A teacher's own run is its artefact: its seconds are there already.
    own = sum(r.wall_seconds for r in records if not (r.method == "bert" and r.artefacts))
    return (own + sum(shared.values())) / 3600


def _words(values) -> Markup | str:
    """Each value with its count, by name."""
    return lines(*(f"{k} ({v})" for k, v in sorted(Counter(values).items())))


def glance(study: Study) -> Markup:
    """The runs in numbers, on the index."""

    def facts(records: list[Record]) -> list:
        if not records:
            return ["0: none run yet", *["none"] * 5]
        stale = sum(map(is_stale, records))
        return [
            str(len(records)),
            _words(r.backbone for r in records),
            _words(f"{r.environment.processor}, {r.environment.precision}" for r in records),
            f"{hours(records):.2f}",
            _words(r.scale for r in records),
            f"{stale} of {len(records)} made by other lib code than the present one" if stale else "none",
        ]

    names = [
        "Runs", "Backbones (runs)", "Hardware (runs)",
        "Training hours, without tuning, a shared teacher once", "Scale (runs)", "Stale records",
    ]  # fmt: skip
    both = zip(names, facts(study.committed), facts(study.local), strict=True)
    out = table("At a glance", ["What", "Committed runs", "Demo, run on this machine"], [list(row) for row in both])
    printed = len(study.reported)
    unverified = sum(not r.verified for r in study.reported)
    out += Markup("<p>Reported numbers: {} from {} papers, {} of them unverified and marked so.</p>").format(
        printed, len({r.paper for r in study.reported}), unverified
    )
    return out + skipped(study)


def skipped(study: Study) -> Markup:
    """Files under `results/runs` that are no records, by name: neither a crash nor silence."""
    if not study.skipped:
        return Markup("<p>Files skipped under <code>results/runs</code>: none.</p>")
    shown = [s.replace(str(results_dir()), "results") for s in study.skipped]
    items = Markup("").join(Markup("<li>{}</li>").format(s) for s in shown)
    head = "{} skipped under <code>results/runs</code>, for the reason given:"
    return Markup('<div class="bc-warning"><p>' + head + "</p><ul>{}</ul></div>").format(
        count(len(study.skipped), "file"), items)


def picture(study: Study, ink: str = "currentColor", background: str = "none") -> Markup:
    """The picture of the comparison: the group with most committed runs, else the demo's, else a sentence."""
    for records in (study.committed, study.local):
        found = main_group(records)
        if not found:
            continue
        profile, backbone, runs = found
        tasks = tasks_of(runs)
        shown = [n for n in BY_NAME if n != "bert" and any(r.label == n for r in runs)]
        rows = [[cell(study.reported, runs, n, t) for t in tasks] for n in shown]
        if rows:
            where = "scaled down" if any(r.scale != "paper" for r in runs) else "the papers' scale"
            title = f"Ours: backbone {backbone}, profile {profile}, {where}. Reported: BERT-base."
            return svg(retention_plot(rows, title), retention_alt(rows), "comparison", ink, background)
    return Markup("<p>No picture yet: no student was run.</p>")


def comparison(study: Study, local: bool) -> Markup:
    """All groups of committed (or local) records: matrix, then one table a task."""
    records = study.local if local else study.committed
    if not records:
        what = "No demo was run on this machine." if local else "No run is committed yet."
        return Markup("<p>{}</p>").format(what)
    out = contents = Markup("")
    for (profile, backbone), runs in groups(records).items():
        name = f"profile {profile}, backbone {backbone}"
        scales = sorted({r.scale for r in runs})
        here = f"{profile}-{backbone}"
        links = Markup(", ").join(
            Markup('<a href="#{}-{}">{}</a>').format(here, t, task_title(t)) for t in tasks_of(runs)
        )
        contents += Markup('<li><a href="#{}">{}</a>: {}</li>').format(here, name, links)
        title = name[0].upper() + name[1:]
        out += Markup('<h3 id="{}">{}</h3><p>Scale: {}.</p>').format(here, title, "; ".join(scales))
        out += matrix(study.reported, runs, f"Method by task, {name}: reported | ours", f"table-{here}")
        out += rates.chosen(runs)
        for task in tasks_of(runs):
            one = [r for r in runs if r.task == task]
            rows = ", ".join(sorted({f"{r.rows} rows of {r.split}" for r in one}))
            seen = related(task, backbone)
            said = lines(Markup("{} {}").format(rows, seen), small(TASKS[task].card) if seen else "")
            out += Markup('<h4 id="{}-{}">{}</h4><p>{}</p>').format(here, task, task_title(task), said)
            out += task_table(study.reported, runs, task, f"{task_title(task)}, {name}")
    return wide(Markup("<ul>{}</ul>").format(contents), out)


def provenance(study: Study) -> Markup:
    """Every run: record, data, versions, machine, time, commit, command."""
    if not study.records:
        return Markup("<p>No run yet.</p>")
    head = [
        "Run", "Score", "Record", "Data (sha256 of the rows)", "Machine", "Wall s, tokens", "Code", "Command",
    ]  # fmt: skip
    runs = study.records
    data = [{"method": r.method, "task": r.task, "profile": r.profile, "state": "stale" if is_stale(r) else "present"}
            for r in runs]  # fmt: skip
    fields = controls(
        "table-runs",
        filters={
            "method": ("Method", {m: title_of(m) for m in sorted({r.method for r in runs}, key=order_of)}),
            "task": ("Task", {t: task_title(t) for t in tasks_of(runs)}),
            "profile": ("Profile", {p: p for p in sorted({r.profile for r in runs})}),
            "state": ("Code", {"present": "the present", "stale": "other (stale)"}),
        },
        search="Search",
    )
    body = [_run(r) for r in runs]
    every = table("Every run", head, body, [anchor(r) for r in runs], sortable=True, name="table-runs", data=data)
    return wide(fields, every)


def _run(r: Record) -> list:
    data = lines(r.data.source, *(code(f"{k} {v[:12]}") for k, v in sorted(r.data.sha256.items())))
    versions = ", ".join(f"{k} {v}" for k, v in sorted(r.environment.versions.items()))
    e = r.environment
    commit = (e.git_commit or "unknown")[:12] + (" with uncommitted changes" if e.git_dirty else "")
    artefacts = lines(*(f"{a.kind} {a.key}, {a.seconds:.0f} s" for a in r.artefacts))
    file = code(f"results/{path_of(r).relative_to(results_dir())}")
    return [
        lines(f"{r.label}, {task_title(r.task)}, seed {r.seed}", small(f"{r.profile}, {r.backbone}"),
              flag("stale", "made by other lib code than the present one") if is_stale(r) else ""),
        lines(f"{r.score:.2f}", small(f"{r.headline}, {r.split}, {r.rows} rows"), small(r.scale)),
        lines(Markup('<a href="{}">{}</a>').format(record_page(r), file), small(r.created)),
        data,
        lines(e.processor, small(f"{count(e.threads, 'thread')}, {e.precision}, {e.platform}"),
              details("versions", versions)),
        lines(f"{r.wall_seconds:.0f}", small(f"{r.tokens:,} tokens, {r.tokens_per_second:,.0f}/s")),
        lines(code(commit), small(f"code {r.code_hash}, config {r.config_hash}"), _same_numbers(r), small(artefacts)),
        command(r.command),
    ]  # fmt: skip


def _same_numbers(r: Record) -> Markup | str:
    if is_stale(r) or r.code_hash == code_hash(r.method):
        return ""
    return small(Markup('the code has changed since; it <a href="#runs-made-again">makes the same numbers</a>'))


def sources(study: Study) -> Markup:
    """Every reported number with its source, the unverified ones marked; first how many come from where."""
    head = ["Paper", "Source read", "Numbers", "Unverified"]
    counted: dict[tuple[str, str], list[Reported]] = {}
    for r in study.reported:
        counted.setdefault((f"{paper_title(r.paper)} (arXiv {r.arxiv_id})", r.source), []).append(r)
    body = [[p, s, str(len(v)), str(sum(not r.verified for r in v))] for (p, s), v in counted.items()]
    out = table("Reported numbers by source", head, body, sortable=True)
    columns = ["Paper", "System", "Task, split", "Metric", "Value", "Where", "Source"]
    unverified = sum(not r.verified for r in study.reported)
    fields = controls(
        "table-reported",
        filters={
            "paper": ("Paper", {p: paper_title(p) for p in dict.fromkeys(r.paper for r in study.reported)}),
            "verified": ("Source", {"yes": "read in a stored text", "no": "unverified"}),
        },
        search="Search",
    )
    everything = table(
        f"All {len(study.reported)} reported numbers, {unverified} of them unverified", columns,
        list(map(_row, study.reported)), sortable=True, name="table-reported",
        data=[{"paper": r.paper, "verified": "yes" if r.verified else "no"} for r in study.reported],
    )  # fmt: skip
    return wide(out, fields, everything)


def _row(r: Reported) -> list:
    source = r.source if r.verified else lines(flag("unverified"), r.source)
    where = lines(r.where, small(r.hardware) if r.hardware else "")
    value = Keyed(f"{r.value} {r.unit}", r.number)
    of = ", ".join(x for x in (TASK_TITLES.get(r.task, r.task), r.split) if x not in ("", "-")) or "the model"
    return [paper_title(r.paper), r.system, of, metric_title(r.metric), value, where, source]
