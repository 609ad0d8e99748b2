"""Codes of errors: each has a number, a row in the documentation, and a place where the server says it."""

from __future__ import annotations

import re
from http import HTTPStatus
from pathlib import Path

from softs_fast.paramserver.wire import messages
from softs_fast.paramserver.wire.answers import Code

REPOSITORY = Path(__file__).parents[3]
ROW = re.compile(r"\| (PS\d\d) \| `([a-z-]+)` \| ([\d, ]+) \| (.+) \|")


def rows() -> list[tuple[str, str, str, str]]:
    return ROW.findall((REPOSITORY / "docs" / "paramserver.md").read_text())


def test_each_code_has_a_row_with_its_number_and_a_remedy() -> None:
    assert [(number, code) for number, code, _, _ in rows()] == [
        (code.number, code.value) for code in sorted(Code, key=lambda code: code.number)
    ]
    for number, _, statuses, text in rows():
        assert ";" in text, f"{number} has no remedy"
        assert all(HTTPStatus(int(one)) >= 400 for one in statuses.split(", "))


def test_numbers_stay_what_they_are() -> None:
    assert len({code.number for code in Code}) == len(Code) == 19
    assert (Code.BAD_MAC.number, Code.BUSY.number, Code.INTERNAL.number) == ("PS01", "PS17", "PS19")


def test_each_code_is_said_somewhere_by_the_server() -> None:
    room = REPOSITORY / "python" / "softs_fast" / "paramserver"
    text = "".join(
        file.read_text() for name in ("rounds", "server") for file in sorted((room / name).rglob("*.py"))
    )
    said = {code for code in Code if f"Code.{code.name}" in text}
    # These two are records of their own.
    assert messages.Stale(1, 1).code == Code.STALE
    assert messages.Summary(1, 1).code == Code.OVER
    assert "events.Stale(" in text
    assert "driver.summary()" in text
    assert said | {Code.STALE, Code.OVER} == set(Code)
