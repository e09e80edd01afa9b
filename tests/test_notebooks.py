"""The notebooks: in step with their .py halves, without outputs, and whole when papermill runs them at a tiny scale."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import time

import jupytext
import nbformat
import pytest
import tiny
import yaml
from markdown_it.renderer import RendererHTML
from myst_parser.config.main import MdParserConfig
from myst_parser.parsers.mdit import create_md_parser

from lib import models, parameters, results
from lib.grid import EXTRA_PAGES
from lib.paths import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SCALE = {"epochs": 1, "teacher_epochs": 1, "batch_size": 16, "lr": 3e-3, "teacher_lr": 3e-3, "evaluations": 2,
         "max_rows": 64, "max_length": 32, "precision": "fp32", "profile": "test"}


@pytest.fixture(params=NOTEBOOKS, ids=lambda p: p.stem)
def notebook(request):
    return request.param


def cells(nb) -> list[tuple]:
    return [(c.cell_type, c.source.strip(), tuple(c.metadata.get("tags", []))) for c in nb.cells]


def sources(nb) -> list[str]:
    return [c.source for c in nb.cells if c.cell_type == "code"]


# --- as they are committed


def test_halves_are_in_step(notebook):
    half = notebook.with_suffix(".py")
    assert half.exists()
    assert cells(nbformat.read(notebook, 4)) == cells(jupytext.read(half))


def test_every_half_has_its_notebook():
    assert {p.stem for p in (ROOT / "notebooks").glob("*.py")} == {p.stem for p in NOTEBOOKS}


def test_no_outputs_are_committed(notebook):
    nb = nbformat.read(notebook, 4)
    nbformat.validate(nb)
    for c in nb.cells:
        if c.cell_type == "code":
            assert not c.outputs
            assert c.execution_count is None
    assert nb.metadata.kernelspec.name == "python3"


def test_parameters_cell_then_validation(notebook):
    nb = nbformat.read(notebook, 4)
    tagged = [c for c in nb.cells if "parameters" in c.metadata.get("tags", [])]
    assert len(tagged) == 1
    own = sources(nb)
    assert own[0] == tagged[0].source  # nothing runs before it
    assert re.search(r"^p = parameters\.read\(\w+\.Config, globals\(\)\)$", own[1], re.M)
    assert "train" not in own[1]


def test_parameters_of_the_cell_are_the_methods_own(notebook):
    """Each name is a parameter, and its value there is valid."""
    nb = nbformat.read(notebook, 4)
    values = {}
    exec(sources(nb)[0], values)
    values.pop("__builtins__")
    scope = {}
    exec("\n".join(line for line in sources(nb)[1].splitlines() if line.startswith(("from lib", "import"))), scope)
    config = eval(re.search(r"parameters\.read\((\w+\.Config)", sources(nb)[1])[1], scope)
    p = parameters.validate(config, values)
    if notebook.stem in EXTRA_PAGES:  # trains nothing
        return
    assert {"task", "seed", "profile"} <= values.keys()
    assert p.model_dump()["seed"] == 0


def test_notebooks_hold_no_logic_of_their_own(notebook):
    """Functions and classes belong into lib, where they are tested."""
    for source in sources(nbformat.read(notebook, 4)):
        tree = ast.parse(source)
        assert not [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)]


def test_no_cell_hides_what_it_makes(notebook):
    """Jupyter shows the value of a cell's last line, not of a line inside an `if`."""
    for source in sources(nbformat.read(notebook, 4)):
        last = ast.parse(source).body[-1]
        inside = [n.value for n in getattr(last, "body", []) if isinstance(n, ast.Expr)]
        assert not [v for v in inside if not ast.unparse(v).startswith("print(")], source


def test_every_formula_is_read_as_one(notebook):
    """By the book's own reader: a dollar sign that is left in the text is a formula that was not seen."""
    ours = yaml.safe_load((ROOT / "book" / "_config.yml").read_text())["parse"]["myst_enable_extensions"]
    reader = create_md_parser(MdParserConfig(enable_extensions=set(ours)), RendererHTML)
    for cell in nbformat.read(notebook, 4).cells:
        if cell.cell_type == "markdown":
            tokens = [t for block in reader.parse(cell.source) for t in (block, *(block.children or []))]
            assert not [t.content for t in tokens if t.type == "text" and "$" in t.content]


def test_notebooks_give_the_idea_in_words(notebook):
    text = "\n".join(c.source for c in nbformat.read(notebook, 4).cells if c.cell_type == "markdown")
    assert text.startswith("# ")
    assert len(text.split()) > 80


# --- as they run


def begin(notebook: str, out, *words: str) -> subprocess.Popen:
    """A papermill process on one notebook, as a user starts it."""
    command = [sys.executable, "-m", "papermill", f"notebooks/{notebook}.ipynb", str(out), *words]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=dict(os.environ))


def papermill(notebook: str, out, *words: str) -> tuple[int, str]:
    """(exit code, standard error) of a whole papermill process."""
    child = begin(notebook, out, *words)
    _, error = child.communicate(timeout=300)
    return child.returncode, error


def text_of(nb) -> str:
    return "\n".join(str(o.get("text", "")) + str(o.get("data", {}).get("text/plain", ""))
                     for c in nb.cells if c.cell_type == "code" for o in c.outputs)


def test_the_spine_runs_through_papermill(places, films, backbone):
    """Each notebook by the command line; the teacher is built once; plots and tables are in what comes out."""
    figures = {"truncated": 1, "bert": 1, "theseus": 2}
    for name, extra in (("truncated", {}), ("bert", {"epochs": 1}), ("theseus", {"study": "strategy"})):
        out = places / f"{name}.ipynb"
        words = yaml.safe_dump({**SCALE, **extra, "task": films, "backbone": backbone})
        code, error = papermill(name, out, "-y", words)
        assert code == 0, error[-3000:]
        nb = nbformat.read(out, 4)
        shown = [o for c in nb.cells if c.cell_type == "code" for o in c.outputs]
        assert not [o for o in shown if o.output_type == "error"]
        pages = [o["data"]["text/html"] for o in shown if "text/html" in o.get("data", {})]
        drawn = [o for o in shown if "image/svg+xml" in o.get("data", {})]
        assert len(drawn) == len([h for h in pages if '<svg role="img" aria-label="' in h]) == figures[name]
        assert any("<table" in h for h in pages)
        assert "Warning" not in text_of(nb)
        for word in ("parameters in force", f"task='{films}'", f"{name} on films (own file films.csv)", "record:",
                     "student:"):
            assert word in text_of(nb)
        assert (places / "build/runs/test/tiny-bert/films" / name / "seed-0/student/model.safetensors").exists()
    records, skipped = results.load_all()
    assert not skipped
    assert [r.label for r in records] == ["bert", "theseus", "theseus-anti", "theseus-anti-finish",
                                          "theseus-constant", "truncated"]
    assert len({r.teacher.artefact for r in records if r.teacher}) == 1
    assert len(list((places / "build" / "artefacts" / "teacher").glob("*/artefact.json"))) == 1
    assert records[0].score == records[1].teacher.score
    student = models.load_classifier(str(places / "build/runs/test/tiny-bert/films/theseus/seed-0/student"), tiny.FILMS)
    assert student.config.num_hidden_layers == 2


def test_bad_input_ends_in_one_line_and_no_record(places):
    """An unknown parameter, of which papermill only warns, and a file that is not there."""
    began = time.perf_counter()
    cases = {"theseus": (("-p", "rat", "0.5"), "InputError: parameter rat: unknown (value 0.5); did you mean 'rate'?"),
             "truncated": (("-r", "task", "/nowhere/my.csv"), "InputError: task: '/nowhere/my.csv' is neither a ")}
    children = {name: begin(name, places / f"{name}.ipynb", *words) for name, (words, _) in cases.items()}
    for name, child in children.items():
        _, said = child.communicate(timeout=300)
        assert child.returncode != 0
        assert said.strip().splitlines()[-1].startswith(cases[name][1])
        nb = nbformat.read(places / f"{name}.ipynb", 4)
        error, = [o for c in nb.cells if c.cell_type == "code" for o in c.outputs if o.output_type == "error"]
        assert len(error.traceback) == 1  # one line in the notebook, too
        assert "\n" not in error.traceback[0]
    assert time.perf_counter() - began < 180
    assert not list(places.rglob("*.json"))


@pytest.mark.slow
@pytest.mark.parametrize(("values", "said"), [
    ({"lr": "fast"}, "parameter lr: 'fast' must be a number"),
    ({"rate": 1.5}, "parameter rate: 1.5 should be less than or equal to 1"),
    ({"score_curve": "no"}, "parameter score_curve"),  # YAML's no is False; a word is not
    ({"layers": 4}, "layers: 4 is not between 1 and 3"),
    ({"modules": [1, 1]}, "modules: [1, 1] must be positive and add up"),
    ({"study": "strategy", "variant": "x"}, "variant: 'x' cannot be set together"),
    ({"backbone": "/nowhere"}, "backbone '/nowhere': no such folder"),
    ({"teacher": "/nowhere", "backbone": ""}, "backbone '/nowhere': no such folder"),  # the teacher is the backbone
    ({"profile": "../x"}, "profile: '../x' cannot name a folder"),
    ({"output": "/dev/null"}, "output /dev/null"),
])
def test_more_bad_input_through_papermill(places, films, backbone, values, said):
    values = {**SCALE, "task": films, "backbone": backbone, **values}
    code, error = papermill("theseus", places / "out.ipynb", "-y", yaml.safe_dump(values))
    assert code != 0
    assert said in error.strip().splitlines()[-1]
    assert not list(places.glob("results/**/*.json"))
