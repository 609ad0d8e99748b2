"""Each promise of the package has tests, and all of them exist."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

FOLDER = Path(__file__).parents[1]


def functions_of(path: Path) -> set[str]:
    return {one.name for one in ast.parse(path.read_text()).body if isinstance(one, ast.FunctionDef)}


def test_each_guarantee_has_tests_that_exist() -> None:
    guarantees = tomllib.loads((FOLDER / "guarantees.toml").read_text())["guarantee"]
    assert [one["number"] for one in guarantees] == list(range(1, 27))
    assert all(one["text"] and one["tests"] for one in guarantees)
    wanted = {name for one in guarantees for name in one["tests"] + one["processes"]}
    paths = {name.partition("::")[0] for name in wanted}
    there = {
        f"{path}::{name}"
        for path in paths
        if (FOLDER / path).exists()
        for name in functions_of(FOLDER / path)
    }
    assert not wanted - there
