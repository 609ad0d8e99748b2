"""A thread that tells the server that the worker is alive, however long a step takes, and whether it makes progress."""

from __future__ import annotations

import logging
import threading

from ...errors import SoftsError
from ..wire import answers
from ..wire.messages import Heartbeat
from ..wire.records import encode
from .exchanges import Call
from .session import Session

__all__ = ["Heartbeats"]

_log = logging.getLogger("softs_fast.paramserver")

#: Heartbeats within a lease: two may be lost.
_PER_LEASE = 3.0


class Heartbeats:
    """Renews the lease of a session until it is closed.

    Args:
        session: Session that has joined.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="softs-heartbeats", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread. One that is in a request ends with it; close the session to end that."""
        self._stop.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread.

        Args:
            timeout_s: seconds that it may take.
        """
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stop.wait(self._session.joined.config.lost_after_s / _PER_LEASE):
            try:
                self._session.attempt(
                    Call("POST", answers.HEARTBEAT, encode(Heartbeat(self._session.progress)))
                )
            except SoftsError as error:
                # The main thread sees the same with its next request, and knows what to do.
                _log.debug("heartbeat: %s", error)
