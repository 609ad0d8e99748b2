"""What a client makes of attempts to connect that fail. No clock: the time is an argument."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Attempt", "Outage"]

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
    """The time without a connection to one server, and its cause.

    A certificate that is refused before the first connection is a mistake that time does not mend, so it is the last
    attempt. Later it may be one of two files that are being replaced: the client retries.

    Args:
        now_s: Time at which the client begins to connect.
        limit_s: Seconds without a connection after which no further attempt is made.

    Attributes:
        cause: Cause of the last failure in words; empty while there is a connection.
    """

    def __init__(self, now_s: float, limit_s: float = math.inf) -> None:
        self.cause = ""
        self._limit_s = limit_s
        self._since_s: float | None = now_s
        self._has_connected = False
        self._has_warned = False

    def connected(self) -> None:
        """The server has answered."""
        self.cause, self._since_s, self._has_connected, self._has_warned = "", None, True, False

    def failed(self, now_s: float, cause: str, *, is_refusal: bool = False) -> Attempt:
        """Decide what follows from an attempt or a connection that has failed.

        Args:
            now_s: Present time.
            cause: Cause in words.
            is_refusal: Whether one side does not accept the certificate of the other, or only one speaks TLS.
        """
        self.cause = cause
        self._since_s = now_s if self._since_s is None else self._since_s
        lasted_s = now_s - self._since_s
        is_warning = lasted_s >= _WARN_S and not self._has_warned
        self._has_warned |= is_warning
        return Attempt(is_warning, (is_refusal and not self._has_connected) or lasted_s >= self._limit_s)
