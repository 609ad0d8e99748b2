"""A key-value store with calls that end: that of torch waits for its server without a limit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from softs_fast.collectives.rendezvous import KeyValueStore
from softs_fast.errors import PeerLost
from softs_fast.trust import Der

_T = TypeVar("_T")


class BoundedStore:
    """Another store, of which each call ends after a time, and fails with PeerLost.

    A call that does not end stays in a thread, which holds no tensor, until the server answers or is gone.

    Args:
        store: the store.
        timeout_s: seconds for each call.
    """

    def __init__(self, store: KeyValueStore, timeout_s: float) -> None:
        self._store = store
        self._timeout_s = timeout_s

    @property
    def server(self) -> tuple[str, int] | None:
        """Host and port of the process that serves the store."""
        return self._store.server

    @property
    def credentials(self) -> Der | None:
        """What its server and this process show each other."""
        return self._store.credentials

    def set(self, key: str, value: bytes) -> None:
        """Store a value."""
        self._bounded(lambda: self._store.set(key, value))

    def get(self, key: str) -> bytes | None:
        """Return a value, or None."""
        return self._bounded(lambda: self._store.get(key))

    def delete(self, key: str) -> None:
        """Remove a value, if it exists."""
        self._bounded(lambda: self._store.delete(key))

    def decide(self, key: str, value: bytes) -> None:
        """Store a value, unless there is one."""
        self._bounded(lambda: self._store.decide(key, value))

    def decided(self, key: str) -> bytes | None:
        """Return the value that `decide` has stored; or None."""
        return self._bounded(lambda: self._store.decided(key))

    def _bounded(self, call: Callable[[], _T]) -> _T:
        result = in_thread(call, "softs-store")
        try:
            return result.result(self._timeout_s)
        except TimeoutError as error:
            raise PeerLost(
                f"the store has not answered for {self._timeout_s} s: the process that serves it is stopped or cannot be "
                "reached; its loss cannot be survived, start all ranks anew"
            ) from error
        except (RuntimeError, PeerLost) as error:
            raise PeerLost(
                f"the store has failed, and the loss of the process that serves it cannot be survived: {error}; start all "
                "ranks anew"
            ) from error


def in_thread(call: Callable[[], _T], name: str) -> Future[_T]:
    """Begin a call in a thread that does not hold up the end of the process; return its future."""
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # raised where the result is looked at
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
