"""A star of processes of which one is killed, stopped, too late or gives up: all others are told which one.

But where a test says otherwise, the time-outs are longer than those of the tests: only what is to be told ends calls.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
from lost_ranks import keep, until_lost, until_stopped
from patience import LOST_AFTER_S, pings
from waiting import WATCHDOG_S

# Not loaded here: it must be told first that processes fork.
if not importlib.util.find_spec("grpc"):
    pytest.skip("needs the extra grpc", allow_module_level=True)
from softs_fast.coordination.star import Epoch, GrpcStrategy, StarOptions
from softs_fast.coordination.star.calls import LeafCalls
from softs_fast.errors import PeerLost

NEVER_S = 600.0
SIZE = 4
#: Several pieces.
N = 1 << 20
PATIENT = StarOptions(pings=pings())


def reduces_until_lost(
    say: Callable[[Any], None], rank: int, size: int, folder: str, lost_after_s: float
) -> None:
    strategy = GrpcStrategy(StarOptions(pings=pings(lost_after_s)), timeout_s=NEVER_S).init(
        rank, size, folder
    )
    say(os.getpid())
    say(until_lost(strategy, torch.zeros(N)))
    keep(strategy)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("victim", [0, 2])
def test_all_are_told_which_rank_is_lost(tmp_path: Path, victim: int, how: signal.Signals) -> None:
    lost_after_s = 2.0 if how is signal.SIGSTOP else LOST_AFTER_S
    with ranks.start(reduces_until_lost, SIZE, str(tmp_path), lost_after_s) as running:
        pids = [running.receive(rank) for rank in range(SIZE)]
        os.kill(pids[victim], how)
        for rank in set(range(SIZE)) - {victim}:
            text = running.receive(rank)
            assert f"rank {victim} (process {pids[victim]} on " in text
            assert "is lost" in text
            if how is signal.SIGSTOP:
                assert "which is stopped" in text


def waits_for_one_that_is_late(
    say: Callable[[Any], None], rank: int, size: int, folder: str, late: int
) -> None:
    strategy = GrpcStrategy(PATIENT, timeout_s=1.0)
    store = torch.distributed.FileStore(f"{folder}/store", size)
    # Calls of a short time-out begin when all processes have started.
    strategy.meet(rank, size, store, Epoch(7, 1), connect_timeout_s=30.0)
    if rank == late:
        say("is late")
        Path(folder, "released").read_text()
    with pytest.raises(PeerLost) as raised:
        strategy.all_reduce(torch.ones(N))
    say(str(raised.value))
    keep(strategy)


@pytest.mark.parametrize("late", [0, 2])
def test_all_are_told_which_rank_is_late(tmp_path: Path, late: int) -> None:
    os.mkfifo(tmp_path / "released")
    with ranks.start(waits_for_one_that_is_late, 3, str(tmp_path), late) as running:
        assert running.receive(late) == "is late"
        texts = [running.receive(rank) for rank in range(3) if rank != late]
        (tmp_path / "released").write_text("go on")
        texts.append(running.receive(late))
        for text in texts:
            assert "has waited for 1 s; missing: rank" in text
            assert f"rank {late} (process" in text


def gives_up(say: Callable[[Any], None], rank: int, size: int, folder: str, leaver: int) -> None:
    strategy = GrpcStrategy(PATIENT, timeout_s=NEVER_S).init(rank, size, folder)
    # All have joined, which rank 0 knows first.
    say("joined")
    if rank == leaver:
        Path(folder, "released").read_text()
        strategy.give_up("out of data")
    with pytest.raises(PeerLost) as raised:
        strategy.all_reduce(torch.ones(N))
    say(str(raised.value))
    keep(strategy)


@pytest.mark.parametrize("leaver", [0, 1])
def test_a_rank_that_gives_up_ends_the_calls_of_all(tmp_path: Path, leaver: int) -> None:
    os.mkfifo(tmp_path / "released")
    with ranks.start(gives_up, 3, str(tmp_path), leaver) as running:
        assert running.results() == ["joined"] * 3
        (tmp_path / "released").write_text("go on")
        texts = [running.receive(rank) for rank in range(3)]
        assert texts.pop(leaver) == "out of data"
        for text in texts:
            assert f"rank {leaver} (process" in text
            assert text.endswith("has given up: out of data")


def closes(say: Callable[[Any], None], rank: int, size: int, folder: str, leaver: int) -> str:
    strategy = GrpcStrategy(PATIENT, timeout_s=NEVER_S).init(rank, size, folder)
    tensor = torch.full((N,), 1.0)
    strategy.all_reduce(tensor)
    assert tensor.eq(size).all()
    if rank == leaver:
        strategy.close()
        return ""
    with pytest.raises(PeerLost) as raised:
        strategy.barrier()
    text = str(raised.value)
    strategy.close()
    return text


@pytest.mark.parametrize("leaver", [0, 2])
def test_a_rank_that_closes_the_group_ends_later_calls_only(tmp_path: Path, leaver: int) -> None:
    texts = ranks.run(closes, 3, str(tmp_path), leaver)
    for rank in set(range(3)) - {leaver}:
        assert f"rank {leaver} (process" in texts[rank]
        assert "closed the group" in texts[rank]


def is_interrupted(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    strategy = GrpcStrategy(PATIENT, timeout_s=NEVER_S).init(rank, size, folder)
    take = LeafCalls._take

    def interrupted(calls: LeafCalls, call: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return take(calls, call)

    if rank == 1:
        LeafCalls._take = interrupted  # type: ignore[method-assign]
    if rank == 0:
        # It does not come: the others wait in the call.
        Path(folder, "released").read_text()
    with pytest.raises((PeerLost, KeyboardInterrupt)) as raised:
        strategy.all_reduce(torch.ones(N))
    say(f"{type(raised.value).__name__}: {raised.value}")
    keep(strategy)


def test_an_interrupt_ends_the_calls_of_all(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "released")
    with ranks.start(is_interrupted, 3, str(tmp_path)) as running:
        assert running.receive(1) == "KeyboardInterrupt: "
        wanted = "has given up: all_reduce was interrupted by KeyboardInterrupt"
        assert wanted in running.receive(2)
        (tmp_path / "released").write_text("go on")
        assert wanted in running.receive(0)


def reduces_once(strategy: GrpcStrategy, tensor: torch.Tensor, *, may_complete: bool) -> str:
    """Return why a call has ended; that of rank 0 may find the pieces of others before the word that they have given up."""
    try:
        strategy.all_reduce(tensor)
    except PeerLost as error:
        return str(error)
    assert may_complete
    with pytest.raises(PeerLost) as raised:
        strategy.barrier()
    return str(raised.value)


def goes_on_without_a_stopped_rank(
    say: Callable[[Any], None], rank: int, size: int, folder: str, stopped: int
) -> Any:
    strategy = GrpcStrategy(timeout_s=NEVER_S).init(rank, size, folder)
    say(os.getpid())
    tensor = torch.full((N,), float(rank))
    if rank == stopped:
        # When all have joined, which rank 0 knows first, and before it takes part.
        Path(folder, "released").read_text()
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        threading.Timer(0.2, strategy.give_up, args=[f"rank {stopped} is too late"]).start()
    reason = reduces_once(strategy, tensor, may_complete=rank == stopped == 0)
    strategy.close()
    if rank == stopped:
        return ""
    assert f"rank {stopped} is too late" in reason
    following = GrpcStrategy(PATIENT, timeout_s=NEVER_S)
    with following.init(sorted({0, 1, 2} - {stopped}).index(rank), size - 1, f"{folder}/next"):
        # In the same memory, which a late write of the call before would change.
        tensor.fill_(1.0)
        following.all_reduce(tensor)
        say("reduced")
        with open(Path(folder, f"resumed{rank}")) as pipe:
            assert pipe.read() == "resumed"
        following.barrier()
        return torch.equal(tensor, torch.full((N,), 2.0))


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_fence_ends_calls_and_the_next_group_is_not_disturbed(tmp_path: Path, stopped: int) -> None:
    others = sorted({0, 1, 2} - {stopped})
    pipes = [tmp_path / f"resumed{rank}" for rank in others]
    for pipe in (*pipes, tmp_path / "released"):
        os.mkfifo(pipe)
    with ranks.start(goes_on_without_a_stopped_rank, 3, str(tmp_path), stopped) as running:
        pids = [running.receive(rank) for rank in range(3)]
        (tmp_path / "released").write_text("go on")
        assert [running.receive(rank) for rank in others] == ["reduced"] * 2
        until_stopped(pids[stopped])
        os.kill(pids[stopped], signal.SIGCONT)
        assert running.receive(stopped) == ""
        for pipe in pipes:
            pipe.write_text("resumed")
        assert [running.receive(rank) for rank in others] == [True] * 2


def fence(strategy: GrpcStrategy, tensor: torch.Tensor, seen: list[torch.Tensor]) -> None:
    strategy.give_up("a fence")
    seen.append(tensor.clone())


def is_fenced_midway(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    tensor = torch.zeros(8 * N)
    for turn in range(6):
        with GrpcStrategy(PATIENT, timeout_s=NEVER_S).init(rank, size, f"{folder}/{turn}") as strategy:
            tensor.fill_(1.0)
            seen: list[torch.Tensor] = []
            timer = threading.Timer(0.005 + 0.01 * turn, fence, args=[strategy, tensor, seen])
            timer.start()
            try:
                # The only writes of the loop are those of the calls.
                while True:
                    strategy.all_reduce(tensor)
            except PeerLost:
                kept = tensor.clone()
            timer.join()
            assert torch.equal(seen[0], tensor)
            assert torch.equal(kept, tensor)


def test_nothing_is_written_after_a_fence(tmp_path: Path) -> None:
    ranks.run(is_fenced_midway, 2, str(tmp_path))


def is_left_after_a_call(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    for turn in range(5):
        strategy = GrpcStrategy(PATIENT, timeout_s=NEVER_S).init(rank, size, f"{folder}/{turn}")
        tensor = torch.full((N,), 1.0)
        strategy.all_reduce(tensor)
        if rank == 0:
            strategy.give_up("out of data")
        assert tensor.eq(size).all()
        # More calls than messages that may wait.
        for _ in range(8):
            with pytest.raises(PeerLost, match="out of data"):
                strategy.barrier()
        strategy.close()


def test_a_call_that_rank_0_has_completed_is_completed_by_all(tmp_path: Path) -> None:
    ranks.run(is_left_after_a_call, 3, str(tmp_path))


def exits_without_closing(say: Callable[[Any], None], rank: int, size: int, folder: str) -> int:
    strategy = GrpcStrategy(PATIENT, timeout_s=NEVER_S).init(rank, size, folder)
    strategy.barrier()
    say("passed")
    Path(folder, f"released{rank}").read_text()
    globals()["kept"] = strategy
    return rank


def test_a_process_that_does_not_close_its_group_can_end(tmp_path: Path) -> None:
    pipes = [tmp_path / f"released{rank}" for rank in range(2)]
    for pipe in pipes:
        os.mkfifo(pipe)
    with ranks.start(exits_without_closing, 2, str(tmp_path)) as running:
        assert running.results() == ["passed"] * 2
        for rank, process in enumerate(running.processes):
            pipes[rank].write_text("go on")
            assert running.receive(rank) == rank
            process.join(WATCHDOG_S)
            assert process.exitcode == 0
