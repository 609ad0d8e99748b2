"""Peers that prove nothing hold no connection for long, and leave descriptors for the coordinator itself."""

from __future__ import annotations

import queue
import socket
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="needs the extra grpc")
pytest.importorskip("cryptography", reason="makes certificates")
import grpc
from certificates import Authority
from own_coordinators import OwnCoordinators
from waiting import WATCHDOG_S

from softs_fast.coordination.credentials import ClientCredentials, ServerCredentials
from softs_fast.coordination.pings import Pings
from softs_fast.coordination.server import door
from softs_fast.coordination.server.guard import Denied, Guard
from softs_fast.coordination.session.channels import open_channel
from softs_fast.errors import ConfigError


class FarCall:
    """A call from another host; of its connection the coordinator knows what TLS has checked."""

    def peer(self) -> str:
        return "ipv4:192.0.2.7:40000"

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}


def test_a_call_from_another_host_needs_what_tls_has_checked() -> None:
    with pytest.raises(
        Denied, match="serves processes of its own user; start it with --token-file or --tls-ca"
    ):
        Guard(ServerCredentials(), 1).administrator(FarCall())
    holder = Guard(ServerCredentials(token_file=Path("token")), 1)
    holder.administrator(FarCall())
    assert holder.worker(FarCall()) is None
    files = ServerCredentials(Path("cert"), Path("key"), Path("ca"))
    with pytest.raises(Denied, match=r"neither a URI .* nor a common name"):
        Guard(files, 1).identity(FarCall())


def test_a_place_of_another_job_is_refused(own: OwnCoordinators) -> None:
    with pytest.raises(ConfigError, match="job 'j' contradicts 'other' of the place"):
        own.serve(listen="softs://127.0.0.1:0/other")


def silent(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), WATCHDOG_S)


def credentials(folder: Path) -> ServerCredentials:
    cert, key = Authority(folder).issue("server", "coordinator")
    return ServerCredentials(Path(cert), Path(key))


def test_a_handshake_that_does_not_begin_ends(
    own: OwnCoordinators, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "_HANDSHAKE_S", 0.1)
    with silent(own.serve(credentials(tmp_path))) as peer:
        # gRPC itself waits two minutes.
        assert peer.recv(1) == b""


def test_a_connection_without_a_call_ends(own: OwnCoordinators, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "_IDLE_S", 0.1)
    states: queue.SimpleQueue[grpc.ChannelConnectivity] = queue.SimpleQueue()
    with open_channel(own.serve(), ClientCredentials(), Pings()) as channel:
        # States are polled: that it was connected for a moment may be missed, that it stays idle not.
        with pytest.raises(grpc.RpcError, match="UNIMPLEMENTED"):
            channel.unary_unary("/none/None")(b"")
        channel.subscribe(states.put)
        while states.get(timeout=WATCHDOG_S) != grpc.ChannelConnectivity.IDLE:
            pass


def test_connections_leave_descriptors(
    own: OwnCoordinators, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "_HANDSHAKE_S", 2 * WATCHDOG_S)
    monkeypatch.setattr(door.resource, "getrlimit", lambda _: (door._SPARE + 2, door._SPARE + 2))
    address = own.serve(credentials(tmp_path))
    peers = [silent(address) for _ in range(3)]
    assert peers[2].recv(1) == b""
    for peer in peers[:2]:
        peer.setblocking(False)
        with pytest.raises(BlockingIOError):
            peer.recv(1)
    for peer in peers:
        peer.close()
