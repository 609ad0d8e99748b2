"""TorchStrategy over gloo connections of its own: a rank that is lost ends the calls of all ranks, and writes nothing late.

The time-outs of these groups are longer than those of the tests: only connections that are shut down end the calls.
"""

import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
from lost_ranks import keep, until_lost, until_stopped

from softs_fast.collectives import TorchStrategy
from softs_fast.collectives.connections import Connections, open_sockets
from softs_fast.errors import PeerLost

NEVER_S = 600.0
SIZE = 4
N = 1 << 18


def connected(rank: int, size: int, folder: str) -> TorchStrategy:
    return TorchStrategy(timeout_s=NEVER_S, host="127.0.0.1").init(rank, size, folder)


def reduces_until_lost(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    strategy = connected(rank, size, folder)
    say(os.getpid())
    say(until_lost(strategy, torch.zeros(N)))
    keep(strategy)


def test_a_killed_rank_ends_the_calls_of_all(tmp_path: Path) -> None:
    """gloo itself tells only its neighbours in the ring, and names an address and no rank."""
    with ranks.start(reduces_until_lost, SIZE, str(tmp_path)) as running:
        pids = [running.receive(rank) for rank in range(SIZE)]
        os.kill(pids[1], signal.SIGKILL)
        for rank in (0, 2, 3):
            said = running.receive(rank)
            assert "all_reduce among 4 ranks failed: the connection to rank 1 is closed" in said, said


def gives_up(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    strategy = connected(rank, size, folder)
    if rank == 1:
        strategy.give_up("out of data")
    with pytest.raises(PeerLost) as raised:
        strategy.all_reduce(torch.ones(N))
    say(str(raised.value))
    keep(strategy)


def test_a_rank_that_gives_up_ends_the_calls_that_wait_for_it(tmp_path: Path) -> None:
    with ranks.start(gives_up, SIZE, str(tmp_path)) as running:
        texts = [running.receive(rank) for rank in range(SIZE)]
        assert texts[1] == "out of data"
        assert {texts[rank] for rank in (0, 2, 3)} == {"rank 1 gave up: out of data"}


def goes_on_without_a_stopped_rank(say: Callable[[Any], None], rank: int, size: int, folder: str) -> Any:
    strategy = connected(rank, size, folder)
    say(os.getpid())
    tensor = torch.full((N,), float(rank))
    if rank == 1:
        # Before it takes part.
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        threading.Timer(0.2, strategy.give_up, args=["rank 1 is too late"]).start()
    with pytest.raises(PeerLost) as raised:
        strategy.all_reduce(tensor)
    if rank == 1:
        return ""
    # Of the other rank, if that one was first.
    assert str(raised.value).endswith("rank 1 is too late")
    with connected(rank // 2, size - 1, f"{folder}/next") as following:
        # In the same memory, which a late write of the call before would change.
        tensor.fill_(1.0)
        following.all_reduce(tensor)
        say("reduced")
        with open(Path(folder, f"resumed{rank}")) as pipe:
            assert pipe.read() == "resumed"
        following.barrier()
        return torch.equal(tensor, torch.full((N,), 2.0))


def test_a_stopped_rank_writes_nothing_into_the_next_step(tmp_path: Path) -> None:
    pipes = [tmp_path / f"resumed{rank}" for rank in (0, 2)]
    for pipe in pipes:
        os.mkfifo(pipe)
    with ranks.start(goes_on_without_a_stopped_rank, 3, str(tmp_path)) as running:
        pids = [running.receive(rank) for rank in range(3)]
        assert [running.receive(0), running.receive(2)] == ["reduced", "reduced"]
        until_stopped(pids[1])
        os.kill(pids[1], signal.SIGCONT)
        assert running.receive(1) == ""
        for pipe in pipes:
            pipe.write_text("resumed")
        assert [running.receive(0), running.receive(2)] == [True, True]


def reduces_by_torch_itself(say: Callable[[Any], None], rank: int, size: int, folder: str) -> bool:
    def make() -> Any:
        store = torch.distributed.FileStore(f"{folder}/group", size)
        torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
        return torch.distributed.group.WORLD

    strategy = TorchStrategy.around(make)
    tensor = torch.full((N,), float(rank))
    strategy.all_reduce(tensor)
    assert tensor[0] == 3.0
    say(os.getpid())
    if rank == 1:
        # Before it takes part.
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        threading.Timer(0.2, strategy.give_up, args=["rank 1 is too late"]).start()
    with pytest.raises(RuntimeError, match=r"gloo"):
        torch.distributed.all_reduce(tensor)
    strategy.close()
    torch.distributed.destroy_process_group()
    return torch.distributed.is_initialized()


def test_calls_of_others_in_a_process_group_end_when_a_rank_gives_up(tmp_path: Path) -> None:
    """FSDP and others make calls of their own, in a group with the time-out of torch: half an hour."""
    with ranks.start(reduces_by_torch_itself, 3, str(tmp_path)) as running:
        pids = [running.receive(rank) for rank in range(3)]
        assert [running.receive(0), running.receive(2)] == [False, False]
        until_stopped(pids[1])
        os.kill(pids[1], signal.SIGCONT)
        assert running.receive(1) is False


def test_only_connections_of_the_engine_are_shut_down() -> None:
    """Other threads open sockets while an engine is made."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_server(("127.0.0.1", 0)) as stranger,
    ):
        before = open_sockets()
        # The engine of a peer listens at one port, and that of this rank at none.
        port = listener.getsockname()[1]
        with (
            socket.create_connection(("127.0.0.1", port)) as mine,
            socket.create_connection(stranger.getsockname()) as other,
        ):
            # It is about to listen, so it has no peer.
            with socket.socket() as begun:
                inode = os.fstat(begun.fileno()).st_ino
                connections = Connections.since(before, lambda own: [own, torch.tensor([port])], 2)
            assert inode not in open_sockets(), "nothing keeps the socket of another thread"
            assert connections.ended() == []
            with listener.accept()[0] as peer:
                peer.sendall(b"what was not read yet")
            assert connections.ended() == [1], "the rank that listens there"
            connections.shut_down()
            assert mine.recv(64) == b"what was not read yet"
            assert mine.recv(1) == b""
            with stranger.accept()[0] as accepted:
                accepted.sendall(b"x")
                assert other.recv(1) == b"x"
            connections.close()
            connections.close()


def test_sockets_are_found_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = open_sockets()
        assert listener.fileno() in found.values()

        def masked(path: str) -> list[str]:
            raise FileNotFoundError(2, "not mounted", path)

        monkeypatch.setattr(os, "listdir", masked)
        assert open_sockets() == found


def meets_in_a_store(say: Callable[[Any], None], rank: int, size: int, place: str) -> float:
    store = torch.distributed.FileStore(place, size)
    with TorchStrategy.meet(rank, size, store, name="of a file") as strategy:
        tensor = torch.full((3,), float(rank + 1))
        strategy.all_reduce(tensor)
        return tensor.sum().item()


def test_ranks_meet_in_a_store_of_their_own(tmp_path: Path) -> None:
    assert ranks.run(meets_in_a_store, 3, str(tmp_path / "store")) == [18.0] * 3


def test_a_rank_that_does_not_come_to_the_store(tmp_path: Path) -> None:
    store = torch.distributed.FileStore(str(tmp_path / "store"), 2)
    with pytest.raises(PeerLost, match='no gloo connections among the 2 ranks of "alone"'):
        TorchStrategy.meet(0, 2, store, name="alone", timeout_s=0.2)
