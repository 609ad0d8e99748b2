"""Hierarchies with nodes that processes of one host play, and an engine that counts."""

from collections import Counter
from typing import Any, ClassVar

import torch.distributed as dist

from softs_fast.collectives import HierarchicalStrategy, LinkStrategy, Schedule, ShmStrategy

SCHEDULE = Schedule(1 << 15, 1 << 16)


def joined(rank: int, nodes: list[list[int]], folder: str, timeout_s: float = 20.0) -> HierarchicalStrategy:
    """Join by hand: `nodes` are the ranks of the world by node. Every rank has a strategy between nodes."""
    number, inside = next((n, node.index(rank)) for n, node in enumerate(nodes) if rank in node)
    local = ShmStrategy(timeout_s=timeout_s, schedule=SCHEDULE)
    local.init(inside, len(nodes[number]), f"{folder}/{number}")
    # Of a rank without a slice it is joined when a rebuild gives it one.
    cross = LinkStrategy(timeout_s=timeout_s)
    if inside < min(map(len, nodes)):
        cross.init(number, len(nodes), f"{folder}/slice{inside}")
    return HierarchicalStrategy(local, cross).init(rank, sum(map(len, nodes)))


def in_blocks(sizes: list[int]) -> list[list[int]]:
    """Return nodes of these sizes, of ranks in a row."""
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    return [list(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)]


class CountingGroup(dist.ProcessGroupGloo):
    """gloo that counts its calls by name, and the bytes that each passes to it."""

    calls: ClassVar[Counter[str]] = Counter()
    n_bytes: ClassVar[Counter[str]] = Counter()

    @classmethod
    def install(cls) -> None:
        """Count in all groups that this process makes from now on."""
        dist.ProcessGroupGloo = cls

    @classmethod
    def reset(cls) -> None:
        """Count from zero."""
        cls.calls.clear()
        cls.n_bytes.clear()

    def _count(self, name: str, n_bytes: int) -> None:
        self.calls[name] += 1
        self.n_bytes[name] += n_bytes

    def allreduce(self, tensors: Any, options: Any) -> Any:
        self._count("allreduce", sum(tensor.nbytes for tensor in tensors))
        return super().allreduce(tensors, options)

    def allgather(self, outputs: Any, tensors: Any) -> Any:
        self._count("allgather", sum(tensor.nbytes for tensor in tensors))
        return super().allgather(outputs, tensors)

    def broadcast(self, tensors: Any, options: Any) -> Any:
        self._count("broadcast", sum(tensor.nbytes for tensor in tensors))
        return super().broadcast(tensors, options)

    def alltoall_base(self, output: Any, source: Any, into: Any, parts: Any, options: Any) -> Any:
        # A rank's own part stays where it is.
        self._count("alltoall", source.nbytes - parts[self.rank()])
        return super().alltoall_base(output, source, into, parts, options)
