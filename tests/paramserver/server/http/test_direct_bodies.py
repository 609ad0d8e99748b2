"""Bodies that do not pass through h11: where they end, the next request begins."""

from __future__ import annotations

import socket
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch
from raw_client import RawClient, job_of, large_model
from torch import nn
from waiting import eventually, eventually_async

from softs_fast.paramserver.server.http.pushes import Pushes
from softs_fast.paramserver.server.http.request import Disconnected
from softs_fast.paramserver.server.options import TlsFiles
from softs_fast.paramserver.server.server import Server
from softs_fast.paramserver.wire import answers
from softs_fast.paramserver.wire.frame import Frame
from softs_fast.paramserver.wire.messages import Counted, UploadState, decode
from softs_fast.paramserver.worker.optimizer import RemoteOptimizer
from softs_fast.paramserver.worker.options import WorkerOptions

JOB = job_of(large_model)


class Peer:
    """One connection, of which a test chooses each byte."""

    def __init__(self, server: Server) -> None:
        parts = urlsplit(server.invite.url)
        self.socket = socket.create_connection((parts.hostname, parts.port), timeout=45)
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.socket.close()

    def answer(self, method: str) -> tuple[int, dict[str, str], bytes]:
        """Read one answer, and no byte of the next one."""

        line, *lines = self._head().decode().split("\r\n")
        status = int(line.split()[1])
        headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in lines)}
        n = 0 if method == "HEAD" else int(headers.get("content-length", 0))
        return status, headers, self._file.read(n)

    def _head(self) -> bytes:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = self._file.readline()
            assert line, f"the server has closed the connection after {head!r}"
            head += line
        return head


def part(client: RawClient, frame: Frame, offset: int, n: int, **more: str) -> tuple[bytes, bytes]:
    """Head and body of a part."""
    target = f"{answers.PUSH}/1.0"
    headers, _ = client.signed("PUT", target, frame.header.encode(), offset)
    lines = [f"PUT {target} HTTP/1.1", "Host: x", f"Content-Length: {n}"]
    lines += [f"{name}: {value}" for name, value in (headers | more).items()]
    return "\r\n".join([*lines, "", ""]).encode(), bytes(frame.payload[offset : offset + n])


def question(client: RawClient) -> bytes:
    """A request for what the server has of an upload."""
    headers, _ = client.signed("HEAD", f"{answers.PUSH}/1.0")
    lines = [f"HEAD {answers.PUSH}/1.0 HTTP/1.1", "Host: x"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


@pytest.fixture
def announced(serve, enter) -> tuple[Server, RawClient, Frame]:
    """A server, a worker of it, and a frame that the worker has announced."""
    server = serve(JOB)
    client = enter(server, JOB)
    frame = client.frame()
    client.push(frame, whole=False)
    return server, client, frame


def await_offset(client: RawClient, offset: int) -> None:
    """Wait until the server has so many bytes of the upload."""
    eventually(lambda: client.ask("HEAD", f"{answers.PUSH}/1.0").headers["upload-offset"] == str(offset))


@pytest.mark.parametrize("cut", [0, 1, 5000])
def test_a_request_right_behind_a_body_is_the_next_one(announced, cut: int) -> None:
    """The body ends in the middle of what arrives at once, whatever came with the head."""
    server, client, frame = announced
    head, body = part(client, frame, 0, 70_000)
    with Peer(server) as peer:
        peer.socket.sendall(head + body[:cut])
        await_offset(client, cut)
        peer.socket.sendall(body[cut:] + question(client))
        status, _, data = peer.answer("PUT")
        assert (status, decode(UploadState, data).next_offset) == (202, 70_000)
        status, headers, _ = peer.answer("HEAD")
        assert (status, headers["upload-offset"]) == (200, "70000")
        peer.socket.sendall(b"".join(part(client, frame, 70_000, len(frame.payload) - 70_000)))
        status, _, data = peer.answer("PUT")
        assert (status, decode(Counted, data)) == (200, Counted(1, 1))


def test_a_part_that_is_refused_leaves_the_connection_as_it_was(announced) -> None:
    """It begins elsewhere than where the last one ended: the answer comes first, and its bytes are dropped."""
    server, client, frame = announced
    head, body = part(client, frame, 1000, 200_000)
    with Peer(server) as peer:
        peer.socket.sendall(head + body[:100])
        assert peer.answer("PUT")[0] == 416
        peer.socket.sendall(body[100:] + question(client))
        status, headers, _ = peer.answer("HEAD")
        assert (status, headers["upload-offset"]) == (200, "0")


def test_a_part_that_was_overtaken_is_dropped_and_its_connection_goes_on(announced) -> None:
    server, client, frame = announced
    head, _ = part(client, frame, 0, 300_000)
    with Peer(server) as peer:
        peer.socket.sendall(head + bytes(1000))
        await_offset(client, 1000)
        later = client.part(frame, 1000, 2000)
        assert later.record(UploadState).next_offset == 3000
        # What the first one still sends would be written over what the second one has.
        peer.socket.sendall(bytes(299_000) + question(client))
        status, _, data = peer.answer("PUT")
        assert (status, decode(UploadState, data).next_offset) == (416, 3000)
        assert peer.answer("HEAD")[1]["upload-offset"] == "3000"


def test_a_peer_that_waits_for_a_word_gets_it(announced) -> None:
    server, client, frame = announced
    head, body = part(client, frame, 0, 5000, Expect="100-continue")
    with Peer(server) as peer:
        peer.socket.sendall(head)
        assert peer.answer("PUT")[0] == 100
        peer.socket.sendall(body)
        status, _, data = peer.answer("PUT")
        assert (status, decode(UploadState, data).next_offset) == (202, 5000)


def test_a_body_in_chunks_counts(announced) -> None:
    """A proxy may cut a body into chunks of its own, and take its length away."""
    _, client, frame = announced
    target, n = f"{answers.PUSH}/1.0", len(frame.payload)
    for first, last, status in ((0, 100_000, 202), (100_000, n, 200)):
        headers, _ = client.signed("PUT", target, frame.header.encode(), first)
        cuts = [*range(first, last, 30_000), last]
        chunks = [
            b"%x\r\n%b\r\n" % (end - begin, bytes(frame.payload[begin:end])) for begin, end in pairwise(cuts)
        ]
        body = b"".join([*chunks, b"0\r\n\r\n"])
        assert client.raw("PUT", target, body, headers | {"Transfer-Encoding": "chunked"})[0] == status
    assert client.pull("1.0", 20.0).status == 200


def test_more_chunks_than_announced_are_refused(announced) -> None:
    _, client, frame = announced
    target, n = f"{answers.PUSH}/1.0", len(frame.payload) + 1
    headers, _ = client.signed("PUT", target, frame.header.encode(), 0)
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (n, bytes(n))
    assert client.raw("PUT", target, body, headers | {"Transfer-Encoding": "chunked"})[0] == 416
    assert int(client.ask("HEAD", target).headers["upload-offset"]) < n


def test_a_request_that_arrives_while_a_push_is_looked_at_waits_for_its_answer(
    announced, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    real = Pushes._decode

    def slow(self: Pushes, upload: Any) -> Any:
        assert release.wait(45)
        return real(self, upload)

    monkeypatch.setattr(Pushes, "_decode", slow)
    server, client, frame = announced
    head, body = part(client, frame, 0, len(frame.payload))
    with Peer(server) as peer:
        peer.socket.sendall(head + body[:1000])
        await_offset(client, 1000)
        peer.socket.sendall(body[1000:] + question(client))
        await_offset(client, len(body))
        # Twice, so that the server has looked at all its sockets since then.
        client.ask("HEAD", f"{answers.PUSH}/1.0")
        release.set()
        assert decode(Counted, peer.answer("PUT")[2]) == Counted(1, 1)
        assert peer.answer("HEAD")[0] == 404, "the upload has ended"


def test_a_peer_that_is_gone_before_its_body_is_read_is_not_waited_for(
    announced, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    real = Pushes.part

    async def late(self: Pushes, upload: Any, request: Any, offset: int) -> Any:
        await eventually_async(lambda: request.connection.cycle.disconnected, "the peer is gone")
        try:
            return await real(self, upload, request, offset)
        except Disconnected:
            ended.set()
            raise

    server, client, frame = announced
    with monkeypatch.context() as patch:
        patch.setattr(Pushes, "part", late)
        head, body = part(client, frame, 0, 5000)
        with Peer(server) as peer:
            peer.socket.sendall(head + body[:100])
        assert ended.wait(45)
    offset = int(client.ask("HEAD", f"{answers.PUSH}/1.0").headers["upload-offset"])
    assert client.part(frame, offset, 1 << 20).status == 200


@pytest.mark.parametrize("has_tls", [False, True])
def test_steps_of_a_model_of_many_parts_are_exact(serve, tmp_path: Path, has_tls: bool) -> None:
    """Of 8 MiB: more than a socket takes at once, and in several parts."""

    def model() -> nn.Module:
        torch.manual_seed(1)
        return nn.Linear(2048, 1024)

    tls = TlsFiles(tmp_path / "c.pem", tmp_path / "k.pem", self_signed=True) if has_tls else None
    server = serve(job_of(model), {"push_codec": "f32", "pull_codec": "f32"}, {"tls": tls})
    module = model()
    expected = [one.detach().clone() for one in module.parameters()]
    generator = torch.Generator().manual_seed(5)
    with RemoteOptimizer(module, server.invite, WorkerOptions("w", max_part_bytes=3_000_000)) as optimizer:
        for _ in range(2):
            for one, weights in zip(module.parameters(), expected, strict=True):
                one.grad = torch.randn(one.shape, generator=generator)
                weights -= 0.1 * one.grad
            optimizer.step()
            for one, weights in zip(module.parameters(), expected, strict=True):
                assert torch.allclose(one, weights, atol=1e-6)
        assert optimizer.traffic.failures == 0
        assert optimizer.traffic.joins == 1
