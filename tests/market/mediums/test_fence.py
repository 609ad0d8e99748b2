"""A TCP medium's owner fences its writers: nothing over a connection from before is stored afterwards."""

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from fork_check import check_fork

from softs_fast.errors import SegmentError
from softs_fast.market.mediums import TCPMedium

SLOT_BYTES = 16
GOOD, LATE = b"from before it..", b"it is too late.."


@pytest.fixture
def owner() -> Any:
    with TCPMedium(None, SLOT_BYTES, 3, create=True) as medium:
        yield medium


def test_a_prepared_write_does_not_pass_the_fence(owner: TCPMedium, caplog: pytest.LogCaptureFixture) -> None:
    with TCPMedium.attach(owner.address or "") as writer:
        assert writer.prepare()
        assert writer.write_prepared(0, GOOD)
        owner.fence()
        owner.fence()
        for _ in range(2):
            caplog.clear()
            assert writer.write_prepared(0, LATE) is False
            assert "ended the connection" in caplog.text
        assert owner.read(0) == GOOD
        assert writer.prepare()
        assert writer.write_prepared(SLOT_BYTES, GOOD)
        owner.fence()
        assert writer.write(2 * SLOT_BYTES, GOOD)
        assert [owner.read(slot) for slot in range(3)] == [GOOD] * 3


def test_a_supplier_that_was_stopped_before_its_write_does_not_write_late(
    owner: TCPMedium, child: Callable[..., Any]
) -> None:
    stopped = child("softs_fast", "TCPMedium", "attach", owner.address)
    assert stopped.ask("prepare") is True
    stopped.process.stop()
    stopped.tell(f"write_prepared 0 {LATE.hex()}")
    owner.fence()
    with TCPMedium.attach(owner.address or "") as other:
        assert other.write(0, GOOD)
        os.kill(stopped.process.pid, signal.SIGCONT)
        assert stopped.answer() is False
        assert owner.read(0) == GOOD
        assert stopped.ask("prepare") is True
        assert stopped.ask(f"write_prepared {SLOT_BYTES} {GOOD.hex()}") is True
        assert owner.read(1) == GOOD


def test_half_a_sample_is_dropped(owner: TCPMedium) -> None:
    host, port = (owner.address or "").split(":")
    with (
        socket.create_connection((host, int(port)), timeout=30) as peer,
        TCPMedium.attach(f"{host}:{port}") as w,
    ):
        peer.sendall(struct.pack("!II", 0, SLOT_BYTES) + LATE[:-1])
        assert w.write(SLOT_BYTES, GOOD)
        owner.fence()
        answer = b""
        try:
            peer.sendall(LATE[-1:])
            answer = peer.recv(1)
        except ConnectionError:
            pass
        assert answer == b""
        assert w.write(SLOT_BYTES, GOOD)
        assert owner.read(0) == bytes(SLOT_BYTES)


def test_a_writer_of_softs_is_fenced(owner: TCPMedium, child: Callable[..., Any]) -> None:
    writer = child("softs", "TCPMedium", "attach", owner.address)
    assert writer.write(0, GOOD)
    owner.fence()
    assert not writer.write(0, LATE)
    assert owner.read(0) == GOOD
    again = child("softs", "TCPMedium", "attach", owner.address)
    assert again.write(SLOT_BYTES, GOOD)


def test_an_owner_of_softs_can_be_prepared_for(child: Callable[..., Any]) -> None:
    owner = child("softs", "TCPMedium", "own")
    assert owner.ask(f"write 0 {GOOD.hex()}") is True
    with TCPMedium.attach(owner.address) as writer:
        assert writer.prepare()
        assert [owner.read(slot) for slot in range(3)] == [GOOD, bytes(SLOT_BYTES), bytes(SLOT_BYTES)]
        assert writer.write_prepared(SLOT_BYTES, GOOD)
        assert owner.read(1) == GOOD
        owner.kill()
        assert writer.write_prepared(SLOT_BYTES, GOOD) is False
        assert writer.prepare() is False


def test_each_thread_writes_to_what_it_has_prepared(
    owner: TCPMedium, caplog: pytest.LogCaptureFixture
) -> None:
    with TCPMedium.attach(owner.address or "") as writer:
        assert writer.prepare()
        results = []

        def other_thread() -> None:
            results.append(writer.write_prepared(0, LATE))
            owner.fence()
            results.append(writer.prepare())

        thread = threading.Thread(target=other_thread)
        thread.start()
        thread.join()
        assert results == [False, True]
        assert "this thread has prepared nothing" in caplog.text
        # The connection of the other thread is open, but this one was checked before the fence.
        assert writer.write_prepared(0, LATE) is False
        assert owner.read(0) == bytes(SLOT_BYTES)


def test_which_mediums_can_fence_and_prepare(owner: TCPMedium) -> None:
    writer = TCPMedium.attach(owner.address or "")
    with pytest.raises(SegmentError, match="owner"):
        writer.fence()

    def write() -> None:
        assert not writer.prepare()
        assert not writer.write_prepared(0, LATE)

    check_fork(owner.fence, then=write)
    assert writer.prepare()
    assert owner.prepare()
    assert owner.write_prepared(0, GOOD)
    assert writer.write_prepared(SLOT_BYTES, GOOD)
    assert [owner.read(slot) for slot in range(2)] == [GOOD] * 2
    for medium in (writer, owner):
        medium.close()
        assert medium.prepare() is False
        assert medium.write_prepared(0, LATE) is False
    owner.fence()


EXHAUSTED = """
import resource, socket
from softs_fast.errors import PeerLost
from softs_fast.market.mediums import TCPMedium

owner = TCPMedium(None, 4, 1, create=True)
host, port = owner.address.split(":")
waiting = [socket.socket() for _ in range(4)]
owner.fence()
resource.setrlimit(resource.RLIMIT_NOFILE, (waiting[-1].fileno() + 1, 4096))
for peer in waiting:
    peer.connect((host, int(port)))
try:
    owner.fence()
except PeerLost as error:
    print(error)
# One that is accepted makes room for those that wait.
resource.setrlimit(resource.RLIMIT_NOFILE, (waiting[-1].fileno() + 2, 4096))
owner.fence()
print([peer.recv(1) for peer in waiting])
owner.close()
"""


def test_a_fence_that_cannot_accept_what_waits_promises_nothing() -> None:
    run = subprocess.run(
        [sys.executable, "-c", EXHAUSTED], capture_output=True, text=True, check=False, timeout=30
    )
    assert run.returncode == 0, run.stderr
    error, ends = run.stdout.splitlines()
    assert "cannot end the connections of the TCP medium" in error
    assert "too many open files" in error
    assert ends == str([b""] * 4)
