"""Rank 0 and streams that break the rules: refused in words, and no rank takes the place of another."""

from __future__ import annotations

import logging
import queue
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from patience import pings
from waiting import WATCHDOG_S, free_ports

pytest.importorskip("google.protobuf", reason="needs the extra grpc")
from softs_fast.coordination.requirements import import_grpc
from softs_fast.coordination.star.calls import AHEAD
from softs_fast.coordination.star.leaf import Leaf
from softs_fast.coordination.star.messages import (
    METHOD,
    PROTOCOL,
    SERVICE,
    Differ,
    Envelope,
    Join,
    Late,
    Leave,
    Lost,
    Part,
    Said,
    StarProcess,
    Welcome,
    decode,
    encode,
)
from softs_fast.coordination.star.options import Epoch, StarOptions
from softs_fast.coordination.star.root import Root
from softs_fast.errors import ConfigError, PeerLost
from softs_fast.trust import handshake

pytest.importorskip("grpc", reason="needs the extra grpc")

SIZE = 3
EPOCH = Epoch(7, 4)
PIECE = 4096


class Stream:
    """A stream to rank 0 on which a test sends what it likes."""

    def __init__(self, address: str) -> None:
        self.grpc = import_grpc()
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        self._channel = self.grpc.insecure_channel(address, options)
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        call = self._channel.stream_stream(f"/{SERVICE}/{METHOD}")
        self._call: Any = call(iter(self._outbox.get, None), timeout=WATCHDOG_S)

    def raw(self, data: bytes) -> None:
        """Send bytes."""
        self._outbox.put(data)

    def send(self, message: Said, rank: int = 1, boot: int = 7, epoch: int = 4) -> None:
        """Send a message."""
        self.raw(encode(Envelope(boot, epoch, rank), message))

    def join(self, rank: int, **options: int) -> Stream:
        """Join, and read the answer; the stream."""
        self.send(JOIN, rank, **options)
        assert isinstance(self.next(), Welcome)
        return self

    def next(self) -> Said:
        """Return the next message."""
        return decode(next(self._call))[1]

    def lost(self) -> str:
        """Return why the group is over."""
        while not isinstance(message := self.next(), Lost):
            assert isinstance(message, Part | Differ)
        return message.text

    def refused(self) -> tuple[str, str]:
        """Return the status with which the stream ends."""
        with pytest.raises(self.grpc.RpcError) as raised:
            self.next()
        error: Any = raised.value
        return error.code().name, error.details()

    def close(self) -> None:
        """End it."""
        self._outbox.put(None)
        self._call.cancel()
        self._channel.close()
        # pytest keeps fixtures for longer than gRPC may keep its descriptors.
        del self._call, self._channel


JOIN = Join(SIZE, PIECE, PROTOCOL, StarProcess.this())
Connect = Callable[[], Stream]


@pytest.fixture
def root() -> Iterator[Root]:
    """Rank 0 of three."""
    options = StarOptions(piece_bytes=PIECE)
    root = Root(SIZE, EPOCH, options, WATCHDOG_S, logging.getLogger("test"))
    yield root
    root.give_up("the test is over")
    root.close()


@pytest.fixture
def connect(root: Root) -> Iterator[Connect]:
    """Makes streams that end with the test."""
    streams = []

    def stream() -> Stream:
        streams.append(Stream(root.address))
        return streams[-1]

    yield stream
    for one in streams:
        one.close()


def test_a_second_process_of_a_rank_is_refused_and_the_first_stays(root: Root, connect: Connect) -> None:
    first = connect().join(1)
    second = connect()
    second.send(JOIN, 1)
    code, text = second.refused()
    assert code == "FAILED_PRECONDITION"
    own = StarProcess.this()
    assert text == f"{own} joins as rank 1, which is taken by {own}"
    assert root.n_refused == 1
    first.send(Part(1, 0, 0, b""), 1)
    first.send(Late(1), 1)
    assert "missing: rank 0 (process" in first.lost()


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"epoch": 3}, "is of epoch 3 (boot 0000000000000007); this group is of epoch 4"),
        ({"boot": 8}, "is of epoch 4 (boot 0000000000000008); this group is of epoch 4"),
        ({"rank": 0}, "joins as rank 0; this group has the ranks 1 to 2"),
        ({"rank": 3}, "joins as rank 3; this group has the ranks 1 to 2"),
    ],
)
def test_a_rank_of_another_epoch_or_out_of_range_is_refused(
    connect: Connect, change: dict[str, int], wanted: str
) -> None:
    stream = connect()
    stream.send(JOIN, **change)
    code, text = stream.refused()
    assert code == "FAILED_PRECONDITION"
    assert wanted in text
    assert f"process {StarProcess.this().pid} on " in text


def test_a_message_of_an_older_epoch_ends_the_group(connect: Connect) -> None:
    stream, other = connect().join(1), connect().join(2)
    stream.send(Part(1, 0, 0, b""), 1, epoch=3)
    for one in (stream, other):
        text = one.lost()
        assert "rank 1 (process" in text
        assert "a message of rank 1 of epoch 3" in text
        assert "came on the stream of rank 1 of epoch 4" in text


def test_a_rank_cannot_send_for_another_one(connect: Connect) -> None:
    stream = connect().join(1)
    stream.send(Part(1, 0, 0, b""), 2)
    assert "a message of rank 2 of epoch 4" in stream.lost()


def test_more_pieces_than_rank_0_takes_end_the_group(connect: Connect) -> None:
    stream = connect().join(2)
    for piece in range(AHEAD + 1):
        stream.send(Part(1, 0, piece, bytes(PIECE)), 2)
    assert f"rank 2 sent {AHEAD + 1} pieces that rank 0 has not taken; {AHEAD} at most" in stream.lost()


def test_a_message_that_is_too_long_is_not_received(connect: Connect) -> None:
    stream, other = connect().join(1), connect().join(2)
    stream.send(Part(1, 0, 0, bytes(PIECE + (1 << 20))), 1)
    assert "rank 1 (process" in other.lost()


@pytest.mark.parametrize("data", [b"\xff" * 40, b"", b"\x92\x93\x07\x04\x01\x92\x08\x01"])
def test_bytes_that_are_no_message_are_refused(connect: Connect, data: bytes) -> None:
    stream = connect()
    stream.raw(data)
    assert stream.refused()[0] == "FAILED_PRECONDITION"
    joined = connect().join(1)
    joined.raw(data)
    assert "breaks the protocol" in joined.lost()


def test_the_first_message_is_join_and_only_that(connect: Connect) -> None:
    stream = connect()
    stream.send(Leave(0, "", True), 1)
    assert stream.refused() == ("FAILED_PRECONDITION", "the first message of a rank is Join, not Leave")
    joined = connect().join(1)
    joined.send(JOIN, 1)
    assert "Join came on a stream that has joined" in joined.lost()


def test_a_rank_of_another_version_is_told_so() -> None:
    grpc = import_grpc()
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with pytest.raises(ConfigError, match=r"has no softs.star.v2.Star; install the same version"):
            Leaf(1, SIZE, f"127.0.0.1:{port}", EPOCH, StarOptions(), WATCHDOG_S, logging.getLogger("test"))
    finally:
        server.stop(None).wait()


def test_a_rank_waits_for_rank_0_that_does_not_run_as_long_as_its_pings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Why an attempt has failed is asked for no longer.
    monkeypatch.setattr(handshake, "_TIMEOUT_S", 0.1)
    options = StarOptions(pings=pings())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(PeerLost, match="does not answer within 3 s"):
            Leaf(1, SIZE, address, EPOCH, options, 3.0, logging.getLogger("test"))


def test_a_group_that_is_over_takes_no_rank(connect: Connect) -> None:
    connect().join(1).send(Leave(0, "out of data", True), 1)
    stream = connect()
    stream.send(JOIN, 2)
    message: Any
    try:
        message = stream.lost()
    except stream.grpc.RpcError as error:
        message = error.details()
    except AssertionError:
        message = stream.lost()
    assert "out of data" in message


def test_what_waits_for_ranks_is_counted(root: Root, connect: Connect) -> None:
    assert root.calls.metrics.keys() == {1, 2}
    assert connect().join(1)
    assert root.named(1).startswith("rank 1 (process")
    assert root.named(2) == "rank 2 (which has not joined)"


def test_the_port_is_free_for_the_next_epoch() -> None:
    options = StarOptions(listen=f"127.0.0.1:{free_ports()[0]}", piece_bytes=PIECE)
    for number in range(5, 8):
        root = Root(SIZE, Epoch(7, number), options, WATCHDOG_S, logging.getLogger("test"))
        with closing(Stream(root.address)) as stream:
            stream.join(1, epoch=number)
            root.give_up("a fence")
            root.close()
            assert stream.lost().endswith("has given up: a fence")
