"""How ranks learn of each other's windows: by notes at a place, or by one all-gather of a fixed group."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from softs_fast.averaging.window_board import WindowBoard
from softs_fast.collectives.rendezvous import as_rendezvous
from softs_fast.errors import ConfigError, SegmentError
from softs_fast.snapshots import Member, Members, RemoteWindow, Window

if TYPE_CHECKING:
    from torch.distributed import Store

Exchange = Callable[[bytes], list[bytes]]

# The group's own time-out counts for the all-gather.
_TIMEOUT_S = 300.0
# Of a message in a communicator; it holds an address.
_MESSAGE_BYTES = 1024


class GatheredMembers:
    """The windows of a fixed group of ranks, which tell each other their addresses once. A call of all ranks.

    Args:
        window: of this rank.
        rank: its number.
        exchange: all-gathers a message of some hundred bytes.

    Raises:
        ConfigError: ranks are on other hosts.
    """

    def __init__(self, window: Window, rank: int, exchange: Exchange) -> None:
        host = _host()
        said = [
            json.loads(message)
            for message in exchange(json.dumps({"host": host, "window": window.address}).encode())
        ]
        elsewhere = [str(other) for other, one in enumerate(said) if one["host"] != host]
        if elsewhere:
            raise ConfigError(
                f"rank {', '.join(elsewhere)} of {len(said)} is on another host, or in another pid namespace, than "
                f"rank {rank}; selective averaging reads weights in shared memory, so make a group for each host"
            )
        self._members: list[Member] = []
        for other, one in enumerate(said):
            if other != rank:
                try:
                    self._members.append(Member(other, RemoteWindow.open(one["window"])))
                except SegmentError:  # it has ended already
                    continue

    def refresh(self) -> list[Member]:
        """Return the ranks that are alive."""
        return [member for member in self._members if member.window.is_alive()]

    def close(self) -> None:
        """Close the windows of the others."""
        for member in self._members:
            member.window.close()
        self._members = []


def meet_at(place: Store | str | Path, rank: int) -> WindowBoard:
    """Return the board of a rank at a place, which ranks join and leave at any time."""
    return WindowBoard(rank, lambda window: Members(place, window, rank=rank, name="averaging"))


def meet_in_group(group: Any) -> WindowBoard:
    """Return the board of this process in a process group; opening it is a call of all of its ranks."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    place = as_rendezvous(group, rank, size, name="averaging", timeout_s=_TIMEOUT_S)
    return WindowBoard(
        rank,
        lambda window: GatheredMembers(window, rank, lambda message: place.exchange(message, _TIMEOUT_S)),
    )


def meet_by_mpi(group: Any) -> WindowBoard:
    """Return the board of this process in a communicator of mpi4py; opening it is a call of all of its ranks."""
    rank, size = group.Get_rank(), group.Get_size()

    def exchange(message: bytes) -> list[bytes]:
        own, every = bytearray(_MESSAGE_BYTES), bytearray(size * _MESSAGE_BYTES)
        own[: len(message)] = message
        # Bytes: what mpi4py calls `allgather` unpickles.
        group.Allgather(own, every)
        rows = [every[at : at + _MESSAGE_BYTES] for at in range(0, len(every), _MESSAGE_BYTES)]
        return [bytes(row).rstrip(b"\0") for row in rows]

    return WindowBoard(rank, lambda window: GatheredMembers(window, rank, exchange))


def own_rank(rank: int | None) -> int:
    """Return a rank that was given, or that of torch.distributed.

    Raises:
        ConfigError: there is none.
    """
    if rank is not None:
        return rank
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    raise ConfigError("rank is None, and torch.distributed is not initialized; give the number of this rank")


def _host() -> str:
    """Return what processes have in common that can open each other's windows."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')} {os.geteuid()}"
