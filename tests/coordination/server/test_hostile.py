"""Peers that do what no worker does, against a real coordinator: each is refused by name, the others go on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("grpc", reason="needs the extra grpc")
import grpc
from coordinator_process import Cluster, Coordinator

from softs_fast.coordination.credentials import ClientCredentials
from softs_fast.coordination.job import messages as m
from softs_fast.coordination.pings import Pings
from softs_fast.coordination.server.guard import Denied
from softs_fast.coordination.server.service import answered
from softs_fast.coordination.session.calls import CoordinatorClient
from softs_fast.coordination.session.channels import open_channel
from softs_fast.coordination.wire import requests
from softs_fast.coordination.wire.formats import FORMATS, FROM_WORKER, TO_WORKER
from softs_fast.coordination.wire.requests import KeysRequest
from softs_fast.repeated_log import RepeatedLog

HELLO = FROM_WORKER.encode(m.Hello("job", "w0", 1))
STRANGER = """
import os, sys
from softs_fast.coordination.session.calls import CoordinatorClient
from softs_fast.errors import ConfigError
client = CoordinatorClient(sys.argv[1])
os.setuid(65534)
try:
    client.status()
except ConfigError as error:
    print(error)
"""


class Raw:
    """A stream to a coordinator, byte by byte."""

    def __init__(self, coordinator: Coordinator, *options: tuple[str, int]) -> None:
        self.channel = grpc.insecure_channel(coordinator.address, [*Pings().client_options(), *options])
        self.outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.call: Any = self.channel.stream_stream(requests.SESSION)(iter(self.outbox.get, None))

    def refusal(self, *messages: bytes) -> str:
        """Send messages; how the coordinator ends the stream."""
        for message in messages:
            self.outbox.put(message)
        with pytest.raises(grpc.RpcError) as failure:
            for _ in self.call:
                pass
        return f"{failure.value.code().name}: {failure.value.details()}"

    def close(self) -> None:
        self.outbox.put(None)
        self.call.cancel()
        self.channel.close()


@pytest.fixture
def coordinator(cluster: Cluster) -> Iterator[Coordinator]:
    """A coordinator; at the end it still answers."""
    coordinator = cluster.coordinator("--world-size", "1")
    yield coordinator
    with CoordinatorClient(coordinator.address) as client:
        assert client.status().name == "job"


@pytest.fixture
def raw(coordinator: Coordinator) -> Iterator[Raw]:
    raw = Raw(coordinator)
    yield raw
    raw.close()


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([b"\xff\xff"], "INVALID_ARGUMENT: FromWorker (2 bytes): malformed"),
        ([b""], "INVALID_ARGUMENT: FromWorker (0 bytes): unknown kind"),
        (
            [FROM_WORKER.encode(m.Step(1, 1))],
            "INVALID_ARGUMENT: the first message of a worker is Hello, not Step",
        ),
        ([HELLO, HELLO], "INVALID_ARGUMENT: a worker says Hello once"),
        (
            [HELLO, bytes(FROM_WORKER.most_bytes + 1)],
            "INVALID_ARGUMENT: FromWorker of 65,537 bytes; at most 65,536",
        ),
        ([HELLO, bytes(1 << 20)], "RESOURCE_EXHAUSTED"),
    ],
)
def test_messages_that_cannot_be(raw: Raw, messages: list[bytes], text: str) -> None:
    assert raw.refusal(*messages).startswith(text)


def test_a_stream_that_ends_before_hello(raw: Raw) -> None:
    raw.outbox.put(None)
    assert raw.refusal().endswith("the first message of a worker is Hello, not the end of the stream")


def test_requests_that_cannot_be(coordinator: Coordinator) -> None:
    channel = open_channel(coordinator.address, ClientCredentials(), Pings())
    wrong_job = FORMATS[KeysRequest].encode(KeysRequest("another", 1, 1, "get", ("k",)))
    over = FORMATS[KeysRequest].encode(KeysRequest("job", 1, 1, "get", ("k",)))
    for method, data, text in [
        (requests.method_of(KeysRequest), b"\xff", "malformed"),
        (requests.method_of(KeysRequest), bytes(200 << 10), "larger than max"),
        (requests.method_of(KeysRequest), wrong_job, 'keys of job "another"'),
        (requests.method_of(KeysRequest), over, "epoch 1 is over, or was never opened"),
        (requests.ADMIN, b"", "unknown kind"),
        (f"/{requests.SERVICE}/Nothing", b"", "Method not found"),
    ]:
        with pytest.raises(grpc.RpcError) as failure:
            channel.unary_unary(method)(data)
        assert text in failure.value.details()
    channel.close()


def test_bytes_that_are_no_http(coordinator: Coordinator) -> None:
    host, _, port = coordinator.address.rpartition(":")
    for data in (
        b"GET / HTTP/1.0\r\n\r\n",
        os.urandom(4096),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + os.urandom(4096),
    ):
        with socket.create_connection((host, int(port)), 10) as peer:
            peer.sendall(data)
            peer.settimeout(20)
            while True:
                try:
                    if not peer.recv(65_536):
                        break
                except ConnectionError:
                    break


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user")
def test_another_user_of_this_machine_is_denied(coordinator: Coordinator) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STRANGER, coordinator.address], capture_output=True, text=True, check=False
    )
    assert "processes of its own user" in done.stdout, done.stderr


def test_a_worker_that_does_not_read_is_given_up(cluster: Cluster) -> None:
    coordinator = cluster.coordinator("--world-size", "2")
    # As little as possible is read ahead.
    raw = Raw(coordinator, ("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024))
    with contextlib.closing(raw):
        raw.outbox.put(HELLO)
        assert isinstance(TO_WORKER.decode(next(raw.call)), m.Welcome)
        raw.outbox.put(FROM_WORKER.encode(m.Ready(m.WorkerState())))
        other = cluster.worker(coordinator, "w1", seat=1)
        table = other.event("Table")
        # It takes the seat. The message that was one too many may be that of the end of an epoch.
        cluster.worker(coordinator, "spare")
        while "w0" in {one["worker_id"] for one in table["members"]}:
            told = table["boot"], table["epoch"]
            raw.outbox.put(FROM_WORKER.encode(m.Fault(table["epoch"], 1, None, "\N{SNOWMAN}" * 4000)))
            raw.outbox.put(FROM_WORKER.encode(m.Ready(m.WorkerState(), *told)))
            assert table["epoch"] < 2000
            table = other.event("Table")
        # When it reads on, it learns why.
        assert raw.refusal() == "FAILED_PRECONDITION: the worker has not read 64 messages"


class Context:
    """A call of a peer."""

    def __init__(self, peer: str) -> None:
        self._peer = peer

    def peer(self) -> str:
        return self._peer

    async def abort(self, code: Any, text: str) -> None:
        pass


def test_one_line_for_each_address(caplog: pytest.LogCaptureFixture) -> None:
    """Else a peer that tries again and again fills the log."""

    async def denied() -> None:
        raise Denied("give --token-file", True)

    now = [0.0]
    refusals = RepeatedLog(logging.getLogger("softs_fast.coordination"), lambda: now[0])

    async def refuse() -> None:
        for port in range(100):
            for host in ("10.0.0.1", "10.0.0.2"):
                await answered(denied(), Context(f"ipv4:{host}:{port}"), refusals)
        now[0] = 10.0
        await answered(denied(), Context("ipv4:10.0.0.1:7"), refusals)

    asyncio.run(refuse())
    assert caplog.messages == [
        "refused ipv4:10.0.0.1:0: give --token-file",
        "refused ipv4:10.0.0.2:0: give --token-file",
        "refused ipv4:10.0.0.1:0: give --token-file (100 more in the last 10.0 s)",
    ]
