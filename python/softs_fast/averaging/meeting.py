"""Where the ranks of a fixed group meet: a folder of their host, which they agree on by one all-gather."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from softs_fast.averaging.window_board import WindowBoard
from softs_fast.collectives.rendezvous import as_rendezvous
from softs_fast.errors import ConfigError

# The group's own time-out counts for the all-gather.
_TIMEOUT_S = 300.0
# Of a message in a communicator; it holds a path.
_MESSAGE_BYTES = 1024


def meet(rank: int, exchange: Callable[[bytes], list[bytes]]) -> WindowBoard:
    """Return the board of a rank; all ranks of the group call it.

    Args:
        rank: this process's number.
        exchange: all-gathers a message.

    Raises:
        ConfigError: ranks are on other hosts.
    """
    folder = tempfile.mkdtemp(prefix="softs-averaging-") if rank == 0 else ""
    said = [
        json.loads(message) for message in exchange(json.dumps({"host": _host(), "folder": folder}).encode())
    ]
    elsewhere = [str(other) for other, one in enumerate(said) if one["host"] != said[rank]["host"]]
    if elsewhere:
        if folder:
            Path(folder).rmdir()
        raise ConfigError(
            f"rank {', '.join(elsewhere)} of {len(said)} is on another host, or in another pid namespace, than rank "
            f"{rank}; selective averaging reads weights in shared memory, so make a group for each host"
        )
    return WindowBoard(said[0]["folder"], rank, is_temporary=True)


def meet_in_group(group: Any) -> WindowBoard:
    """Return the board of this process in a process group; all of its ranks call it.

    Raises:
        ConfigError: ranks are on other hosts.
        PeerLost: the group failed.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    place = as_rendezvous(group, rank, size, name="averaging", timeout_s=_TIMEOUT_S)
    return meet(rank, lambda message: place.exchange(message, _TIMEOUT_S))


def meet_by_mpi(group: Any) -> WindowBoard:
    """Return the board of this process in a communicator of mpi4py; all of its ranks call it.

    Raises:
        ConfigError: ranks are on other hosts.
    """
    size = group.Get_size()

    def exchange(message: bytes) -> list[bytes]:
        own, every = bytearray(_MESSAGE_BYTES), bytearray(size * _MESSAGE_BYTES)
        own[: len(message)] = message
        # Bytes: what mpi4py calls `allgather` unpickles.
        group.Allgather(own, every)
        return [
            bytes(every[at : at + _MESSAGE_BYTES]).rstrip(b"\0")
            for at in range(0, len(every), _MESSAGE_BYTES)
        ]

    return meet(group.Get_rank(), exchange)


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
