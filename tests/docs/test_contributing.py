"""The table of what to open and run for a change names files that exist, and tests that run."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
#: The head of the table.
CHANGES = "| room | to change | open | run |"


def changes(page: str) -> list[list[str]]:
    """The rows of the table, as cells without their backticks."""
    (text,) = page.split(CHANGES + "\n")[1:]
    lines = text.split("\n\n")[0].splitlines()[1:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


def crates(root: Path) -> dict[str, Path]:
    """The folder of each crate, by its name."""
    manifests = root.glob("rust/*/Cargo.toml")
    return {re.findall(r'^name = "(.+)"', one.read_text(), re.MULTILINE)[0]: one.parent for one in manifests}


def has_tests(command: str, root: Path) -> bool:
    """Whether a command runs tests that exist: a folder or file of `tests`, or a crate and a target of its tests."""
    if room := re.fullmatch(r"make test ROOM=(\S+)", command):
        path = root / "tests" / room[1]
        return path.is_file() or any(path.rglob("test_*.py"))
    if not (cargo := re.fullmatch(r"cargo test -p (\S+) (?:--test (\w+)|--lib (\w+))", command)):
        return False
    crate, target, module = cargo.groups()
    folder = crates(root).get(crate)
    if folder is None:
        return False
    if target:
        return any((folder / "tests" / one).is_file() for one in (f"{target}.rs", f"{target}/main.rs"))
    return any(module in one.relative_to(folder).as_posix() for one in folder.glob("src/**/*tests.rs"))


def complaints(page: str, root: Path) -> list[str]:
    """What is wrong with the table about the tree below `root`, one line for each thing."""
    found = []
    for row in changes(page):
        if len(row) != 4:
            found.append(f"a row has {len(row)} cells: {row}")
            continue
        _, change, path, command = row
        if not (root / path).exists():
            found.append(f"{change}: {path} does not exist")
        if not has_tests(command, root):
            found.append(f"{change}: {command} runs no test")
    return found


def test_files_and_tests_exist() -> None:
    page = (REPOSITORY / "CONTRIBUTING.md").read_text()
    assert len(changes(page)) > 20
    assert complaints(page, REPOSITORY) == []
