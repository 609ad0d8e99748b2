"""Topology of a hierarchy: the ranks of each node, and the groups inside and between nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from softs_fast import _kernels
from softs_fast.collectives.engine_strategy import EngineStrategy
from softs_fast.collectives.host.shm_strategy import ShmStrategy
from softs_fast.collectives.rendezvous import Rendezvous, SubsetRendezvous
from softs_fast.errors import ConfigError, SegmentError

_PROBE_BYTES = 128
_ROW = 1 + _kernels.MAX_RANKS


@dataclass(frozen=True)
class Topology:
    """The ranks of a world on their nodes.

    Attributes:
        rank: this process's number in the world.
        nodes: ranks of the world by node, in the order of the ranks inside it.
        own: number of this process's node.
    """

    rank: int
    nodes: tuple[tuple[int, ...], ...]
    own: int

    @property
    def size(self) -> int:
        """Number of ranks of the world."""
        return sum(len(node) for node in self.nodes)

    @property
    def n_slices(self) -> int:
        """Number of slices, which is the number of ranks of each node that have a group between nodes."""
        return min(len(node) for node in self.nodes)

    def place_of(self, rank: int) -> tuple[int, int]:
        """Return the node of a rank of the world, and its number inside it."""
        return next((number, node.index(rank)) for number, node in enumerate(self.nodes) if rank in node)


def join_nodes(
    local: ShmStrategy, cross_node: EngineStrategy | None, place: Rendezvous, topology: Topology
) -> EngineStrategy | None:
    """Join the group inside the node, and the one between nodes.

    Args:
        local: the strategy inside the node.
        cross_node: the strategy between nodes, of a rank that has one.
        place: rendezvous of all ranks; to be closed once all are known to have joined.
        topology: the ranks on their nodes.

    Returns:
        The strategy between nodes; None for a rank without a slice, and if there is one node.

    Raises:
        ConfigError: arguments are wrong, or a strategy between nodes is missing.
        PeerLost: a rank did not join in time.
        SegmentError: no shared memory.
    """
    timeout_s = local.timeout_s
    has_strategy = [bool(said) for said in place.exchange(b"" if cross_node is None else b"1", timeout_s)]
    nodes, n_slices = topology.nodes, topology.n_slices
    missing = [rank for node in nodes for rank in node[:n_slices] if not has_strategy[rank]]
    if len(nodes) > 1 and missing:
        raise ConfigError(
            f"each of the first {n_slices} ranks of {len(nodes)} nodes has a slice, but rank {_text(missing)} no strategy "
            "between nodes: give every rank one"
        )
    own = nodes[topology.own]
    inside = own.index(topology.rank)
    local.init(inside, len(own), SubsetRendezvous(place, own))
    if cross_node is None or inside >= n_slices or len(nodes) == 1:
        # One exchange, in which ranks without a slice take part too.
        place.exchange(b"", timeout_s)
        return None
    return cross_node.init(
        topology.own, len(nodes), SubsetRendezvous(place, [node[inside] for node in nodes])
    )


def discover(
    place: Rendezvous, rank: int, timeout_s: float, *, host: str = "", may_lack_memory: bool = False
) -> Topology:
    """Return which ranks share a node. Two do if each can read a random number in the other's memory.

    Args:
        place: rendezvous of all ranks.
        rank: this process's number.
        timeout_s: seconds to wait for the slowest rank.
        host: ranks that give different names share no node, whatever they can read.
        may_lack_memory: whether a rank without shared memory is a node of its own, and no error.

    Raises:
        PeerLost: a rank did not join in time.
        ConfigError: reading memory does not divide the ranks into nodes.
        SegmentError: no shared memory.
    """
    offer = b""
    try:
        probe = _kernels.Segment.create(_PROBE_BYTES)
        offer = probe.offer()
    except SegmentError:
        if not may_lack_memory:
            raise
    said = [
        text.partition(b" ")
        for text in place.exchange(offer.hex().encode() + b" " + host.encode(), timeout_s)
    ]
    readable = [rank]
    for other, (their_offer, _, their_host) in enumerate(said):
        if other != rank and offer and their_host.decode(errors="replace") == host and _can_read(their_offer):
            readable.append(other)
    readable.sort()
    seen = [text.decode(errors="replace") for text in place.exchange(_text(readable).encode(), timeout_s)]
    groups: dict[str, list[int]] = {}
    for other, text in enumerate(seen):
        groups.setdefault(text, []).append(other)
    strange = [text for text, members in groups.items() if _text(members) != text]
    if strange:
        raise ConfigError(
            "the ranks are not divided into nodes: some can read memory of ranks that cannot read theirs, or that "
            f"others beside them cannot read ({'; '.join(strange[:4])}); start the ranks of a node in one pid "
            "namespace, as one user"
        )
    nodes = tuple(tuple(members) for members in sorted(groups.values()))
    return Topology(rank, nodes, next(number for number, node in enumerate(nodes) if rank in node))


def learn_topology(local: ShmStrategy, cross_node: EngineStrategy | None, rank: int, size: int) -> Topology:
    """Find out the topology from the joined groups. A collective call of all ranks of the world.

    Raises:
        ConfigError: the groups do not make a hierarchy of ranks 0 to size - 1.
        PeerLost: a rank died.
    """
    inside = torch.empty(2 * local.size, dtype=torch.int64, device="cpu")
    local.all_gather(inside, torch.tensor([rank, cross_node is not None], dtype=torch.int64, device="cpu"))
    members = [int(value) for value in inside[::2]]
    has_slice = [bool(value) for value in inside[1::2]]
    own_row = torch.tensor(
        [len(members), *members] + [-1] * (_ROW - 1 - len(members)), dtype=torch.int64, device="cpu"
    )
    rows = own_row.view(1, -1)
    if cross_node is not None:
        rows = torch.empty(cross_node.size, _ROW, dtype=torch.int64, device="cpu")
        cross_node.all_gather(rows.view(-1), own_row)
    counted = torch.tensor([len(rows)], dtype=torch.int64, device="cpu")
    local.broadcast_tensor(counted, 0)
    table = torch.empty(int(counted[0]), _ROW, dtype=torch.int64, device="cpu")
    if local.rank == 0:
        table.copy_(rows)
    local.broadcast_tensor(table.view(-1), 0)
    nodes = tuple(tuple(int(value) for value in row[1 : 1 + int(row[0])]) for row in table)
    members_of_all = sorted(member for node in nodes for member in node)
    if members_of_all != list(range(size)):
        raise ConfigError(
            f"{size} ranks need numbers 0 to {size - 1}; the nodes have {_text(members_of_all)}: give each rank its "
            "number in the world, and the ranks of local rank 0 of all nodes one group between nodes"
        )
    n_slices = min(len(node) for node in nodes)
    if len(nodes) > 1 and has_slice != [number < n_slices for number in range(local.size)]:
        raise ConfigError(
            f"the smallest of {len(nodes)} nodes has {n_slices} ranks, so the first {n_slices} of each need a strategy "
            "between nodes, and no other; on this node it is "
            f"{_text([number for number, has in enumerate(has_slice) if has])}"
        )
    own = nodes.index(tuple(members))
    if cross_node is not None and (not torch.equal(rows, table) or cross_node.rank != own):
        raise ConfigError(
            f"rank {rank}'s group between nodes has other nodes, or another order of them, than that of the first rank "
            "of its node"
        )
    return Topology(rank, nodes, own)


def _can_read(offer: bytes) -> bool:
    try:
        _kernels.Segment.open(bytes.fromhex(offer.decode()), _PROBE_BYTES)
    except (SegmentError, ConfigError, ValueError):
        return False
    return True


def _text(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
