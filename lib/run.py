"""A method's notebook without a kernel: `python -m lib.run theseus -f notebooks/profiles/glue.yaml -p task rte`.

It takes papermill's -p, -r, -y and -f and runs the same cells in this process, so that several processes can share one
run (`lib.distributed`):

    torchrun --standalone --nproc-per-node 2 -m lib.run theseus ... -p accumulation 2

It leaves the record and the student; plots and tables of the notebook are not kept.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path

import nbformat
import yaml

from lib import distributed
from lib.errors import InputError, one_of, shorten
from lib.paths import ROOT, as_path

USAGE = "usage: python -m lib.run METHOD [-p NAME VALUE] [-r NAME TEXT] [-y YAML] [-f FILE]"


def parameters_of(files: list[str]) -> dict:
    """What papermill's parameter files say together. `InputError` for one that is no mapping of names to values."""
    values: dict = {}
    for name in files:
        try:
            read = yaml.safe_load(as_path(name, "parameter file").read_bytes())
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as e:
            raise InputError(f"parameter file {name}: cannot be read as YAML ({shorten(str(e), 200)})") from e
        if read is not None and not (isinstance(read, dict) and all(isinstance(k, str) for k in read)):
            raise InputError(f"parameter file {name}: holds {shorten(read)}; names with values are needed")
        values |= read or {}
    return values


def cells(method: str, words: list[str]) -> list[str]:
    """Code of the method's notebook with papermill's parameters put in by papermill itself.

    Raises `InputError` for an unknown method and for words that papermill does not understand.
    """
    from click import ClickException
    from papermill.cli import papermill

    from lib.grid import methods

    one_of("method", method, methods())
    parameters_of([words[i + 1] for i, w in enumerate(words[:-1]) if w in ("-f", "--parameters_file")])
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "prepared.ipynb"
        try:
            papermill.main([str(ROOT / "notebooks" / f"{method}.ipynb"), str(out), "--prepare-only",
                            "--no-progress-bar", "--log-level", "ERROR", *words], standalone_mode=False)
            sources = [c.source for c in nbformat.read(out, 4).cells if c.cell_type == "code"]
            for source in sources:  # a parameter's name may be anything
                compile(source, "parameters", "exec")
        except (ClickException, yaml.YAMLError, OSError, ValueError, TypeError, RecursionError, SyntaxError) as e:
            raise InputError(f"{USAGE}: {shorten(getattr(e, 'message', None) or str(e), 300)}") from e
    return sources


def execute(sources: list[str], method: str) -> dict:
    """Run the cells in order in one namespace, which is returned."""
    namespace = {"__name__": "__main__"}
    for i, source in enumerate(sources):
        exec(compile(source, f"{method}, cell {i}", "exec"), namespace)
    return namespace


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0, or 2 with one line for wrong input."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(__doc__, USAGE, sep="\n", file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    import matplotlib

    matplotlib.use("agg")
    try:
        distributed.start()
        with open(os.devnull, "w") as nowhere:
            stack = contextlib.ExitStack()
            if not distributed.main():  # one process speaks for all
                stack.enter_context(contextlib.redirect_stdout(nowhere))
            with stack:
                execute(cells(words[0], words[1:]), words[0])
    except InputError as e:
        if distributed.main():
            print(f"error: {e}", file=sys.stderr)
        return 2
    finally:
        distributed.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
