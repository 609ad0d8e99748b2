"""Health over HTTP and gRPC, of a worker and of a coordinator, as launchers ask for it."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from coordinator_process import Cluster
from grpc_health.v1 import health_pb2, health_pb2_grpc
from token_files import token_file
from waiting import WATCHDOG_S, eventually

from softs_fast.coordination import ClientCredentials
from softs_fast.coordination.health import WorkerHealth
from softs_fast.coordination.job.events import End, Evict
from softs_fast.coordination.node import Membership
from softs_fast.errors import ConfigError, EndpointInUse, PeerLost
from softs_fast.trust import Address

SERVING, NOT_SERVING, UNKNOWN = 1, 2, 3


def ask(url: str, path: str = "") -> tuple[int, str]:
    """Status and text of a page."""
    where = url.rpartition("/")[0] + path if path else url
    try:
        with urllib.request.urlopen(where, timeout=WATCHDOG_S) as answer:
            return answer.status, answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode().strip()


class Asker:
    """gRPC's own client."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self._stub = health_pb2_grpc.HealthStub(channel)

    def check(self, name: str = "") -> int:
        """The answer of Check."""
        request = health_pb2.HealthCheckRequest(service=name)
        return int(self._stub.Check(request, timeout=WATCHDOG_S).status)

    def watch(self, name: str = "") -> Iterator[int]:
        """The answers of Watch."""
        for answer in self._stub.Watch(health_pb2.HealthCheckRequest(service=name), timeout=WATCHDOG_S):
            yield int(answer.status)

    def close(self) -> None:
        """End the connection."""
        self._channel.close()


@pytest.fixture
def asker() -> Iterator[Any]:
    """Makes clients."""
    made: list[Asker] = []

    def make(address: str) -> Asker:
        made.append(Asker(grpc.insecure_channel(address)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_worker_is_ready_while_it_has_a_seat_in_an_open_epoch(cluster: Cluster, asker: Any) -> None:
    coordinator = cluster.coordinator("--world-size", "1")
    member = Membership(coordinator.address, seat=0)
    with WorkerHealth(member, "127.0.0.1:0", grpc="127.0.0.1:0") as health:
        client = asker(f"127.0.0.1:{health.grpc_port}")
        assert ask(health.url) == (503, "it has not reached the coordinator yet")
        assert ask(health.url, "/healthz") == (200, "alive")
        assert client.check() == NOT_SERVING
        watched = client.watch()
        assert next(watched) == NOT_SERVING
        member.start().next_epoch(WATCHDOG_S)
        assert ask(health.url) == (200, "ready")
        assert next(watched) == SERVING
        coordinator.administer(Evict(0, "too slow"))
        assert next(watched) == NOT_SERVING
        # It is not ready a moment before it has read why.
        eventually(lambda: ask(health.url)[0] == 503 and "too slow" in ask(health.url)[1])
        with pytest.raises(PeerLost, match="too slow"):
            member.next_epoch(WATCHDOG_S)
        member.close()
    health.close()


def test_services_that_there_are_not_and_more_watchers_than_there_may_be(asker: Any) -> None:
    member = Membership("127.0.0.1:1")
    with WorkerHealth(member, "127.0.0.1:0", grpc="127.0.0.1:0") as health:
        client = asker(f"127.0.0.1:{health.grpc_port}")
        with pytest.raises(grpc.RpcError) as raised:
            client.check("another")
        assert raised.value.code() == grpc.StatusCode.NOT_FOUND
        unknown = client.watch("another")
        assert next(unknown) == UNKNOWN
        assert ask(health.url, "/metrics")[0] == 404
        watches = [client.watch() for _ in range(3)]
        assert [next(watch) for watch in watches] == [NOT_SERVING] * 3
        with pytest.raises(grpc.RpcError) as raised:
            next(client.watch())
        assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert client.check() == NOT_SERVING
    member.close()


def test_addresses() -> None:
    member = Membership("127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"page of health at 0\.0\.0\.0:0 is reachable"):
        WorkerHealth(member, "0.0.0.0:0")
    with pytest.raises(ConfigError, match=r"page of health at 0\.0\.0\.0:0 is reachable"):
        WorkerHealth(member, "127.0.0.1:0", grpc="0.0.0.0:0")
    WorkerHealth(member, "0.0.0.0:0", allow_remote=True)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(EndpointInUse, match="cannot serve health"):
            WorkerHealth(member, taken).start()
        with pytest.raises(EndpointInUse, match="cannot serve health"):
            WorkerHealth(member, "127.0.0.1:0", grpc=taken).start()
    member.close()


def test_a_coordinator_is_ready_until_its_job_is_over(cluster: Cluster, asker: Any) -> None:
    coordinator = cluster.coordinator("--world-size", "1", "--health", "127.0.0.1:0")
    url = coordinator.line().removeprefix("health ")
    client = asker(coordinator.address)
    assert ask(url) == (200, "ready")
    assert ask(url, "/healthz") == (200, "ready")
    assert client.check() == client.check("softs.v1.Coordinator") == SERVING
    watched = client.watch()
    assert next(watched) == SERVING
    coordinator.administer(End("enough"))
    assert next(watched) == NOT_SERVING
    assert ask(url) == (503, "the job has ended: enough")
    assert ask(url, "/healthz") == (200, "ready")
    with pytest.raises(grpc.RpcError) as raised:
        client.check("another")
    assert raised.value.code() == grpc.StatusCode.NOT_FOUND


def test_a_coordinator_with_a_token_file_answers_those_that_have_it(
    cluster: Cluster, asker: Any, tmp_path: Path
) -> None:
    files = ClientCredentials(token_file=token_file(tmp_path / "token", "a"))
    coordinator = cluster.coordinator("--world-size", "1", "--token-file", str(files.token_file))
    with pytest.raises(grpc.RpcError) as raised:
        asker(coordinator.address).check()
    assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
    with files.grpc_channel(Address.parse(coordinator.address, "coordinator"), []) as channel:
        assert Asker(channel).check() == SERVING


FORKS = """
import os
from softs_fast.coordination import ClientCredentials
from softs_fast.coordination.health import WorkerHealth
from softs_fast.coordination.requirements import import_grpc

class Worker:
    not_ready = "it waits for an epoch"

grpc = import_grpc()
with WorkerHealth(Worker(), "127.0.0.1:0", grpc="127.0.0.1:0") as health:
    channel = grpc.insecure_channel(f"127.0.0.1:{health.grpc_port}")
    watched = iter(channel.unary_stream("/grpc.health.v1.Health/Watch")(b""))
    first = next(watched)
    ends = []
    for number in range(6):
        child = os.fork()
        if child == 0:
            # The second way does what leaving the block does, which must not stop the servers of the parent.
            health.__exit__(None, None, None) if number % 2 else None
            os._exit(0)
        ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    again = channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=20)
    channel.close()
    assert (ends, again) == ([0] * 6, first), (ends, again, first)
"""


def test_forks_leave_the_servers_alone() -> None:
    """A DataLoader forks processes that train; they end by `os._exit`."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG_S, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
