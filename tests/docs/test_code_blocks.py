"""Programs of the pages, also those that are only parts: they parse, and what they name of this package exists."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
BLOCK = re.compile(r"^ *```python[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
BLOCKS = {
    f"{page.relative_to(REPOSITORY)}:{text.count(chr(10), 0, block.start()) + 1}": textwrap.dedent(block[1])
    for page in sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")])
    for text in [page.read_text()]
    for block in BLOCK.finditer(text)
}


def member(one: Any, name: str) -> Any:
    """Return an attribute, also one that is a module which has not been imported.

    Raises:
        AttributeError: there is none.
    """
    if isinstance(one, ModuleType) and not hasattr(one, name):
        try:
            return importlib.import_module(f"{one.__name__}.{name}")
        except ModuleNotFoundError:
            pass
    return getattr(one, name)


def imported(program: ast.Module) -> Iterator[tuple[str, Any]]:
    """Yield what a program has of this package, with its names for them; a part may leave out the usual imports."""
    yield "sf", importlib.import_module("softs_fast")
    yield "df", importlib.import_module("softs_fast.dataflow")
    for node in ast.walk(program):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "softs_fast":
            module = importlib.import_module(str(node.module))
            yield from ((one.asname or one.name, member(module, one.name)) for one in node.names)
        elif isinstance(node, ast.Import):
            for one in node.names:
                if one.name.partition(".")[0] == "softs_fast":
                    module = importlib.import_module(one.name)
                    yield (
                        one.asname or "softs_fast",
                        module if one.asname else importlib.import_module("softs_fast"),
                    )


def check(program: ast.Module) -> None:
    """Look each name and each keyword up that the program uses of this package.

    Raises:
        AttributeError: a name does not exist.
        AssertionError: a function has no such keyword.
    """
    known = dict(imported(program))

    def meant(node: ast.expr) -> Any:
        """Return what an expression stands for; None if it is not of this package, or made at run time."""
        if isinstance(node, ast.Name):
            return known.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = meant(node.value)
            return member(owner, node.attr) if isinstance(owner, ModuleType | type) else None
        return None

    for node in ast.walk(program):
        if isinstance(node, ast.Attribute):
            meant(node)
        if isinstance(node, ast.Call) and callable(called := meant(node.func)):
            try:
                parameters = inspect.signature(called).parameters.values()
            except ValueError:  # Of native code.
                continue
            if not any(one.kind is one.VAR_KEYWORD for one in parameters):
                given = {one.arg for one in node.keywords if one.arg}
                assert given <= {one.name for one in parameters}, ast.unparse(node.func)


@pytest.mark.parametrize("place", BLOCKS)
def test_a_program_names_what_exists(place: str) -> None:
    check(ast.parse(BLOCKS[place]))


@pytest.mark.parametrize(
    "program", ["sf.Nothing", "from softs_fast.market import Nothing", "sf.Fleet(f, n=1)"]
)
def test_a_name_that_does_not_exist_is_found(program: str) -> None:
    with pytest.raises((AttributeError, AssertionError)):
        check(ast.parse(program))
