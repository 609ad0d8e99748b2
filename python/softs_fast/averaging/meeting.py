"""How ranks find each other: by notes at a place of one host, or as a fixed group, of one host or of several ones."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from softs_fast import identity
from softs_fast.averaging.hosts.channel import Channel
from softs_fast.averaging.hosts.group_board import GroupBoard
from softs_fast.averaging.hosts.mpi_channel import MpiChannel, require_threads
from softs_fast.averaging.hosts.torch_channel import TorchChannel
from softs_fast.averaging.mpi import load_mpi
from softs_fast.averaging.window_board import WindowBoard
from softs_fast.collectives import as_rendezvous
from softs_fast.errors import ConfigError
from softs_fast.snapshots import Members, Window

if TYPE_CHECKING:
    from torch.distributed import Store

_log = logging.getLogger(__name__)

# From one look for messages of other hosts to the next one, where the caller does not say it.
POLL_INTERVAL_S = 0.01
# The group's own time-out counts for the all-gather.
_TIMEOUT_S = 300.0
# Of a message in a communicator; it holds an address.
_MESSAGE_BYTES = 1024


def meet_at(place: Store | str | Path, rank: int, shard: str = "") -> WindowBoard:
    """Return the board of a rank at a place, which ranks join and leave at any time.

    Args:
        place: A folder of this host, or a store, which is asked in a thread: no call waits for it.
        rank: This rank's number.
        shard: Place of this process among those that have the shards of one model; each meets its like. "" without
            shards.
    """
    name = f"averaging.shard.{shard}" if shard else "averaging"

    def join(window: Window, line: Window) -> tuple[Members, Members]:
        # Reports first: a rank that shows weights without reports would be waited for. In a store it may be, for a look.
        reporters = Members(place, line, rank=rank, name=f"{name}.reports", beside=True)
        return Members(place, window, rank=rank, name=name, beside=True), reporters

    return WindowBoard(rank, join)


def meet_in_group(group: Any, poll_interval_s: float = POLL_INTERVAL_S) -> GroupBoard:
    """Return the board of this process in a process group; opening it is a call of all of its ranks.

    Args:
        group: Process group of torch.distributed.
        poll_interval_s: Seconds from one look for messages of other hosts to the next.

    Raises:
        ConfigError: `poll_interval_s` is not above 0.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    place = as_rendezvous(group, rank, size, name="averaging", timeout_s=_TIMEOUT_S)

    def connect(name: str, others: Sequence[int]) -> Channel:
        return TorchChannel(dist.distributed_c10d._get_default_store(), name, rank, others)

    return GroupBoard(
        rank, host_id(), lambda message: place.exchange(message, _TIMEOUT_S), connect, poll_interval_s
    )


def meet_by_mpi(group: Any, poll_interval_s: float = POLL_INTERVAL_S) -> GroupBoard:
    """Return the board of this process in a communicator; opening it is a call of all of its ranks.

    Args:
        group: Communicator of mpi4py.
        poll_interval_s: Seconds from one look for messages of other hosts to the next.

    Raises:
        ConfigError: `poll_interval_s` is not above 0.
    """
    rank, size = group.Get_rank(), group.Get_size()

    def exchange(message: bytes) -> list[bytes]:
        own, every = bytearray(_MESSAGE_BYTES), bytearray(size * _MESSAGE_BYTES)
        own[: len(message)] = message
        # Bytes: what mpi4py calls `allgather` unpickles.
        group.Allgather(own, every)
        rows = [every[at : at + _MESSAGE_BYTES] for at in range(0, len(every), _MESSAGE_BYTES)]
        return [bytes(row).rstrip(b"\0") for row in rows]

    def connect(name: str, others: Sequence[int]) -> Channel:
        require_threads(load_mpi())
        # Of this channel alone, so that its messages are not taken for those of the program.
        return MpiChannel(group.Dup(), others)

    return GroupBoard(rank, host_id(), exchange, connect, poll_interval_s)


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


def host_id() -> str:
    """Return what processes have in common that can open each other's windows.

    Where parts of /proc are masked, no other process can: a text of this process alone, so that it sends messages.
    """
    host = identity.host_id()
    if not host:
        _log.warning("this rank counts as a host of its own: /proc does not tell the id of this boot")
    return f"{host or secrets.token_hex(16)} {os.geteuid()}"
