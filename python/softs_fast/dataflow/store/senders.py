"""Which holder sends a value: the least loaded one. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

__all__ = ["senders_of"]


def senders_of(
    holders: Sequence[Sequence[int]], sizes: Sequence[int], loads: Counter[int] | None = None
) -> list[int]:
    """Return the sender of each value: of its holders the one that sends fewest bytes so far, the first of equals.

    Values with few holders are dealt first, because others can go elsewhere.

    Args:
        holders: workers that have each value, at least one.
        sizes: bytes of each value.
        loads: bytes that each worker sends already; those of the values are added.
    """
    loads = Counter() if loads is None else loads
    senders = [0] * len(holders)
    for i in sorted(range(len(holders)), key=lambda i: len(holders[i])):
        senders[i] = min(holders[i], key=loads.__getitem__)
        loads[senders[i]] += sizes[i]
    return senders
