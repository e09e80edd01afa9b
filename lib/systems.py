"""The methods of this study: order, name, colour and mark, and under which name each stands in which table.

One table for every page and plot, so that a method looks the same everywhere. The colours are those of Okabe and Ito
(2008, colour-blind safe) and four more of the same kind; every method has its own mark too, so colour never stands
alone.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Printed:
    """Where a system's scores are printed: paper, table (prefix of `where`) and the name it has there."""

    paper: str
    where: str
    system: str


@dataclass(frozen=True)
class System:
    """One method. `teacher` is the printed row that the reported retention divides by; None where there is none."""

    name: str
    title: str
    colour: str
    mark: str  # matplotlib's
    printed: Printed
    teacher: Printed | None = None


def _theseus(system: str) -> Printed:
    return Printed("theseus", "Table 2", system)


_PREDECESSOR = _theseus("BERT-base (predecessor)")
# MobileBERT prints BERT-base's original scores beside its own; EfficientBERT compares on the same server.
_BERT_TEST = Printed("bert", "Original Table 1", "BERT-base")

SYSTEMS: tuple[System, ...] = (
    System("bert", "Teacher: BERT, fine-tuned", "#7f7f7f", "s", _PREDECESSOR),
    System("truncated", "Truncated, fine-tuned", "#E69F00", "v", _theseus("Fine-tuning"), _PREDECESSOR),
    System("kd", "Vanilla KD", "#56B4E9", "^", _theseus("Vanilla KD"), _PREDECESSOR),
    System("pkd", "BERT-PKD", "#0072B2", "<", _theseus("BERT-PKD"), _PREDECESSOR),
    System("pdbert", "PD-BERT", "#CC79A7", ">", _theseus("PD-BERT"), _PREDECESSOR),
    System("layerdrop", "LayerDrop", "#B8A800", "p", _theseus("LayerDrop"), _PREDECESSOR),
    System("theseus", "BERT-of-Theseus", "#D55E00", "o", _theseus("BERT-of-Theseus"), _PREDECESSOR),
    System("distilbert", "DistilBERT", "#009E73", "D",
           Printed("distilbert", "Table 1", "DistilBERT"), Printed("distilbert", "Table 1", "BERT-base")),
    System("tinybert", "TinyBERT", "#882255", "P",
           Printed("tinybert", "Table 1", "TinyBERT4"), Printed("tinybert", "Table 1", "BERT-base (teacher)")),
    System("mobilebert", "MobileBERT", "#44AA99", "X", Printed("mobilebert", "Table 4", "MobileBERT"), _BERT_TEST),
    System("efficientbert", "EfficientBERT", "#AA4499", "*",
           Printed("efficientbert", "survey reprint", "EfficientBERT++ (as reprinted)"), _BERT_TEST),
    System("trimbert", "TrimBERT", "#6D4C41", "h", Printed("trimbert", "Results text", "n=3")),
)  # fmt: skip

BY_NAME: dict[str, System] = {s.name: s for s in SYSTEMS}
ORDER: dict[str, int] = {s.name: i for i, s in enumerate(SYSTEMS)}


def title_of(label: str) -> str:
    """Title of a method or of `method-variant`; an unknown method keeps its own name."""
    method, _, variant = label.partition("-")
    title = BY_NAME[method].title if method in BY_NAME else method
    return f"{title} ({variant})" if variant else title


def order_of(label: str) -> tuple:
    """Sort key: the fixed order of methods, then variants by name after the plain method."""
    method, _, variant = label.partition("-")
    return ORDER.get(method, len(ORDER)), method, variant
