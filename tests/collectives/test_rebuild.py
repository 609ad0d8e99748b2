"""HierarchicalStrategy.rebuild: the ranks that are left after any loss form a group, and no rank writes late."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import hierarchies
import networks
import pytest
import ranks
import torch
import torch.distributed as dist
from fork_check import check_fork
from lost_ranks import NEVER_S, SOON_S, until_lost
from networks import enter

from softs_fast.collectives import (
    HierarchicalStrategy,
    LinkStrategy,
    ShmStrategy,
    TorchStrategy,
    hierarchical,
)
from softs_fast.collectives.levels import Levels
from softs_fast.collectives.remaining import Member
from softs_fast.errors import ConfigError, PeerLost

# Three chunks.
N = 2_500_001


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Serve a store to all tests here, in this process, and return its address."""
    store = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=20), wait_for_workers=False)
    yield f"tcp://127.0.0.1:{store.port}"
    del store


def rebuild(strategy: HierarchicalStrategy, address: str | None) -> None:
    """Rebuild, also where the loss came between the ends of a call on two ranks."""
    try:
        strategy.rebuild(address)
    except ConfigError as error:
        if "some ranks have completed a call that failed on others" not in str(error):
            raise
    # What transferred for the group before has ended, and the new group has no thread before its first chunk.
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("softs-cross-node")]


def check(strategy: HierarchicalStrategy, tensor: torch.Tensor, number: int) -> list[Any]:
    """Reduce in the memory of the call that failed; return what the new group is."""
    tensor.fill_(number)
    strategy.all_reduce(tensor)
    assert tensor.eq(tensor[0]).all()
    part = torch.empty(1)
    strategy.reduce_scatter(part, torch.arange(float(strategy.size)))
    assert float(part) == strategy.rank * strategy.size
    return [strategy.rank, strategy.nodes, float(tensor[0])]


def goes_on(
    say: Callable[[Any], None],
    rank: int,
    size: int,
    folder: str,
    nodes: list[list[int]],
    address: str,
    timeout_s: float,
) -> list[Any]:
    strategy = hierarchies.joined(rank, nodes, folder, timeout_s)
    tensor = torch.zeros(N)
    strategy.all_reduce(tensor)
    say(os.getpid())
    text = until_lost(strategy, tensor)
    rebuild(strategy, address)
    told = [*check(strategy, tensor, rank), text]
    strategy.barrier()
    strategy.close()
    with pytest.raises(ConfigError, match="closed"):
        strategy.rebuild()
    return told


@pytest.mark.parametrize(
    ("nodes", "victims", "timeout_s", "left"),
    [
        ([[0, 1], [2, 3]], [0, 3], NEVER_S, [[0], [1]]),
        ([[0, 2], [1, 3]], [2], NEVER_S, [[0], [1, 2]]),
        # The only rank of its node with a slice, and one without.
        ([[0], [1, 2, 3]], [1], NEVER_S, [[0], [1, 2]]),
        ([[0], [1, 2, 3]], [3], NEVER_S, [[0], [1, 2]]),
        # No rank of the node is left that could say so.
        ([[0, 1], [2, 3]], [2, 3], SOON_S, [[0, 1]]),
        # The smallest node: more ranks get slices.
        ([[0], [1, 2], [3, 4]], [0], SOON_S, [[0, 1], [2, 3]]),
    ],
)
def test_after_a_kill_those_that_are_left_go_on(
    tmp_path: Path,
    address: str,
    nodes: list[list[int]],
    victims: list[int],
    timeout_s: float,
    left: list[list[int]],
) -> None:
    size = sum(map(len, nodes))
    with ranks.start(goes_on, size, str(tmp_path), nodes, address, timeout_s) as running:
        pids = running.results()
        for victim in victims:
            os.kill(pids[victim], signal.SIGKILL)
        told = running.results()
    survivors = [rank for rank in range(size) if rank not in victims]
    for number, rank in enumerate(survivors):
        assert not isinstance(told[rank], ranks.Raised), told[rank].trace
        *group, text = told[rank]
        assert group == [number, left, sum(survivors)]
        if len(victims) == 1 and any({rank, *victims} <= set(node) for node in nodes):
            assert "gave up" in text or f"process {pids[victims[0]]}" in text, text


def goes_on_without_a_stopped_rank(
    say: Callable[[Any], None],
    rank: int,
    size: int,
    folder: str,
    nodes: list[list[int]],
    address: str,
    victim: int,
) -> Any:
    strategy = hierarchies.joined(rank, nodes, folder, SOON_S)
    tensor = torch.zeros(N)
    strategy.all_reduce(tensor)
    say(os.getpid())
    told = until_lost(strategy, tensor)
    if rank == victim:
        with pytest.raises(PeerLost) as raised:
            strategy.rebuild(address)
        # Neither later, nor by calls.
        with pytest.raises(PeerLost, match="came too late"):
            strategy.rebuild(address)
        with pytest.raises(PeerLost, match="came too late"):
            strategy.barrier()
        strategy.close()
        return [told, str(raised.value)]
    rebuild(strategy, address)
    found = check(strategy, tensor, rank)
    say("reduced")
    with open(Path(folder, f"resumed{rank}")) as pipe:
        assert pipe.read() == "resumed"
    assert tensor.eq(found[2]).all(), "a late write"
    strategy.barrier()
    strategy.close()
    return found


def test_a_stopped_rank_is_left_out_and_writes_nothing_when_it_goes_on(tmp_path: Path, address: str) -> None:
    nodes, victim = [[0, 1], [2, 3]], 0
    size = sum(map(len, nodes))
    survivors = [rank for rank in range(size) if rank != victim]
    pipes = [tmp_path / f"resumed{rank}" for rank in survivors]
    for pipe in pipes:
        os.mkfifo(pipe)
    with ranks.start(goes_on_without_a_stopped_rank, size, str(tmp_path), nodes, address, victim) as running:
        pids = running.results()
        os.kill(pids[victim], signal.SIGSTOP)
        assert [running.receive(rank) for rank in survivors] == ["reduced"] * len(survivors)
        os.kill(pids[victim], signal.SIGCONT)
        told = running.receive(victim)
        assert not isinstance(told, ranks.Raised), told.trace
        assert f"without rank {victim}, which came too late" in told[1]
        for pipe in pipes:
            pipe.write_text("resumed")
        for number, rank in enumerate(survivors):
            found = running.receive(rank)
            assert not isinstance(found, ranks.Raised), found.trace
            assert (found[0], found[2]) == (number, sum(survivors))


def die(*args: object, **named: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dies_while_it_rebuilds(
    say: Callable[[Any], None],
    rank: int,
    size: int,
    folder: str,
    nodes: list[list[int]],
    address: str,
    stage: str,
) -> Any:
    strategy = hierarchies.joined(rank, nodes, folder, SOON_S)
    tensor = torch.zeros(N)
    strategy.all_reduce(tensor)
    say(os.getpid())
    until_lost(strategy, tensor)
    if rank == 2:
        place, name = {
            "before": (Member, "meet"),
            "decided": (hierarchical, "join_nodes"),
            "between": (LinkStrategy, "init"),
            "agreeing": (Levels, "agree"),
        }[stage]
        setattr(place, name, die)
    failures = 0
    while True:
        try:
            rebuild(strategy, address)
            found = check(strategy, tensor, rank)
        except PeerLost:
            failures += 1
        else:
            break
    strategy.barrier()
    strategy.close()
    return [*found, failures]


@pytest.mark.parametrize("stage", ["before", "decided", "between", "agreeing"])
def test_a_rank_that_dies_during_a_rebuild_costs_another_one(
    tmp_path: Path, address: str, stage: str
) -> None:
    nodes = [[0, 1], [2, 3]]
    with ranks.start(dies_while_it_rebuilds, 4, str(tmp_path), nodes, address, stage) as running:
        pids = running.results()
        os.kill(pids[1], signal.SIGKILL)
        told = running.results()
    for number, rank in enumerate((0, 3)):
        assert not isinstance(told[rank], ranks.Raised), told[rank].trace
        assert told[rank][:3] == [number, [[0], [1]], 3.0]
        assert (told[rank][3] == 0) == (stage == "before"), "the decision had named the second rank"


def loses_two_in_turn(
    say: Callable[[Any], None], rank: int, size: int, folder: str, address: str
) -> list[Any]:
    strategy = hierarchies.joined(rank, [[0, 1], [2, 3]], folder, NEVER_S)
    tensor = torch.zeros(N)
    strategy.all_reduce(tensor)
    say(os.getpid())
    for _ in range(2):
        until_lost(strategy, tensor)
        rebuild(strategy, address)
        found = check(strategy, tensor, rank)
        address = None  # kept from before
        strategy.barrier()
        say(found)
    strategy.close()
    return found


def test_groups_are_rebuilt_again(tmp_path: Path, address: str) -> None:
    with ranks.start(loses_two_in_turn, 4, str(tmp_path), address) as running:
        pids = running.results()
        os.kill(pids[0], signal.SIGKILL)
        assert running.results() == [None, *([n, [[0], [1, 2]], 6.0] for n in range(3))]
        os.kill(pids[3], signal.SIGKILL)
        assert running.results() == [None, [0, [[0], [1]], 3.0], [1, [[0], [1]], 3.0], None]


def fails_after_its_end(
    say: Callable[[Any], None], rank: int, size: int, folder: str, address: str
) -> list[str]:
    """On rank 0 a call fails of which rank 1 has the result."""
    strategy = hierarchies.joined(rank, [[0], [1]], folder, NEVER_S)
    strategy.barrier()
    all_reduce = Levels.all_reduce

    def lost(self: Levels, *args: Any) -> None:
        all_reduce(self, *args)
        raise PeerLost("lost right at the end")

    if rank == 0:
        Levels.all_reduce = lost
        with pytest.raises(PeerLost, match="right at the end"):
            strategy.all_reduce(torch.ones(3))
        Levels.all_reduce = all_reduce
    else:
        strategy.all_reduce(torch.ones(3))
        with pytest.raises(PeerLost):
            strategy.all_reduce(torch.ones(3))
    with pytest.raises(ConfigError) as raised:
        strategy.rebuild(address)
    # That was the last word on it.
    tensor = torch.ones(3)
    strategy.all_reduce(tensor)
    assert tensor.tolist() == [2.0] * 3
    # No rank need have failed.
    strategy.rebuild()
    strategy.all_reduce(tensor)
    strategy.barrier()
    strategy.close()
    return str(raised.value)


def test_a_call_that_failed_on_some_ranks_only_is_told_to_all(tmp_path: Path, address: str) -> None:
    told = ranks.run(fails_after_its_end, 2, str(tmp_path), address)
    assert "2 calls and 1, on this rank 1" in told[0]
    assert "2 calls and 1, on this rank 2" in told[1]


def cannot(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    strategy = hierarchies.joined(rank, [[0], [1]], folder)
    check_fork(lambda: strategy.rebuild(folder))
    with pytest.raises(ConfigError, match="no store to meet in"):
        strategy.rebuild()
    # It has ended nothing.
    strategy.barrier()
    strategy.close()
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=size)
    local = ShmStrategy(timeout_s=20, schedule=hierarchies.SCHEDULE).init(0, 1, f"{folder}/alone{rank}")
    given = TorchStrategy(dist.group.WORLD)
    with HierarchicalStrategy(local, given).init(rank, size) as strategy:
        with pytest.raises(ConfigError, match="cannot be made again"):
            strategy.rebuild(folder)
        strategy.barrier()
    dist.destroy_process_group()
    with pytest.raises(ConfigError, match="in no group yet"):
        HierarchicalStrategy(ShmStrategy(), None).rebuild()


def test_what_cannot_be_rebuilt_says_so_and_goes_on(tmp_path: Path) -> None:
    ranks.run(cannot, 2, str(tmp_path))


def serves_a_store(say: Callable[[Any], None], rank: int, size: int) -> None:
    store = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=20), wait_for_workers=False)
    say((os.getpid(), store.port))
    signal.pause()


def loses_its_store(say: Callable[[Any], None], rank: int, size: int, folder: str, address: str) -> str:
    local = ShmStrategy(timeout_s=SOON_S, schedule=hierarchies.SCHEDULE)
    store = dist.TCPStore("127.0.0.1", int(address.rpartition(":")[2]), None, False, timedelta(seconds=20))
    strategy = HierarchicalStrategy(local, None).init(rank, size, store)
    say(os.getpid())
    until_lost(strategy, torch.zeros(3))
    with pytest.raises(PeerLost) as raised:
        strategy.rebuild()
    strategy.close()
    say(str(raised.value))
    signal.pause()
    return ""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_the_loss_of_the_store_is_an_error_in_a_bounded_time(tmp_path: Path, how: signal.Signals) -> None:
    with ranks.start(serves_a_store, 1) as server:
        pid, port = server.receive(0)
        with ranks.start(loses_its_store, 2, str(tmp_path), f"tcp://127.0.0.1:{port}") as running:
            pids = running.results()
            os.kill(pid, how)
            os.kill(pids[1], signal.SIGKILL)
            text = running.receive(0)
    assert ("has not answered" if how is signal.SIGSTOP else "the store has failed") in text
    assert "cannot be survived" in text


def goes_on_apart(say: Callable[[Any], None], rank: int, size: int, pids: list[int], place: str) -> list[Any]:
    enter(pids[rank // 2])
    local = ShmStrategy(timeout_s=NEVER_S, schedule=hierarchies.SCHEDULE)
    engine = LinkStrategy(timeout_s=NEVER_S, plain=True)
    strategy = HierarchicalStrategy(local, engine).init(rank, size, place)
    tensor = torch.zeros(N)
    strategy.all_reduce(tensor)
    if rank == 3:
        threading.Timer(0.2, die).start()
    until_lost(strategy, tensor)
    rebuild(strategy, None)
    told = check(strategy, tensor, rank)
    strategy.barrier()
    strategy.close()
    return told


def test_ranks_of_nodes_apart_meet_at_the_address_of_their_init() -> None:
    if reason := networks.why_not():
        pytest.skip(reason)
    with networks.Network() as network:
        hosts = [network.host(), network.host()]
        place = f"tcp://{hosts[0].address}:29500"
        told = ranks.run(goes_on_apart, 4, [host.pid for host in hosts], place)
    assert told == [*([n, [[0, 1], [2]], 3.0] for n in range(3)), None]
