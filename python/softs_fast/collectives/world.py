"""The ranks of a hierarchy, and the decision which of them go on after a loss. No effects."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace

from softs_fast.collectives.nodes import Topology
from softs_fast.errors import PeerLost

# Number of calls that a rank has completed, at most.
_MOST_CALLS = 1 << 62


@dataclass(frozen=True)
class World:
    """Ranks that reduce together. They keep the numbers that they had at the start, and their order.

    Attributes:
        name: random, the same on all ranks.
        n_rebuilds: decisions so far.
        nodes: first numbers of the ranks, by node.
    """

    name: str
    n_rebuilds: int
    nodes: tuple[tuple[int, ...], ...]

    @property
    def members(self) -> list[int]:
        """First numbers of the ranks, in the order of their present ones."""
        return sorted(member for node in self.nodes for member in node)

    @property
    def key(self) -> str:
        """What the keys of the next decision begin with."""
        return f"softs.{self.name}.{self.n_rebuilds}"

    def topology(self, member: int) -> Topology:
        """Return the topology in present numbers, for a rank with the first number `member`."""
        present = {first: rank for rank, first in enumerate(self.members)}
        nodes = tuple(tuple(present[first] for first in node) for node in self.nodes)
        own = next(number for number, node in enumerate(self.nodes) if member in node)
        return Topology(present[member], nodes, own)

    def of(self, remaining: Set[int]) -> World:
        """Return the world of the ranks that a decision has named."""
        nodes = [tuple(member for member in node if member in remaining) for node in self.nodes]
        return replace(self, n_rebuilds=self.n_rebuilds + 1, nodes=tuple(node for node in nodes if node))


@dataclass(frozen=True)
class Decision:
    """The ranks that go on.

    Attributes:
        remaining: their first numbers.
        least: calls that each of them has completed.
        most: calls that at least one of them has completed.
    """

    remaining: frozenset[int]
    least: int
    most: int

    def encoded(self, world: World) -> bytes:
        """Return a message: one bit for each rank of the world."""
        bits = sum(1 << rank for rank, member in enumerate(world.members) if member in self.remaining)
        return json.dumps({"remaining": f"{bits:x}", "least": self.least, "most": self.most}).encode()

    @classmethod
    def parsed(cls, message: bytes, world: World) -> Decision:
        """Return the decision of a message of a rank of the same world.

        Raises:
            PeerLost: it is malformed.
        """
        try:
            fields = json.loads(message)
            bits, least, most = int(fields["remaining"], 16), fields["least"], fields["most"]
        except (ValueError, KeyError, TypeError):
            bits, least, most = 0, 0, 0
        fits = isinstance(least, int) and isinstance(most, int) and 0 <= least <= most < _MOST_CALLS
        if not fits or not 0 < bits < 1 << len(world.members):
            raise PeerLost("the decision which ranks remain is malformed; are all ranks of the same version?")
        remaining = frozenset(member for rank, member in enumerate(world.members) if bits >> rank & 1)
        return cls(remaining, least, most)


def decide(world: World, here: Mapping[int, int], ended: Iterable[int], *, is_late: bool) -> Decision | None:
    """Decide which ranks remain; None as long as another one may come.

    Args:
        world: the ranks before.
        here: calls that a rank has completed, by its first number, of those that have come.
        ended: first numbers of ranks with processes that have ended.
        is_late: whether the time for coming is over.
    """
    remaining = {member: count for member, count in here.items() if member not in set(ended)}
    awaited = set(world.members) - set(remaining) - set(ended)
    if not remaining or (awaited and not is_late):
        return None
    return Decision(frozenset(remaining), min(remaining.values()), max(remaining.values()))


def count_of(message: bytes | None) -> int | None:
    """Return the number of calls in a rank's message; None if there is none, or it is malformed."""
    if message is None or not message.isdigit() or len(message) > len(str(_MOST_CALLS)):
        return None
    count = int(message)
    return count if count < _MOST_CALLS else None
