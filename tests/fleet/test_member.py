"""How the run of a worker's process is judged when it has ended."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import SimpleNamespace

import pytest

from softs_fast.fleet.member import Member
from softs_fast.fleet.restarts import RestartPolicy, Restarts
from softs_fast.fleet.worker_process import ENDED, FAILED, SERVES


def refuse() -> None:
    raise ValueError("Cannot close a process while it is still running")


@pytest.fixture
def pipe() -> Iterator[tuple[Connection, Connection]]:
    ours, theirs = Pipe()
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize(
    ("status", "says", "ends_well", "error"),
    [
        (0, ENDED, True, ""),
        (0, None, False, "its process ended: exit status 0"),
        (3, None, False, "its process ended: exit status 3"),
        (1, FAILED + b"SystemExit: 3", False, "SystemExit: 3"),
        (-9, None, False, "its process ended: signal SIGKILL"),
        (None, ENDED, True, ""),
        (None, None, False, "its process ended: exit status unknown, since SIGCHLD is ignored"),
    ],
)
def test_a_worker_has_ended_only_if_it_was_stopped(
    pipe: tuple[Connection, Connection],
    status: int | None,
    says: bytes | None,
    ends_well: bool,
    error: str,
) -> None:
    member = Member("worker 0", print, {}, Restarts(RestartPolicy()))
    member.pipe, theirs = pipe
    # As `multiprocessing` has it where SIGCHLD is ignored, or where the program waits for any child.
    close = refuse if status is None else lambda: None
    member.process = SimpleNamespace(join=lambda: None, exitcode=status, close=close)
    theirs.send_bytes(SERVES)
    member.read_message(0.5)
    assert member.state == "serving"
    if says is not None:
        theirs.send_bytes(says)
        member.read_message(0.8)
        assert (member.state, member.last_error) == ("ending", error)
    assert member.reap(1.0) is ends_well
    assert member.error.startswith(error)
    assert member.state == "ending"
    assert member.last_error == ("" if ends_well else member.error)
    assert member.process is None
    assert member.was_killed == (status == -9)
