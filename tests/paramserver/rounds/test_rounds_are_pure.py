"""The machines have no clock, no socket, no thread and no random numbers."""

import ast
from pathlib import Path

import pytest

import softs_fast.paramserver.rounds

FILES = sorted(Path(softs_fast.paramserver.rounds.__file__).parent.glob("*.py"))
PURE = {
    "__future__",
    "collections",
    "collections.abc",
    "dataclasses",
    "functools",
    "math",
    "statistics",
    "typing",
}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_only_pure_modules_are_imported(file: Path) -> None:
    own = {one.stem for one in FILES}
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            assert {alias.name for alias in node.names} <= PURE
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module in PURE
        elif isinstance(node, ast.ImportFrom) and node.level == 1:
            assert node.module in own or {alias.name for alias in node.names} <= own
        elif isinstance(node, ast.ImportFrom):
            assert node.module == "errors"
