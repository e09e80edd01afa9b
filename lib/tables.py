"""HTML tables that a screen reader, a phone and a dark page can show. Everything that comes from a user is escaped."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from markupsafe import Markup, escape

NOT_RUN = Markup('<span class="bc-none">not run</span>')


def flag(word: str, title: str = "") -> Markup:
    """A word with a frame: a mark that does not depend on colour."""
    return Markup('<span class="bc-flag" title="{}">{}</span>').format(title or word, word)


def small(text: object) -> Markup:
    return Markup('<span class="bc-small">{}</span>').format(text)


def lines(*parts: object) -> Markup:
    """Parts of one cell, one below the other; empty ones are left out."""
    return Markup("<br>").join(p for p in parts if p)


def code(text: object) -> Markup:
    return Markup("<code>{}</code>").format(text)


def details(summary: str, body: object) -> Markup:
    return Markup("<details><summary>{}</summary>{}</details>").format(summary, body)


def table(caption: str, head: Sequence[object], rows: Sequence[Sequence[object]], ids: Sequence[str] = ()) -> Markup:
    """A table whose first cell of each row is its header. Text is escaped, `Markup` is not.

    Raises `ValueError` for a table without rows, a ragged row or a blank cell: a blank says nothing, and a reader
    cannot tell "not run" from "lost".
    """
    if not rows:
        raise ValueError(f"table {caption!r} has no rows")
    out = [Markup('<div class="bc-scroll" role="region" tabindex="0" aria-label="{}">').format(caption)]
    out.append(Markup('<table class="bc-table"><caption>{}</caption><thead><tr>').format(caption))
    out += [Markup('<th scope="col">{}</th>').format(h) for h in head]
    out.append(Markup("</tr></thead><tbody>"))
    for i, row in enumerate(rows):
        if len(row) != len(head):
            raise ValueError(f"table {caption!r}, row {i}: {len(row)} cells for {len(head)} columns")
        if any(not str(cell).strip() for cell in row):
            raise ValueError(f"table {caption!r}, row {i}: blank cell in {[str(c) for c in row]}")
        mark = Markup(' id="{}"').format(ids[i]) if ids else ""
        out.append(Markup('<tr{}><th scope="row">{}</th>').format(mark, row[0]))
        out += [Markup("<td>{}</td>").format(cell) for cell in row[1:]]
        out.append(Markup("</tr>"))
    out.append(Markup("</tbody></table></div>\n"))
    return Markup("").join(out)


def frame(caption: str, data: pd.DataFrame) -> Markup:
    """A data frame as such a table; the index is the first column."""
    head = [data.index.name or "", *data.columns]
    return table(caption, head, [[index, *map(_cell, row)] for index, row in zip(data.index, data.values, strict=True)])


def _cell(value: object) -> object:
    if isinstance(value, float):
        return "-" if pd.isna(value) else f"{value:.4g}"
    return value if isinstance(value, Markup) else escape(value)
