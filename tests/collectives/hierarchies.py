"""Hierarchies with nodes that processes of one host play, and an engine that counts."""

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

from softs_fast.collectives import HierarchicalStrategy, LinkStrategy, Schedule, ShmStrategy
from softs_fast.collectives.link_engine import LinkEngine

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


class Counting:
    """Calls of the engines between nodes by name, and the bytes that this process sends in each to others."""

    calls: ClassVar[Counter[str]] = Counter()
    n_bytes: ClassVar[Counter[str]] = Counter()

    @classmethod
    def install(cls) -> None:
        """Count in all engines of this process from now on."""
        inside: list[str] = []

        def counted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                inside.append(name)
                cls.calls[name] += 1
                try:
                    return method(*args)
                finally:
                    inside.pop()

            return call

        def exchange(engine: LinkEngine, sends: Any, receives: Any) -> None:
            cls.n_bytes[inside[-1]] += sum(len(memory) for _, memory in sends)
            send(engine, sends, receives)

        send, LinkEngine.exchange = LinkEngine.exchange, exchange  # type: ignore[method-assign]
        for name in ("gather", "all_gather", "all_reduce", "reduce_scatter", "broadcast"):
            setattr(LinkEngine, name, counted(name, getattr(LinkEngine, name)))

    @classmethod
    def reset(cls) -> None:
        """Count from zero."""
        cls.calls.clear()
        cls.n_bytes.clear()
