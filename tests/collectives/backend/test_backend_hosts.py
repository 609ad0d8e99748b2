"""The backend "softs+plain": right results on any hosts, gloo where it is enough, and errors on every rank."""

from __future__ import annotations

import atexit
import copy
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import ranks
import test_backend_callers
import torch
import torch.distributed as dist
from backend_ranks import for_ever, joined, pretend_hosts
from hierarchies import in_blocks
from waiting import eventually

from softs_fast.collectives.backend import host_calls
from softs_fast.collectives.backend.work import BackendLost, BackendMismatch
from softs_fast.collectives.host.shm_strategy import ShmStrategy
from softs_fast.errors import ConfigError, ForkedError, SegmentError

N = 6000


@contextmanager
def on_hosts(
    rank: int, size: int, folder: str, sizes: list[int], smallest_bytes: int = 1 << 14
) -> Iterator[None]:
    """Join as if the ranks were on hosts with so many of them each."""
    pretend_hosts(sizes)
    host_calls.SMALLEST_BYTES = smallest_bytes
    with joined(rank, size, folder, "softs+plain"):
        yield


def of_rank(rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.arange(N) % 50 + rank).to(dtype)


def calls(say: Callable[[Any], None], rank: int, size: int, folder: str, sizes: list[int]) -> None:
    every = range(size)

    def total(dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.stack([of_rank(one, dtype) for one in every]).sum(0)

    with on_hosts(rank, size, folder, sizes):
        assert dist.get_backend() == "softs+plain"
        for dtype in (torch.float32, torch.float64, torch.int64):
            means = {dist.ReduceOp.AVG: total(dtype) / size} if dtype.is_floating_point else {}
            for op, expected in {
                **means,
                dist.ReduceOp.SUM: total(dtype),
                dist.ReduceOp.MIN: of_rank(0, dtype),
                dist.ReduceOp.MAX: of_rank(size - 1, dtype),
            }.items():
                for is_later in (False, True):
                    whole = of_rank(rank, dtype)
                    work = dist.all_reduce(whole, op, async_op=is_later)
                    if work is not None:
                        work.wait()
                    torch.testing.assert_close(whole, expected, msg=f"{dtype} {op} {is_later}")
        # A few elements.
        few = torch.full((3,), float(rank))
        dist.all_reduce(few, dist.ReduceOp.AVG)
        assert few.tolist() == [(size - 1) / 2] * 3
        # Not dense, and without a kernel.
        columns = torch.stack([of_rank(rank), of_rank(rank)], dim=1)
        dist.all_reduce(columns[:, 0])
        torch.testing.assert_close(columns[:, 0], total())
        assert torch.equal(columns[:, 1], of_rank(rank))
        product = torch.full((N,), 2.0)
        dist.all_reduce(product, dist.ReduceOp.PRODUCT)
        assert torch.equal(product, torch.full((N,), 2.0**size))

        # A sum of all would not fit, and the mean does.
        whole = torch.full((N,), 200 + rank, dtype=torch.uint8)
        dist.all_reduce(whole, dist.ReduceOp.AVG)
        assert torch.equal(
            whole, torch.full((N,), sum(200 + one for one in every) // size, dtype=torch.uint8)
        )
        # Of a dtype that is not reduced.
        said = torch.full((2 * N,), rank, dtype=torch.uint16)
        dist.broadcast(said, size - 1)
        assert (said == size - 1).all()

        gathered = torch.empty(size * N)
        dist.all_gather_into_tensor(gathered, of_rank(rank))
        assert torch.equal(gathered, torch.cat([of_rank(one) for one in every]))
        part = torch.empty(N)
        dist.reduce_scatter_tensor(part, torch.cat([of_rank(rank) + 10 * one for one in every]))
        torch.testing.assert_close(part, total() + 10.0 * rank * size)
        for root in every:
            said = of_rank(root) if rank == root else torch.zeros(N)
            dist.broadcast(said, root)
            assert torch.equal(said, of_rank(root))

        # Without levels.
        several = [torch.empty(N + 1)[:N] for _ in every]
        if rank == 0:
            # Beside each other, there alone.
            several = list(torch.empty(size * N).chunk(size))
        dist.all_gather(several, of_rank(rank))
        assert torch.equal(torch.cat(several), gathered)
        swapped = torch.empty(size)
        dist.all_to_all_single(swapped, torch.arange(float(size)) + 10 * rank)
        assert swapped.tolist() == [rank + 10.0 * one for one in every]
        if rank == 0:
            dist.send(of_rank(7), size - 1)
        elif rank == size - 1:
            got = torch.empty(N)
            dist.recv(got, 0)
            assert torch.equal(got, of_rank(7))
        names: list[Any] = [None] * size
        dist.all_gather_object(names, f"rank {rank}")
        assert names == [f"rank {one}" for one in every]
        dist.barrier()
        dist.monitored_barrier()

        # Of one host, so in shared memory; and of all.
        inside = [dist.new_group(node) for node in in_blocks(sizes)]
        outside = dist.new_group(list(every))
        own = next(group for group in inside if dist.get_rank(group) >= 0)
        for group in (own, outside):
            count = torch.ones(N)
            dist.all_reduce(count, group=group)
            assert count[0] == dist.get_world_size(group)


@pytest.mark.parametrize("sizes", [[2, 2], [3, 1], [1, 1, 2]], ids=str)
def test_results_are_right_on_any_hosts(tmp_path: Path, sizes: list[int]) -> None:
    ranks.run(calls, sum(sizes), str(tmp_path), sizes)


def trains(say: Callable[[Any], None], rank: int, size: int, folder: str) -> list[str]:
    different = []
    # All tensors go through both levels.
    with on_hosts(rank, size, folder, [2, 1], smallest_bytes=1):
        both = dist.group.WORLD
        assert both is not None
        gloo = dist.new_group(backend="gloo")
        for name, train in test_backend_callers.TRAININGS.items():
            # Sums are in another order than that of gloo, and Adam makes a whole step of what is nearly nothing.
            weights = []
            for group in (both, gloo):
                trained = train(copy.deepcopy(test_backend_callers.net()), group, rank)
                weights.append(
                    torch.cat([one.detach().flatten().double() for one in trained.state_dict().values()])
                )
            if not torch.allclose(*weights, rtol=0.0, atol=0.02):
                different.append(f"{name}: {float((weights[0] - weights[1]).abs().max()):g}")
    return different


def test_trainings_end_with_the_weights_that_they_end_with_over_gloo(tmp_path: Path) -> None:
    assert ranks.run(trains, 3, str(tmp_path)) == [[]] * 3


def apart(say: Callable[[Any], None], rank: int, size: int, folder: str) -> str:
    with on_hosts(rank, size, folder, [2, 2]):
        with pytest.raises(BackendMismatch):
            dist.reduce_scatter_tensor(torch.empty(N + (rank == 1)), torch.ones(size * (N + (rank == 1))))
        rows = [2, 1, 1, 0] if rank == 1 else [1] * size
        with pytest.raises(BackendMismatch, match="rank 0 sends 4 bytes to rank 1, which takes 8"):
            dist.all_to_all_single(torch.empty(size), torch.ones(size), rows, [1] * size)
        with pytest.raises(BackendMismatch) as raised:
            dist.all_reduce(torch.ones(N + (rank == 3)))
        # The group goes on.
        whole = torch.ones(N)
        dist.all_reduce(whole)
        assert whole[0] == size
        return str(raised.value)


def test_different_calls_are_named_on_every_rank(tmp_path: Path) -> None:
    for told in ranks.run(apart, 4, str(tmp_path)):
        assert f"float32 [{N}] on rank 0, 1, 2" in told
        assert f"float32 [{N + 1}] on rank 3" in told


def waits_for_a_year(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    with on_hosts(rank, size, folder, [2, 1]):
        group = dist.new_group(list(range(size)), timeout=timedelta(days=365))
        whole = torch.ones(N)
        dist.all_reduce(whole, group=group)
        assert whole[0] == size


def test_a_time_out_may_be_long(tmp_path: Path) -> None:
    ranks.run(waits_for_a_year, 3, str(tmp_path))


def lacks_memory(say: Callable[[Any], None], rank: int, size: int, folder: str) -> str:
    init = ShmStrategy.init

    def fails(self: ShmStrategy, *place: Any) -> ShmStrategy:
        init(self, *place).close()
        raise SegmentError("no memory here")

    if rank < 2:
        ShmStrategy.init = fails  # type: ignore[method-assign]
    with pytest.raises(SegmentError) as raised, on_hosts(rank, size, folder, [2, 2]):
        pass
    return str(raised.value)


def test_a_lack_of_memory_on_one_host_is_told_on_all(tmp_path: Path) -> None:
    assert ranks.run(lacks_memory, 4, str(tmp_path)) == ["rank 0: no memory here"] * 4


def has_a_wrong_token(say: Callable[[Any], None], rank: int, size: int, folder: str) -> str:
    pretend_hosts([1, 1])
    if rank == 1:
        os.environ["SOFTS_FAST_TOKEN_FILE"] = f"{folder}/none"
    with pytest.raises(ConfigError) as raised, joined(rank, size, folder):
        pass
    return str(raised.value)


def test_a_token_file_that_is_missing_on_one_rank_is_told_on_all(tmp_path: Path) -> None:
    for told in ranks.run(has_a_wrong_token, 2, str(tmp_path)):
        assert told.startswith("rank 1: ")
        assert f"{tmp_path}/none" in told


def killed(say: Callable[[Any], None], rank: int, size: int, folder: str) -> str:
    with on_hosts(rank, size, folder, [2, 2]):
        dist.barrier()
        say(os.getpid())
        if rank == 3:
            time.sleep(ranks.WATCHDOG_S)
        with pytest.raises(BackendLost) as raised:
            for_ever(lambda: dist.all_reduce(torch.zeros(N), async_op=True).wait())
        with pytest.raises(BackendLost):
            dist.all_reduce(torch.zeros(N))
        return str(raised.value)


def test_the_death_of_a_rank_ends_the_calls_on_all_hosts(tmp_path: Path) -> None:
    with ranks.start(killed, 4, str(tmp_path)) as running:
        pids = [running.receive(rank) for rank in range(4)]
        os.kill(pids[3], signal.SIGKILL)
        told = [running.receive(rank) for rank in range(3)]
        assert not any(isinstance(one, ranks.Raised) for one in told), told
        assert all(f"rank 3 was process {pids[3]} on " in one for one in told)


def reduce_and_wait(is_later: bool) -> None:
    work = dist.all_reduce(torch.zeros(N), async_op=is_later)
    if work is not None:
        work.wait()


def interrupted(say: Callable[[Any], None], rank: int, size: int, folder: str, is_later: bool) -> None:
    told = Path(folder) / "interrupted"
    with on_hosts(rank, size, folder, [1, 1]):
        if rank == 0:
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            with pytest.raises(KeyboardInterrupt):
                reduce_and_wait(is_later)
            told.touch()
            return
        eventually(told.exists)
        with pytest.raises(BackendLost, match=r"all_reduce .* was interrupted by KeyboardInterrupt|left"):
            dist.all_reduce(torch.zeros(N))


@pytest.mark.parametrize("is_later", [False, True])
def test_a_rank_that_is_interrupted_leaves_the_group_at_once(tmp_path: Path, is_later: bool) -> None:
    ranks.run(interrupted, 2, str(tmp_path), is_later)


def dies_before_a_message(
    say: Callable[[Any], None], rank: int, size: int, folder: str, has_called: bool
) -> None:
    with on_hosts(rank, size, folder, [1, 1]):
        tensor = torch.zeros(N)
        if rank == 1:
            if has_called:
                dist.irecv(tensor, 0)
                # Until it has said where it listens.
                time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(BackendLost):
            dist.barrier()
        with pytest.raises(BackendLost, match="rank 1 has ended, or left the group"):
            dist.send(tensor, 1) if has_called else dist.recv(tensor, 1)


@pytest.mark.parametrize("has_called", [False, True])
def test_a_message_does_not_wait_for_a_rank_that_is_dead(tmp_path: Path, has_called: bool) -> None:
    ranks.run(dies_before_a_message, 2, str(tmp_path), has_called)


def sends_in_a_fork(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    with on_hosts(rank, size, folder, [1, 1]):
        tensor = torch.zeros(N)
        (dist.send if rank == 0 else dist.recv)(tensor, 1 - rank)
        if rank == 0:
            child = os.fork()
            if not child:
                with pytest.raises(ForkedError):
                    dist.isend(tensor, 1)
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        dist.barrier()


def test_a_fork_sends_no_messages(tmp_path: Path) -> None:
    ranks.run(sends_in_a_fork, 2, str(tmp_path))


def ends(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    with on_hosts(rank, size, folder, [2, 1]):
        if rank == 2:
            # It waits for ranks that do not come, and ends as a process does that was not told to leave.
            dist.all_reduce(torch.zeros(N), async_op=True)
            atexit._run_exitfuncs()
            return

        def call() -> None:
            # Rank 2 may have said which call it makes before it ended.
            with suppress(BackendMismatch):
                dist.all_reduce(torch.zeros(2 * N))

        with pytest.raises(BackendLost):
            for_ever(call)


def test_a_process_may_end_while_a_call_is_pending(tmp_path: Path) -> None:
    ranks.run(ends, 3, str(tmp_path))
