"""The one error that a user's input can cause."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

LIMIT = 4000  # characters of a message; names of columns and files come from the user and may be of any length


class InputError(ValueError):
    """Something that the user gave is wrong. The message names the thing, its value and what is allowed.

    It is one line that any terminal can print, whatever it quotes: control characters, line breaks, marks that turn
    the direction of writing and lone surrogates are escaped.
    """

    def __init__(self, message: object = ""):
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(message))
        super().__init__(text if len(text) <= LIMIT else text[: LIMIT - 3] + "...")

    def _render_traceback_(self) -> list[str]:
        # IPython asks an exception for its own rendering: one line in the notebook instead of a page of frames.
        return [f"InputError: {self}"]


def shorten(value: object, limit: int = 80) -> str:
    """`repr(value)`, cut to `limit` characters so that a hostile value cannot flood a message."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def listed(names, most: int = 10) -> str:
    """The first names, each cut to 40 characters, with commas; how many more there are."""
    names = [str(n) for n in names]
    shown = ", ".join(n if len(n) <= 40 else n[:37] + "..." for n in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def one_of(name: str, value: object, allowed) -> None:
    """Raise `InputError` unless `value` is in `allowed`; the closest allowed word is suggested."""
    import difflib

    allowed = list(allowed)
    if value in allowed:
        return
    close = difflib.get_close_matches(str(value), [str(a) for a in allowed], n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    raise InputError(f"{name}: {shorten(value)} is unknown{hint}; allowed: {', '.join(map(str, allowed))}")


def one_line(word: str = "error") -> Callable:
    """Decorator of a command's `main`: an `InputError` becomes the line "<word>: ..." on stderr and the exit code 2."""

    def decorate(main: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(main)
        def command(*given, **named) -> int:
            try:
                return main(*given, **named)
            except InputError as e:
                print(f"{word}: {e}", file=sys.stderr)
                return 2

        return command

    return decorate
