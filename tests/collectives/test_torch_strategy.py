"""TorchStrategy over a process group of gloo that it makes: a rank that gives up ends the calls of all ranks.

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
from lost_ranks import until_stopped

from softs_fast.collectives import TorchStrategy
from softs_fast.collectives.connections import Connections, open_sockets

N = 1 << 18


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
