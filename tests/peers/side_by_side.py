"""Calls in threads of their own, at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TypeVar

A = TypeVar("A")
R = TypeVar("R")


def in_threads(function: Callable[[A], R], arguments: Iterable[A]) -> list[R]:
    """Call a function with each argument at once; when all have ended, what they return, or raise what one raised.

    In no pool of concurrent.futures: a process that is forked from a thread of one joins that thread at its end, which is
    its own, and exits with status 1. torch's DataLoader takes that for a failure if it sees the status before it stops watching.
    """
    calls: list[tuple[Future[R], A]] = [(Future(), argument) for argument in arguments]

    def call(future: Future[R], argument: A) -> None:
        try:
            future.set_result(function(argument))
        except BaseException as error:
            future.set_exception(error)

    threads = [threading.Thread(target=call, args=one) for one in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [future.result() for future, _ in calls]
