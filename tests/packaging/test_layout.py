"""The tree: small folders per concept, small files, and tests that lie as what they test."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "python" / "softs_fast"
TESTS = REPOSITORY / "tests"

#: Folders of tests that are of no room of the package.
CROSS_CUTTING = {
    "benches",
    "contract",
    "docs",
    "examples",
    "faults",
    "interop",
    "kernels",
    "packaging",
    "peers",
}
#: A room below another one with tests in a folder of another name: those that need a device, and those of all
#: strategies.
ELSEWHERE = {
    "collectives/cuda": "gpu",
    "collectives/host": "collectives",
    "gpu/checks": "gpu",
    "gpu/measures": "gpu",
    "market/mediums/cuda": "gpu",
}


def modules(folder: Path) -> list[Path]:
    """The Python files right in a folder."""
    return sorted(folder.glob("*.py"))


def rooms() -> list[str]:
    """The folders of the package that hold modules, but not those that only export what the rooms in them have.

    `_dropin` holds a package that is found by its path.
    """
    folders = [folder for folder in PACKAGE.rglob("*") if folder.is_dir() and modules(folder)]
    folders = [one for one in folders if len(modules(one)) > 1 or not [*one.glob("*/__init__.py")]]
    names = [folder.relative_to(PACKAGE).as_posix() for folder in folders]
    return sorted(name for name in names if not name.startswith("_dropin"))


def python_files() -> list[Path]:
    folders = ("python", "tests", "benches", "examples", "wheels")
    return [file for folder in folders for file in (REPOSITORY / folder).rglob("*.py")]


def test_the_root_of_the_package_is_small() -> None:
    assert len(modules(PACKAGE)) <= 10


def test_no_module_has_a_private_name() -> None:
    private = [file.name for file in PACKAGE.rglob("_*.py") if not file.name.startswith("__")]
    assert private == []
    stubs = sorted(file.name for file in PACKAGE.rglob("*.pyi"))
    assert stubs == ["_core.pyi", "_kernels.pyi"]


def test_files_are_short() -> None:
    long = {
        file.relative_to(REPOSITORY).as_posix(): n
        for file in python_files()
        if (n := len(file.read_text().splitlines())) > 500
    }
    assert long == {}


@pytest.mark.parametrize("room", rooms())
def test_no_room_is_of_one_module(room: str) -> None:
    assert len(modules(PACKAGE / room)) > 2, "`__init__.py` and at least two others"


def test_the_root_of_the_tests_holds_conftest_only() -> None:
    assert [file.name for file in TESTS.iterdir() if file.is_file()] == ["conftest.py"]


def test_every_room_has_a_folder_of_tests() -> None:
    folders = {
        folder.relative_to(TESTS).as_posix() for folder in TESTS.rglob("*") if [*folder.glob("test_*.py")]
    }
    assert {ELSEWHERE.get(room, room) for room in rooms()} <= folders
    assert set(ELSEWHERE) <= set(rooms())


def test_every_folder_of_tests_is_of_a_room_or_cross_cutting() -> None:
    folders = {folder.name for folder in TESTS.iterdir() if folder.is_dir() and modules(folder)}
    assert folders <= CROSS_CUTTING | {room.partition("/")[0] for room in rooms()}
    assert folders >= CROSS_CUTTING


def test_no_folder_of_tests_has_one_test_file() -> None:
    counts = Counter(file.parent.relative_to(TESTS).as_posix() for file in TESTS.rglob("test_*.py"))
    assert [folder for folder, n in counts.items() if n == 1] == []


def test_basenames_of_tests_and_their_helpers_are_unique() -> None:
    """They are imported by their basenames (`pythonpath` in pyproject.toml), so one would shadow the other."""
    names = Counter(file.name for file in TESTS.rglob("*.py"))
    assert [name for name, n in names.items() if n > 1 and name != "conftest.py"] == []


def test_tests_wait_by_one_module_alone() -> None:
    """Else each room has its own time limit, loop around the clock, and reader of a child's lines."""
    own = re.compile(
        r"^ *(_?WATCHDOG_S\b.* = |(async )?def (eventually\w*|wait_until|free_ports?)\(|class Lines\b"
        r"|(assert|if) time\.monotonic\(\) [<>])",
        re.MULTILINE,
    )
    others = [path for path in TESTS.rglob("*.py") if path != TESTS / "peers" / "waiting.py"]
    found = [
        f"{path.relative_to(TESTS)}: {one[0]}" for path in others for one in own.finditer(path.read_text())
    ]
    assert found == []
