"""A `torch.distributed.Store` in the coordinator: engines find each other without one more open port."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import Store

from ...errors import PeerLost
from ...trust import Der
from ..job.messages import Table
from ..wire.requests import KeysReply, KeysRequest, Operation
from .session import Session

__all__ = ["SessionStore"]

#: Time for the way to the coordinator and back, beside that for which it waits.
_CALL_S = 10.0
#: Longest time of the wire, milliseconds.
_MAX_MS = (1 << 32) - 1


class SessionStore(Store):
    """The keys of one epoch; they are gone when it is over, and all calls raise `PeerLost` then.

    Keep a reference to it as long as an engine uses it: torch keeps none.

    Args:
        session: Session of a member of the epoch.
        job: Name of the job.
        table: Table of the epoch.
        timeout_s: Seconds that get and wait wait for keys, if no call says otherwise.
        prefix: Text in front of all keys: some members may have a store among themselves.
    """

    def __init__(
        self, session: Session, job: str, table: Table, timeout_s: float = 300.0, prefix: str = ""
    ) -> None:
        super().__init__()
        self._session = session
        self._job = job
        self._table = table
        self._timeout = timedelta(seconds=timeout_s)
        self._prefix = prefix
        self._is_told: list[Callable[[str], object]] = []
        self._over = ""

    @property
    def own_host(self) -> str:
        """The address of this machine on the way to the coordinator."""
        return self._session.own_host

    @property
    def credentials(self) -> Der | None:
        """Certificates that members show each other, as each shows its own to the coordinator; None without them."""
        return self._session.credentials

    def when_over(self, tell: Callable[[str], object]) -> None:
        """Have a function called with the reason when the epoch is over, from another thread.

        An engine ends its calls by it. What it calls must not wait for any of them.
        """
        self._is_told.append(tell)

    def end(self, reason: str) -> bool:
        """Say that the epoch is over; return whether anything was to be told. Calls raise PeerLost from now on."""
        self._over = self._over or reason
        for tell in self._is_told:
            tell(reason)
        return bool(self._is_told)

    def set(self, key: str, value: str | bytes) -> None:
        """Set a key to a value of 64 KiB at most."""
        self._do("set", (key,), value=value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        """Return the value of a key, as soon as it is set."""
        return self._do("get", (key,), timeout=self._timeout).value

    def add(self, key: str, amount: int) -> int:
        """Add to a number, which is 0 at first, and return the sum."""
        return self._do("add", (key,), amount=amount).number

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are set."""
        if keys:
            self._do("wait", tuple(keys), timeout=timeout or self._timeout)

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys are set."""
        return not keys or self._do("check", tuple(keys)).found

    def delete_key(self, key: str) -> bool:
        """Delete a key; return whether there was one."""
        return self._do("delete", (key,)).found

    # By this name torch calls it from behind a prefix.
    deleteKey = delete_key

    def set_timeout(self, timeout: timedelta) -> None:
        """Have get and wait wait for so long."""
        self._timeout = timeout

    @property
    def timeout(self) -> timedelta:
        """How long get and wait wait."""
        return self._timeout

    def _do(
        self,
        operation: Operation,
        keys: tuple[str, ...],
        value: bytes = b"",
        amount: int = 0,
        timeout: timedelta = timedelta(0),
    ) -> KeysReply:
        if self._over:
            raise PeerLost(self._over)
        seconds = max(timeout.total_seconds(), 0.0)
        milliseconds = min(round(seconds * 1000), _MAX_MS)
        table = self._table
        names = tuple(self._prefix + key for key in keys)
        request = KeysRequest(
            self._job, table.boot, table.epoch, operation, names, value, amount, milliseconds
        )
        reply: Any = self._session.request(request, seconds + _CALL_S)
        assert isinstance(reply, KeysReply)
        return reply
