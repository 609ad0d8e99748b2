"""How the run of a worker's process is judged when it has ended."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import SimpleNamespace

import pytest

from softs_fast.fleet.member import Member
from softs_fast.fleet.restarts import RestartPolicy, Restarts
from softs_fast.fleet.worker_process import ENDED, SERVES


def refuse() -> None:
    raise ValueError("Cannot close a process while it is still running")


@pytest.fixture
def pipe() -> Iterator[tuple[Connection, Connection]]:
    ours, theirs = Pipe()
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize(
    ("status", "says_ended", "ends_well", "error"),
    [
        (0, True, True, ""),
        (3, False, False, "its process ended: exit status 3"),
        (-9, False, False, "its process ended: signal SIGKILL"),
        (None, True, True, ""),
        (None, False, False, "its process ended: exit status unknown, since SIGCHLD is ignored"),
    ],
)
def test_a_status_that_another_has_taken_is_not_needed(
    pipe: tuple[Connection, Connection],
    status: int | None,
    says_ended: bool,
    ends_well: bool,
    error: str,
) -> None:
    member = Member("worker 0", print, {}, Restarts(RestartPolicy()))
    member.pipe, theirs = pipe
    # As `multiprocessing` has it where SIGCHLD is ignored, or where the program waits for any child.
    close = refuse if status is None else lambda: None
    member.process = SimpleNamespace(join=lambda: None, exitcode=status, close=close)
    theirs.send_bytes(SERVES)
    if says_ended:
        theirs.send_bytes(ENDED)
    assert member.reap(1.0) is ends_well
    assert member.error.startswith(error)
    assert member.process is None
    assert member.was_killed == (status == -9)
