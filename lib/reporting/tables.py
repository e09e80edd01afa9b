"""HTML tables that a screen reader, a phone and a dark page can show. Everything that comes from a user is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from markupsafe import Markup, escape

NOT_RUN = Markup('<span class="bc-none">not run</span>')


def flag(word: str, title: str = "") -> Markup:
    """A word with a frame: a mark that does not depend on colour."""
    return Markup('<span class="bc-flag" title="{}">{}</span>').format(title or word, word)


def small(text: object) -> Markup:
    return Markup('<span class="bc-small">{}</span>').format(text)


def note(text: object) -> Markup:
    """Small, and passed over by a table's search: it may name what the row is not about."""
    return Markup('<span class="bc-small" data-unsearched>{}</span>').format(text)


def lines(*parts: object) -> Markup:
    """Parts of one cell, one below the other; empty ones are left out."""
    return Markup("<br>").join(p for p in parts if p)


def count(n: int, what: str) -> str:
    """The number with its noun, in the plural where it is not one: "1 thread", "2 threads"."""
    ending = "" if n == 1 else "es" if what.endswith("ch") else "s"
    return f"{n:,} {what}{ending}"


def code(text: object) -> Markup:
    return Markup("<code>{}</code>").format(text)


def details(summary: str, body: object) -> Markup:
    return Markup("<details><summary>{}</summary>{}</details>").format(summary, body)


@dataclass(frozen=True)
class Keyed:
    """Content of a cell with what it sorts by: a number, or one by view. None sorts last, whatever the direction.

    Without it a cell sorts by its text, as a number where the text begins with one.
    """

    content: object
    key: float | Mapping[str, float | None] | None = None

    def __str__(self) -> str:
        return str(self.content)

    def attributes(self) -> Markup:
        keys = self.key if isinstance(self.key, Mapping) else {"": self.key}
        named = ((f"data-sort-{view}" if view else "data-sort", v) for view, v in keys.items())
        return Markup("").join(Markup(' {}="{}"').format(n, "" if v is None else f"{v:.6g}") for n, v in named)


def table(
    caption: str, head: Sequence[object], rows: Sequence[Sequence[object]], ids: Sequence[str] = (), *,
    sortable: bool = False, name: str = "", groups: Sequence[tuple[object, int, str]] = (),
    data: Sequence[Mapping[str, str]] = (), pinned: int = 0,
) -> Markup:
    """A table whose first cell of each row is its header. Text is escaped, `Markup` is not.

    `ids`: anchors of the rows. The rest is for `book/_static/study.js`, without which the table is the same, unsorted:
    `sortable` makes buttons of the column heads; `name` is the table's id, by which `controls` find it; `groups` is a
    first line of heads (head, columns below it, value for the filter of columns), where one empty head takes the head
    below it up; `data` holds the values of each row that a filter asks for; the last `pinned` rows stay last.

    Raises `ValueError` for a table without rows, a ragged row or a blank cell: a blank says nothing, and a reader
    cannot tell "not run" from "lost".
    """
    if not rows:
        raise ValueError(f"table {caption!r} has no rows")
    if groups and sum(n for _, n, _ in groups) != len(head):
        raise ValueError(f"table {caption!r}: groups of {[n for _, n, _ in groups]} columns for {len(head)}")
    of_column = [group for _, n, group in groups for _ in range(n)] or [""] * len(head)
    marks = [Markup(' data-group="{}"').format(g) if g else Markup("") for g in of_column]
    kind = "bc-table bc-sortable" if sortable else "bc-table"
    mark = Markup(' id="{}"').format(name) if name else Markup("")
    out = [Markup('<div class="bc-scroll" role="region" tabindex="0" aria-label="{}">').format(caption)]
    out.append(Markup('<table class="{}"{}><caption>{}</caption><thead><tr>').format(kind, mark, caption))
    firsts = [sum(n for _, n, _ in groups[:i]) for i in range(len(groups))]
    alone = {f for f, (title, _, _) in zip(firsts, groups, strict=True) if not title}
    heads = [
        Markup('<th scope="col"{}{}{}>{}</th>').format(
            Markup(' rowspan="2"') if i in alone else "", Markup(' data-column="{}"').format(i) if sortable else "",
            marks[i], h)
        for i, h in enumerate(head)
    ]  # fmt: skip
    if groups:
        for first, (title, n, group) in zip(firsts, groups, strict=True):
            if first in alone:
                out.append(heads[first])
            else:
                group = Markup(' data-group="{}"').format(group) if group else ""
                out.append(Markup('<th scope="colgroup" colspan="{}"{}>{}</th>').format(n, group, title))
        out.append(Markup("</tr><tr>"))
        heads = [h for i, h in enumerate(heads) if i not in alone]
    out += [*heads, Markup("</tr></thead><tbody>")]
    for i, row in enumerate(rows):
        if len(row) != len(head):
            raise ValueError(f"table {caption!r}, row {i}: {len(row)} cells for {len(head)} columns")
        if any(not str(cell).strip() for cell in row):
            raise ValueError(f"table {caption!r}, row {i}: blank cell in {[str(c) for c in row]}")
        mark = Markup(' id="{}"').format(ids[i]) if ids else Markup("")
        mark += Markup(' class="bc-pinned"') if i >= len(rows) - pinned else ""
        if data:
            mark += Markup("").join(Markup(' data-{}="{}"').format(k, v) for k, v in data[i].items())
        out.append(Markup("<tr{}>").format(mark))
        for column, cell in enumerate(row):
            keyed, content = (cell.attributes(), cell.content) if isinstance(cell, Keyed) else ("", cell)
            tag = 'th scope="row"' if column == 0 else "td"
            keyed += Markup(' class="bc-long"') if _is_long(content) else ""
            out.append(Markup(f"<{tag}{{}}{{}}>{{}}</{tag[:2]}>").format(marks[column], keyed, content))
        out.append(Markup("</tr>"))
    out.append(Markup("</tbody></table></div>\n"))
    return Markup("").join(out)


def wide(*parts: Markup) -> Markup:
    """Parts of a page that takes the whole window (study.css)."""
    return Markup('<div class="bc-wide">{}</div>').format(Markup("").join(parts))


LONG = 24  # characters; a cell with more needs some width (study.css), numbers and single words do not


def _is_long(content: object) -> bool:
    return len(escape(content).striptags()) > LONG


def controls(
    name: str, *, filters: Mapping[str, tuple[str, Mapping[str, str]]] | None = None,
    columns: tuple[str, Mapping[str, str]] | None = None, views: tuple[str, Mapping[str, str]] | None = None,
    search: str = "",
) -> Markup:
    """Fields above the table whose id is `name`: hidden until `study.js` has made them work.

    `filters`: key of the rows' `data` -> (label, value -> title); an empty value for "all" comes first by itself. A
    row's value may be several words. `columns`: (label, group -> title) of the table's `groups`. `views`: (label, view
    -> title) of `view` spans in its cells; the first is shown. `search`: label of a field that searches in the rows.
    """

    def field(attribute: str, label: str, options: Mapping[str, str]) -> Markup:
        chosen = Markup("").join(Markup('<option value="{}">{}</option>').format(k, v) for k, v in options.items())
        return Markup('<label>{} <select {}>{}</select></label>').format(label, Markup(attribute), chosen)

    out = Markup('<div class="bc-controls" data-for="{}" role="group" aria-label="Choose what the table shows" hidden>')
    out = out.format(name)
    if views:
        out += field("data-view", *views)
    if columns:
        out += field("data-columns", columns[0], {"": "all", **columns[1]})
    for key, (label, options) in (filters or {}).items():
        out += field(f'data-filter="{escape(key)}"', label, {"": "all", **options})
    if search:
        out += Markup('<label>{} <input type="search" data-search></label>').format(search)
    return out + Markup('<span class="bc-status" role="status"></span></div>\n')


def view(name: str, title: str, content: object) -> Markup:
    """What a cell shows in one view. Without JavaScript all views are shown, each behind its title."""
    return Markup('<span class="bc-view" data-view="{}"><span class="bc-view-name">{}: </span>{}</span>').format(
        name, title, content)


def frame(caption: str, data: pd.DataFrame) -> Markup:
    """A data frame as such a table; the index is the first column."""
    head = [data.index.name or "", *data.columns]
    return table(caption, head, [[index, *map(_cell, row)] for index, row in zip(data.index, data.values, strict=True)])


def _cell(value: object) -> object:
    if isinstance(value, float):
        return "-" if pd.isna(value) else f"{value:.4g}"
    return value if isinstance(value, Markup) else escape(value)
