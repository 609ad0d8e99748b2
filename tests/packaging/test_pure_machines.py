"""What decides has no clock, no socket, no thread and no random numbers: its modules import nothing that has."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "python" / "softs_fast"
PURE = {
    "__future__",
    "abc",
    "collections",
    "collections.abc",
    "dataclasses",
    "enum",
    "functools",
    "hashlib",
    "http",
    "math",
    "statistics",
    "typing",
}
#: Pure modules, and what they may import of the folder above theirs.
MACHINES = {
    "coordination/job/*": {"errors", "records"},
    "fleet/scaling": set(),
    "job/feed": {"errors"},
    "job/ledger": {"errors"},
    "job/retention": set(),
    "paramserver/rounds/*": {"errors", "wire"},
    "paramserver/worker/exchanges": {"errors", "records", "wire"},
    "paramserver/worker/retries": {"errors", "wire"},
    "paramserver/worker/sizes": {"errors", "wire"},
}
FILES = [(file, above) for names, above in MACHINES.items() for file in sorted(PACKAGE.glob(f"{names}.py"))]


@pytest.mark.parametrize(("file", "above"), FILES, ids=lambda one: getattr(one, "stem", ""))
def test_only_pure_modules_are_imported(file: Path, above: set[str]) -> None:
    own = {one.stem for one, _ in FILES if one.parent == file.parent}
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            assert {alias.name for alias in node.names} <= PURE
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module in PURE
        elif isinstance(node, ast.ImportFrom) and node.level == 1:
            assert node.module in own or {alias.name for alias in node.names} <= own
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] in above
