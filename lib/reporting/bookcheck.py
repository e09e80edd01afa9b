"""Is the built book whole? Each check returns one line a problem; no line means that it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import yaml
from bs4 import BeautifulSoup

LIMIT = 3 * 1024 * 1024  # bytes of one page
WHOLE_LIMIT = 60_000_000  # bytes of everything that was built
# Attributes that make a browser fetch something as soon as the page is open; <a href> does not.
FETCHED = {
    "script": ("src",), "img": ("src", "srcset"), "iframe": ("src",), "source": ("src", "srcset"), "video": ("src",),
    "audio": ("src",), "embed": ("src",), "object": ("data",), "image": ("href", "xlink:href"),
    "use": ("href", "xlink:href"),
}  # fmt: skip
FETCHED_LINKS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "manifest", "modulepreload"}
EXTERNAL_CSS = re.compile(r"""(?:url\(\s*["']?|@import\s+["'])\s*((?:https?:)?//[^"')\s]+)""", re.I)

EXTERNAL_SCRIPT = re.compile(
    r"""(?:\bimport\s*\(?\s*|\bfrom\s*|\b(?:fetch|importScripts)\(\s*|\.src\s*=\s*)["'`]((?:https?:)?//[^"'`\s]+)"""
)


def pages_of(book: Path) -> list[str]:
    """Pages of `_toc.yml` without their suffix, root first."""
    toc = yaml.safe_load((book / "_toc.yml").read_text(encoding="utf-8"))

    def files(node) -> Iterator[str]:
        if isinstance(node, dict):
            yield from (node[k] for k in ("root", "file") if k in node)
            for value in node.values():
                yield from files(value)
        elif isinstance(node, list):
            for value in node:
                yield from files(value)

    return [re.sub(r"\.(md|ipynb)$", "", name) for name in files(toc)]


def check_sources(book: Path) -> list[str]:
    """Every page of the table of contents has its source, and no notebook stopped half-way or holds an error."""
    problems = []
    for name in pages_of(book):
        found = [p for p in (book / f"{name}.md", book / f"{name}.ipynb") if p.exists()]
        if not found:
            problems.append(f"{name}: in _toc.yml, but neither {name}.md nor {name}.ipynb is in {book}")
        elif found[0].suffix == ".ipynb":
            problems += [f"{name}: {p}" for p in check_notebook(found[0])]
    return problems


def check_notebook(path: Path) -> list[str]:
    """Errors and cells that did not run. What papermill says of a cell counts too, but never alone."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, KeyError, TypeError) as e:
        return [f"{path} is not a notebook ({type(e).__name__})"]
    problems = []
    for i, cell in enumerate(cells):
        if cell.get("cell_type") != "code" or not "".join(cell.get("source", "")).strip():
            continue
        for output in cell.get("outputs", []):
            if output.get("output_type") == "error":
                problems.append(f"cell {i} holds an error: {output.get('ename')}: {str(output.get('evalue'))[:120]}")
        status = cell.get("metadata", {}).get("papermill", {}).get("status")
        if cell.get("execution_count") is None or status in ("failed", "pending", "running"):
            problems.append(f"cell {i} was not run to its end")
    return problems


class Page:
    """One built page, parsed once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.soup = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        self.ids = {tag["id"] for tag in self.soup.find_all(id=True)}
        self.ids |= {tag["name"] for tag in self.soup.find_all("a", attrs={"name": True})}


def check_html(book: Path, html: Path) -> list[str]:
    """All checks on the built pages below `html`."""
    names = pages_of(book)
    problems = [f"{n}.html: missing" for n in names if not (html / f"{n}.html").is_file()]
    pages = {p.resolve(): Page(p) for p in sorted(html.rglob("*.html")) if "_static" not in p.relative_to(html).parts}
    for needed in ("search.html", "searchindex.js"):
        if not (html / needed).is_file():
            problems.append(f"{needed}: missing, the search cannot work")
    for page in pages.values():
        name = page.path.relative_to(html)
        found = [*_content(page, str(name.with_suffix("")) in names), *_fetches(page), *_links(page, pages)]
        problems += [f"{name}: {p}" for p in found]
    for css in sorted(html.rglob("*.css")):
        for url in EXTERNAL_CSS.findall(css.read_text(encoding="utf-8", errors="replace")):
            problems.append(f"{css.relative_to(html)}: fetches {url}")
    for script in sorted(html.rglob("*.js")):
        for url in EXTERNAL_SCRIPT.findall(script.read_text(encoding="utf-8", errors="replace")):
            problems.append(f"{script.relative_to(html)}: fetches {url}")
    size = sum(p.stat().st_size for p in html.rglob("*") if p.is_file())
    if size > WHOLE_LIMIT:
        problems.append(f"{html}: {size / 1e6:.1f} MB, more than {WHOLE_LIMIT / 1e6:.0f}")
    return problems


def _content(page: Page, listed: bool) -> Iterator[str]:
    size = page.path.stat().st_size
    if size > LIMIT:
        yield f"{size / 1e6:.1f} MB, more than {LIMIT / 1e6:.1f}"
    article = page.soup.find("article") or page.soup.body
    if listed and (article is None or len(article.get_text(" ", strip=True)) < 40):
        yield "empty page"
    if page.soup.select(".output.traceback, .cell_output .traceback") or "Traceback (most recent call last)" in (
        article.get_text() if article else ""
    ):
        yield "shows a traceback"
    if page.soup.select(".system-message, .problematic"):
        yield "shows a Sphinx error"
    for table in page.soup.find_all("table"):
        if not any(td.get_text(strip=True) or td.find(["img", "svg"]) for td in table.find_all("td")):
            caption = table.find("caption")
            yield f"empty table{': ' + caption.get_text(strip=True)[:80] if caption else ''}"
    for image in page.soup.find_all("img"):
        if not (image.get("src") or image.get("srcset")):
            yield "image without a source"


def _fetched(page: Page) -> Iterator[str]:
    for tag, attributes in FETCHED.items():
        for element in page.soup.find_all(tag):
            for attribute in attributes:
                for value in re.split(r"\s*,\s+", element.get(attribute) or ""):
                    if value:
                        yield value.split()[0]
    for link in page.soup.find_all("link", href=True):
        if FETCHED_LINKS & set(link.get("rel") or []):
            yield link["href"]


def _fetches(page: Page) -> Iterator[str]:
    for url in _fetched(page):
        if re.match(r"(https?:)?//", url, re.I):
            yield f"fetches {url}"
        elif not url.startswith(("data:", "#")) and not _target(page, url).is_file():
            yield f"missing file {url}"
    styles = [s.get_text() for s in page.soup.find_all("style")]
    styles += [t["style"] for t in page.soup.find_all(style=True)]
    for script in page.soup.find_all("script", src=False):
        yield from (f"fetches {url}" for url in EXTERNAL_SCRIPT.findall(script.get_text()))
    for style in styles:
        yield from (f"fetches {url}" for url in EXTERNAL_CSS.findall(style))


def _target(page: Page, url: str) -> Path:
    path = unquote(urlsplit(url).path)
    return (page.path.parent / path).resolve() if path else page.path.resolve()


def _links(page: Page, pages: dict[Path, Page]) -> Iterator[str]:
    for a in page.soup.find_all("a", href=True):
        href = a["href"]
        if urlsplit(href).scheme or href.startswith("//") or href in ("", "#"):
            continue
        target = _target(page, href)
        fragment = unquote(urlsplit(href).fragment)
        if not target.exists():
            yield f"unresolved link {href}"
        elif fragment and target in pages and fragment not in pages[target].ids:
            yield f"unresolved link {href}: no such place on that page"
