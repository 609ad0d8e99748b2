"""Boards of ranks of several hosts over torch.distributed: what is read, from which ranks, and what happens if they go."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from torch_ranks import Builder, gloo, net, value_of
from two_hosts import pretend, publish, take, tensors
from waiting import eventually

from softs_fast.averaging import Refused
from softs_fast.averaging.hosts.channel import PIECE_BYTES
from softs_fast.averaging.hosts.group_board import GroupBoard
from softs_fast.averaging.meeting import meet_in_group
from softs_fast.averaging.spawn_policy import AsyncSelectiveAveragingPolicy


def reads(say: Callable[[Any], None], rank: int, size: int, folder: str) -> Any:
    pretend(rank // 2)
    with gloo(rank, size, folder):
        board = meet_in_group(dist.group.WORLD)
        board.open(tensors(0.0))
        publish(board, float(rank), step=10 + rank)
        eventually(
            lambda: (
                {(one.rank, one.version) for one in board.members()}
                >= {(other, 1) for other in range(size) if other != rank}
            ),
            "all ranks are seen",
        )
        into = tensors(-1.0)
        donors = [(other, 1 / (size - 1)) for other in range(size) if other != rank]
        found = take(board, donors)
        assert not isinstance(found, Refused), found
        found.apply(into)
        members = {one.rank: (one.version, one.metric, one.trained, one.alive) for one in board.members()}
        # The others may still read.
        dist.barrier()
        board.close()
        board.close()
    values = {name: tensor.tolist() for name, tensor in into.items()}
    return (
        values,
        [(one.rank, one.version, one.step, one.metric, one.config) for one in found.donations],
        members,
    )


def test_donors_of_all_hosts_are_summed_alike(tmp_path: Path) -> None:
    for rank, (into, donations, members) in enumerate(ranks.run(reads, 4, str(tmp_path))):
        others = [other for other in range(4) if other != rank]
        assert donations == [(other, 1, 10 + other, float(other), {"lr": float(other)}) for other in others]
        assert members == {other: (1, float(other), 4, True) for other in others}
        total = torch.tensor(0.0)
        for other in others:
            total = total + torch.tensor(1 / 3) * other
        assert into["weight"] == [total.item()] * 1000
        assert into["half"] == [total.bfloat16().item()] * 7
        assert into["count"] == max(others)


def values_of(into: dict[str, torch.Tensor]) -> set[float]:
    return {value for tensor in into.values() for value in tensor.view(-1).double().unique().tolist()}


@contextmanager
def gloo_by_tcp(rank: int, size: int, folder: str) -> Iterator[None]:
    """As `gloo`, with the store that ranks of several hosts have."""
    file = Path(folder, "port")
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        draft = Path(folder, "port.draft")
        draft.write_text(str(store.port))
        draft.rename(file)
    else:
        eventually(file.exists, "the store is there")
        store = dist.TCPStore("127.0.0.1", int(file.read_text()))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    try:
        yield
        # The store ends with rank 0.
        dist.barrier()
    finally:
        dist.destroy_process_group()


def stress(say: Callable[[Any], None], rank: int, size: int, folder: str, n_reads: int) -> Any:
    """Rank 0 reads from the others, of other hosts, which publish without end; every version has one value."""
    pretend(rank)
    n = 100_000
    with gloo_by_tcp(rank, size, folder):
        board = meet_in_group(dist.group.WORLD, 0.001)
        board.open(tensors(0.0, n))
        n_read = n_published = 0
        torn: list[int] = []
        if rank:
            done = dist.barrier(async_op=True)
            while not done.is_completed():
                n_published += 1
                publish(board, float(n_published % 200), n)
        else:
            eventually(lambda: all(one.version for one in board.members()), "all have published")
            into = tensors(-1.0, n)
            for number in range(n_reads):
                found = take(board, [(1 + number % (size - 1), 1.0)])
                if isinstance(found, Refused):
                    continue
                found.apply(into)
                (one,) = found.donations
                # A version from 0 to 199 is exact in bfloat16.
                if values_of(into) != {float(one.version % 200)}:
                    torn.append(one.version)
                n_read += 1
            dist.barrier()
        board.close()
    return n_read, n_published, torn


@pytest.mark.timeout(600)
@pytest.mark.parametrize("n_reads", [20, pytest.param(1000, marks=pytest.mark.slow)])
def test_no_version_that_comes_by_gloo_is_torn(tmp_path: Path, n_reads: int) -> None:
    with ranks.start(stress, 3 if n_reads > 20 else 2, str(tmp_path), n_reads) as running:
        while not running.pipes[0].poll(1.0):
            assert running.processes[0].is_alive()
        told = running.receive(0)
        assert not isinstance(told, ranks.Raised), told.trace
        others = [running.receive(rank) for rank in range(1, len(running.pipes))]
    n_read, _, torn = told
    assert torn == []
    assert n_read >= 0.9 * n_reads
    assert all(n_published > n_reads for _, n_published, _ in others)


def board_of(rank: int, value: float) -> GroupBoard:
    board = meet_in_group(dist.group.WORLD)
    board.open(tensors(0.0))
    publish(board, value)
    return board


def alive(board: GroupBoard) -> set[int]:
    return {one.rank for one in board.members() if one.alive}


def goes_on(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    """Rank 0 says what it has; the training threads of the others publish once and sleep, and they answer."""
    pretend(rank // 2)
    with gloo(rank, size, folder):
        board = board_of(rank, float(rank))
        if rank:
            say(os.getpid())
            threading.Event().wait()
        eventually(lambda: sum(one.version for one in board.members()) == size - 1, "all have published")
        say("seen")
        eventually(lambda: alive(board) == {1, 4}, "ranks 2 and 3 are missed")
        say([take(board, [(rank, 1.0)]) for rank in (2, 3)])
        found = take(board, [(1, 0.5), (4, 0.5)])
        assert not isinstance(found, Refused), found
        into = tensors(0.0)
        found.apply(into)
        say(values_of(into))
        eventually(lambda: alive(board) == {1, 2, 4}, "rank 2 is seen again")
        assert not isinstance(take(board, [(2, 1.0)]), Refused)
        say("seen again")
        eventually(lambda: alive(board) <= {2}, "the others are missed")
        board.close()
        say([thread.name for thread in threading.enumerate() if thread.name.startswith("softs")])


def test_ranks_that_are_killed_or_stopped_are_missed_and_the_others_are_read(tmp_path: Path) -> None:
    with ranks.start(goes_on, 5, str(tmp_path)) as running:
        pids = [running.receive(rank) for rank in range(1, 5)]
        assert running.receive(0) == "seen"
        os.kill(pids[1], signal.SIGSTOP)
        os.kill(pids[2], signal.SIGKILL)
        refused = running.receive(0)
        assert [(one.rank, one.reason) for one in refused] == [
            (2, "it says nothing any more"),
            (3, "it says nothing any more"),
        ]
        # Floats are averaged; of integers the largest is taken.
        assert running.receive(0) == {2.5, 4.0}
        os.kill(pids[1], signal.SIGCONT)
        assert running.receive(0) == "seen again"
        for pid in (pids[0], pids[1], pids[3]):
            os.kill(pid, signal.SIGKILL)
        # The threads of a rank end though there is no other rank any more.
        assert running.receive(0) == []


def stop_within(channel: Any) -> None:
    """Have this process stop itself in its next transfer, behind the first piece."""
    make = channel.stream

    def make_stopping(*args: Any) -> Any:
        stream = make(*args)
        send = stream.send

        def send_first(memory: torch.Tensor) -> None:
            send(memory[:PIECE_BYTES])
            os.kill(os.getpid(), signal.SIGSTOP)
            threading.Event().wait()  # the signal may come a moment later

        stream.send = send_first
        return stream

    channel.stream = make_stopping


def stops_in_a_transfer(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    """Rank 1 stops itself in the middle of a transfer."""
    pretend(rank)
    n = 1_000_000
    with gloo(rank, size, folder):
        board = meet_in_group(dist.group.WORLD)
        board.open(tensors(0.0, n))
        if rank == 1:
            stop_within(board._courier._channel)
        publish(board, 1.0 + rank, n)
        if rank:
            threading.Event().wait()
        eventually(lambda: sum(one.version for one in board.members()) == size - 1, "all have published")
        say(take(board, [(1, 1.0)]))
        found = take(board, [(2, 1.0)])
        assert not isinstance(found, Refused), found
        found.apply(into := tensors(0.0, n))
        say(values_of(into))
        board.close()


def test_a_donor_that_stops_in_a_transfer_is_given_up_and_another_one_taken(tmp_path: Path) -> None:
    with ranks.start(stops_in_a_transfer, 3, str(tmp_path)) as running:
        refused = running.receive(0)
        assert isinstance(refused, Refused), refused
        assert refused.rank == 1
        assert "nothing has come from rank" in refused.reason
        assert running.receive(0) == {3.0}


def trains(say: Callable[[Any], None], rank: int, size: int, folder: str) -> Any:
    """Rank 0 is the worst, and alone on its host; ranks go on until it was replaced."""
    pretend(int(rank > 0))
    builder = Builder()
    model: torch.nn.Module = net(float(2**rank))
    optimizer: Any = None
    with gloo(rank, size, folder):
        policy = AsyncSelectiveAveragingPolicy(builder, 2, poll_interval_s=0.002, cooldown=0)
        n_replaced, done, iteration = 0, None, 0
        while done is None or not done.is_completed():
            # `all` is an average of the ranks that rank 0 sees, which in the end are both others.
            model, optimizer, info = policy(iteration, model, optimizer, 0.9 if rank else 0.1)
            n_replaced += info.get("averaged_this_iteration", False)
            if done is None and (rank or value_of(model) == 3.0):
                done = dist.barrier(async_op=True)
            iteration += 1
            time.sleep(0.001)
        policy.shutdown()
        policy.shutdown()
    gc.collect()
    return value_of(model), n_replaced > 0, builder.n_calls == n_replaced


def test_the_worst_rank_takes_the_mean_of_ranks_of_another_host(tmp_path: Path) -> None:
    assert ranks.run(trains, 3, str(tmp_path)) == [(3.0, True, True), (2.0, False, True), (4.0, False, True)]
