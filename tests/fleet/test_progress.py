"""How far a start is, in virtual time."""

from __future__ import annotations

import io
import sys

import pytest

from softs_fast.fleet.progress import Progress


class Screen(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def shown(stream: Screen, monkeypatch: pytest.MonkeyPatch, seconds: int) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    now = 0.0
    with Progress(2, lambda: now) as progress:
        while now < seconds:
            now += 0.5
            progress(int(now > 20))
    return stream.getvalue()


def test_a_file_gets_a_line_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(Screen(False), monkeypatch, 26).splitlines() == [
        "0 of 2 workers serve after 2 s",
        "0 of 2 workers serve after 12 s",
        "1 of 2 workers serve after 22 s",
    ]


def test_a_terminal_has_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(Screen(True), monkeypatch, 26)
    assert text.count("\n") == 1
    assert text.endswith("\r1 of 2 workers serve after 26 s\n")
    assert text.count("\r") == 25


def test_a_quick_start_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(Screen(True), monkeypatch, 1) == ""


def test_a_closed_standard_error_is_no_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = Screen(False)
    closed.close()
    for stream in (closed, None):
        monkeypatch.setattr(sys, "stderr", stream)
        times = iter([0.0, 5.0])
        with Progress(1, lambda times=times: next(times)) as progress:  # type: ignore[misc]
            progress(0)
