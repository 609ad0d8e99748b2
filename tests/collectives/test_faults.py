"""Ranks that die, stop, leave, fork or do something else: the others get an error that names them, and can go on."""

import ctypes
import os
import random
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
from fork_check import check_fork
from lost_ranks import (
    COMPLETED,
    NEVER_S,
    SOON_S,
    check_killed,
    check_stopped,
    complete_late,
    interrupted_in_a_call,
    reduce_for_ever,
    reduce_until_lost,
)
from small_memory import run_in_small_memory
from waiting import eventually

from softs_fast.collectives import Schedule, ShmStrategy
from softs_fast.errors import ConfigError, PeerLost, SegmentError

SCHEDULE = Schedule(1 << 15, 1 << 16)


def reduces_until_lost(
    say: Callable[[Any], None], rank: int, size: int, folder: str, timeout_s: float
) -> tuple[str, list[int]]:
    strategy = ShmStrategy(timeout_s=timeout_s, schedule=SCHEDULE).init(rank, size, folder)
    return reduce_until_lost(say, strategy, torch.zeros(100_000))


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_is_named_at_once(tmp_path: Path, victim: int) -> None:
    check_killed(reduces_until_lost, tmp_path, victim)


def test_a_stopped_rank_is_named_when_the_time_is_over(tmp_path: Path) -> None:
    check_stopped(reduces_until_lost, tmp_path)


def goes_on_without(say: Callable[[Any], None], rank: int, size: int, folder: str) -> tuple[int, int, float]:
    strategy = ShmStrategy(timeout_s=NEVER_S, schedule=SCHEDULE).init(rank, size, folder)
    bucket = strategy.bucket({"w": ((10,), torch.float32)})
    say(os.getpid())
    tensor = torch.zeros(1000)
    for lost in range(2):
        with pytest.raises(PeerLost):
            reduce_for_ever(strategy, tensor)
        strategy.rebuild()
        say(f"rebuilt {lost}")
    tensor = torch.full((1000,), float(rank))
    strategy.all_reduce(tensor)
    with pytest.raises(ConfigError, match="closed"):
        bucket.all_reduce()
    strategy.barrier()
    strategy.close()
    return strategy.rank, strategy.size, float(tensor[0])


def test_a_group_is_rebuilt_of_the_ranks_that_are_left_and_again(tmp_path: Path) -> None:
    with ranks.start(goes_on_without, 4, str(tmp_path)) as running:
        pids = running.results()
        os.kill(pids[0], signal.SIGKILL)
        running.results()
        os.kill(pids[2], signal.SIGKILL)
        running.results()
        told = running.results()
    assert told == [None, (0, 2, 4.0), None, (1, 2, 4.0)]


def rebuilds_or_sleeps(say: Callable[[Any], None], rank: int, size: int, folder: str) -> str:
    strategy = ShmStrategy(timeout_s=SOON_S, schedule=SCHEDULE).init(rank, size, folder)
    say(os.getpid())
    tensor = torch.zeros(10)
    with pytest.raises(PeerLost):
        reduce_for_ever(strategy, tensor)
    try:
        strategy.rebuild()
    except PeerLost as error:
        return str(error)
    finally:
        strategy.close()
    return f"{strategy.size}"


def test_a_rank_that_comes_too_late_is_left_out(tmp_path: Path) -> None:
    with ranks.start(rebuilds_or_sleeps, 3, str(tmp_path)) as running:
        pids = running.results()
        os.kill(pids[1], signal.SIGSTOP)
        assert [running.receive(0), running.receive(2)] == ["2", "2"]
        os.kill(pids[1], signal.SIGCONT)
        assert "rebuilt the group without rank 1" in running.receive(1)


def completes_what_failed(say: Callable[[Any], None], rank: int, size: int, folder: str) -> str:
    """The others give up on rank 2, which then completes that call: all have staged their tensors."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    strategy = ShmStrategy(timeout_s=SOON_S, schedule=SCHEDULE).init(rank, size, folder)
    say(os.getpid())
    tensor = torch.ones(10)
    if rank == 2:
        signal.sigwait([signal.SIGUSR1])
        strategy.all_reduce(tensor)
        assert tensor.tolist() == [size] * 10
    with pytest.raises(PeerLost):
        strategy.all_reduce(tensor)
    say("failed")
    with pytest.raises(ConfigError) as raised:
        strategy.rebuild()
    # The new group works, and has nothing to tell the next time.
    tensor.fill_(1)
    strategy.all_reduce(tensor)
    assert tensor.tolist() == [size] * 10
    strategy.rebuild()
    strategy.barrier()
    strategy.close()
    return str(raised.value)


def test_a_call_that_a_late_rank_completes_is_not_mixed_with_its_next_one(tmp_path: Path) -> None:
    assert COMPLETED in complete_late(completes_what_failed, tmp_path)


def leaves_early(say: Callable[[Any], None], rank: int, size: int, folder: str) -> str:
    strategy = ShmStrategy(timeout_s=NEVER_S, schedule=SCHEDULE).init(rank, size, folder)
    if rank == 0:
        strategy.close()
        strategy.close()
        with pytest.raises(ConfigError, match="closed"):
            strategy.barrier()
        return ""
    with pytest.raises(PeerLost) as raised:
        strategy.barrier()
    strategy.close()
    return str(raised.value)


def test_a_rank_that_leaves_is_named(tmp_path: Path) -> None:
    told = ranks.run(leaves_early, 3, str(tmp_path))
    assert all("rank 0" in text and "closed the group" in text for text in told[1:])


def gives_up(say: Callable[[Any], None], rank: int, size: int, folder: str) -> str:
    strategy = ShmStrategy(timeout_s=NEVER_S, schedule=SCHEDULE).init(rank, size, folder)
    if rank == 1:
        strategy.give_up("out of data\x1b[31m")
        Path(folder, "given up").touch()
    eventually(Path(folder, "given up").exists, "rank 1 has given up")
    with pytest.raises(PeerLost) as raised:
        # What it has seen may follow from what rank 1 did.
        strategy.give_up("rank 0 is late") if rank == 2 else strategy.barrier()
    strategy.close()
    return str(raised.value)


def test_a_rank_that_gives_up_says_why(tmp_path: Path) -> None:
    told = ranks.run(gives_up, 3, str(tmp_path))
    assert all("out of data" in text for text in told)
    assert "\x1b" not in told[0]


def different_calls(say: Callable[[Any], None], rank: int, size: int, folder: str) -> list[str]:
    odd = rank == 1
    with ShmStrategy(timeout_s=20, schedule=SCHEDULE).init(rank, size, folder) as strategy:
        calls: list[Callable[[], object]] = [
            lambda: strategy.all_reduce(torch.zeros(2, 3) if odd else torch.zeros(3, 2)),
            lambda: strategy.all_reduce(torch.zeros(4, dtype=torch.float16 if odd else torch.bfloat16)),
            lambda: strategy.all_reduce(torch.zeros(4), "min" if odd else "max"),
            lambda: strategy.barrier() if odd else strategy.all_reduce(torch.zeros(100_000)),
            lambda: strategy.broadcast_tensor(torch.zeros(4), root=rank),
            lambda: strategy.all_reduce_gradients(
                {"same": torch.zeros(2), "b" if odd else "a": torch.zeros(3), "c": torch.zeros(1 + rank)}
            ),
            lambda: strategy.bucket({"w": ((5 + odd,), torch.float32)}),
            lambda: strategy.all_gather(torch.zeros(size * (4 + odd)), torch.zeros(4 + odd)),
        ]
        texts = []
        for call in calls:
            tensor = torch.ones(3)
            with pytest.raises(ConfigError) as raised:
                call()
            texts.append(str(raised.value))
            # Nothing is lost: the group goes on.
            strategy.all_reduce(tensor)
            assert tensor.tolist() == [size] * 3
        return texts


def test_calls_that_differ_are_an_error_that_says_how(tmp_path: Path) -> None:
    told = ranks.run(different_calls, 3, str(tmp_path))
    assert told[0] == told[1] == told[2]
    shapes, dtypes, ops, kinds, roots, gradients, buckets, _ = told[0]
    assert "float32 [3, 2] on rank 0, 2; " in shapes
    assert "all_reduce sum of float32 [2, 3] on rank 1" in shapes
    assert "bfloat16 [4] on rank 0, 2" in dtypes
    assert "all_reduce min of float32 [4] on rank 1" in ops
    assert "barrier on rank 1" in kinds
    assert "from rank 2 on rank 2" in roots
    assert '"a": float32 [3] on rank 0, 2; absent on rank 1' in gradients
    assert '"c": float32 [1] on rank 0; float32 [2] on rank 1; float32 [3] on rank 2' in gradients
    assert "same" not in gradients
    assert '"w": float32 [5] on rank 0, 2; float32 [6] on rank 1' in buckets


def scribbles(say: Callable[[Any], None], rank: int, size: int, folder: str, seed: int) -> str:
    """The second rank writes whatever it likes over flags, offers, notices and what is staged."""
    strategy = ShmStrategy(timeout_s=20, schedule=SCHEDULE).init(rank, size, folder)
    if rank == 1:
        strategy.barrier()
        lines = Path("/proc/self/maps").read_text().splitlines()
        memory = next(int(line.split("-")[0], 16) for line in lines if "/dev/shm/" in line) + 4096
        chance = random.Random(seed)
        for _ in range(300):
            # The flags, again and again, so that the other gets past some of its waits.
            ctypes.memmove(memory, chance.randbytes(1 << 13), 1 << 13)
            ctypes.memmove(memory + 128, (0xFFFFFF00 + chance.randrange(40)).to_bytes(4, "little"), 4)
            time.sleep(0.0005)
        return ""
    told = ""
    for step in range(20):
        try:
            if step == 0:
                # The other one may write before this has returned.
                strategy.barrier()
            strategy.all_reduce(torch.zeros(10 + 5000 * (step % 2)))
            strategy.all_reduce_gradients({"a": torch.zeros(3)})
            strategy.bucket({"w": ((10,), torch.float32)})
            strategy.rebuild()
        except (PeerLost, ConfigError, SegmentError) as error:
            told = str(error)
            if isinstance(error, PeerLost):
                break
    strategy.close()
    return told


@pytest.mark.parametrize("seed", range(4))
def test_whatever_a_rank_writes_into_the_memory_of_all_is_an_error_at_most(tmp_path: Path, seed: int) -> None:
    told = ranks.run(scribbles, 2, str(tmp_path), seed)
    assert told[0].isascii()
    assert told[0].isprintable()


def forks(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    with ShmStrategy(timeout_s=20, schedule=SCHEDULE).init(rank, size, folder) as strategy:
        check_fork(strategy.barrier, then=strategy.close)
        strategy.barrier()


def test_a_fork_cannot_take_part_and_does_no_harm(tmp_path: Path) -> None:
    ranks.run(forks, 2, str(tmp_path))


def interrupted(say: Callable[[Any], None], rank: int, size: int, folder: str) -> str:
    told = Path(folder, "interrupted")
    strategy = ShmStrategy(timeout_s=NEVER_S, schedule=SCHEDULE).init(rank, size, folder)
    if rank == 0:
        with interrupted_in_a_call():
            reduce_for_ever(strategy, torch.zeros(3))
        strategy.close()
        told.touch()
        return ""
    eventually(told.exists)
    with pytest.raises(PeerLost) as raised:
        reduce_for_ever(strategy, torch.zeros(3))
    strategy.close()
    return str(raised.value)


def test_a_signal_interrupts_a_wait(tmp_path: Path) -> None:
    assert "rank 0 gave up: interrupted" in ranks.run(interrupted, 2, str(tmp_path))[1]


def too_little_memory(say: Callable[[Any], None], rank: int, size: int, folder: str) -> str:
    with ShmStrategy(timeout_s=20, schedule=SCHEDULE).init(rank, size, folder) as strategy:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
        with pytest.raises(SegmentError) as raised:
            strategy.bucket({"w": ((1 << 20,), torch.float32)})
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        bucket = strategy.bucket({"w": ((1 << 20,), torch.float32)})
        bucket.views["w"].fill_(1)
        bucket.all_reduce("sum")
        assert bucket.views["w"].eq(size).all()
        return str(raised.value)


def test_without_memory_no_rank_gets_a_bucket_and_all_go_on(tmp_path: Path) -> None:
    told = ranks.run(too_little_memory, 2, str(tmp_path))
    assert all("could not take its part" in text for text in told)


FULL = """
import sys
from softs_fast.collectives import ShmStrategy
from softs_fast.errors import SegmentError
try:
    ShmStrategy().init(0, 1, sys.argv[1])
except SegmentError as error:
    print(error)
"""


def test_a_full_shared_memory_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    told = run_in_small_memory(FULL, str(tmp_path / "place"))
    assert "No space left on device" in told
    assert "--shm-size" in told
