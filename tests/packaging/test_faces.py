"""Every room has one face: what other rooms and users have of it is in the `__all__` of its `__init__`."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PYTHON = REPOSITORY / "python"
PACKAGE = PYTHON / "softs_fast"
ROOMS = sorted(one.parent.name for one in PACKAGE.glob("[a-z]*/__init__.py"))
#: An import in a page or an example of one.
IMPORT = re.compile(r"^(?:>>> )?(from softs_fast\S* import [\w, ]+)$", re.MULTILINE)
FILES = [*PACKAGE.rglob("*.py"), *(REPOSITORY / "examples").rglob("*.py")]


@cache
def exported(path: Path) -> frozenset[str]:
    """Return the names in `__all__` of a package or a module."""
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(file.read_text()).body if file.exists() else ():
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return frozenset(ast.literal_eval(node.value))
    return frozenset()


def imported(tree: ast.AST, package: list[str]) -> Iterator[list[str]]:
    """Yield the full names that a module of a package imports, as lists of parts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            module = above + (node.module.split(".") if node.module else [])
            yield from ([*module, alias.name] for alias in node.names)


def passed(tree: ast.AST, package: list[str]) -> Iterator[str]:
    """Yield the names that are imported past the face of another room.

    A package or a module in an `__all__` is a face, too: what it exports may be imported from it.
    """
    for name in imported(tree, package):
        if name[0] != "softs_fast" or len(name) < 3 or name[1] not in ROOMS or name[:2] == package[:2]:
            continue
        if any(name[n] not in exported(PYTHON.joinpath(*name[:n])) for n in range(2, len(name))):
            yield ".".join(name)


@pytest.mark.parametrize(
    "text", ["from .. import _core", "from ..fleet import Fleet", "from ..coordination import job"]
)
def test_an_import_of_a_face_passes(text: str) -> None:
    assert [*passed(ast.parse(text), ["softs_fast", "cli"])] == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("from ..fleet.fleet import Fleet", "softs_fast.fleet.fleet.Fleet"),
        ("from ..fleet import fleet", "softs_fast.fleet.fleet"),
        ("from ..coordination.job.seats import Seat", "softs_fast.coordination.job.seats.Seat"),
        ("import softs_fast.fleet.fleet", "softs_fast.fleet.fleet"),
        ("def f():\n  from softs_fast.fleet import _a", "softs_fast.fleet._a"),
    ],
)
def test_an_import_past_a_face_is_found(text: str, name: str) -> None:
    assert [*passed(ast.parse(text), ["softs_fast", "cli"])] == [name]


def test_no_room_and_no_example_imports_past_the_face_of_another_room() -> None:
    found = []
    for file in FILES:
        package = [*file.relative_to(PYTHON).parts[:-1]] if file.is_relative_to(PYTHON) else []
        found += [
            f"{file.relative_to(REPOSITORY)}: {name}" for name in passed(ast.parse(file.read_text()), package)
        ]
    assert found == []


def test_no_page_imports_past_a_face() -> None:
    pages = {page.name: IMPORT.findall(page.read_text()) for page in (REPOSITORY / "docs").glob("*.md")}
    assert sum(map(len, pages.values())) > 20
    assert [
        f"{page}: {name}"
        for page, lines in pages.items()
        for line in lines
        for name in passed(ast.parse(line), [])
    ] == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_face_has_what_it_exports(room: str) -> None:
    module = importlib.import_module(f"softs_fast.{room}")
    for name in exported(PACKAGE / room):
        if (PACKAGE / room / name).is_dir() or (PACKAGE / room / f"{name}.py").exists():
            importlib.import_module(f"softs_fast.{room}.{name}")  # a face below this one
        else:
            getattr(module, name)
