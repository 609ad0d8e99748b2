"""A server that is killed at every step: no version is lost but those after the last file, and none is half."""

from __future__ import annotations

import os
import resource
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import raw_client
import torch
import zygote
from process import Process, Zygote
from raw_client import Answer, RawClient, large_model
from waiting import eventually, free_ports

from softs_fast.paramserver.wire import answers
from softs_fast.paramserver.wire.invite import Invite
from softs_fast.paramserver.wire.manifest import Manifest
from softs_fast.paramserver.wire.messages import Counted, Stale, Status, Summary

SCRIPT = Path(__file__).with_name("server_process.py")
ROUNDS = 6


class ServerProcess:
    """A server in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # A server that is killed gets it again: no connection of another process can have taken it.
        self.port = free_ports()[0]
        self.peer: Process | None = None

    @property
    def running(self) -> Process:
        assert self.peer is not None
        return self.peer

    def start(self, point: str = "none") -> RawClient:
        """Start it; a worker that has not joined."""
        paths = os.pathsep.join(str(Path(one.__file__).parent) for one in (raw_client, zygote))
        options = {"folder": str(self.folder), "port": self.port, "point": point}
        self.peer = Zygote.of(SCRIPT, None, paths).fork("server", options)
        invite = Invite.parse(self.peer.event("serving")["invite"])
        return RawClient(invite, Manifest.of(large_model()))

    def kill(self) -> None:
        self.running.kill()
        (self.folder / "reached").unlink(missing_ok=True)

    def wait_for_point(self) -> None:
        eventually((self.folder / "reached").exists, "the point at which the server is killed")


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path)
    yield process
    if process.peer is not None:
        process.peer.kill()


def push(client: RawClient, version: tuple[int, int]) -> Answer:
    """Push in parts; the last answer."""
    frame = client.frame(1.0, version)
    answer = client.push(frame, whole=False)
    while answer.status in (201, 202):
        answer = client.part(frame, int(answer.body.split(b":")[1].split(b",")[0]), 200_000)
    return answer


def train(client: RawClient, timeline: int, number: int) -> torch.Tensor:
    """Go on to the end; the weights before the last step."""
    weights = torch.empty(0)
    while True:
        answer = client.pull(f"{timeline}.{number - 1}" if number else None, 30.0)
        if answer.status == 410:
            assert answer.record(Summary).version == ROUNDS
            return weights
        header, contents = client.contents(answer)
        assert (header.timeline, header.version) == (timeline, number)
        weights = contents.parameters.clone()
        assert push(client, (timeline, number)).record(Counted).have == 1
        number += 1


def expected(number: int) -> torch.Tensor:
    """The weights of a version: SGD with momentum on gradients of ones."""
    (weight, bias) = large_model().parameters()
    weights = torch.cat([weight.detach().reshape(-1), bias.detach()])
    speed = 0.0
    for _ in range(number):
        speed = 0.5 * speed + 1.0
        weights = weights - 0.5 * speed
    return weights


@pytest.mark.parametrize(
    ("point", "number"),
    [
        # Two files of the start come first; each one renames three times, the very first twice, and has three syncs.
        ("step:3", 2),
        ("write:5", 2),
        ("fsync:13", 2),
        # The newest file has become the one before, and there is no newest one.
        ("replace:15", 2),
        ("synced:14", 3),
        ("fsync:15", 3),
    ],
)
def test_a_killed_server_goes_on_where_its_file_is(process: ServerProcess, point: str, number: int) -> None:
    client = process.start(point)
    client.join()
    for version in range(3):
        assert client.pull(f"1.{version - 1}" if version else None, 30.0).status == 200
        assert push(client, (1, version)).status == 200
    process.wait_for_point()
    process.kill()

    again = process.start()
    assert again.invite == client.invite, "the same line as before"
    unknown = client.ask("POST", answers.HEARTBEAT, b"{}")
    assert (unknown.status, unknown.code, unknown.is_signed) == (404, "unknown-id", True)
    assert again.join(old_id=client.id).status == 200
    assert again.joined is not None
    assert (again.joined.timeline, again.joined.version, again.joined.rank) == (2, number, 0)
    assert push(again, (1, number - 1)).record(Counted).again, (
        "the file names the pushes that its weights contain"
    )
    stale = push(again, (1, number))
    assert stale.status == 409
    assert stale.record(Stale).timeline == 2
    header, contents = again.contents(again.pull("1.2", 30.0))
    assert (header.timeline, header.version) == (2, number)
    assert torch.allclose(contents.parameters, expected(number), atol=1e-5), (
        "weights and momentum are of one version"
    )
    last = train(again, 2, number)
    assert torch.allclose(last, expected(ROUNDS - 1), atol=1e-4)
    assert process.running.wait() == 0
    model = torch.load(process.folder / "o.pth", weights_only=True)
    assert torch.allclose(torch.cat([one.reshape(-1) for one in model.values()]), expected(ROUNDS), atol=1e-4)


def test_a_server_killed_between_parts(process: ServerProcess) -> None:
    client = process.start()
    client.join()
    frame = client.frame()
    client.push(frame, whole=False)
    assert client.part(frame, 0, 100_000).status == 202
    process.kill()
    again = process.start()
    again.join(old_id=client.id)
    missing = again.part(again.frame(1.0, (2, 0)), 100_000, 1000)
    assert (missing.status, missing.code) == (404, "no-upload")
    assert push(again, (2, 0)).status == 200


def test_a_full_disk_is_said_and_survived(process: ServerProcess) -> None:
    client = process.start()
    client.join()
    pid = process.running.pid
    before = (process.folder / "s.state").stat().st_mtime_ns
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    client.pull()
    push(client, (1, 0))
    assert client.pull("1.0", 30.0).status == 200

    def status() -> Status:
        return client.ask("GET", f"{answers.STATUS}?since=-1&wait=0").record(Status)

    now = status()
    while "cannot be written" not in now.waiting_for:
        now = client.ask("GET", f"{answers.STATUS}?since={now.serial}&wait=30").record(Status)
    with pytest.raises(urllib.error.HTTPError, match="503"):
        urllib.request.urlopen(f"{client.invite.url}/healthz", timeout=45)
    assert (process.folder / "s.state").stat().st_mtime_ns == before
    assert sorted(one.name for one in process.folder.iterdir()) == [
        "s.state",
        "s.state.before",
        "s.state.lock",
    ], "no half file is left"
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    push(client, (1, 1))
    while "cannot be written" in (now := status()).waiting_for:
        client.ask("GET", f"{answers.STATUS}?since={now.serial}&wait=30")
    assert (process.folder / "s.state").stat().st_mtime_ns > before
