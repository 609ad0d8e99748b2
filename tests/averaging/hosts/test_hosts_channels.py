"""Channels between hosts without other processes: messages by a store, and what MPI must be able to do."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from token_files import credentials

from softs_fast.averaging.hosts import torch_channel
from softs_fast.averaging.hosts.channel import PIECE_BYTES
from softs_fast.averaging.hosts.mpi_channel import require_threads
from softs_fast.averaging.hosts.torch_channel import TorchChannel
from softs_fast.collectives import LinkStore, StoreServer
from softs_fast.errors import ConfigError, PeerLost
from softs_fast.trust import write_token


@pytest.fixture(params=["clone", "older torch"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dist.Store:
    if request.param == "older torch":
        monkeypatch.delattr(dist.Store, "clone")
    return dist.HashStore()


def test_messages_arrive_once_in_order_and_leave_nothing(store: dist.Store) -> None:
    one, other = (TorchChannel(store, "name", rank, [1 - rank]) for rank in range(2))
    assert other.receive() == []
    for number in range(5):
        one.send(1, bytes([number]))
    assert other.receive() == [(0, bytes([number])) for number in range(5)]
    assert other.receive() == []
    one.send(1, b"\x00\xff")
    assert other.receive() == [(0, b"\x00\xff")]
    assert one.receive() == []
    # The two counters.
    assert store.num_keys() == 2


def test_groups_of_other_names_and_ranks_of_no_concern_are_not_heard(store: dist.Store) -> None:
    one = TorchChannel(store, "name", 0, [1])
    TorchChannel(store, "other name", 1, [0]).send(0, b"other group")
    TorchChannel(store, "name", 2, [0]).send(0, b"rank 2")
    TorchChannel(store, "name", 1, [0]).send(0, b"rank 1")
    assert one.receive() == [(1, b"rank 1")]


def test_a_message_that_is_counted_and_not_written_holds_up_no_other(
    store: dist.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (TorchChannel(store, "name", rank, [1 - rank]) for rank in range(2))
    now_s = [0.0]
    monkeypatch.setattr(torch_channel, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    place = dist.PrefixStore("softs.averaging.name", store)
    place.add("1.count", 2)
    one.send(1, b"third")
    assert other.receive() == [(0, b"third")]
    place.set("1.2", (bytes(4) + b"second").hex())
    assert other.receive() == [(0, b"second")]
    now_s[0] = torch_channel._WRITTEN_S
    assert other.receive() == []
    assert other._unwritten == {}, "it is not looked for any more"


def test_many_messages_are_taken_in_several_calls(store: dist.Store) -> None:
    one, other = (TorchChannel(store, "name", rank, [1 - rank]) for rank in range(2))
    for _ in range(torch_channel._MOST_AT_ONCE + 1):
        one.send(1, b"")
    assert len(other.receive()) == torch_channel._MOST_AT_ONCE
    assert len(other.receive()) == 1


def channels(monkeypatch: pytest.MonkeyPatch, tokens: list[Path]) -> list[TorchChannel]:
    """Return a channel of each of two ranks, of which the processes have these token files."""
    store, found = dist.HashStore(), []
    for rank, token in enumerate(tokens):
        monkeypatch.setenv("SOFTS_FAST_TOKEN_FILE", str(token))
        found.append(TorchChannel(store, "name", rank, [1 - rank]))
    return found


def transfer(ends: list[TorchChannel], memory: torch.Tensor) -> bytes:
    """Send memory from rank 0 to rank 1."""
    arrived = bytearray()
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(lambda: ends[0].stream(0, 1, 7).send(memory))
        stream = ends[1].stream(0, 1, 7)
        stream.receive(len(memory), lambda at, piece: arrived.extend(piece.numpy().tobytes()))
        stream.close()
        sent.result()
    return bytes(arrived)


def test_weights_go_between_holders_of_one_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="makes certificates")
    own, other = tmp_path / "own", tmp_path / "other"
    for path in (own, other):
        write_token(path)
    memory = (torch.arange(3 * PIECE_BYTES // 2) % 251).to(torch.uint8)
    assert transfer(channels(monkeypatch, [own, own]), memory) == memory.numpy().tobytes()
    with pytest.raises(PeerLost, match="have different tokens"):
        transfer(channels(monkeypatch, [own, other]), memory)


def test_weights_go_by_the_token_of_the_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="makes certificates")
    monkeypatch.setenv("SOFTS_FAST_TOKEN_FILE", str(tmp_path / "none"))
    shown = credentials("a")
    with closing(StoreServer("127.0.0.1", credentials=shown)) as server:
        stores = [LinkStore(*server.address, credentials=shown) for _ in range(2)]
        ends = [TorchChannel(store, "name", rank, [1 - rank]) for rank, store in enumerate(stores)]
        assert transfer(ends, torch.ones(9, dtype=torch.uint8)) == b"\1" * 9


class FarStore(dist.HashStore):
    """A TCPStore of another host."""

    host, port = "192.0.2.1", 29500


def test_messages_go_into_no_store_that_anyone_of_another_host_reaches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = FarStore()
    monkeypatch.setattr(dist, "TCPStore", FarStore)
    with pytest.raises(
        ConfigError, match=r"in a store of torch at 192\.0\.2\.1:29500, which checks no token"
    ):
        TorchChannel(dist.PrefixStore("default_pg", store), "name", 0, [1])
    monkeypatch.setattr(FarStore, "host", "127.0.0.1")
    TorchChannel(store, "name", 0, [1])


def test_a_store_that_has_gone_is_a_lost_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    channel = TorchChannel(dist.HashStore(), "name", 0, [1])

    def fail(*_: Any) -> Any:
        raise RuntimeError("Connection reset by peer")

    channel._store = SimpleNamespace(add=fail)  # type: ignore[assignment]
    for call in (channel.receive, lambda: channel.send(1, b"")):
        with pytest.raises(PeerLost, match="Connection reset by peer"):
            call()


@pytest.mark.parametrize("level", ["SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE"])
def test_mpi_must_serve_threads(level: str) -> None:
    levels = {f"THREAD_{name}": n for n, name in enumerate(["SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE"])}
    mpi = SimpleNamespace(**levels, Query_thread=lambda: levels[f"THREAD_{level}"])
    if level == "MULTIPLE":
        require_threads(mpi)
        return
    with pytest.raises(ConfigError, match=f"initialized with THREAD_{level}; .* need THREAD_MULTIPLE"):
        require_threads(mpi)
