"""The TCP connections of a gloo engine, by which its pending calls are ended on all ranks.

gloo has no way to cancel a call: `abort` frees no rank, and a rank that does not take part is noticed only after the
time-out. But a connection that is shut down ends the calls that use it, on both sides, in some milliseconds. So this
keeps duplicates of the engine's connections.
"""

from __future__ import annotations

import os
import select
import socket
import stat
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress

import torch

# Ports on which the engine of a rank may listen, at most; it has one for each network device.
_MOST_PORTS = 4
# Descriptors that are tried one by one without /proc: the kernel gives the lowest ones first.
_MOST_TRIED = 4096
# Other sockets that threads of a rank may open while its engine is made.
_MOST_OTHERS = 8


def open_sockets() -> dict[int, int]:
    """Return the descriptors of the sockets of this process, by inode."""
    numbers: Iterable[int]
    try:
        numbers = map(int, os.listdir("/proc/self/fd"))
    except OSError:  # it is masked, or not mounted
        numbers = range(_MOST_TRIED)
    found = {}
    for number in numbers:
        with suppress(OSError):
            status = os.fstat(number)
            if stat.S_ISSOCK(status.st_mode):
                found[status.st_ino] = number
    return found


class Connections:
    """Duplicates of the connections of an engine, so that a descriptor that is used again is never mistaken for one.

    Its own descriptors keep the connections open: `close` must follow the end of the engine.

    Args:
        peers: Rank at the other end of each descriptor; None if that is not known.
    """

    def __init__(self, peers: Mapping[int, int | None]) -> None:
        self._peers = dict(peers)
        self._pid = os.getpid()
        # A call that fails in one thread may meet a `give_up` in another.
        self._lock = threading.Lock()

    @classmethod
    def since(
        cls, before: dict[int, int], gather: Callable[[torch.Tensor], list[torch.Tensor]], size: int
    ) -> Connections:
        """Find the connections of the engine that has been made since. A collective call.

        Other threads may have opened sockets meanwhile; those of the engine begin or end at a port on which an engine
        listens.

        Args:
            before: `open_sockets` before the engine was made.
            gather: returns the tensors of all ranks, by the engine.
            size: Number of ranks.
        """
        connected: list[tuple[int, int, int]] = []
        own_ports: list[int] = []
        for inode, descriptor in open_sockets().items():
            if inode in before:
                continue
            # Another thread may have closed it.
            with suppress(OSError), ExitStack() as stack:
                copy = os.dup(descriptor)
                stack.callback(os.close, copy)
                ports = _ports(copy) if os.fstat(copy).st_ino == inode else None
                if ports is not None and ports[1]:
                    connected.append((copy, *ports))
                    stack.pop_all()
                elif ports is not None:
                    own_ports.append(ports[0])
        begun = [own for _, own, _ in connected if own not in own_ports]
        row = _padded(own_ports, _MOST_PORTS) + _padded(begun, size + _MOST_OTHERS)
        try:
            every = [ports.tolist() for ports in gather(torch.tensor(row, dtype=torch.int64, device="cpu"))]
        except BaseException:
            for copy, *_ in connected:
                os.close(copy)
            raise
        mine: dict[int, int | None] = {}
        for copy, own_port, peer_port in connected:
            is_accepted = own_port in own_ports
            ends = [ports[_MOST_PORTS:] if is_accepted else ports[:_MOST_PORTS] for ports in every]
            # Ranks of different hosts may have the same number of a port.
            peers = [rank for rank, ports in enumerate(ends) if peer_port in ports]
            if is_accepted or peers:
                mine[copy] = peers[0] if len(peers) == 1 else None
            else:
                os.close(copy)
        return cls(mine)

    def ended(self) -> list[int]:
        """Return the ranks that have closed their connection, as the end of a process does, or have shut it down."""
        poll = select.poll()
        with self._lock:
            peers = dict(self._peers)
            for descriptor in peers:
                poll.register(descriptor, select.POLLRDHUP)
            found = {peers[descriptor] for descriptor, _ in poll.poll(0)}
        return sorted(rank for rank in found if rank is not None)

    def shut_down(self) -> None:
        """End all calls that use the connections, here and on the other ranks. Idempotent.

        In a fork this does nothing: the connections are the parent's.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            for descriptor in self._peers:
                with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
                    connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Release the descriptors. Idempotent."""
        with self._lock:
            while self._peers:
                os.close(self._peers.popitem()[0])

    def __del__(self) -> None:
        self.close()


def _padded(ports: list[int], n: int) -> list[int]:
    return (ports + [0] * n)[:n]


def _ports(descriptor: int) -> tuple[int, int] | None:
    """Return the own port of a TCP socket, and the peer's, 0 if it listens; None for other sockets."""
    with socket.socket(fileno=os.dup(descriptor)) as one:
        if one.family not in (socket.AF_INET, socket.AF_INET6) or one.type != socket.SOCK_STREAM:
            return None
        if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return int(one.getsockname()[1]), 0
        return int(one.getsockname()[1]), int(one.getpeername()[1])
