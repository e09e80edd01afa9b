"""More than one machine: what the pre-training stages at the papers' scale would take, counted when the book is built.

Nothing here was run: tokens and batches are those of the profile `paper`, operations are torch's own count on the
backbone's shape (`lib.dryrun`), and hours are operations by an assumed speed.
"""

from __future__ import annotations

import functools
import sys

from markupsafe import Markup

from lib import profiles
from lib.reporting.cells import command
from lib.reporting.reported import Reported
from lib.reporting.tables import Keyed, count, lines, small, table
from lib.systems import title_of

PEAK = 312.0  # TFLOP/s of an A100 in bf16, dense (its data sheet)
GPUS = (1, 8, 64)
METHODS = ("distilbert", "tinybert", "mobilebert", "trimbert", "pdbert", "efficientbert")
BACKBONES = {"mobilebert": "bert-large-uncased"}  # as profiles/paper-mobilebert.yaml asks; the others: the profile's
STAGE = " stage"  # how lib.dryrun ends the names of stages that come before the task
TASK = "mnli"  # any: these stages are the same for every task


def dealt(batch: int, micro: int, processes: int) -> tuple[int, int]:
    """(rows of a micro-batch, micro-batches of a step) so that a step's `batch` can be dealt out evenly.

    The largest micro-batch of at most `micro` rows whose number is a multiple of `processes`. Raises `ValueError` where
    no number of rows does it.
    """
    for rows in range(micro, 0, -1):
        if batch % rows == 0 and (batch // rows) % processes == 0:
            return rows, batch // rows
    raise ValueError(f"a step of {batch} rows cannot be dealt out over {processes} processes")


def bytes_a_token(vocabulary: int = 30522) -> float:
    """Memory of a token of a text that `lib.text` holds: its id and its mark in the attention mask, as Python lists."""
    ids, mark = list(range(vocabulary)), [1] * vocabulary
    own = sum(map(sys.getsizeof, ids[257:]))  # of the smaller numbers Python keeps one copy
    return (sys.getsizeof(ids) + own + sys.getsizeof(mark)) / vocabulary


@functools.cache
def estimates() -> list[dict]:
    """Per stage: method, name, `lib.dryrun.Stage`, GPU-hours, rows and number of micro-batches, sequence length."""
    from lib import dryrun  # imports torch, which the rest of the report does without

    out = []
    for method in METHODS:
        given = {"backbone": BACKBONES[method]} if method in BACKBONES else {}
        p, _ = dryrun.parameters("paper", TASK, method, **given)
        line = dryrun.describe("paper", TASK, method, dryrun.KEPT, **given)
        out += [{"method": method, "stage": s, "hours": line["hours"][s.name], "backbone": p.backbone,
                 "micro": p.general_batch_size, "number": p.general_accumulation, "length": p.text_length,
                 "text_tokens": p.text_tokens} for s in line["stages"] if s.name.endswith(STAGE)]
    return out


def page(reported: list[Reported]) -> Markup:
    """The assumption, GPU-hours by stage beside the printed ones, then each method's command for eight processes."""
    from lib import dryrun

    said = Markup("<p>Assumed: a peak of {:g} TFLOP/s (A100, bf16) and a utilisation of {:.0%}, so {:g} TFLOP/s kept "
                  "up; wall-clock days as if {} GPUs were exactly {} times as fast as one.</p>")
    return (said.format(PEAK, dryrun.KEPT / PEAK, dryrun.KEPT, GPUS[-1], GPUS[-1])
            + table("Pre-training stages at profile paper, estimated, not run", _head(),
                    [_row(e, reported) for e in estimates()])
            + table(f"The same steps dealt out over {GPUS[1]} processes", ["Method", "A step", "Command"], _commands()))


def _head() -> list[str]:
    return ["Method", "Stage", "Backbone", "Steps", "Tokens read", "Operations", "GPU-hours", "Printed",
            *(f"Days on {n}" for n in GPUS), "Memory of its text, a process"]


def _printed(method: str, reported: list[Reported]) -> Keyed:
    """GPU-hours that the paper states for its pre-training, with its hardware, or that none was found."""
    found = [r for r in reported if (r.paper, r.metric) == (method, "train_gpu_hours")]
    if not found:
        return Keyed("none found")
    (r,) = found
    return Keyed(lines(r.value, small(f"{r.hardware}; {r.where}")), r.number)


def _days(value: float) -> str:
    """Two digits, and never an exponent."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _row(e: dict, reported: list[Reported]) -> list:
    from lib import dryrun

    s, hours = e["stage"], e["hours"]
    operations = hours * 3600 * dryrun.KEPT * 1e12
    memory = e["text_tokens"] * bytes_a_token() / 1e9
    return [
        title_of(e["method"]), s.name.removesuffix(STAGE), e["backbone"], Keyed(f"{s.steps:,}", s.steps),
        Keyed(f"{s.tokens / 1e9:,.1f} thousand million", s.tokens), Keyed(f"{operations:.1e}", operations),
        Keyed(f"{hours:,.0f}", hours), _printed(e["method"], reported),
        *(Keyed(_days(hours / 24 / n), hours / n) for n in GPUS),
        Keyed(f"{memory:,.0f} GB", memory),
    ]  # fmt: skip


def _commands() -> list[list]:
    out = []
    for method in METHODS:
        e = next(e for e in estimates() if e["method"] == method)
        batch = e["micro"] * e["number"]
        micro, number = dealt(batch, e["micro"], GPUS[1])
        words = profiles.words(profiles.files("paper", method, TASK))
        backbone = f" -r backbone {e['backbone']}" if method in BACKBONES else ""
        text = (f"torchrun --standalone --nproc-per-node {GPUS[1]} -m lib.run {method} {' '.join(words)} -r task {TASK}"
                f"{backbone} -r text corpus.parquet -p general_batch_size {micro} -p general_accumulation {number} "
                f"-p batch_size 4 -p accumulation {GPUS[1]}")
        step = lines(f"{batch:,} sequences of {e['length']}",
                     small(f"profile: {count(e['number'], 'micro-batch')} of {e['micro']}; here {number} of {micro}"))
        out.append([title_of(method), step, command(text)])
    return out
