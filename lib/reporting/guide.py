"""Which method for which need: read off the committed records, with what is missing named.

A method is *not told apart* from the best where the 95% interval of the paired difference (seed by seed within each
task, then the mean over the tasks) holds zero; where a task has one common seed, nothing is told.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from markupsafe import Markup

from lib.reporting.comparison import main_group, shared, task_title
from lib.reporting.pages import Study
from lib.reporting.tables import NOT_RUN, Keyed, lines, small, table
from lib.results import Record
from lib.stats import over_tasks
from lib.systems import title_of

# What a method asks for besides the task's rows (methods.md, sections 2 to 12): facts of the methods, not results.
TEACHER, TEXT = "a teacher fine-tuned on the task", "unlabelled text"
ASKS: dict[str, tuple[str, ...]] = {
    "truncated": (), "kd": (TEACHER,), "pkd": (TEACHER,), "pdbert": (TEACHER, TEXT), "layerdrop": (),
    "theseus": (TEACHER,), "distilbert": (TEXT,), "tinybert": (TEACHER, TEXT), "mobilebert": (TEXT,),
    "efficientbert": (TEACHER, TEXT), "trimbert": (TEXT,),
}  # fmt: skip


SAME_SIZE = 0.01  # share by which parameters may differ and count as equally few


@dataclass(frozen=True)
class Line:
    """A method over the tasks of the guide."""

    method: str
    scores: dict[tuple[str, int], float]  # (task, seed) -> score
    parameters: int
    of_teacher: float  # parameters as a share of the teacher's, percent; 0 where no teacher was run
    seconds: float  # training on the task, mean of the runs
    before: float  # seconds of stages before the task, once
    teacher: float = 0.0  # seconds of fine-tuning the teacher of a run; 0 for a method that asks for none

    @property
    def work(self) -> float:
        """Seconds of everything that has to be trained for one student."""
        return self.seconds + self.before + self.teacher

    @property
    def score(self) -> float:
        """Mean over tasks of the mean over seeds, percent."""
        return _mean_score(self.scores)


def _mean_score(scores: dict[tuple[str, int], float]) -> float:
    by_task: dict[str, list[float]] = {}
    for (task, _), score in scores.items():
        by_task.setdefault(task, []).append(score)
    return fmean(map(fmean, by_task.values()))


def chosen(runs: list[Record]) -> tuple[list[str], list[str]]:
    """Methods and tasks of the guide: the largest table without a gap, as on the front page (`comparison.shared`)."""
    over = shared([], runs)
    return (list(over.cells), list(over.tasks)) if over else ([], [])


def lines_of(runs: list[Record]) -> list[Line]:
    """One line a method of the guide, over its tasks."""
    methods, tasks = chosen(runs)
    whole = [r.parameters for r in runs if r.label == "bert" and r.task in tasks]
    out = []
    for m in methods:
        own = [r for r in runs if r.label == m and r.task in tasks and r.teacher]
        before = {a.key: a.seconds for r in own for a in r.artefacts if not a.kind.startswith("teacher")}
        size = fmean(r.parameters for r in own)
        out.append(Line(m, {(r.task, r.seed): r.score for r in own}, round(size),
                        100 * size / fmean(whole) if whole else 0.0, fmean(r.wall_seconds for r in own),
                        sum(before.values()),
                        fmean(r.teacher.seconds for r in own) if TEACHER in ASKS[m] else 0.0))  # fmt: skip
    return out


def page(study: Study) -> Markup:
    """Needs and answers, the numbers behind them, and what is not known."""
    group = main_group(study.committed)
    found = lines_of(group[2]) if group else []
    missing = [m for m in ASKS if m not in {x.method for x in found}]
    gaps: list[object] = []
    if missing:
        gaps.append("Not run on all of these tasks, so never an answer: " + ", ".join(map(title_of, missing)) + ".")
    if found and max(len(x.scores) for x in found) < 2:
        gaps.append("One run a method: no difference of scores is told from chance.")
    if unknown := [x for x in found if _untold(found, x)]:
        gaps.append("Of too few seeds for an interval against the best, so that nothing says whether chance sets them "
                    f"apart: {'; '.join(f'{title_of(x.method)} ({_untold(found, x)})' for x in unknown)}.")
    gaps.append("Intervals here are Student's t over seeds. Those of the claims also draw the scored rows again, and "
                "are wider.")
    gaps.append(Markup('Latency and memory of inference are not in these records, which hold those of training: '
                       '<a href="efficiency.html">sizes and speeds</a>.'))
    head = Markup("<h2>What is missing</h2><ul>{}</ul>").format(
        Markup("").join(Markup("<li>{}</li>").format(g) for g in gaps))
    if not found:
        return Markup("<p>No guide yet: no task has a committed run of a student.</p>") + head
    profile, backbone, runs = group
    tasks = chosen(runs)[1]
    where = f"{', '.join(map(task_title, tasks))}; profile {profile}, backbone {backbone}"
    needs = [[need, lines(*answer)] for need, answer in answers(found)]
    out = table(f"Need and method ({where})", ["Need", "What the records say"], needs)
    body = [[
        title_of(x.method), Keyed(lines(f"{x.score:.1f}", small(_seeds(x))), x.score), _gain(found, x),
        Keyed(lines(f"{x.parameters / 1e6:.1f}M", small(f"{x.of_teacher:.0f}% of the teacher" if x.of_teacher else "")),
              x.parameters),
        Keyed(f"{x.seconds / 60:.1f}", x.seconds), Keyed(f"{x.teacher / 60:.1f}", x.teacher),
        Keyed(f"{x.before / 60:.1f}", x.before),
        ", ".join(ASKS[x.method]) or "nothing more",
    ] for x in found]  # fmt: skip
    body += [[title_of(m), *[NOT_RUN] * 6, ", ".join(ASKS[m]) or "nothing more"] for m in missing]
    teachers = {(r.task, r.seed): r.score for r in runs if r.label == "bert" and r.task in tasks}
    where += f"; the teacher's score: {_mean_score(teachers):.1f}" if teachers else ""
    columns = ["Method", "Score, mean over tasks", "To truncated, points", "Parameters", "Training, minutes a run",
               "Its teacher, minutes", "Before the task, minutes once", "Asks for, besides the rows"]  # fmt: skip
    return out + head + table(f"The numbers behind it ({where})", columns, body, sortable=True)


def _seeds(x: Line) -> str:
    """How many seeds the score is a mean of; methods differ in it, and differences are over those in common alone."""
    counts = {sum(t == task for t, _ in x.scores) for task in {t for t, _ in x.scores}}
    return f"{'-'.join(str(n) for n in sorted({min(counts), max(counts)}))} seed{'s' * (counts != {1})} a task"


def _gain(found: list[Line], x: Line) -> Markup | str:
    base = next((y for y in found if y.method == "truncated"), None)
    if base is None or x is base:
        return "none: it is the reference" if x is base else "truncated is not run"
    gap = difference(x, base)
    if gap is None:
        return "no common seed"
    if gap.half is None:
        return lines(f"{gap.mean:+.1f}", small(f"no interval: {alone(base, x)}"))
    return f"{gap.mean:+.1f}\u00a0±\u00a0{gap.half:.1f}"


def difference(x: Line, y: Line):
    """Spread over tasks of the score of `x` minus that of `y`, seed by seed over those that both have."""
    gaps: dict[str, list[float]] = {}
    for task, seed in sorted(x.scores.keys() & y.scores.keys()):
        gaps.setdefault(task, []).append(x.scores[task, seed] - y.scores[task, seed])
    return over_tasks(gaps)


def best(found: list[Line]) -> list[str]:
    """The method with the highest score, those not told apart from it, and which of them takes least work."""
    first = max(found, key=lambda x: x.score)
    gaps = {x.method: difference(first, x) for x in found if x is not first}
    close = [x for x in found if (g := gaps.get(x.method)) is not None and g.half is not None and g.low <= 0]
    least = min([first, *close], key=lambda x: x.work)
    return [
        f"{title_of(first.method)} ({_points(first)})",
        small("not told apart from it: " + ", ".join(title_of(x.method) for x in close)) if close else "",
        small(f"of these {title_of(least.method)} takes least work: {_minutes(least.work)} against "
              f"{_minutes(first.work)}") if least is not first else "",
    ]


def _untold(found: list[Line], x: Line) -> str:
    """Why no interval tells a method from the best of all; empty where one does, or it is the best."""
    first = max(found, key=lambda y: y.score)
    if x is first:
        return ""
    gap = difference(first, x)
    return alone(first, x) if gap is None or gap.half is None else ""


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} minutes"


def alone(x: Line, y: Line) -> str:
    """The tasks on which two methods have one seed or none in common, in words."""
    common = x.scores.keys() & y.scores.keys()
    few = [t for t in dict.fromkeys(t for t, _ in (*x.scores, *y.scores)) if sum(u == t for u, _ in common) < 2]
    return f"fewer than two common seeds on {', '.join(map(task_title, few))}"


def _sizes(little: list[Line]) -> str:
    """Which methods have about as few parameters."""
    low, high = (f"{f(x.parameters for x in little) / 1e6:.1f}M" for f in (min, max))
    size = low if low == high else f"{low} to {high}"
    if len(little) == 1:
        return size
    return f"{size}, within {SAME_SIZE:.0%} of each other: {', '.join(title_of(x.method) for x in little)}"


def _points(x: Line) -> str:
    return f"mean score {x.score:.1f}"


def answers(found: list[Line]) -> list[tuple[str, list]]:
    """(need, answer in lines). A need that no run method meets says so."""

    def among(chosen: list[Line]) -> list:
        return best(chosen) if chosen else [NOT_RUN]

    least = min(found, key=lambda x: x.work)
    cheap = [x for x in found if _minutes(x.work) == _minutes(least.work)]
    fewest = min(x.parameters for x in found)
    little = [x for x in found if x.parameters <= (1 + SAME_SIZE) * fewest]
    half = [x for x in found if x.of_teacher and x.of_teacher <= 50]
    small_ones = best(half) if half else ["no method that was run leaves half of the teacher's parameters or less"]
    return [
        ("The best score after compression", among(found)),
        ("Little time to train", [f"{title_of(x.method)} ({_points(x)})" for x in cheap]
         + [small(f"{_minutes(least.work)}, with the teacher and the stages before the task, where there are any")]),
        ("The fewest parameters", [*best(little), small(_sizes(little))]),
        ("The best score at half the size or less", small_ones),
        ("No unlabelled text", among([x for x in found if TEXT not in ASKS[x.method]])),
        ("No teacher for the task", among([x for x in found if TEACHER not in ASKS[x.method]])),
    ]  # fmt: skip
