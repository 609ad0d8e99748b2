"""The table of what to open and run for a change names files that exist, and tests that run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("| a | b | `rust/a/src` | `make test ROOM=room` |", None),
        ("| a | b | `rust/a/src` | `make test ROOM=room/test_a.py` |", None),
        ("| a | b | `rust/a/src` | `cargo test -p crate-a --test whole` |", None),
        ("| a | b | `rust/a/src` | `cargo test -p crate-a --test parts` |", None),
        ("| a | b | `rust/a/src` | `cargo test -p crate-a --lib lane` |", None),
        ("| a | b | `rust/b` | `make test ROOM=room` |", "b: rust/b does not exist"),
        ("| a | b | `rust/a` | `make test ROOM=rooms` |", "b: make test ROOM=rooms runs no test"),
        ("| a | b | `rust/a` | `make test ROOM=empty` |", "b: make test ROOM=empty runs no test"),
        (
            "| a | b | `rust/a` | `cargo test -p crate-b --test whole` |",
            "b: cargo test -p crate-b --test whole runs no test",
        ),
        (
            "| a | b | `rust/a` | `cargo test -p crate-a --test none` |",
            "b: cargo test -p crate-a --test none runs no test",
        ),
        (
            "| a | b | `rust/a` | `cargo test -p crate-a --lib none` |",
            "b: cargo test -p crate-a --lib none runs no test",
        ),
        ("| a | b | `rust/a` | `make lint` |", "b: make lint runs no test"),
        ("| a | b | `rust/a` |", "a row has 3 cells: ['a', 'b', 'rust/a']"),
    ],
)
def test_wrong_rows_are_found(tmp_path: Path, row: str, complaint: str | None) -> None:
    for path, text in {
        "rust/a/Cargo.toml": '[package]\nname = "crate-a"\n',
        "rust/a/src/lane/tests.rs": "",
        "rust/a/tests/whole.rs": "",
        "rust/a/tests/parts/main.rs": "",
        "tests/room/test_a.py": "",
        "tests/empty/helpers.py": "",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    page = f"{CHANGES}\n|---|---|---|---|\n{row}\n\n| other | table |\n"
    assert complaints(page, tmp_path) == ([] if complaint is None else [complaint])
