"""Texts of exceptions: whatever an exception does, its text is one that can be sent, logged and printed."""

from __future__ import annotations

import sys
import threading

import pytest

from softs_fast.user_code import (
    MOST_TEXT,
    is_ctrl_c,
    reason_of_error,
    safe_text,
    text_of_error,
    trace_of_error,
)


class Mute(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise self.args[0]

    __repr__ = __str__


@pytest.mark.parametrize("other", [RuntimeError(), SystemExit(5), KeyboardInterrupt()])
def test_an_exception_without_a_text_has_one(other: BaseException) -> None:
    name = type(other).__name__
    assert text_of_error(Mute(other)) == f"Mute: no text: its __str__ raised {name}"
    assert trace_of_error(Mute(other)).endswith("Mute: <exception str() failed>")


def test_an_empty_text_is_the_name_of_the_type() -> None:
    assert reason_of_error(KeyboardInterrupt()) == text_of_error(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_a_huge_text_loses_its_middle() -> None:
    error = ValueError("begin" + "x" * (1 << 22) + "end")
    text = reason_of_error(error)
    assert len(text) <= MOST_TEXT
    assert text.startswith("begin")
    assert text.endswith("end")
    assert f"\n... the middle of {(1 << 22) + 8} characters is left out ...\n" in text
    assert len(trace_of_error(error)) <= MOST_TEXT
    assert safe_text("a" * MOST_TEXT) == "a" * MOST_TEXT


def test_lone_surrogates_become_text_that_utf_8_has() -> None:
    assert text_of_error(ValueError("a\udc80b")) == "ValueError: a\\udc80b"
    text = trace_of_error(ValueError("\udc80" * MOST_TEXT))
    assert text.encode()
    assert len(text) <= MOST_TEXT


def test_a_trace_that_cannot_be_made_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(error: BaseException) -> list[str]:
        raise MemoryError

    monkeypatch.setattr("traceback.format_exception", no_memory)
    assert trace_of_error(ValueError()) == "no traceback: its text raised MemoryError"


def test_ctrl_c_is_one_of_the_main_thread() -> None:
    found = []
    thread = threading.Thread(target=lambda: found.append(is_ctrl_c(KeyboardInterrupt())))
    thread.start()
    thread.join()
    assert found == [False]
    assert is_ctrl_c(KeyboardInterrupt())
    assert not is_ctrl_c(SystemExit(sys.maxsize))
