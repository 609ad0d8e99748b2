"""Text that is safe to print, tables of such text, and standard output."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Sequence

from ..errors import SoftsError

__all__ = ["Table", "count", "cut", "fit", "plain", "rows_of", "say", "share", "si", "stack"]

#: Titles, cells of each row, and the number of leading columns that are texts.
Table = tuple[str, list[list[str]], int]


def say(text: str, end: str = "\n") -> None:
    """Write text to standard output, at once; a failure ends a command with one line instead of a traceback.

    Raises:
        BrokenPipeError: the reader has closed it.
        SoftsError: it cannot be written for another reason, such as a full disk.
    """
    try:
        print(text, end=end, flush=True)
    except OSError as error:
        # Python flushes standard output once more at its end; that must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise SoftsError(f"cannot write standard output: {error.strerror}") from None


def plain(text: str) -> str:
    """Return a peer's text with control characters as escapes, so that a terminal does not interpret them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def cut(text: str, width: int) -> str:
    """Return the beginning of a text, at most `width` columns of a terminal, with an ellipsis if it was cut."""
    if _width(text) <= width:
        return text
    kept, room = "", width - 1
    for character in text:
        room -= _width(character)
        if room < 0:
            break
        kept += character
    return kept + "…" if width > 0 else ""


def rows_of(head: str, rows: Sequence[Sequence[str]], n_left: int, limit: int | None = None) -> list[str]:
    """Align a table.

    Args:
        head: titles of the columns, one word each.
        rows: cells, as many per row as titles.
        n_left: number of leading columns that are texts, aligned to the left; the others are numbers.
        limit: most lines, including the head; the last one counts the rows that are left out.
    """
    titles, shown = head.split(), rows
    if limit is not None and len(rows) + 1 > limit:
        shown = rows[: max(limit - 2, 0)]
    widths = [max(map(_width, column)) for column in zip(titles, *shown, strict=True)]
    lines = [_line(row, widths, n_left) for row in (titles, *shown)]
    if len(shown) < len(rows):
        lines.append(f"… {len(rows) - len(shown)} more")
    return lines if limit is None else lines[: max(limit, 0)]


def stack(tables: Sequence[Table], room: int | None) -> list[str]:
    """Stack tables, with an empty line before each; if there are too few lines, all tables are cut evenly."""
    lines: list[str] = []
    for position, (head, rows, n_left) in enumerate(tables):
        limit = None
        if room is not None:
            later = tables[position + 1 :]
            wanted_later = sum(len(rows) + 2 for _, rows, _ in later)
            left = room - len(lines)
            limit = max(left // (len(later) + 1), left - wanted_later) - 1
            if limit < 2:
                break
        lines += ["", *rows_of(head, rows, n_left, limit)]
    return lines


def fit(lines: list[str], width: int | None, height: int | None) -> list[str]:
    """Cut lines to a width, and to a number."""
    if width is not None:
        lines = [cut(line, width) for line in lines]
    return lines if height is None else lines[:height]


def si(number: float) -> str:
    """Format a number in at most five columns: 0, 7.1, 870, 52.0k, 1.20M."""
    for unit, size in (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12)):
        scaled = number / size
        # If rounding would carry into the next unit, the next unit is used.
        if abs(scaled) < 999.5 or unit == "T":
            break
    if unit == "" and float(number).is_integer():
        return f"{number:.0f}"
    digits = 0 if abs(scaled) >= 99.95 else 1 if abs(scaled) >= 9.995 else 2
    return f"{scaled:.{digits}f}{unit}"


def count(number: int, noun: str) -> str:
    """Format a number of things: 1 client, 2 clients."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def share(part: float) -> str:
    """Format a share between 0 and 1 in percent."""
    return f"{part * 100:.0f}%"


def _line(cells: Sequence[str], widths: Sequence[int], n_left: int) -> str:
    padded = []
    for position, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        filling = " " * (width - _width(cell))
        padded.append(cell + filling if position < n_left else filling + cell)
    return "  ".join(padded).rstrip()


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(_columns(character) for character in text)


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
