"""The words of a group: what a watchdog raises, and what it leaves alone. Streams are played by the tests."""

import ctypes
import os
import platform
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks
from fork_check import check_fork
from waiting import eventually

from softs_fast import _kernels
from softs_fast.collectives.host.group import join_host_group

NEVER_S = 300.0
FIRST = _kernels.FIRST_WORD
POLL = 7
Say = Callable[[Any], None]


class Played:
    """A rank with words, and any word as a stream reads and writes it."""

    def __init__(self, rank: int, size: int, folder: str) -> None:
        self.group = join_host_group(
            rank, size, folder, name="words", staging_bytes=1 << 16, timeout_s=NEVER_S
        )
        before = set(os.listdir("/proc/self/task"))
        self.words = _kernels.Words(self.group)
        (self.thread,) = set(os.listdir("/proc/self/task")) - before
        self.group.barrier(0)

    def await_blocked_watchdog(self) -> None:
        """Until it waits without a time limit."""
        while platform.machine() == "x86_64":  # where the system call's number is known
            number, *arguments = Path(f"/proc/self/task/{self.thread}/syscall").read_text().split()
            if number == str(POLL) and int(arguments[2], 16) & 0xFFFFFFFF == 0xFFFFFFFF:
                return
            os.sched_yield()

    def word(self, rank: int) -> ctypes.c_uint32:
        return ctypes.c_uint32.from_address(self.words.word(rank))

    def wait(self, rank: int, value: int) -> int:
        """As a stream: until a word has reached a value; what it was then, as another rank may write it at any time."""
        word = self.word(rank)
        while ctypes.c_int32((reached := word.value) - value).value < 0:
            os.sched_yield()
        return reached

    def close(self) -> None:
        self.words.close()
        self.words.close()
        self.group.close()


def mark(n: int) -> int:
    return (FIRST + n) & 0xFFFFFFFF


def outlives(say: Say, rank: int, size: int, folder: str, n: int) -> None:
    played = Played(rank, size, folder)
    # Rank 1 announces one less than the others want, rank 2 one more.
    played.words.own = mark(n + (0, -1, 1)[rank])
    played.group.barrier(0)
    played.words.want(mark(n))
    assert played.words.undone() == ([] if rank == 1 else [1])
    assert not played.words.drained()
    played.group.barrier(0)
    say(os.getpid())
    if rank == 1:
        signal.pause()
    # To what is wanted, and no further; what a dead device still writes later is raised again.
    assert played.wait(1, mark(n)) == mark(n)
    played.word(1).value = mark(n - 1)
    assert played.wait(1, mark(n)) == mark(n)
    assert played.words.drained()
    say((played.words.undone(), [played.word(other).value for other in (0, 2)]))
    played.close()


@pytest.mark.parametrize("n", [3, 0x100, 0x101], ids=["plain", "wraps", "wrapped"])
def test_the_word_of_a_killed_rank_is_raised_to_what_is_wanted(tmp_path: Path, n: int) -> None:
    with ranks.start(outlives, 3, str(tmp_path), n) as running:
        pids = running.results()
        os.kill(pids[1], signal.SIGKILL)
        for rank in (0, 2):
            undone, others = running.receive(rank)
            assert undone in ([1], []), "raised by this watchdog, or by the other one"
            assert others == [mark(n), mark(n + 1)]


def gives_up(say: Say, rank: int, size: int, folder: str) -> list[int]:
    played = Played(rank, size, folder)
    played.await_blocked_watchdog()
    played.words.want(mark(5))
    played.group.barrier(0)
    if rank == 0:
        played.group.give_up("enough")
    # All of them live, and none has announced anything.
    reached = [played.wait(other, mark(5)) for other in range(size) if other != rank]
    assert played.words.drained()
    stop = ctypes.c_uint32.from_address(played.words.stop)
    while stop.value != 1:
        os.sched_yield()
    say("")
    return reached


def test_all_words_are_raised_when_a_rank_breaks_the_group(tmp_path: Path) -> None:
    with ranks.start(gives_up, 3, str(tmp_path)) as running:
        assert running.results() == [""] * 3
        assert running.results() == [[mark(5)] * 2] * 3


def sleeps(say: Say, rank: int, size: int, folder: str) -> None:
    played = Played(rank, size, folder)
    played.await_blocked_watchdog()
    played.words.want(mark(1))
    played.group.barrier(0)
    played.words.own = mark(1)
    played.wait(1 - rank, mark(1))
    # It looks at times while a stream waits, and no longer.
    played.await_blocked_watchdog()
    assert not played.words.drained()
    played.group.barrier(0)
    played.close()
    # The kernel lists a thread for a moment after its end is known.
    eventually(lambda: played.thread not in os.listdir("/proc/self/task"))


def test_a_watchdog_waits_without_a_time_limit_while_nothing_waits_for_a_word(tmp_path: Path) -> None:
    ranks.run(sleeps, 2, str(tmp_path))


def forgets(say: Say, rank: int, size: int, folder: str) -> None:
    played = Played(rank, size, folder)
    played.words.want(mark(1))
    played.group.barrier(0)
    word = played.words.word(1 - rank)
    if rank == 0:
        # The object goes, and the streams that may still wait do not: its thread and its memory stay.
        del played.words, played.group
        say(os.getpid())
        while ctypes.c_uint32.from_address(word).value != mark(1):
            os.sched_yield()
        return
    say(os.getpid())
    signal.pause()


def test_words_that_are_dropped_still_end_waits(tmp_path: Path) -> None:
    with ranks.start(forgets, 2, str(tmp_path)) as running:
        pids = running.results()
        os.kill(pids[1], signal.SIGKILL)
        assert running.receive(0) is None


def forked(say: Say, rank: int, size: int, folder: str) -> None:
    played = Played(rank, size, folder)
    check_fork(then=played.words.close)
    played.words.want(mark(1))
    played.words.own = mark(1)
    played.wait(1 - rank, mark(1))
    played.group.barrier(0)
    played.close()


def test_a_fork_has_no_watchdog_to_end(tmp_path: Path) -> None:
    ranks.run(forked, 2, str(tmp_path))
