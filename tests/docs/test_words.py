"""All text of the tree is plain technical English: none of the words of `words.py` occurs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prose import PAGES, kind_of, read
from words import MAY_BE_THERE, in_name, in_text

REPOSITORY = Path(__file__).parents[2]
#: Each room of the tree, apart, so that a failure names its room.
ROOMS = [
    *("rust/proto", "rust/codec", "rust/shm", "rust/net", "rust/py", "csrc", "python"),
    *("benches", "examples", "wheels", "tests", "docs", "."),
]
#: History, a page of another project, and the words themselves.
EXEMPT = {
    "CHANGELOG.md",
    "tests/distill/readme_of_softs.md",
    "tests/docs/words.py",
    "tests/docs/test_words.py",
}
#: Folders with built or generated files.
BUILT = {"target", "build", "dist", "demo-output", "results", "__pycache__"}


def files(room: str) -> Iterator[Path]:
    """The files with prose of a room; of the repository's root only those that lie in it."""
    folder = REPOSITORY / room
    for path in sorted(folder.glob("*") if room == "." else folder.rglob("*")):
        parts = path.relative_to(REPOSITORY).parts
        hidden = any(part in BUILT or part.startswith(".") for part in parts)
        if not hidden and path.is_file() and kind_of(path) is not None and "/".join(parts) not in EXEMPT:
            yield path


def complaints(path: Path) -> Iterator[str]:
    """One line for each unwanted word of a file: where, which, and what to write instead."""
    if not MAY_BE_THERE.search(path.read_text()):
        return
    prose, names = read(path)
    page = kind_of(path) is PAGES
    found = [(number, word) for number, text in prose for word in in_text(text, page=page)]
    found += [(number, word) for number, name in names for word in in_name(name)]
    where = path.relative_to(REPOSITORY) if path.is_relative_to(REPOSITORY) else path.name
    for number, (word, instead) in sorted(found):
        yield f"{where}:{number}: {word} -> {instead}"


@pytest.mark.parametrize("room", ROOMS)
def test_text_is_plain(room: str) -> None:
    paths = list(files(room))
    assert paths, f"{room} has no files"
    found = [line for path in paths for line in complaints(path)]
    if found:
        pytest.fail(f"{len(found)} unwanted words in {room}:\n" + "\n".join(found), pytrace=False)


def test_every_folder_with_code_is_a_room() -> None:
    folders = [path for path in REPOSITORY.iterdir() if path.is_dir() and path.name[0] != "."]
    with_prose = {
        folder.name
        for folder in folders
        if folder.name not in BUILT and any(kind_of(path) for path in folder.rglob("*"))
    }
    assert with_prose <= {room.split("/")[0] for room in ROOMS}
    crates = {f"rust/{path.parent.name}" for path in REPOSITORY.glob("rust/*/Cargo.toml")}
    assert crates <= set(ROOMS)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.py", "x = 1  # nobody reads it\n", ["a.py:1: nobody"]),
        ("a.py", '"""Docs.\n\nWhoever calls it waits.\n"""\n', ["a.py:3: Whoever"]),
        ("a.py", 'raise ValueError(f"{1} who {2}")\n', ["a.py:1: who"]),
        ("a.py", "def test_nobody_answers(): ...\n", ["a.py:1: test_nobody_answers"]),
        ("a.py", "def whole(herd): ...  # a doorbell, `scribble`\n", []),
        ("a.rs", "fn f<'a>() {\n    // turns the crank\n}\n", ["a.rs:2: crank", "a.rs:2: turns the"]),
        ("a.rs", "//! One desk.\nlet a = '\"';\n/* two\n ropes */", ["a.rs:1: desk", "a.rs:4: ropes"]),
        (
            "a.rs",
            'let a = r#"the "peer" is asleep"#;\nstruct RemoteRope;\n',
            ["a.rs:1: asleep", "a.rs:2: RemoteRope"],
        ),
        ("a.cpp", 'throw Error("lets go of it");\n', ["a.cpp:1: lets go"]),
        ("a.md", "A person who trains.\n\nIt hushes the pipe.\n", ["a.md:3: hushes"]),
        ("a.toml", 'who = "who"\n# who\n', ["a.toml:2: who"]),
    ],
)
def test_words_are_found(tmp_path: Path, name: str, text: str, expected: list[str]) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert [line.split(" -> ")[0] for line in complaints(path)] == expected
