"""How to make the runs again: every profile with its command, its size, and what it cost where it was run."""

from __future__ import annotations

from statistics import fmean

from markupsafe import Markup

from lib import profiles
from lib.reporting.cells import command
from lib.reporting.comparison import LOCAL
from lib.reporting.pages import Study, hours
from lib.reporting.tables import NOT_RUN, Keyed, count, lines, small, table
from lib.results import Record
from lib.systems import order_of, title_of

COMMANDS = {
    "ci": "make book BOOK_PROFILE=ci",
    "demo": "make book",
    "compare": 'make compare TASK=my.csv TEACHER=folder METHODS="truncated theseus" MINUTES=60',
}
ANY = {"tasks": ["rte", "mrpc"], "methods": ["theseus", "truncated"], "seeds": [0, 1, 2]}  # of a profile without a grid
WHERE = {
    "ci": "any machine; a check that everything runs",
    "demo": "a laptop; two processor cores are enough",
    "compare": "a laptop, for the minutes that you give it",
    "glue": "a laptop or more; two processor cores are enough",
    "paper": "a GPU; the stages before the task take hours to weeks on several",
}


def page(study: Study) -> Markup:
    """The profiles, then the cost of each method where it was measured."""
    body = [_profile(name, study) for name in profiles.names()]
    head = ["Profile", "Command", "Scale", "Meant for", "Runs here", "Hours of training, measured", "Measured on"]
    out = table("Profiles", head, body)
    for name in profiles.names():
        runs = [r for r in study.records if r.profile == name]
        if runs:
            out += _methods(name, runs)
    return out


def _profile(name: str, study: Study) -> list:
    settings, grid = profiles.values(name), profiles.grid(name)
    runs = [r for r in study.records if r.profile == name]
    asked, part = COMMANDS.get(name), Markup("")
    if asked is None:
        grid = grid or ANY
        words = {k.upper(): " ".join(map(str, v)) for k, v in grid.items()}
        asked = f"make grid PROFILE={name}" + "".join(f' {k}="{v}"' for k, v in words.items())
        made = sum(r.label in grid["methods"] and r.task in grid["tasks"] and r.seed in grid["seeds"] for r in runs)
        if made < len(runs):
            part = small(Markup('For example: this makes {} of the {} counted here. <a href="provenance.html">Each of '
                                "them</a> has its own command.").format(made, count(len(runs), "run")))
    cap = settings.get("max_tokens")
    committed = name not in (*LOCAL, "compare")
    scale = lines(
        f"backbone {settings.get('backbone', 'yours')}",
        f"at most {settings.get('epochs')} times over the rows",
        f"and {cap:,} tokens a run" if cap else "no cap on tokens in the file",
        small("records are committed" if committed else "made on each machine"),
    )
    machines = sorted({f"{r.environment.processor}, {count(r.environment.threads, 'thread')}" for r in runs})
    return [
        name, lines(command(asked), part), scale, WHERE.get(name, "not said"), str(len(runs)) if runs else NOT_RUN,
        Keyed(f"{hours(runs):.2f}", hours(runs)) if runs else "not known: not run by us",
        lines(*machines) if machines else NOT_RUN,
    ]  # fmt: skip


def _methods(profile: str, runs: list[Record]) -> Markup:
    """What one run of each method costs at a profile: its own training, choosing a rate, and shared stages."""
    body = []
    for m in sorted({r.method for r in runs}, key=order_of):
        own = [r for r in runs if r.method == m]
        tuned = fmean(r.selection.tuning_tokens for r in own)
        stages = {a.key: a for r in own for a in r.artefacts}
        kinds: dict[str, list[float]] = {}
        for a in stages.values():
            kinds.setdefault(a.kind, []).append(a.seconds)
        shared = lines(*(f"{k}: {fmean(v) / 60:.1f} each, {len(v)} made" for k, v in kinds.items()))
        seconds = [r.wall_seconds for r in own]
        body.append([
            title_of(m), str(len(own)), Keyed(f"{fmean(seconds) / 60:.1f}", fmean(seconds)),
            Keyed(f"{fmean(r.tokens for r in own):,.0f}", fmean(r.tokens for r in own)),
            Keyed(f"{tuned:,.0f}" if tuned else "none: no grid", tuned), shared or "none",
        ])  # fmt: skip
    head = ["Method", "Runs", "Training, minutes a run", "Tokens a run", "Tokens to choose the rate",
            "Shared stages, minutes"]  # fmt: skip
    return table(f"Cost of a run at profile {profile}, mean of the runs", head, body, sortable=True)
