"""Build the book and refuse one that is not whole.

    python -m lib.book build    report, jupyter-book, checks
    python -m lib.book check    checks of the built book only

Exit code 0 when there is no problem, else 1 with one line a problem.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from lib import report
from lib.reporting import bookcheck

JUPYTER_BOOK = "from jupyter_book.cli.main import main; main()"  # of this interpreter, whatever is on the PATH


def html_dir(book: Path) -> Path:
    return book / "_build" / "html"


def check(book: Path) -> list[str]:
    """Problems of the sources and of the built pages."""
    problems = bookcheck.check_sources(book)
    html = html_dir(book)
    if not html.is_dir():
        return [*problems, f"{html}: no built book; run `python -m lib.book build`"]
    return problems + bookcheck.check_html(book, html)


def render(book: Path) -> list[str]:
    """Run jupyter-book; every warning is an error."""
    command = [sys.executable, "-c", JUPYTER_BOOK, "build", str(book), "-W", "-n", "--keep-going", "-q"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"})
    if done.returncode == 0:
        return []
    # A page that was read with a warning is not read again, so a second try would pass: start from nothing.
    shutil.rmtree(book / "_build", ignore_errors=True)
    said = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
    warnings = [line for line in said if "WARNING" in line or "ERROR" in line or "Error:" in line]
    return warnings or said[-20:] or [f"jupyter-book: exit code {done.returncode}"]


def build(book: Path) -> list[str]:
    problems = bookcheck.check_sources(book)
    if problems:
        return problems
    if report.main() != 0:
        return ["the report could not be made"]
    return render(book) or check(book)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lib.book", description="Build or check the book.")
    parser.add_argument("what", choices=("build", "check"))
    what = parser.parse_args(arguments).what
    book = report.book_dir()
    problems = build(book) if what == "build" else check(book)
    for problem in problems:
        print(f"book: {problem}", file=sys.stderr)
    if problems:
        print(f"book: {len(problems)} problems", file=sys.stderr)
        return 1
    print(f"book: {html_dir(book) / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
