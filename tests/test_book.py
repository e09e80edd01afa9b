"""The book: one real build in a temporary folder, then everything that must make `make book` refuse to finish."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import nbformat
import pytest
from synthetic_records import book_folder, notebook, put, record, results_folder

from lib import book, report
from lib.paths import ROOT
from lib.reporting import bookcheck


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A built book with runs, a demo, a corrupt file and a hostile name. Tests change copies of it."""
    folder = tmp_path_factory.mktemp("book")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERT_RESULTS", str(results_folder(folder / "results")))
        patch.setenv("BERT_BOOK", str(book_folder(folder / "book")))
        for seed in range(3):
            put(record("bert", seed=seed, score=66 + seed / 10), record("theseus", seed=seed, score=60 + seed))
        put(record(profile="demo", task="movies", score=70.0, teacher=80.0))
        (folder / "results" / "runs" / "<script>x.json").write_text("{")
        shown = nbformat.v4.new_output(
            "display_data", data={"text/html": str(report.beside("theseus", "theseus", "Table 2")), "text/plain": ""}
        )
        notebook(folder / "book" / "executed" / "theseus.ipynb", ("beside('theseus', 'theseus', 'Table 2')", [shown]))
        done = subprocess.run(
            [sys.executable, "-m", "lib.book", "build"], cwd=ROOT, capture_output=True, text=True, env=os.environ.copy()
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "book"


@pytest.fixture
def copy(built, tmp_path):
    return shutil.copytree(built, tmp_path / "book", ignore=shutil.ignore_patterns("mathjax", ".doctrees"))


def problems(folder) -> list[str]:
    # MathJax is left out of the copies, for speed
    return [p for p in book.check(folder) if "missing file" not in p or "mathjax" not in p]


def html(folder, name="comparison"):
    return folder / "_build" / "html" / f"{name}.html"


def add(path, text):
    path.write_text(path.read_text().replace("</article>", text + "</article>", 1))


def test_a_whole_book_has_no_problem(built):
    assert book.check(built) == []
    for name in bookcheck.pages_of(built):
        assert html(built, name).is_file()
    assert "68.2" in html(built, "executed/theseus").read_text()


def test_mathjax_search_and_everything_else_come_with_the_book(built):
    page = html(built, "executed/theseus").read_text()
    assert "_static/mathjax/tex-chtml.js" in page
    assert (built / "_build" / "html" / "_static" / "mathjax" / "tex-chtml.js").is_file()
    assert "theseus" in (built / "_build" / "html" / "searchindex.js").read_text()
    for path in (built / "_build" / "html").glob("**/*.html"):
        for cdn in ("unpkg.com", "jsdelivr", "cdnjs", "googleapis"):
            assert cdn not in path.read_text(), (path, cdn)
    size = sum(p.stat().st_size for p in (built / "_build" / "html").rglob("*") if p.is_file())
    assert size < 60e6


def test_hostile_names_show_as_text(built):
    text = html(built, "index").read_text()
    assert "&lt;script&gt;x.json" in text
    assert "<script>x" not in text


@pytest.mark.parametrize(
    ("addition", "says"),
    [
        ('<script src="https://cdn.example/x.js"></script>', "fetches https://cdn.example/x.js"),
        ('<link rel="stylesheet" href="//cdn.example/x.css">', "fetches //cdn.example/x.css"),
        ('<img src="http://cdn.example/x.png" alt="">', "fetches http://cdn.example/x.png"),
        ('<img srcset="_static/file.png 1x, https://cdn.example/x.png 2x">', "fetches https://cdn.example/x"),
        ("<script>import('https://cdn.example/x.js')</script>", "fetches https://cdn.example/x.js"),
        ("<style>@import 'https://cdn.example/x.css';</style>", "fetches https://cdn.example/x.css"),
        ('<p style="background: url(https://cdn.example/x.png)">x</p>', "fetches https://cdn.example/x.png"),
        ('<img src="_images/gone.png" alt="">', "missing file _images/gone.png"),
        ('<a href="gone.html">x</a>', "unresolved link gone.html"),
        ('<a href="provenance.html#nowhere">x</a>', "unresolved link provenance.html#nowhere"),
        ('<a href="#nowhere">x</a>', "unresolved link #nowhere"),
        ("<table><caption>Mine</caption><tr><th>a</th></tr></table>", "empty table: Mine"),
        ("<table><tr><th>a</th></tr><tr><td> </td></tr></table>", "empty table"),
        ("<pre>Traceback (most recent call last)\nValueError</pre>", "shows a traceback"),
        ('<div class="output traceback">InputError: x</div>', "shows a traceback"),
        ('<span class="problematic">x</span>', "shows a Sphinx error"),
        ("<!-- " + "x" * bookcheck.LIMIT + " -->", "MB, more than"),
    ],
)
def test_a_broken_page_is_refused(copy, addition, says):
    add(html(copy), addition)
    found = problems(copy)
    assert len(found) == 1, found
    assert found[0].startswith("comparison.html: ")
    assert says in found[0]


@pytest.mark.parametrize(
    "addition",
    [
        '<a href="https://arxiv.org/abs/2002.02925">paper</a>',
        '<img src="data:image/png;base64,AAAA" alt="">',
        '<a href="provenance.html#ours">x</a>',
        "<table><tr><td>1</td></tr></table>",
    ],
)
def test_what_is_no_problem_passes(copy, addition):
    add(html(copy), addition)
    assert problems(copy) == []


def test_a_missing_or_empty_page_and_a_stylesheet_that_fetches(copy):
    html(copy, "run").unlink()
    page = html(copy, "comparison")
    start, end = page.read_text().split("<article", 1)[0], page.read_text().split("</article>", 1)[1]
    page.write_text(start + "<article></article>" + end)
    css = copy / "_build" / "html" / "_static" / "study.css"
    css.write_text("@font-face { src: url('https://fonts.example/a.woff2') }")
    found = problems(copy)
    assert "run.html: missing" in found
    assert "comparison.html: empty page" in found
    assert "_static/study.css: fetches https://fonts.example/a.woff2" in found


def test_a_script_that_fetches_and_a_book_that_is_too_large(copy, monkeypatch):
    script = copy / "_build" / "html" / "_static" / "study.js"
    script.write_text(script.read_text() + "fetch(`https://cdn.example/data.json`)")
    assert problems(copy) == ["_static/study.js: fetches https://cdn.example/data.json"]
    monkeypatch.setattr(bookcheck, "WHOLE_LIMIT", 1_000_000)
    assert any("MB, more than 1" in p for p in problems(copy))


def test_a_page_without_a_source_stops_the_build_before_anything_is_made(copy, monkeypatch, capsys):
    monkeypatch.setenv("BERT_BOOK", str(copy))
    (copy / "executed" / "bert.ipynb").unlink()
    monkeypatch.setattr(report, "main", lambda: pytest.fail("the report must not be made"))
    assert book.main(["build"]) == 1
    assert "executed/bert: in _toc.yml" in capsys.readouterr().err


ERROR = nbformat.v4.new_output("error", ename="ValueError", evalue="no", traceback=[])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda nb: nb["cells"][1].update(outputs=[ERROR]), "cell 1 holds an error: ValueError: no"),
        (lambda nb: nb["cells"][1].update(execution_count=None), "cell 1 was not run"),
        (lambda nb: nb["cells"][1]["metadata"].update(papermill={"status": "failed"}), "cell 1 was not run"),
        (lambda nb: nb.pop("cells"), "is not a notebook"),
    ],
)
def test_a_notebook_with_an_error_or_cut_short_is_refused(tmp_path, change, says):
    path = notebook(tmp_path / "x.ipynb")
    assert bookcheck.check_notebook(path) == []
    nb = json.loads(path.read_text())
    change(nb)
    path.write_text(json.dumps(nb))
    (found,) = bookcheck.check_notebook(path)
    assert says in found


def test_without_a_built_book_check_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BERT_BOOK", str(book_folder(tmp_path / "book")))
    assert book.main(["check"]) == 1
    assert "no built book" in capsys.readouterr().err


def test_a_warning_fails_the_build_and_leaves_nothing_that_could_pass_later(tmp_path, monkeypatch):
    class Failed:
        returncode, stdout, stderr = 1, "", "x.md:3: WARNING: unknown document\nbye\n"

    (tmp_path / "_build" / "html").mkdir(parents=True)
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: Failed)
    assert book.render(tmp_path) == ["x.md:3: WARNING: unknown document"]
    assert not (tmp_path / "_build").exists()
