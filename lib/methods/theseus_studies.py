"""The studies that the Theseus paper makes, as lists of runs that a notebook goes through.

Each run is a record of its own; its `variant` says what was changed.
"""

from __future__ import annotations

from typing import Literal

from torch import nn

from lib import artefacts, models, text
from lib.data import TaskData
from lib.errors import InputError
from lib.methods import bert, theseus
from lib.parameters import Str
from lib.provenance import digest
from lib.training import History

# Study -> the changes of each of its runs. The paper's place is named; the curriculum itself is the plain run.
STUDIES: dict[str, list[dict]] = {
    "none": [{}],
    # Table 6
    "strategy": [{}, {"schedule": "constant", "variant": "constant"}, {"schedule": "anti", "variant": "anti"},
                 {"schedule": "anti", "anti_finish": True, "variant": "anti-finish"}],
    "replacing_rate": [  # Fig. 3: fixed lr, and fixed equivalent lr' = p * lr; a rate chosen for each p would undo both
        {"schedule": "constant", "rate": r, "equivalent_lr": e, "lr_grid": [],
         "variant": f"rate{r}" + "-equivalent" * e}
        for e in (False, True) for r in (0.1, 0.3, 0.5, 0.7, 0.9)],
    "module_impact": [],  # Table 5: filled for the number of modules
    "layers": [],  # Table 7: filled for the depth
    "initialisation": [{"initial_layers": w, "variant": f"init-{w}"} for w in ("interleaved", "highest")],  # section 3
    "code": [{"variant": "code"}],
    "transfer": [{"variant": "transfer"}],  # Table 4
}


class Config(theseus.Config):
    """Parameters of the notebook: one run, or one of the paper's studies."""

    study: Literal["none", "strategy", "replacing_rate", "module_impact", "layers", "initialisation", "code",
                   "transfer"] = "none"
    intermediate_task: Str = "mnli"  # of the study "transfer": compress on it, then fine-tune the student on `task`


def variants(p: Config) -> list[Config]:
    """The runs of a study, each with its variant name; the depth of the teacher decides how many some have."""
    depth, changes = models.depth(p.teacher or p.backbone), STUDIES[p.study]
    if p.study == "module_impact":
        count = len(theseus.partition(depth, p))
        # constant rate and no successor phase, as under Table 5
        changes = [{"only_module": i + 1, "schedule": "constant", "replacing_share": 1.0, "variant": f"module{i + 1}"}
                   for i in range(count)]
    if p.study == "layers":
        own = len(theseus.partition(depth, p))
        sizes = [n for n in range(1, depth) if depth % n == 0 and n != own]
        changes = [{"layers": n, "modules": [], "variant": f"layers{n}"} for n in sizes]
    if p.study != "none" and p.variant:
        raise InputError(f"variant: {p.variant!r} cannot be set together with study={p.study!r}, which names its runs")
    runs = [type(p).model_validate({**p.model_dump(), **c}) for c in changes]
    for q in runs:
        count = len(theseus.partition(depth, q))  # what does not fit shows here, before the teacher is trained
        if q.only_module > count:
            raise InputError(f"only_module: {q.only_module} is not between 1 and {count}")
    return runs


def compress(run, teacher: nn.Module) -> tuple[nn.Module, History]:
    """`theseus.compress`; for the variant "transfer" compression on the intermediate task, then fine-tuning."""
    if run.p.variant != "transfer":
        return theseus.compress(run, teacher)
    return transfer(run)


def transfer(run) -> tuple[nn.Module, History]:
    """Table 4: compress on the intermediate task, drop its head, fine-tune all weights of the student on the task.

    Raises `InputError` where rows that the task is scored on stand among the intermediate task's training rows.
    """
    from lib import runs

    if run.p.intermediate_task == run.p.task:
        raise InputError(f"intermediate_task: {run.p.intermediate_task!r} is the task itself")
    p = type(run.p).model_validate({**run.p.model_dump(), "task": run.p.intermediate_task, "variant": "",
                                    "study": "none", "lr_grid": [], "teacher_lr_grid": [], "profile":
                                    run.p.profile, "teacher": ""})
    first = runs.start("theseus", p)
    refuse_overlap(first.task.name, first.data.train, run.data)
    student, history = first.compress(theseus.compress)
    cost = {"seconds": history.seconds, "tokens": history.tokens}
    run.artefacts += [*first.artefacts,
                      artefacts.Artefact("intermediate", digest(first.identity), run.folder / "intermediate", cost)]
    run.notes.append(f"compressed on {first.task.name} first ({history.tokens:,} tokens), then fine-tuned on the task")
    folder = run.folder / "intermediate"
    models.save_student(student, first.tokenizer, folder)
    fresh = models.load_backbone(str(folder), run.task, run.p.seed)
    return fresh, bert.fine_tune(run, fresh)


def refuse_overlap(name: str, train: dict[str, list], data: TaskData) -> None:
    """`InputError` where scored sentences of 8 words or more stand in `train`: lists "text" and "text_2"."""
    scored = [s for rows in (data.scored, *data.also.values()) for c in ("text", "text_2") for s in rows[c]]
    held = text.overlap([*train["text"], *train["text_2"]], scored)
    if held:
        raise InputError(f"intermediate_task: {name} trains on {len(held)} sentences that the task is scored on, e.g. "
                         f"{held[0][:80]!r}; allowed: a task that holds none of them")
