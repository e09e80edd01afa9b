"""Parameters of a run: validated by type in a notebook's first cell, before anything is loaded or trained.

papermill hands over whatever YAML or its own guess made of a word: `2e-5` arrives as a string, `no` as False, `007`
as 7; and it only warns about an unknown name. So every value is checked here, and the values in force are printed.
"""

from __future__ import annotations

import datetime
import difflib
import math
import sys
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from lib.errors import InputError, shorten


def _integer(v: object) -> object:
    if isinstance(v, bool):
        raise ValueError("must be a whole number, not true/false (YAML reads yes/no/on/off as these)")
    if isinstance(v, str):
        try:
            return int(v)
        except ValueError:
            pass
    if isinstance(v, float) and v.is_integer():
        return int(v)
    if isinstance(v, int):
        return v
    raise ValueError("must be a whole number")


def _number(v: object) -> object:
    if isinstance(v, bool):
        raise ValueError("must be a number, not true/false (YAML reads yes/no/on/off as these)")
    try:
        number = float(v)  # YAML 1.1 reads 2e-5 as a string
    except (TypeError, ValueError, OverflowError):
        raise ValueError("must be a number") from None
    if not math.isfinite(number):
        raise ValueError("must be a finite number")
    return number


def _text(v: object) -> object:
    if isinstance(v, str):
        return v
    raise ValueError("must be text (with papermill use -r instead of -p to keep a word as text)")


def _truth(v: object) -> object:
    if isinstance(v, str) and v.lower() in ("true", "false"):  # papermill's -p knows True alone, and -r no types
        return v.lower() == "true"
    if isinstance(v, bool):
        return v
    raise ValueError("must be true or false")


def _list(v: object) -> object:
    """A list, also written as one value or as words separated by spaces or commas."""
    if isinstance(v, str):
        return [w for w in v.replace(",", " ").split() if w]
    return v if isinstance(v, list | tuple) else [v]


Int = Annotated[int, BeforeValidator(_integer)]
Float = Annotated[float, BeforeValidator(_number)]
Str = Annotated[str, BeforeValidator(_text)]
Bool = Annotated[bool, BeforeValidator(_truth)]
Floats = Annotated[list[Float], BeforeValidator(_list)]
Ints = Annotated[list[Int], BeforeValidator(_list)]
Strs = Annotated[list[Str], BeforeValidator(_list)]


class Parameters(BaseModel):
    """What every notebook takes. A method's own parameters are added by a subclass (`lib/methods/<name>.py`)."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    # What is run
    task: Str = "movies"  # a declared task (lib/tasks.py) or a path to your own file or folder
    backbone: Str = ""  # short name, hub id or folder; empty: your `teacher` if there is one, else minilm-l6
    teacher: Str = ""  # folder of your own fine-tuned checkpoint; empty: one is fine-tuned here and kept
    seed: Annotated[Int, Field(ge=0, le=2**31 - 1)] = 0
    profile: Str = "custom"  # names the folder of the record; profiles/*.yaml set it
    variant: Str = ""  # what differs from the method's default, e.g. "paper", "code"; part of the record's name
    output: Str = ""  # folder for the student; empty: build/runs/.../student
    split: Str = ""  # scored split of a declared task; empty: the task's own. Splits without public labels are refused
    # Your own file: empty means guessed, and what was guessed is printed
    text_column: Str = ""
    text_column_2: Str = ""
    label_column: Str = ""
    kind: Literal["auto", "classification", "regression"] = "auto"
    # Scale
    max_tokens: Annotated[Int, Field(ge=0)] = 0  # real tokens to train on, all epochs; 0: no cap, epochs decide
    epochs: Annotated[Float, Field(gt=0, le=1000)] = 3
    max_rows: Annotated[Int, Field(ge=0)] = 0  # cap on training rows, drawn by hash; 0: all
    max_length: Annotated[Int, Field(ge=8, le=8192)] = 128  # tokens, truncated beyond
    stride: Annotated[Int, Field(ge=0, le=8192)] = 32  # tokens that windows of a long paragraph share (SQuAD only)
    # Optimisation; defaults as in BERT-of-Theseus and its official code (methods.md, 2.4) but for the learning rate
    batch_size: Annotated[Int, Field(ge=1, le=65536)] = 32
    accumulation: Annotated[Int, Field(ge=1, le=4096)] = 1
    lr: Annotated[Float, Field(gt=0, le=1)] = 1e-4
    warmup: Annotated[Float, Field(ge=0, lt=1)] = 0.1  # share of the steps
    weight_decay: Annotated[Float, Field(ge=0, le=1)] = 0.0
    max_grad_norm: Annotated[Float, Field(ge=0)] = 1.0  # 0: no clipping
    adam_epsilon: Annotated[Float, Field(gt=0)] = 1e-8
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    # The teacher, where it is fine-tuned here (the method `bert` uses lr, epochs, max_tokens and lr_grid instead)
    teacher_lr: Annotated[Float, Field(gt=0, le=1)] = 1e-4
    teacher_epochs: Annotated[Float, Field(gt=0, le=1000)] = 3
    teacher_tokens: Annotated[Int, Field(ge=0)] = 0
    teacher_lr_grid: Floats = []
    # Selection, never on the scored rows: a tenth of train held out by a hash of the text
    evaluations: Annotated[Int, Field(ge=1, le=1000)] = 5  # times that the held-out rows are scored
    lr_grid: Floats = []  # learning rates tried first with `tuning_seed`; empty: `lr` is used
    tuning_seed: Annotated[Int, Field(ge=0)] = 1000
    tuning_tokens: Annotated[Int, Field(ge=0)] = 0  # cap for each trial; 0: as the run itself
    score_curve: Bool = False  # also score the scored split at each evaluation (the papers' way of selecting)


    @model_validator(mode="before")
    @classmethod
    def _backbone(cls, values: dict) -> dict:
        if values.get("backbone", "") == "":
            values = {**values, "backbone": values.get("teacher") or "minilm-l6"}
        return values


def describe(error: ValidationError, values: dict) -> str:
    """The first problem of a pydantic error as one line: name, value, what is allowed."""
    e = error.errors()[0]
    name = ".".join(str(part) for part in e["loc"]) or "parameters"
    message = e["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return f"{name}: {shorten(e.get('input', values.get(name)))} {message}"


def validate(cls: type[Parameters], values: dict) -> Parameters:
    """`values` as a `cls`; `InputError` for an unknown name, a wrong type or a value out of range."""
    for name in values:
        if name not in cls.model_fields:
            close = difflib.get_close_matches(name, cls.model_fields, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; allowed: {', '.join(sorted(cls.model_fields))}"
            raise InputError(f"parameter {name}: unknown (value {shorten(values[name])}){hint}")
    try:
        return cls(**values)
    except ValidationError as e:
        raise InputError("parameter " + describe(e, values)) from None


# Names that IPython puts into a notebook's namespace.
_IPYTHON = {"In", "Out", "exit", "quit", "get_ipython", "open"}


def _plain(v: object) -> bool:
    """Whether YAML or papermill could have made the value. Runs and records of a cell executed before are not."""
    if isinstance(v, list | tuple | set):
        return all(map(_plain, v))
    if isinstance(v, dict):
        return all(map(_plain, v.values()))
    return v is None or isinstance(v, bool | int | float | str | bytes | datetime.date)


def read(cls: type[Parameters], namespace: dict) -> Parameters:
    """The parameters of a notebook from its `globals()`, validated and printed.

    Every public name with a value that YAML can hold counts as a parameter, so one that papermill injected under a
    mistyped name is found here rather than ignored.
    """
    values = {k: v for k, v in namespace.items() if not k.startswith("_") and k not in _IPYTHON and _plain(v)}
    parameters = validate(cls, values)
    changed = parameters.model_dump()
    print("parameters in force:", ", ".join(f"{k}={changed[k]!r}" for k in changed), file=sys.stdout)
    return parameters
