"""The one error that a user's input can cause."""


class InputError(ValueError):
    """Something that the user gave is wrong. The message names the thing, its value and what is allowed."""

    def _render_traceback_(self) -> list[str]:
        # IPython asks an exception for its own rendering: one line in the notebook instead of a page of frames.
        return [f"InputError: {self}"]


def shorten(value: object, limit: int = 80) -> str:
    """`repr(value)`, cut to `limit` characters so that a hostile value cannot flood a message."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def one_of(name: str, value: object, allowed) -> None:
    """Raise `InputError` unless `value` is in `allowed`; the closest allowed word is suggested."""
    import difflib

    allowed = list(allowed)
    if value in allowed:
        return
    close = difflib.get_close_matches(str(value), [str(a) for a in allowed], n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    raise InputError(f"{name}: {shorten(value)} is unknown{hint}; allowed: {', '.join(map(str, allowed))}")
