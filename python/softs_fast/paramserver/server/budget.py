"""What requests without a proof may cost. Workers behind a tunnel have one address, so no address is locked out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from http import HTTPStatus

from ..wire.answers import Code
from .exchange import failure

__all__ = ["Budget"]

#: Requests without a valid signature, per second in the long run, and at once.
_PER_SECOND, _BURST = 20.0, 200.0
#: Joins of which the body is read at a time: up to 2 MiB each.
_READING = 16


class Budget:
    """A bucket of tokens, which requests without a valid signature empty.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tokens = _BURST
        self._since_s = clock()
        self.reading = asyncio.Semaphore(_READING)

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
