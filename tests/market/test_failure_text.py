"""What students read of a function that failed."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from softs_fast.market.failure_text import own_traceback, place_of
from softs_fast.market.generators import SampleGenerator, SlotOutput


def fails(product_id: str) -> bytes:
    return deeper(0)


def deeper(level: int) -> bytes:
    if level == 30:
        raise ValueError("no weights")
    return deeper(level + 1)


class Made:
    def method(self) -> None: ...

    def __call__(self) -> None: ...


class Unsayable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def error_of(function: Any) -> BaseException:
    slot = memoryview(bytearray(4))
    with pytest.raises(BaseException) as raised:  # noqa: PT011, any
        SampleGenerator(function, SlotOutput()).make("p", (0,), (slot,))
    # As in a worker, where the frame of the test is none.
    return raised.value.with_traceback(raised.tb.tb_next)


def with_cause(product_id: str) -> bytes:
    try:
        raise KeyError("layer")
    except KeyError as error:
        raise OSError("a\n" * 100) from error


def test_long_tracebacks_keep_the_function_and_the_place_of_the_error() -> None:
    lines = own_traceback(error_of(fails)).splitlines()
    assert len(lines) <= 10
    assert lines[1].endswith("in fails"), "the frames that lead there are left out"
    assert lines[3] == "  (29 more frames are in the worker's log)"
    assert lines[-2].strip() == 'raise ValueError("no weights")'
    assert lines[-1] == "ValueError: no weights"


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (with_cause, ["OSError: a", "in with_cause"]),
        (lambda product_id: 1 / 0, ["ZeroDivisionError: division by zero"]),
        (lambda: b"", ["TypeError", "takes 0 positional arguments but 1 was given"]),
        (lambda product_id: exec("raise Unsayable", globals()), ["Unsayable: <exception str() failed>"]),
        (lambda product_id: exec("raise ValueError('x' * 10_000)"), ["ValueError: xxx"]),
    ],
)
def test_texts_are_short_and_safe(function: Any, words: list[str]) -> None:
    text = own_traceback(error_of(function))
    assert len(text.splitlines()) <= 10
    assert max(map(len, text.splitlines())) <= 300
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (fails, "fails"),
        (functools.partial(functools.partial(fails), 1), "fails"),
        (Made().method, "Made.method"),
        (Made(), "Made"),
        (functools.wraps(fails)(lambda product_id: b""), "fails"),
    ],
)
def test_functions_are_named_with_their_file(function: Any, name: str) -> None:
    assert place_of(function).startswith(f"{name} in {__file__}, line ")


def test_a_builtin_has_a_name_alone() -> None:
    assert place_of(bytes) == "bytes"
