"""The pages on the architecture are true: the files, functions and rooms that they name exist."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
PAGE = DOCS / "architecture.md"
MAX_COLUMNS = 100
#: The page is one of ten minutes.
MAX_LINES = 250
#: All pages that are checked, with the columns that their lines may have: a row of a table is one line.
PAGES = {"architecture.md": MAX_COLUMNS, "market_design.md": MAX_COLUMNS, "lives.md": 160}
#: Each table of a life has this head; its name is the heading before it.
STEPS = "| step | file | function |"
_SAMPLE = (
    *("order placed", "claimed", "generated", "written", "published", "seen"),
    *("gathered", "released", "handed out"),
)
#: Headings of all lives, by page, with steps without which a life is not complete, in their order.
LIVES = {
    "architecture.md": {
        "### Through a lane": _SAMPLE,
        "### By a link": (
            *(
                "claimed for the other host",
                "wanted",
                "placed",
                "sent from the slot",
                "tag and length checked",
            ),
            *("received into the claimed slot", "published"),
        ),
        "### By the wire": _SAMPLE,
    },
    "lives.md": {
        "## A gradient": (
            *("bucket full", "shape and dtype checked", "copied into shared memory", "call compared"),
            *("published", "awaited", "reduced", "mean copied", "future completed"),
        ),
        "## A push": (
            *(
                "asked for",
                "encoded",
                "sent over HTTP",
                "signature checked",
                "announced",
                "received",
                "decoded",
            ),
            *(
                "counted",
                "round closed",
                "step ordered",
                "applied",
                "new weights shown",
                "saved",
                "pulled",
                "loaded",
            ),
        ),
        "## A row": (
            *("read from the source", "admitted", "put into shared memory", "ready", "taken for a call"),
            *("ticket given", "task sent", "task received", "entered", "values read", "optimizer"),
            *("gradients averaged", "made columns put", "taken by the master", "noted", "used up", "freed"),
        ),
        "## A weight": (
            *("offered", "half marked", "buffers copied", "parameters copied", "published", "window found"),
            *("window mapped", "fetched", "summed", "inspected", "confirmed", "applied"),
        ),
        "## An epoch": (
            *(
                "lost",
                "told to the machine",
                "joined",
                "old epoch ended",
                "fence received",
                "calls of the engine ended",
            ),
            *(
                "ready said",
                "members chosen",
                "new epoch opened",
                "table recorded",
                "table sent",
                "engine built",
            ),
            *("state copied", "next step begun", "applied"),
        ),
    },
}
#: What begins like this is a path in the repository.
TOP_FOLDERS = ("rust/", "python/", "csrc/", "tests/", "docs/", "benches/", "examples/", "wheels/")

#: How a file defines a function, and a type with methods, by its suffix.
FUNCTION = {
    ".rs": r"\bfn {name}\b",
    ".py": r"\bdef {name}\(",
    ".cpp": r"\b(?:\w+::)?{name}\([^;{{}}]*\)[^;{{}}]*\{{",
}
TYPE = {
    ".rs": r"\b(?:struct|enum|trait) {name}\b|\bimpl\b[^{{\n]*\b{name}\b",
    ".py": r"\bclass {name}\b",
    ".cpp": r"\b{name}::",
}


def tables(page: str) -> Iterator[list[list[str]]]:
    """The rows of each table of steps, as cells without their backticks."""
    for text in page.split(STEPS + "\n")[1:]:
        lines = text.split("\n\n")[0].splitlines()[1:]
        yield [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


def lacks(file: Path, function: str) -> str | None:
    """Which part of `function` or `Type.function` a file does not define; None if it has all."""
    *types, name = re.split(r"::|\.", function)
    text = file.read_text()
    wanted = [(name, FUNCTION), *((type_name, TYPE) for type_name in types)]
    for part, patterns in wanted:
        if not re.search(patterns[file.suffix].format(name=re.escape(part)), text):
            return part
    return None


def paths(page: str) -> Iterator[str]:
    """What stands in backticks and looks like a path of the repository."""
    prose = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    for span in re.findall(r"`([^`\n]+)`", prose):
        if span.startswith(TOP_FOLDERS) and re.fullmatch(r"[\w./*-]+", span):
            yield span


def complaints(page: str, root: Path, max_columns: int = MAX_COLUMNS) -> list[str]:
    """What is wrong with a page about the tree below `root`, one line for each thing."""
    found = [
        f"line {number} has {len(line)} columns"
        for number, line in enumerate(page.splitlines(), 1)
        if len(line) > max_columns
    ]
    found += [f"{path} does not exist" for path in paths(page) if not any(root.glob(path.rstrip("/")))]
    for row in (row for table in tables(page) for row in table):
        if len(row) != 3:
            found.append(f"a row has {len(row)} cells: {row}")
            continue
        step, path, function = row
        file = root / path
        if not file.is_file() or file.suffix not in FUNCTION:
            found.append(f"{step}: {path} is no file with code")
        elif (part := lacks(file, function)) is not None:
            found.append(f"{step}: {path} does not define {part} of {function}")
    return found


def out_of_order(words: Sequence[str], steps: Sequence[str]) -> list[str]:
    """Those of some words that are in no step, or only in one before a word that precedes them in the list."""
    found, at = [], 0
    for word in words:
        place = next((i for i in range(at, len(steps)) if word in steps[i]), None)
        if place is None:
            found.append(word)
        else:
            at = place
    return found


@pytest.mark.parametrize("name", PAGES)
def test_files_and_functions_exist(name: str) -> None:
    assert complaints((DOCS / name).read_text(), REPOSITORY, PAGES[name]) == []


def test_the_page_is_one_of_ten_minutes() -> None:
    assert len(PAGE.read_text().splitlines()) < MAX_LINES


@pytest.mark.parametrize("name", PAGES)
def test_all_lives_are_complete(name: str) -> None:
    page, lives = (DOCS / name).read_text(), LIVES.get(name, {})
    headings = [re.findall(r"^#+ .*", text, flags=re.MULTILINE)[-1] for text in page.split(STEPS)[:-1]]
    assert headings == list(lives)
    for words, table in zip(lives.values(), tables(page), strict=True):
        assert out_of_order(words, [row[0] for row in table]) == []


def test_every_room_is_in_the_diagram() -> None:
    (diagram,) = re.findall(r"^## Rooms$.*?^```$(.*?)^```$", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    words = set(re.findall(r"[\w/]+", diagram))
    crates = {f"rust/{path.parent.name}" for path in REPOSITORY.glob("rust/*/Cargo.toml")}
    rooms = {path.parent.name for path in REPOSITORY.glob("python/softs_fast/[a-z]*/__init__.py")}
    assert crates | rooms <= words


def test_every_invariant_has_its_number() -> None:
    text = PAGE.read_text().split("\n## Invariants\n")[1].split("\n## ")[0]
    numbers = re.findall(r"^\* \*\*([A-Z]\d)\b", text, flags=re.MULTILINE)
    assert sorted(numbers) == sorted(
        ["W1", "W2", "W3", "W4", "C1", "C2", "C3", "C4", "G1", "B1", "B2", "S1", "L1", "F1"]
    )
