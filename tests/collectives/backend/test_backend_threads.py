"""Which thread makes a call: the one that waits for it if it can, and no thread is woken for nothing."""

from __future__ import annotations

import os
import resource
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from backend_ranks import joined
from lost_ranks import interrupted_in_a_call, sleeps
from waiting import eventually

from softs_fast.collectives.backend import door
from softs_fast.collectives.backend.work import BackendLost, BackendMismatch
from softs_fast.errors import ConfigError


def threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    with joined(0, 1, str(tmp_path)):
        yield


def begun() -> str:
    """Make the thread of the group's queue begin; return its number."""
    before = threads()
    assert dist.all_reduce(torch.ones(1), async_op=True).wait()
    (thread,) = threads() - before
    return thread


@contextmanager
def held_back() -> Iterator[None]:
    """Let the thread of the group's queue run only while the caller sleeps, so that the caller comes first."""
    thread, processors = int(begun()), os.sched_getaffinity(0)
    os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
    for one in (0, thread):
        os.sched_setaffinity(one, {min(processors)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, processors)


@pytest.mark.usefixtures("alone")
def test_a_call_that_is_made_at_once_wakes_no_thread() -> None:
    thread, tensor = begun(), torch.ones(8)
    before = sleeps(thread)
    for _ in range(200):
        dist.all_reduce(tensor)
    assert sleeps(thread) - before < 20


@pytest.mark.usefixtures("alone")
def test_a_caller_that_waits_makes_the_call_itself() -> None:
    """A wait for another thread would be a sleep in nearly every call."""
    tensor = torch.ones(8)
    with held_back():
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        for _ in range(400):
            dist.all_reduce(tensor, async_op=True).wait()
        assert resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before < 100


def interrupted(say: Callable[[Any], None], rank: int, size: int, folder: str) -> str:
    """Return the error of the call; nothing if the thread of the queue has come first, and nothing is broken."""
    told = Path(folder, "interrupted")
    with joined(rank, size, folder), held_back():
        if rank == 1:
            eventually(told.exists)
            # What rank 0 had to say before it left may be enough for the call to end.
            with suppress(BackendLost):
                dist.all_reduce(torch.ones(8))
            return "left"
        with interrupted_in_a_call():
            work = dist.all_reduce(torch.ones(8), async_op=True)
            work.wait()
        told.touch()
        try:
            work.wait()
        except BackendLost as lost:
            with pytest.raises(BackendLost, match="interrupted in the middle of a call"):
                work.wait()
            return str(lost)
    return ""


def test_a_signal_interrupts_a_caller_that_makes_a_call(tmp_path: Path) -> None:
    for attempt in range(5):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        error, _ = ranks.run(interrupted, 2, str(folder))
        if error:
            break
    assert "interrupted in the middle of a call" in error


def left_pending(say: Callable[[Any], None], rank: int, size: int, folder: str) -> float:
    """The call of the interrupted caller waits behind one that the queue's thread makes, and is made later."""
    told = Path(folder, "interrupted")
    with joined(rank, size, folder):
        thread = begun()
        if rank == 1:
            eventually(told.exists)
            dist.all_reduce(torch.ones(8))
            dist.all_reduce(torch.ones(8))
            return 0.0
        before = sleeps(thread)
        first = dist.all_reduce(torch.ones(8), async_op=True)
        # The thread is in the call, and looks every few milliseconds.
        eventually(lambda: sleeps(thread) > before + 5)
        tensor = torch.ones(8)
        memory = weakref.ref(tensor)
        with interrupted_in_a_call():
            dist.all_reduce(tensor)
        del tensor
        told.touch()
        first.wait()
        kept = memory()
        assert kept is not None, "the call may write to it"
        eventually(lambda: kept[0] == 2.0)
        return float(kept.sum())


@pytest.mark.usefixtures("alone")
def test_a_group_makes_no_call_before_its_broadcast_is_confirmed() -> None:
    """The queue confirms it; another call of the group would write what a slow rank may still read."""
    (backend,) = door._open
    tensor = torch.ones(8)
    dist.broadcast(tensor, 0)
    with pytest.raises(ConfigError, match="waits to be confirmed"):
        backend._membership.group().barrier(0)
    dist.all_reduce(tensor)


def test_what_a_call_uses_is_kept_after_an_interrupt(tmp_path: Path) -> None:
    assert ranks.run(left_pending, 2, str(tmp_path)) == [16.0, 0.0]


def early(say: Callable[[Any], None], rank: int, size: int, folder: str) -> list[float]:
    """The root goes on when it has published its bytes; the other rank comes only then."""
    got: list[float] = []
    with joined(rank, size, folder):
        for number in range(3):
            tensor = torch.full((1000,), float(rank + number))
            gone_on = Path(folder, f"gone-on-{number}")
            if rank == 0:
                dist.broadcast(tensor, 0)
                tensor.fill_(-1.0)
                gone_on.touch()
            else:
                eventually(gone_on.exists)
                dist.broadcast(tensor, 0)
                got += tensor.unique().tolist()
    return got


def test_the_root_of_a_small_broadcast_does_not_wait(tmp_path: Path) -> None:
    assert ranks.run(early, 2, str(tmp_path)) == [[], [0.0, 1.0, 2.0]]


def differing(say: Callable[[Any], None], rank: int, size: int, folder: str) -> list[str]:
    told = []

    def broadcast(then: Callable[[], object]) -> None:
        dist.broadcast(torch.zeros(5 if rank == 2 else 4), 0)
        then()

    def calls() -> None:
        with joined(rank, size, folder):
            one = torch.ones(2)
            with pytest.raises(BackendMismatch) as raised:
                broadcast(then=lambda: dist.all_reduce(one))
            told.append(str(raised.value))
            # The root has made the call that told it.
            if rank != 0:
                dist.all_reduce(one)
            assert one.tolist() == [3.0, 3.0]
            broadcast(then=lambda: None)

    with pytest.raises(BackendMismatch) as at_the_end:
        calls()
    return [*told, str(at_the_end.value)]


def test_the_root_of_a_small_broadcast_learns_later_that_others_made_another_call(tmp_path: Path) -> None:
    text = "ranks make different calls: broadcast of 16 bytes from rank 0 on rank 0, 1; broadcast of 20 bytes from rank 0 on rank 2"
    assert ranks.run(differing, 3, str(tmp_path)) == [[text, text]] * 3
