"""A process that ends at one of its operations: that function of `os`, and all that follow, raise."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest


class Crash(BaseException):
    """The process ends."""


@contextmanager
def crashing(
    at: int, operations: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], None]]:
    """End a process at its operation of a number, once it is armed, and at all that follow.

    Args:
        at: Number of the operation, from 0 on.
        operations: Names of functions of `os` that count.
        monkeypatch: Replaces them.
    """
    left: list[int] = []

    def counted(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*given: Any, **named: Any) -> Any:
            if left:
                left[0] -= 1
                if left[0] < 0:
                    raise Crash
            return real(*given, **named)

        return call

    with monkeypatch.context() as patch:
        for name in operations:
            patch.setattr(os, name, counted(name))
        yield lambda: left.append(at)
