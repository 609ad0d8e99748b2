"""What peers without a proof may cost, all together. Workers behind a tunnel have one address, so no address is locked out."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol

from ..wire.answers import Code
from .exchange import failure

__all__ = ["Budget", "Peer"]

#: Requests without a valid signature, per second in the long run, and at once.
_PER_SECOND, _BURST = 20.0, 200.0
#: Connections on which nothing has been proven, and bytes of bodies of which the signature is not checked yet.
_CONNECTIONS, _BYTES = 512, 16 << 20


class Peer(Protocol):
    """A connection."""

    def abort(self) -> None:
        """Close it at once."""


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
        self._unproven: OrderedDict[Peer, None] = OrderedDict()
        self._held: OrderedDict[Peer, int] = OrderedDict()
        self._n_held = 0

    def check(self) -> None:
        """Raise if nothing is left.

        Raises:
            Refusal: too many requests had no valid signature.
        """
        now_s = self._clock()
        self._tokens = min(_BURST, self._tokens + (now_s - self._since_s) * _PER_SECOND)
        self._since_s = now_s
        if self._tokens < 1:
            raise failure(
                HTTPStatus.TOO_MANY_REQUESTS,
                Code.BUSY,
                "too many requests without a valid signature",
                retry_s=1.0 / _PER_SECOND,
            )

    def spend(self) -> None:
        """Take one.

        Raises:
            Refusal: none is left.
        """
        self.check()
        self._tokens -= 1

    def arrived(self, peer: Peer) -> None:
        """Count a new connection."""
        self._unproven[peer] = None
        if len(self._unproven) > _CONNECTIONS:
            self._close(next(iter(self._unproven)))

    def hold(self, peer: Peer, n: int) -> None:
        """Count bytes of a body that nothing proves yet."""
        self._held[peer] = self._held.get(peer, 0) + n
        self._n_held += n
        while self._n_held > _BYTES:
            self._close(next(iter(self._held)))

    def release(self, peer: Peer) -> None:
        """Drop the bytes of a request that is answered."""
        self._n_held -= self._held.pop(peer, 0)

    def prove(self, peer: Peer) -> None:
        """Note a valid signature: of this request, and so of this connection."""
        self.release(peer)
        self._unproven.pop(peer, None)

    def left(self, peer: Peer) -> None:
        """Drop a connection that is closed."""
        self.prove(peer)

    def _close(self, peer: Peer) -> None:
        self.left(peer)
        peer.abort()
