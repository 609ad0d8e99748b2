"""Texts of a teacher: a list, a file with a text in each line, or a column of a `datasets` object."""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Iterable, Mapping, Sequence, Set, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..errors import ConfigError
from .arguments import check_picklable, unknown

__all__ = ["TextSource", "as_texts"]

_GIVE = "give a list of texts, the path of a text file, or a datasets object with column=NAME"


class TextSource(Protocol):
    """Texts that are small to pickle where they can be, and opened in the process that reads them."""

    def open(self) -> Sequence[str]:
        """Return the texts, by index."""


def as_texts(texts: object, column: str | None) -> TextSource:
    """Return the source of texts that a user gives; nothing but its first text is read.

    Args:
        texts: the path of a file in UTF-8, of which each line with more than blanks is a text; a sequence or another
            iterable with a length, of texts; with a column, anything with a length of which each element is a
            mapping.
        column: key of the text in each element.

    Raises:
        ConfigError: there are no texts, they are no texts, cannot be sent to a process, or the file or column is
            missing.
    """
    if isinstance(texts, str | os.PathLike):
        if column is not None:
            raise ConfigError(f"column={column!r} is for datasets objects; a line of a text file is a text")
        return TextFile(os.path.abspath(os.fspath(texts)))
    if not isinstance(texts, Sized) or not (isinstance(texts, Iterable) or _has_elements(texts)):
        raise ConfigError(f"texts of type {type(texts).__name__} cannot be read by every worker; {_GIVE}")
    if isinstance(texts, Set | Mapping):
        raise ConfigError(f"texts of type {type(texts).__name__} have no order to repeat; {_GIVE}")
    elements: Any = texts if _has_elements(texts) else tuple(texts)  # type: ignore[arg-type]
    if not len(elements):
        raise ConfigError("texts are empty; need at least one")
    if column is None and isinstance(elements, list | tuple):
        wrong = next(((i, text) for i, text in enumerate(elements) if not isinstance(text, str)), None)
    else:
        wrong = next(
            ((0, text) for text in [_text_of(elements[0], column)] if not isinstance(text, str)), None
        )
        check_picklable(elements, "texts", _GIVE)
    if wrong is not None:
        hint = "; name the column of the texts" if column is None else ""
        raise ConfigError(f"text {wrong[0]} is of type {type(wrong[1]).__name__}, need str{hint}")
    return TextElements(elements, column)


@dataclass(frozen=True)
class TextElements:
    """Texts that are elements of a sequence, or a column of them."""

    elements: Any
    column: str | None

    def open(self) -> Sequence[str]:
        """See `TextSource.open`."""
        is_checked = self.column is None and isinstance(self.elements, list | tuple)
        return self.elements if is_checked else _Elements(self.elements, self.column)


@dataclass(frozen=True)
class TextFile:
    """A text file, of which each line with more than blanks is a text.

    Raises:
        ConfigError: there is no such file, or no text in it.
    """

    path: str

    def __post_init__(self) -> None:
        """Look for the first text."""
        try:
            with open(self.path, "rb") as file:
                is_empty = not any(line.strip() for line in file)
        except OSError as error:
            raise ConfigError(f"texts: cannot read {self.path}: {error.strerror}; {_GIVE}") from error
        if is_empty:
            raise ConfigError(f"texts are empty: {self.path} has no line with more than blanks")

    def open(self) -> Sequence[str]:
        """See `TextSource.open`."""
        return _Lines(Path(self.path))


class _Lines(Sequence[str]):
    """The lines of a file that are not blank, read where they are wanted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._starts = array("q")
        offset = 0
        with path.open("rb") as file:
            for line in file:
                if line.strip():
                    self._starts.append(offset)
                offset += len(line)
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        start = self._starts[index]
        self._bytes.seek(start)
        try:
            # A byte order mark is none of the text.
            return self._bytes.readline().decode("utf-8-sig" if start == 0 else "utf-8").strip()
        except UnicodeDecodeError as error:
            number = self._bytes[:start].count(b"\n") + 1
            raise ConfigError(
                f"line {number} of {self._path} is not UTF-8: {error}; convert the file"
            ) from error


class _Elements(Sequence[str]):
    """Elements of a collection, or one column of them; each is checked when it is read."""

    def __init__(self, elements: Any, column: str | None) -> None:
        self._elements = elements
        self._column = column

    def __len__(self) -> int:
        return len(self._elements)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        try:
            text = _text_of(self._elements[index], self._column)
        except ConfigError as error:
            raise ConfigError(f"text {index}: {error}") from error
        if not isinstance(text, str):
            raise ConfigError(
                f"text {index} is of type {type(text).__name__}, expected str: {text!r}; remove it"
            )
        return text


def _has_elements(texts: object) -> bool:
    return hasattr(texts, "__len__") and hasattr(texts, "__getitem__")


def _text_of(element: Any, column: str | None) -> Any:
    """Return the text of an element.

    Raises:
        ConfigError: it has no such column.
    """
    if column is None:
        return element
    if not isinstance(element, Mapping):
        raise ConfigError(
            f"column={column!r} needs texts with elements that are mappings, have {type(element).__name__}"
        )
    if column not in element:
        raise unknown("column", column, [str(name) for name in element])
    return element[column]
