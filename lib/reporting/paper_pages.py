"""One page a method: a paper's tables in its own layout beside the runs of ours that ask the same question.

Idea, equations, and the differences between paper, official code and ours stand once, at the head of the method's
notebook; `idea` takes them from there. A study's runs are variants of the method (`lib/methods/*_studies.py`, or
`STUDIES` of the method's file); their names are matched to the printed rows here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from markupsafe import Markup

from lib.paths import ROOT
from lib.reporting.beside import beside, module_impact, variants_beside
from lib.reporting.cells import anchor, command, record_page
from lib.reporting.comparison import Teacher, groups, task_title, tasks_of, teacher_of
from lib.reporting.masked_words import language
from lib.reporting.pages import Study
from lib.reporting.reported import reported_table
from lib.reporting.tables import NOT_RUN, Keyed, details, flag, frame, lines, small, table
from lib.results import Record, is_stale
from lib.systems import order_of, title_of


@dataclass(frozen=True)
class Section:
    """One table or question of a paper.

    With `rows`, variants of ours stand beside the printed rows, as differences to the first. With `pattern`, ours stand
    alone: nothing is printed, or its rows do not match a backbone of another depth. With neither, the table is shown as
    printed, after ours on all tasks where `plain` is set.
    """

    title: str
    where: str = ""  # prefix of the table in reported.csv; empty where nothing is printed
    rows: dict[str, str | None] = field(default_factory=dict)  # our label -> the printed row
    pattern: str = ""  # labels of ours, as a regular expression
    plain: bool = False
    note: str = ""
    study: str = ""  # value of the notebook's parameter `study` that makes the runs
    words: str = ""  # papermill's words that make a run of it, where no `study` does
    paper: str = ""  # that prints the table, where it is not the page's own
    base: str = ""  # our label that changes are counted from; empty: the first of `rows`, else the plain method
    profile: str = ""  # of the runs beside the method's own, e.g. "glue-trimbert-scratch"
    task: str = "mrpc"  # of the command

    @property
    def key(self) -> str:
        """The part before the colon: "Table 6"."""
        return self.title.split(":")[0]

    @property
    def anchor(self) -> str:
        return re.sub(r"\W+", "-", self.key.lower())


SERVER = "Scored by the GLUE server on the test sets, whose labels are not public; ours is of the development sets."
LARGE = "The general stage decides here, and ours reads a fraction of a percent of the paper's text."
SEARCHED = "The best setting that the authors found for each task, as their repository lists it."
SCRATCH = {"base": "trimbert-scratch-n1", "profile": "glue-trimbert-scratch", "task": "sst2"}
_THESEUS = Section("Table 2 of BERT-of-Theseus: development sets", "Table 2", plain=True, paper="theseus",
                   note="The table in which all methods of this kind stand together, at BERT-base cut to 6 layers.")

PAGES: dict[str, tuple[Section, ...]] = {
    "theseus": (
        Section("Table 2: development sets", "Table 2", plain=True),
        Section("Table 3: test sets", "Table 3", note=SERVER),
        Section("Table 6: which replacement strategy", "Table 6", {
            "theseus-constant": "Theseus constant rate",
            "theseus-anti": "Theseus anti-curriculum",
            "theseus-anti-finish": None,
            "theseus": "Theseus curriculum",
        }, study="strategy", note="anti-finish: the falling rate, then 1 for as many steps as in the constant "
           "strategy; without it the substitutes are not trained any more at the end."),
        Section("Table 4: compress on another task first", "Table 4", {
            "bert": "BERT-base",
            "theseus-transfer": "BERT-of-Theseus-MNLI",
        }, study="transfer", profile="glue-theseus-transfer"),
        Section("Table 5: replacing one module alone", "Table 5", pattern=r"bert|theseus-module\d+",
                study="module_impact", note="The paper cuts 12 layers into six modules; a smaller backbone has fewer, "
                "so the rows do not match."),
        Section("Table 7: how many layers are left", "Table 7", pattern=r"(truncated|theseus)(-layers\d+)?",
                study="layers", note="Rows compare by the share of layers kept: their 6 layers are half, as our plain "
                "runs are."),
        Section("Figure 3: the replacing rate", pattern=r"theseus-rate[\d.]+(-equivalent)?", study="replacing_rate",
                base="theseus-rate0.5", note="The paper draws these numbers and does not print them. One learning rate "
                "for every p. In the -equivalent runs it is lr/p to the end, also where p has become 1."),
        Section("Section 3: where substitutes start; paper and official code", pattern=r"theseus(-init-\w+|-code)?",
                study="initialisation", note="The paper says that the other starts were worse, without numbers. "
                "The variant of the code is made by study=code."),
    ),
    "distilbert": (
        Section("Table 1: development sets", "Table 1", plain=True),
        Section("Table 4: each loss off, and a random start", "Table 4",
                pattern=r"distilbert(-no-(ce|cos|mlm)|-random)?", study="ablation",
                note="Printed are changes of the mean over nine tasks. " + LARGE),
        Section("Table 2: sentiment and questions", "Table 2", note="IMDb has no run of ours."),
        Section("Table 3: size and time of a pass", "Table 3",
                note="Timed on the paper's machine. Times here stand on the page about efficiency."),
        Section("README: the numbers of the repository", "repository README",
                note="Corrected after an error in the evaluation; the paper's table has another BERT-base on MNLI."),
        Section("Choices: paper and official code", pattern=r"distilbert(-code|-paper|-drop-types|-task)?",
                study="code", note="Also study=paper, token_types and task (distilled while fine-tuning, too)."),
    ),
    "tinybert": (
        Section("Table 1: test sets", "Table 1", plain=True, note=SERVER),
        Section("Table 2: what each stage gives", "Table 2", {
            "tinybert": "TinyBERT4 full", "tinybert-no-general": "TinyBERT4 w/o GD",
            "tinybert-no-task": "TinyBERT4 w/o TD", "tinybert-no-augmentation": "TinyBERT4 w/o DA"},
                study="procedures"),
        Section("Table 3: what each loss gives", "Table 3", {
            "tinybert": None, "tinybert-no-embedding": "TinyBERT4 w/o Embd",
            "tinybert-no-prediction": "TinyBERT4 w/o Pred", "tinybert-no-transformer": "TinyBERT4 w/o Trm",
            "tinybert-no-attention": "TinyBERT4 w/o Attn", "tinybert-no-hidden": "TinyBERT4 w/o Hidn"},
                study="objectives"),
        Section("Table 4: which teacher layer", "Table 4", {
            "tinybert": "TinyBERT4 Uniform mapping", "tinybert-top": "TinyBERT4 Top mapping",
            "tinybert-bottom": "TinyBERT4 Bottom mapping"}, study="mapping"),
        Section("Table 7: the start of the student", "Table 7", {
            "tinybert-no-task": "TinyBERT (GD only)", "tinybert-no-augmentation": "TinyBERT (GD+TD, no DA)"},
                study="procedures", note="The first two printed rows start from a small BERT that was pre-trained; "
                "ours has none."),
        Section("Table 5: other six-layer students", "Table 5", note="Development sets, as labelled there."),
        Section("Table 6: SQuAD", "Table 6"),
        Section("Code: paper and official code", pattern=r"tinybert(-code)?", study="code",
                note="The differences are listed above; the paper prints no number for them."),
    ),
    "mobilebert": (
        Section("Table 4: test sets", "Table 4", plain=True, note=SERVER),
        Section("Table 1: shapes", "Table 1"),
        Section("Table 5: SQuAD", "Table 5"),
        Section("Operational: what NoNorm and relu are for", "operational",
                note="Milliseconds on a phone. The notebook times the same four variants on this machine."),
        Section("Strategies: progressive, joint, auxiliary", pattern=r"mobilebert(-joint|-auxiliary)?",
                study="strategies", note="The paper's tables of ablations were not at hand."),
        Section("Transfers: feature maps and attention, each off", pattern=r"mobilebert(-no-(feature|attention))?",
                study="transfers"),
        Section("Shapes: TINY, and without operational optimisations", pattern=r"mobilebert(-tiny|-unoptimised)?",
                study="shapes"),
        Section("Code: paper and official code", pattern=r"mobilebert(-code)?", study="code",
                note="LayerNormed feature maps and their statistics; the paper prints no number for it."),
    ),
    "efficientbert": (
        Section("Test sets: the row as reprinted in a survey", "survey reprint", plain=True,
                note="The paper's own table by task was not at hand. The reprinted row has 16M parameters, which "
                "suggests the variant called ++."),
        Section("Abstract: what the paper claims", "Abstract",
                note="This 77.7 is a mean of nine columns; MobileBERT's 77.7 is a score of the GLUE server."),
        Section("Sizes: parameters", "official code", note="The notebook counts them from the configurations."),
        Section("Control: the searched functions against a plain gelu", pattern=r"efficientbert(-control)?",
                study="control", note="No such comparison was read in the paper: the same sizes, start and training "
                "with the plain function. The start was trained for the plain one."),
        Section("Search: without warm-up, and in one stage", pattern=r"efficientbert(-search(-cold)?|-coarse)?",
                study="search", note="The paper's ablations of its search; their numbers were not at hand. One search "
                "per variant; equal numbers of candidates, not of tokens."),
    ),
    "trimbert": (
        Section("Results: what the text states", "Results text",
                note="No table of scores by task was at hand. The paper trains every variant from scratch."),
        Section("Fig. 6: throughput at 1024 tokens", "Fig. 6"),
        Section("Blocks: how many, from scratch", pattern=r"trimbert-scratch-n(\d+|inf)", study="blocks", **SCRATCH,
                note="The paper's own protocol, made small: six attention blocks at random, one recipe and 2M tokens "
                "of text for every n; n of 4 and of 6 leave the same one block."),
        Section("Changes: BANDD and NoMLPLN", pattern=r"trimbert-scratch-n[12](-bandd)?(-nomlpln)?", study="changes",
                **SCRATCH, note="Where the loss on masked words has hardly moved from its start, which is that of "
                "guessing each word by its frequency, the network has learnt nothing to fine-tune, and the score says "
                "that it did not learn in so few steps."),
        Section("Dropout: which one BANDD removes", pattern=r"trimbert-scratch-n1-bandd(-drop\w+|-l2zero|-slow)?",
                study="dropout",
                **SCRATCH | {"base": "trimbert-scratch-n1-bandd"},
                note="The text does not say which dropout after self-attention is meant. l2zero: without the L2 term "
                "in the loss of language modelling (-p bandd True -p l2 0.0 -r variant scratch-n1-bandd-l2zero). slow: "
                "at a third of the rate (-p bandd True -p general_lr 0.0003 -r variant scratch-n1-bandd-slow)."),
        Section("Gain: where it starts in BANDD", study="gain", **SCRATCH,
                pattern=r"trimbert-scratch-n1(-bandd|-bandd-gain[\d.]+|-bandd-dropnone-gain[\d.]+)?",
                note="The source of the normalisation starts a head's gain at 1; TrimBERT's text names no start. The "
                "loss on masked words says which start lets a network from scratch begin to learn in so few tokens."),
        Section("LayerNorm: which one may go", pattern=r"trimbert-scratch-n1(-nomlpln|-noattln)?", study="layernorm",
                **SCRATCH, note="The paper removes the one after intermediate blocks, and says that without the one "
                "after attention training diverges."),
        Section("Cut: the same changes, out of the backbone", pattern=r"trimbert(-backbone-.+)?", study="blocks",
                note="Another experiment than the paper's: blocks are cut out of the pre-trained backbone, which heals "
                "by language modelling. Also study=changes, dropout and layernorm."),
    ),
    # Baselines: BERT-of-Theseus prints the row of each that ours stands beside; then what their own papers print.
    "truncated": (
        _THESEUS,
        Section("Layers: how many are left", pattern=r"truncated(-layers\d+)?",
                words="-p layers 2 -p variant layers2",
                note="Printed in Table 7 of BERT-of-Theseus, on the page of that paper."),
    ),
    "kd": (
        _THESEUS,
        Section("Table 1 of BERT-PKD: test sets", "PKD Table 1", paper="pkd", note=SERVER),
        Section("Repository of BERT-PKD: development sets", "official repository", paper="pkd", note=SEARCHED),
        Section("Code: paper and official code", pattern=r"kd(-code)?",
                words="-p variant code",
                note="The soft term averaged over classes too; no number is printed for it."),
    ),
    "pkd": (
        _THESEUS,
        Section("Table 1: test sets", "PKD Table 1", note=SERVER),
        Section("Repository: development sets", "official repository", note=SEARCHED),
        Section("Efficiency: size and speed", "efficiency table",
                note="Ours stand on the page about sizes and speeds."),
        Section("Choices: paper and official code, and which layers are compared", pattern=r"pkd(-.+)?",
                words="-p variant code",
                note="No number is printed for these one by one. Another is made by -p variant paper."),
    ),
    "pdbert": (
        _THESEUS,
        Section("Arms: pre-train, distil, fine-tune", "Table 3", pattern=r"pdbert(-pd|-pf|-tf)?", study="arms",
                note="Few cells of the printed table were at hand. PD: pre-trained and distilled; PF: pre-trained and "
                "fine-tuned; TF: truncated and fine-tuned. " + LARGE),
        Section("README: the released small models", "google-research",
                note="Pre-trained and fine-tuned, not distilled. " + SERVER),
        Section("Sizes: parameters of the released models", "miniature table"),
    ),
    "layerdrop": (
        _THESEUS,
        Section("Table 7: pruned to 6 or 3 layers", "Table 7",
                note="RoBERTa, pre-trained with LayerDrop by the authors: a backbone that no run of ours has."),
        Section("Rate: of dropping layers", pattern=r"layerdrop(-rate[\d.]+)?", study="rate"),
        Section("Pruning: which layers stay", pattern=r"layerdrop(-one|-search)?", study="pruning"),
        Section("Place: in fine-tuning or before it", pattern=r"layerdrop(-recovery|-pretraining)?", study="place"),
        Section("Table 4: deep models, without pruning", "Table 4", note="Shown for completeness; no run of ours."),
        Section("Table 8: a language model", "Table 8", note="Perplexity, lower is better; no run of ours."),
    ),
}  # fmt: skip
BASELINES = ("truncated", "kd", "pkd", "pdbert", "layerdrop")
PAPERS = tuple(p for p in PAGES if p not in BASELINES)


def idea(paper: str) -> str:
    """Idea, equations and differences as Markdown: the text before the parameters of the method's notebook.

    Its own title is left out, links to other notebooks lead to their pages. Raises `ValueError` where there is none.
    """
    source = (ROOT / "notebooks" / f"{paper}.py").read_text(encoding="utf-8")
    head = re.split(r'^# %% tags=\["parameters"\]', source, maxsplit=1, flags=re.M)[0]
    cells = re.split(r"^# %% \[markdown\]\n", head, flags=re.M)[1:]
    text = "\n".join(re.sub(r"^# ?", "", line) for cell in cells for line in cell.rstrip().splitlines())
    text = re.sub(r"\A\s*# .*\n+", "", text)
    if "$" not in text:
        raise ValueError(f"notebooks/{paper}.py: no text with an equation before the parameters")
    text = re.sub(r"^\| \| ", "| question | ", text, flags=re.M)  # a head without a word is lost on a screen reader
    return re.sub(r"\]\((\w+)\.ipynb\)", r"](executed/\1.ipynb)", text) + "\n"


def page(paper: str, study: Study) -> str:
    """The tables of a method's page, then every run of ours of its method: Markdown, so that the page's list of
    contents holds its headings, with the tables in it as they are.
    """
    out = []
    for s in PAGES[paper]:
        html = Markup("<p>{}</p>").format(s.note) if s.note else Markup("")
        html += section(paper, s, study)
        if paper == "theseus" and s.key == "Table 5":
            html += module_impact("theseus", study)
        if paper == "trimbert" and s.study:
            html += language(labels(s, study), study, s.key)
        if s.where:
            html += whole(paper, s, study)
        # The ablations' page leads to this place; a heading's own would change with its words.
        out += [_raw(Markup('<span id="{}"></span>').format(s.anchor)), f"## {s.title}", _raw(html)]
    return "\n\n".join([*out, "## Our runs", _raw(our_runs(paper, study))]) + "\n"


def _raw(html: Markup) -> str:
    """HTML as a block of MyST, in a fence that no run of backticks in it can close."""
    fence = "`" * (3 + max((len(x) for x in re.findall("`+", html)), default=0))
    return f"{fence}{{raw}} html\n{html.strip()}\n{fence}"


def section(paper: str, s: Section, study: Study) -> Markup:
    """Ours of one section, beside the printed rows where there are some; empty for a table that is only printed."""
    if s.plain:
        return beside(s.paper or paper, paper, s.where, study)
    if s.rows:
        return variants_beside(paper, s.where, s.rows, study) + _made_by(paper, s, s.rows, study)
    if s.pattern:
        found, broken = labels(s, study), without_score(s, study)
        if not any("-" in label for label in found):
            return broken or Markup("<p>Ours: not run.</p>") + _made_by(paper, s, {}, study)
        return variants_beside(paper, "", dict.fromkeys(found), study, s.key) + broken
    return Markup("")


def without_score(s: Section, study: Study) -> Markup:
    """Runs of the section's variants that diverged: they have no record, and no number stands in for one."""
    found = [d for d in study.diverged if s.pattern and re.fullmatch(s.pattern, d.label)]
    if not found:
        return Markup("")
    rows = [[lines(d.label, small(f"{d.profile}, {d.backbone}"), flag("stale") if d.stale else ""), task_title(d.task),
             str(d.seed), d.words, lines(d.stage, small(d.message))] for d in found]
    return table(f"{s.key}: runs that diverged", ["Run", "Task", "Seed", "Score", "In"], rows)


def labels(s: Section, study: Study) -> list[str]:
    """Labels of ours that belong to the section and were run: its base and plain methods first, module2 before 10."""
    if s.rows:
        return [label for label in s.rows if any(r.label == label for r in study.records)]
    found = {r.label for r in study.records if re.fullmatch(s.pattern, r.label)}
    return sorted(found, key=lambda label: (label != s.base, _natural(label)))


def reference(method: str, s: Section) -> str:
    """The run that changes are counted from: as the section says, else its first row, else the plain method."""
    if s.base or s.rows:
        return s.base or next(iter(s.rows))
    return "bert" if s.pattern.startswith("bert|") else method


def study_command(method: str, s: Section) -> str:
    """The command that makes the runs of a section's study at the profile `glue`, or one of them by its `words`."""
    own = f"notebooks/profiles/glue-{method}.yaml"
    more = f" -f {own}" if (ROOT / own).exists() else ""
    more += f" -f notebooks/profiles/{s.profile}.yaml" if s.profile else ""
    return (f"papermill notebooks/{method}.ipynb out.ipynb -f notebooks/profiles/glue.yaml{more} -r task {s.task} "
            + (f"-r study {s.study}" if s.study else s.words))  # fmt: skip


def _made_by(method: str, s: Section, rows: dict, study: Study) -> Markup:
    """How to make the runs that are missing."""
    if not (s.study or s.words) or (rows and len(labels(s, study)) == len(rows)):
        return Markup("")
    return Markup("<p>{}: {}</p>").format(small("What is not run is made by"), command(study_command(method, s)))


def whole(paper: str, s: Section, study: Study) -> Markup:
    data = reported_table(s.paper or paper, s.where, study.reported)
    return details(f"{s.key} as printed", frame(f"{s.key} as printed ({data.attrs['split']})", data))


def our_runs(method: str, study: Study) -> Markup:
    """Every run of the method: score, what it retains, cost, record and command."""
    runs = sorted((r for r in study.records if r.method == method), key=lambda r: (order_of(r.label), r.task, r.seed))
    if not runs:
        return Markup("<p>{}: {}.</p>").format(title_of(method), NOT_RUN)
    head = ["Run", "Task", "Seed", "Score", "Retention, % of the teacher", "Tokens", "Minutes", "Record", "Command"]
    teachers = {(*g, t): teacher_of(found, t) for g, found in groups(study.records).items() for t in tasks_of(found)}
    body = [_run(r, teachers[r.profile, r.backbone, r.task]) for r in runs]
    return table(f"Runs of {title_of(method)}", head, body, sortable=True)


def _run(r: Record, teacher: Teacher | None) -> list:
    """A line of `our_runs`; `teacher`: of the run's task in its group, which decides whether a retention is shown."""
    kept: object = "no teacher" if r.retention is None else f"{r.retention:.1f}"
    if r.retention is not None and teacher and teacher.reason:
        kept = Keyed(small(f"withheld: {teacher.reason}"))
    place = Markup('<a href="provenance.html#{}">provenance</a>').format(anchor(r))
    return [
        lines(r.label, small(f"{r.profile}, {r.backbone}"), flag("stale") if is_stale(r) else ""),
        task_title(r.task), str(r.seed), lines(f"{r.score:.1f}", small(r.headline)), kept,
        Keyed(f"{r.tokens:,}", r.tokens), f"{r.wall_seconds / 60:.1f}",
        lines(Markup('<a href="{}">record</a>').format(record_page(r)), place), command(r.command),
    ]  # fmt: skip


def _natural(label: str) -> list:
    return ["-" in label, *(float(x) if x[0].isdigit() else x for x in re.findall(r"\d+(?:\.\d+)?|\D+", label))]
