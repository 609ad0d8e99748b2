"""A thread that makes calls one after another, beside the one that gives them."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

from softs_fast.process import check_process

#: How long the end of the process waits for a call that is being made. A thread that is inside of torch when the
#: interpreter ends would abort the process.
_EXIT_S = 5.0

_threads: weakref.WeakSet[SerialThread] = weakref.WeakSet()


class SerialThread:
    """Makes calls in the order in which they are given, on a thread that begins with the first one.

    One that waits for other ranks does not keep the process from ending, as a thread of `concurrent.futures` would.

    Args:
        name: Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name, self._pid = name, os.getpid()
        self._calls: SimpleQueue[tuple[Callable[[], None], Future[None]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        _threads.add(self)

    def submit(self, call: Callable[[], None]) -> Future[None]:
        """Have a call made after those before it; return what becomes of it.

        Raises:
            RuntimeError: The thread has been closed.
            ForkedError: This is a fork, which does not have the thread.
        """
        check_process(self._pid, "this group")
        future: Future[None] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the thread is closed")
            if self._thread is None:
                self._thread = threading.Thread(
                    target=_run, args=(self._calls,), name=self._name, daemon=True
                )
                self._thread.start()
            self._calls.put((call, future))
        return future

    def close(self, timeout_s: float | None = None) -> None:
        """Take no more calls, and wait for those that were given, at most so long; a second call only waits."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if not self._is_closed:
                self._calls.put(None)
            self._is_closed = True
        if self._thread is not None:
            self._thread.join(timeout_s)


def _run(calls: SimpleQueue[tuple[Callable[[], None], Future[None]] | None]) -> None:
    while (given := calls.get()) is not None:
        call, future = given
        try:
            call()
        except BaseException as error:  # one that is never completed would block its caller
            future.set_exception(error)
        else:
            future.set_result(None)
        # A thread that waits for the next call keeps no tensors of this one.
        del given, call, future


@atexit.register
def _close_all() -> None:
    for thread in list(_threads):
        thread.close(_EXIT_S)
