"""The names of private parts of other packages in the modules of this repository."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
SOURCES = [
    path
    for folder in ("python", "tests", "benches", "examples", "wheels")
    for path in (REPOSITORY / folder).rglob("*.py")
] + [REPOSITORY / "build_backend.py"]

# What the package of multiprocessing has beside these modules is not documented.
DOCUMENTED_MODULES = {
    f"multiprocessing.{name}"
    for name in ("connection", "dummy", "managers", "pool", "shared_memory", "sharedctypes")
}
# Documented, in spite of the underscore.
DOCUMENTED_NAMES = {"os._exit", "_asdict", "_field_defaults", "_fields", "_make", "_replace"}
ATTRIBUTE_FUNCTIONS = {"getattr", "setattr", "hasattr", "delattr", "object"}


def private_parts(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield the private names of other packages that a module uses, and those of attributes of which the package is not known."""
    modules = imported(nodes)
    inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                yield from as_private(f"{node.module}.{alias.name}")
        elif isinstance(node, ast.Attribute):
            name = dotted(node, modules)
            if name is not None and id(node) not in inner:
                yield from as_private(name)
            elif name is None and is_private(node.attr):
                yield node.attr
        elif (
            isinstance(node, ast.Call) and last_name(node.func) in ATTRIBUTE_FUNCTIONS and len(node.args) > 1
        ):
            attribute = node.args[1]
            if isinstance(attribute, ast.Constant) and isinstance(attribute.value, str):
                name = dotted(node.args[0], modules)
                if name is not None:
                    yield from as_private(f"{name}.{attribute.value}")
                elif is_private(attribute.value):
                    yield attribute.value


def imported(nodes: list[ast.AST]) -> dict[str, str]:
    """Return the names that a module imports of other packages, and what they are there."""
    names = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return {name: origin for name, origin in names.items() if not is_ours(origin)}


def dotted(node: ast.expr, modules: dict[str, str]) -> str | None:
    """Return the full name of an attribute of something that is imported."""
    if isinstance(node, ast.Name):
        return modules.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value, modules)
        return None if owner is None else f"{owner}.{node.attr}"
    return None


def last_name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def as_private(name: str) -> Iterator[str]:
    """Yield the private part of a full name, if it has one."""
    first, *rest = name.split(".")
    if is_ours(name) or name in DOCUMENTED_NAMES:
        return
    for n, part in enumerate(rest, 1):
        if is_private(part):
            yield ".".join([first, *rest[:n]])
            return
    if first == "multiprocessing" and rest:
        module = f"{first}.{rest[0]}"
        if module not in DOCUMENTED_MODULES and importlib.util.find_spec(module) is not None:
            yield name


def is_private(name: str) -> bool:
    return re.match(r"_[^_]|__\w*[^_]$", name) is not None and name not in DOCUMENTED_NAMES


def is_ours(name: str) -> bool:
    return name.partition(".")[0] in OUR_MODULES


def defined(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


OUR_MODULES = {path.stem for path in SOURCES} | {"softs_fast", "benches", "examples", "wheels", "__future__"}
STUBS = list((REPOSITORY / "python").rglob("*.pyi"))
