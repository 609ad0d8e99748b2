"""Calls in threads of their own, at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

A = TypeVar("A")
R = TypeVar("R")


def in_threads(function: Callable[[A], R], arguments: Iterable[A]) -> list[R]:
    """Call a function with each argument at once; when all have ended, what they return, or raise what one raised."""
    each = list(arguments)
    with ThreadPoolExecutor(len(each)) as pool:
        return list(pool.map(function, each))
