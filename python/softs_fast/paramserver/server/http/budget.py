"""What peers without a proof may cost, all together: requests, connections, bytes, lines of the log.

Workers behind a tunnel have one address, so no address is locked out.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...wire.answers import Code
from .request import failure

if TYPE_CHECKING:
    from .connection import Connection

__all__ = ["LOG", "Budget", "Sparse"]

#: Requests without a valid signature, per second in the long run, and at once.
_PER_SECOND, _BURST = 20.0, 200.0
#: Connections on which nothing has been proven, and bytes of bodies of which the signature is not checked yet.
_CONNECTIONS, _BYTES = 512, 16 << 20
#: Seconds between two lines of one kind.
_EVERY_S = 10.0


class Budget:
    """A bucket of tokens, which requests without a valid signature empty, and room for connections and bytes.

    When there is no more room, the oldest connection without a proof is closed, not the newest refused: a worker proves
    itself within milliseconds, so however many others hold on to theirs, a newcomer never waits for them.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tokens = _BURST
        self._since_s = clock()
        self._unproven: OrderedDict[Connection, None] = OrderedDict()
        self._held: OrderedDict[Connection, int] = OrderedDict()
        self._n_held = 0

    def spend(self) -> None:
        """Take a token for a request without a valid signature.

        Raises:
            Refusal: none is left.
        """
        now_s = self._clock()
        self._tokens = min(_BURST, self._tokens + (now_s - self._since_s) * _PER_SECOND)
        self._since_s = now_s
        if self._tokens < 1:
            raise failure(Code.BUSY, "too many requests without a valid signature", retry_s=1.0 / _PER_SECOND)
        self._tokens -= 1

    def arrived(self, peer: Connection) -> None:
        """Count a new connection."""
        self._unproven[peer] = None
        if len(self._unproven) > _CONNECTIONS:
            self._close(next(iter(self._unproven)))

    def hold(self, peer: Connection, n: int) -> None:
        """Count bytes of a body that nothing proves yet."""
        self._held[peer] = self._held.get(peer, 0) + n
        self._n_held += n
        while self._n_held > _BYTES:
            self._close(next(iter(self._held)))

    def release(self, peer: Connection) -> None:
        """Drop the bytes of a request that is answered."""
        self._n_held -= self._held.pop(peer, 0)

    def prove(self, peer: Connection) -> None:
        """Note a valid signature: of this request, and so of this connection."""
        self.release(peer)
        self._unproven.pop(peer, None)

    def left(self, peer: Connection) -> None:
        """Drop a connection that is closed."""
        self.prove(peer)

    def _close(self, peer: Connection) -> None:
        self.left(peer)
        peer.abort()


class Sparse(logging.Filter):
    """Lets a line of one kind pass once in ten seconds; the next one says how many have been left out.

    Args:
        clock: Seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        #: Time of the last line of each kind, and how many were left out since. Kinds are texts of the code, so they are few.
        self._last: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is written."""
        now_s = self._clock()
        last_s, n = self._last.get(str(record.msg), (now_s - _EVERY_S, 0))
        is_due = now_s >= last_s + _EVERY_S
        self._last[str(record.msg)] = (now_s, 0) if is_due else (last_s, n + 1)
        if is_due and n:
            record.msg = f"{record.msg} ({n} more in {now_s - last_s:.0f} s)"
        return is_due


#: For requests of peers that have not proven anything.
LOG = logging.getLogger("softs_fast.paramserver.http")
LOG.addFilter(Sparse())
