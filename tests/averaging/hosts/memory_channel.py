"""Channels between boards of one process, which tests can disturb."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from two_hosts import tensors

from softs_fast.averaging.hosts.channel import Channel, Stream, pieces
from softs_fast.averaging.hosts.group_board import GroupBoard
from softs_fast.errors import PeerLost


class Post:
    """What is on its way between the ranks of a group.

    Attributes:
        broken: Ranks that no message reaches, and none comes from.
        change: Function that returns what becomes of a piece of a stream.
    """

    def __init__(self) -> None:
        self.messages: dict[int, queue.SimpleQueue[tuple[int, bytes]]] = defaultdict(queue.SimpleQueue)
        self.streams: dict[tuple[int, int, int], queue.SimpleQueue[torch.Tensor]] = defaultdict(
            queue.SimpleQueue
        )
        self.broken: set[int] = set()
        self.change: Callable[[torch.Tensor], torch.Tensor] = lambda piece: piece
        self.threads: set[str] = set()


class MemoryChannel(Channel):
    def __init__(self, post: Post, rank: int) -> None:
        self.post = post
        self.rank = rank
        self.n_closed = 0

    def send(self, rank: int, said: bytes) -> None:
        self.post.threads.add(threading.current_thread().name)
        if rank in self.post.broken:
            raise PeerLost("the wire is cut")
        self.post.messages[rank].put((self.rank, said))

    def receive(self) -> Sequence[tuple[int, bytes | PeerLost]]:
        found = []
        while not self.post.messages[self.rank].empty():
            found.append(self.post.messages[self.rank].get())
        return found

    def stream(self, donor: int, reader: int, transfer: int) -> Stream:
        return MemoryStream(self, self.post.streams[donor, reader, transfer])

    def close(self) -> None:
        self.n_closed += 1


class MemoryStream(Stream):
    def __init__(self, channel: MemoryChannel, pieces_: queue.SimpleQueue[torch.Tensor]) -> None:
        self._channel = channel
        self._pieces = pieces_

    def send(self, memory: torch.Tensor) -> None:
        for piece in pieces(memory):
            self._pieces.put(self._channel.post.change(piece.clone()))

    def receive(self, n_bytes: int, take: Callable[[int, torch.Tensor], None]) -> None:
        at = 0
        while at < n_bytes:
            try:
                piece = self._pieces.get(timeout=0.01)
            except queue.Empty:
                if self._channel.n_closed:
                    raise PeerLost("this rank leaves") from None
                continue
            take(at, piece)
            at += len(piece)

    def close(self) -> None:
        pass


def open_boards(
    hosts: Sequence[int], models: Sequence[dict[str, torch.Tensor]] | None = None
) -> tuple[Post, list[GroupBoard]]:
    """Return the open boards of ranks of these hosts, in this process."""
    post = Post()
    said: list[bytes] = [b""] * len(hosts)
    barrier = threading.Barrier(len(hosts))

    def board_of(rank: int) -> GroupBoard:
        def exchange(message: bytes) -> list[bytes]:
            said[rank] = message
            barrier.wait(30)
            return list(said)

        def connect(name: str, others: Sequence[int]) -> Any:
            return MemoryChannel(post, rank)

        return GroupBoard(rank, f"host {hosts[rank]}", exchange, connect, 0.001)

    boards = [board_of(rank) for rank in range(len(hosts))]
    opening = [
        threading.Thread(target=board.open, args=(models[rank] if models else tensors(0.0),))
        for rank, board in enumerate(boards)
    ]
    for thread in opening:
        thread.start()
    for thread in opening:
        thread.join()
    return post, boards
