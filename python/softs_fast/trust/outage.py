"""What a client makes of attempts to connect that fail. No clock: the time is an argument."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["CONNECT_S", "Attempt", "Outage"]

#: One of several hosts answers an attempt to connect within this, or the next one is tried.
CONNECT_S = 2.0
#: People are told once an outage has lasted so long.
_WARN_S = 3.0


@dataclass(frozen=True)
class Attempt:
    """What follows from an attempt that has failed.

    Attributes:
        is_warning: Whether people are to be told of the cause now.
        is_last: Whether no further attempt is made.
    """

    is_warning: bool = False
    is_last: bool = False


class Outage:
    """The time without a connection to one server, its cause, and at which of several hosts the next attempt is made.

    A host that accepts connections and does not answer must not keep a client from the others: each failure moves on. A
    certificate that is refused before the first connection is a mistake that time does not mend, so it is the last
    attempt. Later it may be one of two files that are being replaced: the client retries.

    Args:
        hosts: Addresses at which the server may be, in the order in which to try them.
        now_s: Time at which the client begins to connect.
        limit_s: Seconds without a connection after which no further attempt is made.

    Attributes:
        host: Address of the present attempt or connection.
        cause: Cause of the last failure at each host, in words; empty while there is a connection.
    """

    def __init__(self, hosts: Sequence[str], now_s: float, limit_s: float = math.inf) -> None:
        self.host, self.cause = hosts[0], ""
        self._turns = itertools.cycle((*hosts[1:], hosts[0]))
        self._causes: dict[str, str] = {}
        self._limit_s = limit_s
        self._since_s: float | None = now_s
        self._has_connected = False
        self._has_warned = False

    def connected(self) -> None:
        """The server has answered."""
        self.cause, self._since_s, self._has_connected, self._has_warned = "", None, True, False
        self._causes = {}

    def failed(self, now_s: float, cause: str, *, is_refusal: bool = False, moves: bool = True) -> Attempt:
        """Decide what follows from an attempt or a connection that has failed.

        Args:
            now_s: Present time.
            cause: Cause in words, with the address if there are several hosts.
            is_refusal: Whether one side does not accept the certificate of the other, or only one speaks TLS.
            moves: Whether the next attempt is made at the next host.
        """
        # Other threads may tell of a failure, too.
        self._causes = self._causes | {self.host: cause}
        self.cause = "; ".join(dict.fromkeys(self._causes.values()))
        if moves:
            self.host = next(self._turns)
        self._since_s = now_s if self._since_s is None else self._since_s
        lasted_s = now_s - self._since_s
        is_warning = lasted_s >= _WARN_S and not self._has_warned
        self._has_warned |= is_warning
        return Attempt(is_warning, (is_refusal and not self._has_connected) or lasted_s >= self._limit_s)
