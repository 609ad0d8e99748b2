"""What tags of rows, and names and reasons beside them, may be: what a function says is checked where it says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....errors import FlowError
from .records import Tag

__all__ = ["checked_name", "checked_reason", "checked_tag", "checked_tags"]

# Messages have no more of each; see `wire`.
_MOST_NAME, _MOST_TAGS, _MOST_TEXT, _MOST_REASON = 1 << 10, 1 << 10, 1 << 16, 1 << 17
_LEAST_INTEGER, _MOST_INTEGER = -(1 << 63), (1 << 64) - 1


def checked_tag(what: str, value: Any) -> Tag:
    """Return the value of a tag as a plain type, such as the number of one of NumPy.

    Args:
        what: Description of the tag, for errors.
        value: Value of the tag, of any type.

    Raises:
        FlowError: it is no number, truth value or text, or too large.
    """
    if (
        type(value).__module__ == "numpy" and getattr(value, "shape", None) == ()
    ):  # this room does not import it
        value = value.item()
    if isinstance(value, int) and not _LEAST_INTEGER <= value <= _MOST_INTEGER:
        raise FlowError(f"{what} is an integer that is too large; need one from -2^63 to 2^64 - 1")
    if isinstance(value, bool | int | float):
        return value if isinstance(value, bool) else int(value) if isinstance(value, int) else float(value)
    return _text(what, value, _MOST_TEXT, "a number, True, False, or text")


def checked_tags(row_id: int, tags: Mapping[str, object]) -> dict[str, Tag]:
    """Return the tags of a row as plain types.

    Raises:
        FlowError: there are too many, a name is none, or see `checked_tag`.
    """
    if len(tags) > _MOST_TAGS:
        raise FlowError(f"row {row_id} has {len(tags)} tags; need at most {_MOST_TAGS}")
    return {
        checked_name(f"name of a tag of row {row_id}", name): checked_tag(
            f"tag {name!r} of row {row_id}", value
        )
        for name, value in tags.items()
    }


def checked_name(what: str, name: object) -> str:
    """Return a name.

    Raises:
        FlowError: it is no text, or too long.
    """
    return _text(what, name, _MOST_NAME)


def checked_reason(reason: object) -> str:
    """Return why rows are dropped, or could not be made.

    Raises:
        FlowError: it is no text, or too long.
    """
    return _text("reason of rows that are dropped or have failed", reason, _MOST_REASON)


def _text(what: str, text: object, most: int, need: str = "text") -> str:
    if not isinstance(text, str) or len(text) > most:
        have = f"text of {len(text)} characters" if isinstance(text, str) else f"a {type(text).__name__}"
        raise FlowError(f"{what} is {have}; need {need} of at most {most} characters")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise FlowError(f"{what} is no Unicode text, and cannot be sent: {error}") from None
    return str.__str__(text)
