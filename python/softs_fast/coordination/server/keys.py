"""The keys of the present epoch: a store through which its members find each other."""

from __future__ import annotations

import asyncio

from ...errors import PeerLost, SoftsError, WireError
from ..job.messages import FOLLOW_KEYS, Fence, Follow, Table
from ..wire.requests import KeysReply, KeysRequest

__all__ = ["Keys", "KeysMissing"]

#: Keys of one epoch: per member, and for all together.
_PER_MEMBER, _BASE = 256, 4096
#: Bytes of keys and values.
_MAX_BYTES = 256 << 20
#: Calls that wait for keys.
_MAX_WAITS = 65_536
#: A sum is a number of 64 bits.
_MAX_SUM = 1 << 63


class KeysMissing(SoftsError, TimeoutError):
    """Keys were not set before the deadline; the text names them."""


class Keys:
    """The store. It belongs to one event loop, and is empty again with each epoch.

    Attributes:
        table: Table of the open epoch; None if no epoch is open, or a coordinator before opened it.
    """

    def __init__(self) -> None:
        self.table: Table | None = None
        self._members: frozenset[str] = frozenset()
        self._follow: Follow | None = None
        self._values: dict[str, bytes] = {}
        self._n_bytes = 0
        self._n_waits = 0
        self._changed: dict[str, set[asyncio.Future[None]]] = {}

    def open(self, table: Table) -> None:
        """Begin the epoch of a table; the same one again changes nothing."""
        if self._is_of(table.boot, table.epoch):
            return
        self.close()
        self.table = table
        self._members = frozenset(member.worker_id for member in table.members)

    def admit(self, follow: Follow) -> None:
        """Let the workers of a copy beside steps use the store, too; that of earlier copies is over."""
        if follow == self._follow:
            return
        self._follow = follow
        self._members |= {member.worker_id for member in follow.table.members}
        for key in [key for key in self._values if key.startswith(FOLLOW_KEYS)]:
            self._delete(key)
        self._end_waits("another copy has begun", FOLLOW_KEYS)

    def _is_of(self, boot: int, epoch: int) -> bool:
        return self.table is not None and (self.table.boot, self.table.epoch) == (boot, epoch)

    def _end_waits(self, reason: str, prefix: str = "") -> None:
        for key in [key for key in self._changed if key.startswith(prefix)]:
            for future in self._changed.pop(key):
                if not future.done():
                    future.set_exception(PeerLost(reason))

    def fence(self, fence: Fence) -> None:
        """End the epoch at once if a fence is of it: a worker that was in another one is told of that."""
        if not fence.planned and self._is_of(fence.boot, fence.epoch):
            self.close()

    def close(self) -> None:
        """End the epoch, if one is open: all that wait are told."""
        if self.table is not None:
            self._end_waits(f"epoch {self.table.epoch} is over, and with it its keys")
        self.table = self._follow = None
        self._values.clear()
        self._n_bytes = 0

    async def apply(self, request: KeysRequest, identity: str | None) -> KeysReply:
        """Do an operation.

        Raises:
            PeerLost: the epoch is not the present one, or ends meanwhile, or the caller is no member of it.
            KeysMissing: keys were not set before the deadline.
            WireError: the store is full, or a sum of a value that is no number is asked for.
        """
        if not self._is_of(request.boot, request.epoch):
            raise PeerLost(
                f"epoch {request.epoch} is over, or was never opened by this coordinator; its keys are gone"
            )
        if identity is not None and identity not in self._members:
            raise PeerLost(f'"{identity}" is no member of epoch {request.epoch}, so it has none of its keys')
        key = request.keys[0]
        present = "" if self._follow is None else self._follow.key_prefix
        if key.startswith(FOLLOW_KEYS) and not (present and key.startswith(present)):
            raise PeerLost("another copy has begun")
        match request.operation:
            case "set":
                self._set(key, request.value)
                return KeysReply()
            case "add":
                return KeysReply(number=self._add(key, request.amount))
            case "check":
                return KeysReply(found=all(one in self._values for one in request.keys))
            case "delete":
                return KeysReply(found=self._delete(key))
            case "get" | "wait":
                await self._wait(request)
                return KeysReply(value=self._values[key] if request.operation == "get" else b"")

    def _set(self, key: str, value: bytes) -> None:
        before = self._values.get(key)
        more = len(value) - (-len(key.encode()) if before is None else len(before))
        if before is None and len(self._values) >= _BASE + _PER_MEMBER * len(self._members):
            raise WireError(f"the store has {len(self._values)} keys, the most that it may have; delete some")
        if self._n_bytes + more > _MAX_BYTES:
            raise WireError(f"the store has {self._n_bytes} bytes; {_MAX_BYTES} at most")
        self._n_bytes += more
        self._values[key] = value
        for future in self._changed.pop(key, ()):
            if not future.done():
                future.set_result(None)

    def _add(self, key: str, amount: int) -> int:
        before = self._values.get(key, b"0")
        try:
            total = int(before) + amount
        except ValueError:
            raise WireError(
                f"cannot add to key {key[:200]!r}: its value of {len(before)} bytes is no number"
            ) from None
        if not -_MAX_SUM <= total < _MAX_SUM:
            raise WireError(f"the sum of key {key[:200]!r} passes 64 bits")
        self._set(key, str(total).encode())
        return total

    def _delete(self, key: str) -> bool:
        value = self._values.pop(key, None)
        if value is None:
            return False
        self._n_bytes -= len(value) + len(key.encode())
        return True

    async def _wait(self, request: KeysRequest) -> None:
        """Wait until all keys are there at once."""
        keys, timeout_s = request.keys, request.deadline_ms / 1e3
        try:
            async with asyncio.timeout(timeout_s):
                while missing := [key for key in keys if key not in self._values]:
                    await self._next_set(missing[0])
        except TimeoutError:
            missing = [key for key in keys if key not in self._values]
            named = ", ".join(repr(key[:200]) for key in missing[:4])
            raise KeysMissing(
                f"{len(missing)} of {len(keys)} keys of epoch {request.epoch} were not set within {timeout_s:g} s: {named}"
            ) from None

    async def _next_set(self, key: str) -> None:
        if self._n_waits >= _MAX_WAITS:
            raise WireError(f"{_MAX_WAITS} calls wait for keys, the most that may")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changed.setdefault(key, set()).add(future)
        self._n_waits += 1
        try:
            await future
        finally:
            self._n_waits -= 1
            waiting = self._changed.get(key)
            if waiting is not None:
                waiting.discard(future)
                if not waiting:
                    del self._changed[key]
