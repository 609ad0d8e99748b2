"""Text for people in a source file: comments, docstrings and string literals, with their line numbers."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

#: A line number, and what stands there.
Line = tuple[int, str]

PYTHON = {".py", ".pyi"}
BRACES = {".rs", ".cpp", ".hpp", ".h", ".cu", ".cuh"}
PAGES = {".md"}
HASHES = {".toml", ".yaml", ".ini", "Makefile"}

_BRACES = re.compile(
    r"""
    (?P<prose> //[^\n]* | /\*.*?\*/ )
    | (?P<string> b?r(?P<hashes>\#*)".*?"(?P=hashes) | "(?:\\.|[^"\\])*" )
    | (?P<char> '(?:\\[^']+|[^\\'\n])' )
    | (?P<name> [A-Za-z_]\w* )
    """,
    re.VERBOSE | re.DOTALL,
)
_FORMATTED = {
    getattr(tokenize, name) for name in ("FSTRING_MIDDLE", "TSTRING_MIDDLE") if hasattr(tokenize, name)
}
_TEXTS = {tokenize.COMMENT, tokenize.STRING} | _FORMATTED


def kind_of(path: Path) -> set[str] | None:
    """The kind of a file, one of the sets above; None for a file without prose."""
    for kind in (PYTHON, BRACES, PAGES, HASHES):
        if path.suffix in kind or path.name in kind:
            return kind
    return None


def read(path: Path) -> tuple[list[Line], list[Line]]:
    """Return the prose of a file and the names in its code.

    Raises:
        ValueError: the file is of no known kind.
    """
    text = path.read_text()
    kind = kind_of(path)
    if kind is PYTHON:
        return _python(text)
    if kind is BRACES:
        return _braces(text)
    if kind is PAGES:
        return list(enumerate(text.splitlines(), 1)), []
    if kind is HASHES:
        comments = ((i, re.search(r"(?:^|\s)#.*", line)) for i, line in enumerate(text.splitlines(), 1))
        return [(i, found.group()) for i, found in comments if found], []
    raise ValueError(f"{path} is no file with prose that is known")


def _python(text: str) -> tuple[list[Line], list[Line]]:
    prose: list[Line] = []
    names: list[Line] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in _TEXTS:
            prose += _lines(token.start[0], token.string)
        elif token.type == tokenize.NAME:
            names.append((token.start[0], token.string))
    return prose, names


def _braces(text: str) -> tuple[list[Line], list[Line]]:
    prose: list[Line] = []
    names: list[Line] = []
    number, counted = 1, 0
    for found in _BRACES.finditer(text):
        number += text.count("\n", counted, found.start())
        counted = found.start()
        if found["name"]:
            names.append((number, found.group()))
        elif not found["char"]:
            prose += _lines(number, found.group())
    return prose, names


def _lines(first: int, text: str) -> Iterator[Line]:
    return enumerate(text.splitlines(), first)
