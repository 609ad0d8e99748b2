"""Every value of the package has a bound for each of its fields, and no type is open."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
import pytest

import softs_fast
from softs_fast.records import Message, Record

PACKAGE = Path(softs_fast.__file__).parent


def kinds() -> list[type]:
    """The values of all modules that make some."""
    for file in sorted(PACKAGE.rglob("*.py")):
        if re.search(r"^class \w+\((records\.)?(Message|Record)\b", file.read_text(), re.M):
            importlib.import_module(
                ".".join(("softs_fast", *file.relative_to(PACKAGE).with_suffix("").parts))
            )
    found, left = [], [Message, Record]
    while left:
        left += (below := left.pop().__subclasses__())
        found += below
    return [one for one in found if one.__module__.startswith("softs_fast")]


def open_parts(hint: Any, bounds: tuple[msgspec.Meta, ...] = ()) -> Iterator[str]:
    """What of a type has no bound."""
    if get_origin(hint) is Annotated:
        inner, *metas = get_args(hint)
        yield from open_parts(inner, (*bounds, *(one for one in metas if isinstance(one, msgspec.Meta))))
    elif get_origin(hint) in (Union, UnionType):
        for one in get_args(hint):
            yield from open_parts(one, bounds)
    elif get_origin(hint) in (tuple, dict):
        items = [one for one in get_args(hint) if one is not ...]
        if (... in get_args(hint) or get_origin(hint) is dict) and not any(one.max_length for one in bounds):
            yield f"{hint} of any length"
        for one in items:
            yield from open_parts(one)
    elif hint in (str, bytes):
        if not any(one.max_length is not None for one in bounds):
            yield f"{hint.__name__} of any length"
    elif isinstance(hint, type):
        if hint not in (int, float, bool, NoneType) and not issubclass(hint, (Message, Record)):
            yield f"{hint} is open"
    elif get_origin(hint) is not Literal:
        yield f"{hint} is open"


def test_all_fields_are_bounded() -> None:
    wrong = [
        f"{kind.__module__}.{kind.__name__}.{one.name}: {what}"
        for kind in kinds()
        for one in msgspec.structs.fields(kind)
        for what in open_parts(one.type)
    ]
    assert wrong == []


def test_parts_of_messages_have_no_defaults() -> None:
    """Else they could be read with fewer items than they have."""
    wrong = [
        f"{kind.__name__}.{one.name}"
        for kind in kinds()
        if issubclass(kind, Message) and kind.__struct_config__.tag is None
        for one in msgspec.structs.fields(kind)
        if not one.required
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("hint", "n"),
    [
        (str, 1),
        (tuple[int, ...], 1),
        (dict[str, bytes], 3),
        (Any, 1),
        (object, 1),
        (tuple[int, str], 1),
        (bool, 0),
    ],
)
def test_open_parts_are_found(hint: Any, n: int) -> None:
    assert len(list(open_parts(hint))) == n


def test_no_thread_has_a_small_stack() -> None:
    """The parser recurses in C, and a thread with a stack of 64 KiB would end the process on nested values."""
    calls = [
        file
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "stack_size"
    ]
    assert calls == []
