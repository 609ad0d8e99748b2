"""The keys of an epoch, in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

pytest.importorskip("google.protobuf", reason="needs the extra grpc")
from softs_fast.coordination.job.messages import Follow, Member, Table
from softs_fast.coordination.server import keys as module
from softs_fast.coordination.server.keys import Keys, KeysMissing
from softs_fast.coordination.wire.requests import KeysReply, KeysRequest, Operation
from softs_fast.errors import PeerLost, WireError

MEMBERS = (Member(0, 0, "a", 1, ""), Member(1, 1, "b", 1, ""))


def table(epoch: int) -> Table:
    return Table(7, epoch, MEMBERS, 0, "back", (), None)


class Store:
    """The keys of epoch 1, as a member sees them."""

    def __init__(self) -> None:
        self.keys = Keys()
        self.keys.open(table(1))

    def __call__(
        self, operation: Operation, *names: str, identity: str | None = None, epoch: int = 1, **more: Any
    ) -> Coroutine[Any, Any, KeysReply]:
        return self.keys.apply(KeysRequest("job", 7, epoch, operation, names, **more), identity)


def test_what_the_operations_do() -> None:
    async def scenario() -> None:
        do = Store()
        await do("set", "k", value=b"1")
        assert (await do("get", "k")).value == b"1"
        assert (await do("add", "k", amount=4)).number == 5
        assert (await do("add", "new", amount=-2)).number == -2
        assert (await do("get", "k")).value == b"5"
        assert (await do("check", "k", "new")).found
        assert not (await do("check", "k", "other")).found
        assert (await do("delete", "k")).found
        assert not (await do("delete", "k")).found
        with pytest.raises(KeysMissing, match="1 of 2 keys of epoch 1 were not set within 0 s: 'k'"):
            await do("wait", "new", "k")

    asyncio.run(scenario())


def test_a_wait_ends_when_the_last_key_is_set() -> None:
    async def scenario() -> None:
        do = Store()
        waiting = asyncio.ensure_future(do("wait", "a", "b", deadline_ms=60_000))
        getting = asyncio.ensure_future(do("get", "b", deadline_ms=60_000))
        for name in ("b", "a"):
            await asyncio.sleep(0)
            assert not waiting.done()
            await do("set", name, value=b"v")
        await waiting
        assert (await getting).value == b"v"

    asyncio.run(scenario())


def test_keys_are_dropped_with_their_epoch_and_waits_end() -> None:
    async def scenario() -> None:
        do = Store()
        await do("set", "k", value=b"old")
        waiting = asyncio.ensure_future(do("get", "other", deadline_ms=60_000))
        await asyncio.sleep(0)
        do.keys.open(table(1))
        await asyncio.sleep(0)
        assert not waiting.done(), "the same table again changes nothing"
        do.keys.open(table(2))
        with pytest.raises(PeerLost, match="epoch 1 is over"):
            await waiting
        assert not (await do("check", "k", epoch=2)).found
        with pytest.raises(PeerLost, match="epoch 1 is over"):
            await do("get", "k")
        do.keys.close()
        with pytest.raises(PeerLost, match="epoch 2 is over"):
            await do("set", "k", epoch=2)

    asyncio.run(scenario())


def test_only_members_have_keys() -> None:
    async def scenario() -> None:
        do = Store()
        await do("set", "k", identity="a")
        with pytest.raises(PeerLost, match='"c" is no member of epoch 1'):
            await do("get", "k", identity="c")

    asyncio.run(scenario())


def test_workers_of_a_copy_beside_steps_have_keys_until_another_one_begins() -> None:
    members = (Member(0, 0, "a", 1, ""), Member(1, 2, "c", 1, ""))
    copy = Table(7, 1, members, 0, "back", (0,), 0)

    async def scenario() -> None:
        do = Store()
        do.keys.admit(Follow(copy, 1))
        await do("set", "follow/1/k", identity="c")
        await do("set", "k", identity="a")
        waiting = asyncio.ensure_future(do("get", "follow/1/never", identity="c", deadline_ms=60_000))
        other = asyncio.ensure_future(do("get", "never", identity="a", deadline_ms=60_000))
        await asyncio.sleep(0)
        do.keys.admit(Follow(copy, 1))
        assert (await do("check", "follow/1/k")).found, "it was told again"
        do.keys.admit(Follow(copy, 2))
        with pytest.raises(PeerLost, match="another copy has begun"):
            await waiting
        for key in ("follow/1/k", "follow/3/k", "follow/"):
            with pytest.raises(PeerLost, match="another copy has begun"):
                await do("set", key)
        assert not (await do("check", "follow/2/k")).found
        assert (await do("check", "k")).found
        assert not other.done()
        do.keys.close()
        with pytest.raises(PeerLost, match="epoch 1 is over"):
            await other

    asyncio.run(scenario())


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BASE", 1)
    monkeypatch.setattr(module, "_PER_MEMBER", 1)
    monkeypatch.setattr(module, "_MAX_BYTES", 100)
    monkeypatch.setattr(module, "_MAX_WAITS", 1)

    async def scenario() -> None:
        do = Store()
        for name in "abc":
            await do("set", name, value=b"1")
        with pytest.raises(WireError, match="has 3 keys"):
            await do("set", "d")
        await do("set", "a", value=bytes(95))
        with pytest.raises(WireError, match="100 at most"):
            await do("set", "b", value=bytes(50))
        with pytest.raises(WireError, match="is no number"):
            await do("add", "a", amount=1)
        with pytest.raises(WireError, match="passes 64 bits"):
            await do("add", "b", amount=(1 << 63) - 1)
        await do("delete", "a")
        await do("set", "b", value=bytes(90))
        waiting = asyncio.ensure_future(do("get", "x", deadline_ms=60_000))
        await asyncio.sleep(0)
        with pytest.raises(WireError, match="1 calls wait"):
            await do("get", "y", deadline_ms=60_000)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        with pytest.raises(KeysMissing):
            await do("get", "y", deadline_ms=1)

    asyncio.run(scenario())
