"""When a worker tries again, when it asks for another URL, and when it gives up. No clock: the time is an argument.

Source: full jitter, "Exponential Backoff and Jitter" (Brooker, AWS Architecture Blog, 2015).
"""

from __future__ import annotations

import enum

from ...errors import PeerLost

__all__ = ["Retries", "Trouble"]

_SHORTEST_S, _LONGEST_S = 0.2, 20.0
#: A server that starts again in two seconds is met at once, and one that was away for a minute soon: no pause is longer
#: than this part of the time without an answer, or than this many seconds.
_PART, _SHORT_S = 1 / 8, 0.4
#: A server or a proxy may ask for a longer pause; this much is granted.
_MOST_ASKED_S = 60.0
#: Pages of another server, or no such name, for so long: the tunnel has moved.
_MOVED_S = 60.0


class Trouble(enum.Enum):
    """Why there is no answer of the server."""

    #: The connection was refused, was cut, or no byte came in time.
    CUT = "the connection was lost"
    NO_NAME = "the name of the host is unknown"
    #: An answer without the server's signature: an error page of a proxy, another server.
    FOREIGN = "a page of another server arrived"
    #: The server asks for a pause: 429 or 503.
    BUSY = "the server is busy"
    #: TLS: the certificate is not accepted, or only one end speaks TLS.
    CERTIFICATE = "the TLS of one end is not accepted by the other"


class Retries:
    """The state of one chain of attempts. It ends with an answer that has the server's signature.

    Args:
        rejoin_timeout_s: Seconds that the server may be out of reach.
    """

    def __init__(self, rejoin_timeout_s: float) -> None:
        self._rejoin_timeout_s = rejoin_timeout_s
        self._since: float | None = None
        self._moved_since: float | None = None
        self.n_failed = 0

    def answered(self) -> None:
        """An answer with the server's signature has arrived."""
        self._since = self._moved_since = None
        self.n_failed = 0

    def failed(
        self, now: float, trouble: Trouble, draw: float, *, asked_s: float = 0.0, cause: str = ""
    ) -> tuple[float, bool]:
        """Decide what follows an attempt without an answer.

        Args:
            now: Seconds of a clock that never goes backwards.
            trouble: Cause of the failure.
            draw: Random number of [0, 1).
            asked_s: Seconds that Retry-After asks for; 0 without it.
            cause: Cause of the last failure at each host in words, for the text.

        Returns:
            Seconds until the next attempt; and whether the URL is read again, or asked for, before that.

        Raises:
            PeerLost: The server was out of reach for too long.
        """
        self._since = now if self._since is None else self._since
        if now - self._since >= self._rejoin_timeout_s:
            raise PeerLost(
                f"no answer of the server for {now - self._since:.0f} s, {self.n_failed + 1} attempts; "
                f"the last: {cause or trouble.value}; "
                "look whether the server runs and the URL is still its own, or give more --rejoin-timeout"
            )
        most = min(
            _LONGEST_S,
            _SHORTEST_S * 2.0 ** min(self.n_failed, 30),
            max(_SHORT_S, (now - self._since) * _PART),
        )
        self.n_failed += 1
        seconds = max(draw * most, min(asked_s, _MOST_ASKED_S))
        if trouble not in (Trouble.FOREIGN, Trouble.NO_NAME, Trouble.CERTIFICATE):
            self._moved_since = None
            return seconds, False
        self._moved_since = now if self._moved_since is None else self._moved_since
        if now - self._moved_since < _MOVED_S:
            return seconds, False
        # From here on, and again after each further minute.
        self._moved_since = now
        return seconds, True
