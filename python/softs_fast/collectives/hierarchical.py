"""Collectives over nodes: shared memory inside each node, an engine between nodes, no leading rank."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self

import torch

from softs_fast.collectives.bounded_store import BoundedStore
from softs_fast.collectives.engine_strategy import ComparedStrategy, EngineStrategy
from softs_fast.collectives.host.shm_strategy import ShmStrategy
from softs_fast.collectives.levels import Levels
from softs_fast.collectives.link_strategy import LinkStrategy
from softs_fast.collectives.nodes import discover, join_nodes, learn_topology
from softs_fast.collectives.remaining import Member
from softs_fast.collectives.rendezvous import (
    KeyValueStore,
    Rendezvous,
    StoreRendezvous,
    as_rendezvous,
    as_store,
)
from softs_fast.collectives.tensors import bytes_of
from softs_fast.collectives.world import World
from softs_fast.errors import ConfigError, ForkedError, PeerLost
from softs_fast.trust import TlsFiles

_NO_GROUP = "this strategy is in no group yet; call init first"


class HierarchicalStrategy(ComparedStrategy):
    """A `Strategy` over nodes: reduce-scatter inside each, all-reduce of every slice between them, all-gather inside.

    Every slice has a group of its own between nodes, one rank of each node, so that all ranks of a node work at once.
    With nodes of unequal size there are as many slices as the smallest node has ranks; the other ranks of larger nodes
    have none. A mean is the mean over all ranks: sums are divided by the size of the world for any sizes of nodes.

    Args:
        local: the strategy inside the node.
        cross_node: the strategy between nodes, a `LinkStrategy` or a `TorchStrategy`, for this rank's slice: the ranks with
            the same number inside their nodes, in the same order of nodes for every slice. A rank without a slice gives
            None, or one that is in no group, which it uses if a rebuild gives it a slice.

    Both may be joined already, or are joined by `init`, which then finds out which ranks share a node. If a rank dies,
    stops, is too late or leaves, calls of all ranks raise PeerLost until the remaining ones call `rebuild`.
    """

    # One flat tensor, because each of many small ones would wait for the network.
    _most_joined = math.inf
    # The way between hosts begins there, and a GPU may have no memory for them.
    _joined_on = torch.device("cpu")

    def __init__(self, local: ShmStrategy, cross_node: EngineStrategy | None) -> None:
        super().__init__()
        self._local = local
        self._cross_node = cross_node
        self._levels: Levels | None = None
        self._member: Member | None = None
        self._store: KeyValueStore | None = None
        self._broken = ""
        self._closed = False

    def init(self, rank: int, size: int, rendezvous: object = None) -> Self:
        """Join the group of all ranks; return self.

        Args:
            rank: this process's number in the world.
            size: number of ranks of the world.
            rendezvous: rendezvous of all ranks of the world, as for `ShmStrategy.init`; a folder only for a single
                host. None if `local` and `cross_node` are joined already.

        Raises:
            ConfigError: arguments are wrong, or the groups do not make a hierarchy of ranks 0 to size - 1.
            PeerLost: a rank did not join in time.
            SegmentError: no shared memory.
        """
        place: Rendezvous | None = None
        cross = self._cross_node if self._cross_node is not None and self._cross_node.is_joined else None
        if rendezvous is not None:
            timeout_s = self._local.timeout_s
            store = as_store(rendezvous, size=size, serves=rank == 0, timeout_s=timeout_s, files=self._files)
            if store is None:
                place = as_rendezvous(rendezvous, rank, size, name="world", timeout_s=timeout_s)
            else:
                self._store = BoundedStore(store, timeout_s)
                place = StoreRendezvous(self._store, rank, size, "world")
            cross = join_nodes(self._local, self._cross_node, place, discover(place, rank, timeout_s))
        topology = learn_topology(self._local, cross, rank, size)
        levels = Levels(self._local, cross, topology)
        self._levels = levels
        if place is not None:
            place.close()
            levels.agree("init")
        name = torch.tensor([secrets.randbits(62)], device="cpu")
        levels.broadcast(name, 0)
        world = World(f"{int(name):x}", 0, topology.nodes)
        self._member = Member(world, rank, self._processes_of(world, rank))
        return self

    @property
    def rank(self) -> int:
        """This process's number in the world."""
        return self._joined.topology.rank

    @property
    def size(self) -> int:
        """Number of ranks of the world."""
        return self._joined.topology.size

    @property
    def nodes(self) -> list[list[int]]:
        """Ranks of the world by node, in the order of the ranks inside it."""
        return [list(node) for node in self._joined.topology.nodes]

    @property
    def lost(self) -> list[int]:
        """Ranks of the world that broke the group; empty while it works."""
        return [] if self._levels is None else self._levels.lost

    def rebuild(self, rendezvous: object = None) -> None:
        """After PeerLost, form a new group of the remaining ranks. They keep their order; `rank` and `size` are new.

        Every remaining rank must call it. It waits for all ranks that live, at most `timeout_s` of the strategy inside
        the node, and for a node without any rank that remains as long. Ranks meet in a store, which must live: the loss
        of the process that serves it cannot be survived. If ranks are lost meanwhile, it may be called again. No call
        of the group before writes to a tensor after it.

        Args:
            rendezvous: a Store of torch.distributed, the place of a running store, softs://HOST or tcp://HOST:PORT, or,
                on a single host, a folder, the same for all ranks. None takes that of `init`.

        Raises:
            ConfigError: there is no store, the engine between nodes is a process group that was given, or the group is
                closed. Or some ranks have completed a call that failed on others, so that it must not be repeated by
                the others alone: the new group works then, and the error is raised on all of its ranks.
            PeerLost: the other ranks formed their group without this one, the store has failed, or a rank was lost
                meanwhile.
            SegmentError: no shared memory for the new group.
        """
        member = self._member
        if member is None or self._closed:
            raise ConfigError("the group is closed" if self._closed else _NO_GROUP)
        member.check_process()
        timeout_s = self._local.timeout_s
        store = self._store
        if rendezvous is not None:
            given = as_store(
                rendezvous,
                size=len(member.world.members),
                serves=False,
                timeout_s=timeout_s,
                files=self._files,
            )
            store = None if given is None else BoundedStore(given, timeout_s)
        if store is None:
            raise ConfigError(
                "the remaining ranks have no store to meet in: give `init` or `rebuild` a Store of torch.distributed, "
                "softs://HOST, tcp://HOST:PORT or, on a single host, a folder"
            )
        if self._cross_node is not None and not isinstance(self._cross_node, LinkStrategy):
            raise ConfigError(
                "a process group that was given between nodes cannot be made again: use LinkStrategy there, or start a "
                "new group"
            )
        self._store = store
        self._break("this rank rebuilds its group")
        try:
            member.meet(store, timeout_s)
            self._join_again(member, store)
        except BaseException as error:
            self._break(f"the group was not rebuilt: {error}")
            raise
        if member.difference:
            difference, member.difference = member.difference, ""
            raise ConfigError(
                f"the group is rebuilt, but {difference}; bring all ranks to one state, such as a checkpoint, and go on"
            )

    def close(self) -> None:
        """Leave the groups; a second call does nothing."""
        self._closed = True
        self._end()

    @property
    def _files(self) -> TlsFiles:
        return TlsFiles() if self._cross_node is None else self._cross_node.files

    @property
    def _joined(self) -> Levels:
        if self._closed:
            raise ConfigError("the group is closed")
        if self._broken:
            raise PeerLost(self._broken)
        if self._levels is None:
            raise ConfigError(_NO_GROUP)
        return self._levels

    def _break(self, reason: str) -> None:
        """Leave both groups for good; calls of other ranks that wait for this one end."""
        self._broken = reason
        if self._levels is not None:
            self._levels.give_up(reason)
        self._end()

    def _end(self) -> None:
        """Leave both groups; no transfer is under way afterwards."""
        levels, self._levels = self._levels, None
        if levels is not None:
            levels.close()
            return
        self._local.close()
        if self._cross_node is not None:
            self._cross_node.close()

    def _join_again(self, member: Member, store: KeyValueStore) -> None:
        """Join the groups of the ranks of a decision."""
        world = member.world
        topology = world.topology(member.number)
        place = StoreRendezvous(store, topology.rank, topology.size, f"{world.name}.{world.n_rebuilds}")
        try:
            cross = join_nodes(self._local, self._cross_node, place, topology)
            self._levels = Levels(self._local, cross, topology)
            self._levels.agree("rebuild")
            member.remove_notes(store)
        finally:
            with suppress(PeerLost):
                place.close()
        member.processes = self._processes_of(world, member.number)
        self._broken = ""

    def _processes_of(self, world: World, number: int) -> dict[int, tuple[int, int]]:
        """Return the processes of this node, by the first numbers of their ranks."""
        node = next(node for node in world.nodes if number in node)
        return dict(zip(node, self._local.processes, strict=True))

    @contextmanager
    def _call(self, name: str, *tensors: torch.Tensor) -> Iterator[Levels]:
        """Count a call. If it ends midway on one level, tell the ranks of both, which would wait for this one."""
        levels = self._joined
        with self._meter.lap(name, bytes_of(tensors)) as lap:
            waiting = levels.waiting_s
            try:
                yield levels
                if self._member is not None:
                    self._member.completed += 1
            except (ConfigError, ForkedError):
                raise
            except BaseException as error:
                levels.give_up(str(error) if isinstance(error, PeerLost) else f"{name}: {error!r}")
                raise
            finally:
                lap.waiting_s += levels.waiting_s - waiting


class AllReduceStrategy(HierarchicalStrategy):
    """`HierarchicalStrategy` under the name that it has in zerfoo."""
