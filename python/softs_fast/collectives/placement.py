"""Where the parts of a reduce-scatter over nodes are, and which rank reduces which elements."""

from __future__ import annotations

from itertools import accumulate

import torch

from softs_fast.collectives.nodes import Topology


class Placement:
    """The slices of a reduce-scatter of equal parts, one part for each rank of the world.

    Slice i has, node by node, the part of rank i of the node, and a share of the parts of the node's ranks without a
    slice. So a rank reduces its own part between nodes, and no rank reduces much more than the others.

    Args:
        topology: the ranks on their nodes.
        width: elements of each part.
    """

    def __init__(self, topology: Topology, width: int) -> None:
        self._topology = topology
        self._width = width

    def packed(self, parts: torch.Tensor) -> torch.Tensor:
        """Return the elements of all parts [size, width] in the order of the slices, flat."""
        n_slices = self._topology.n_slices
        rests = [parts[list(node[n_slices:])].reshape(-1) for node in self._topology.nodes]
        pieces = []
        for number in range(n_slices):
            for node, (members, rest) in enumerate(zip(self._topology.nodes, rests, strict=True)):
                bounds = self.rest(node)
                pieces += [parts[members[number]], rest[bounds[number] : bounds[number + 1]]]
        return torch.cat(pieces)

    def inside(self, n_ranks: int) -> list[int]:
        """Return the bounds of the slices in the packed elements, those of a node's ranks without a slice empty."""
        ends = list(accumulate(self.between(number)[-1] for number in range(self._topology.n_slices)))
        return [0, *ends, *[ends[-1]] * (n_ranks - len(ends))]

    def between(self, number: int) -> list[int]:
        """Return the bounds of the nodes in a slice."""
        nodes = range(len(self._topology.nodes))
        rests = [self.rest(node) for node in nodes]
        return [0, *accumulate(self._width + rest[number + 1] - rest[number] for rest in rests)]

    def rest(self, node: int) -> list[int]:
        """Return the bounds of the shares of a node's slices in the parts of its ranks without a slice."""
        n_slices = self._topology.n_slices
        count = (len(self._topology.nodes[node]) - n_slices) * self._width
        return [count * number // n_slices for number in range(n_slices + 1)]
