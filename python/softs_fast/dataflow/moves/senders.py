"""Which holder sends which row: the busiest one sends at most the lower bound and one row more. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np

from .slices import Integers

__all__ = ["Shares", "round_shares", "shares_of"]

#: Holders of some rows, sorted.
HolderSet = tuple[int, ...]


@dataclass(frozen=True)
class Shares:
    """How much each holder sends of what its sets hold, if rows could be cut.

    Attributes:
        bound: bytes that the busiest sender has at least, in any plan in which holders alone send.
        of_set: for each set of holders what each of them sends, in bytes; those that send nothing are left out.
    """

    bound: Fraction
    of_set: tuple[dict[int, Fraction], ...]


def shares_of(sets: Sequence[HolderSet], demands: Sequence[int]) -> Shares:
    """Return shares of which the largest sum is as small as possible.

    The bound is the largest quotient, over all groups of holders, of the bytes that they alone hold and their number. It
    is found from below: a maximum flow either delivers all at a bound, or its minimum cut is a group with a larger one.

    Args:
        sets: of holders, all different and not empty.
        demands: bytes to be sent of each.

    Source: own, see docs/dataflow_design.md; Newton's method on ratios, Dinkelbach, "On Nonlinear Fractional Programming",
    Management Science 13, 1967.
    """
    used = [i for i, demand in enumerate(demands) if demand]
    holders = {holder for i in used for holder in sets[i]}
    if not used:
        return Shares(Fraction(0), tuple({} for _ in sets))
    bound = max(Fraction(sum(demands), len(holders)), *(Fraction(demands[i], len(sets[i])) for i in used))
    while True:
        # In units of 1 / denominator bytes all amounts are whole numbers.
        unit = bound.denominator
        flow = _Flow([sets[i] for i in used], [demands[i] * unit for i in used], bound.numerator)
        group = flow.run()
        if not group:
            break
        inside = sum(demands[i] for i in used if group.issuperset(sets[i]))
        bound = Fraction(inside, len(group))
    flow.make_forest()
    of_set: list[dict[int, Fraction]] = [{} for _ in sets]
    for i, sent in zip(used, flow.sent, strict=True):
        of_set[i] = {holder: Fraction(amount, unit) for holder, amount in sent.items() if amount}
    return Shares(bound, tuple(of_set))


def round_shares(shares: Shares, sets: Sequence[HolderSet], sizes: Sequence[Integers]) -> list[Integers]:
    """Return the sender of each piece; each sends at most its shares and one piece more.

    The pieces of a set lie one behind the other, and so do the shares; a piece inside of a share is sent by its holder.
    Pieces that are cut by the ends of shares and the holders that have a part of them are a forest, as the shares are
    one: each such piece goes to a holder below it, so a holder gets one of them at most.

    Args:
        shares: of `shares_of`.
        sets: of holders, as there.
        sizes: int64 [pieces] for each set, bytes of each piece; their sum is the demand.

    Source: Lenstra, Shmoys and Tardos, "Approximation Algorithms for Scheduling Unrelated Parallel Machines",
    Mathematical Programming 46, 1990.
    """
    senders = []
    cut: dict[tuple[int, int], list[int]] = {}  # set and piece -> holders
    for number, (mine, pieces) in enumerate(zip(shares.of_set, sizes, strict=True)):
        found = np.full(len(pieces), sets[number][0], np.int64)
        senders.append(found)
        ends = np.cumsum(pieces)
        first, until = 0, Fraction(0)
        names = list(mine)
        for i, holder in enumerate(names):
            until += mine[holder]
            if i + 1 == len(names):
                found[first:] = holder
                break
            whole = until.numerator // until.denominator
            # The piece in which the share ends, or that ends with it.
            side = "left" if whole == until else "right"
            last = int(np.searchsorted(ends, whole, side=side))  # type: ignore[call-overload]
            found[first:last] = holder
            first = last
            if ends[last] == until:
                found[last] = holder
                first = last + 1
            else:
                between = cut.setdefault((number, last), [holder])
                between += [one for one in (holder, names[i + 1]) if one not in between]
    _place_cut(cut, senders)
    return senders


def _place_cut(cut: dict[tuple[int, int], list[int]], senders: list[Integers]) -> None:
    of_holder: dict[int, list[tuple[int, int]]] = {}
    for piece, holders in cut.items():
        for holder in holders:
            of_holder.setdefault(holder, []).append(piece)
    seen: set[int] = set()
    placed: set[tuple[int, int]] = set()
    for root in of_holder:
        waiting = [root] if root not in seen else []
        seen.add(root)
        while waiting:
            for piece in of_holder[waiting.pop()]:
                if piece in placed:
                    continue
                placed.add(piece)
                below = [holder for holder in cut[piece] if holder not in seen]
                senders[piece[0]][piece[1]] = below[0]
                seen.update(below)
                waiting += below


class _Flow:
    """A flow from sets to their holders, each of which takes at most `capacity`."""

    def __init__(self, sets: list[HolderSet], demands: list[int], capacity: int) -> None:
        self.sets = sets
        self.sent: list[dict[int, int]] = [dict.fromkeys(holders, 0) for holders in sets]
        self._left = list(demands)
        self._room = {holder: capacity for holders in sets for holder in holders}
        self._of_holder: dict[int, list[int]] = {holder: [] for holder in self._room}
        for i, holders in enumerate(sets):
            for holder in holders:
                self._of_holder[holder].append(i)

    def run(self) -> set[int]:
        """Send all; returns a group of holders that have too much to send, and none if all is sent."""
        for i in sorted(range(len(self.sets)), key=lambda i: len(self.sets[i])):
            for holder in sorted(self.sets[i], key=lambda one: (-self._room[one], one)):
                self._send(i, holder, min(self._left[i], self._room[holder]))
        for i in range(len(self.sets)):
            while self._left[i]:
                reached = self._augment(i)
                if reached:
                    return reached
        return set()

    def make_forest(self) -> None:
        """Move amounts around the circles of sets and holders, until there is none; sums stay."""
        # Sets are ("set", i), holders ("holder", number).
        tree: dict[tuple[str, int], dict[tuple[str, int], None]] = {}
        for i, holders in enumerate(self.sets):
            for holder in holders:
                if not self.sent[i][holder]:
                    continue
                start, end = ("set", i), ("holder", holder)
                path = _path(tree, start, end)
                if path:
                    # The new edge gains, and then each second edge on the way back.
                    edges = [_edge(a, b) for a, b in pairwise(path)]
                    edges.append((i, holder))
                    signs = [1 if k % 2 else -1 for k in range(len(edges))]
                    shift = min(
                        self.sent[s][h] for (s, h), sign in zip(edges, signs, strict=True) if sign < 0
                    )
                    for (s, h), sign in zip(edges, signs, strict=True):
                        self.sent[s][h] += sign * shift
                        if not self.sent[s][h]:
                            tree[("set", s)].pop(("holder", h))
                            tree[("holder", h)].pop(("set", s))
                tree.setdefault(start, {})[end] = None
                tree.setdefault(end, {})[start] = None

    def _send(self, i: int, holder: int, amount: int) -> None:
        self.sent[i][holder] += amount
        self._left[i] -= amount
        self._room[holder] -= amount

    def _augment(self, start: int) -> set[int]:
        """Send more of a set along a shortest path; returns the holders that can be reached if none of them has room."""
        via: dict[
            int, tuple[int, int | None]
        ] = {}  # holder -> the set that sends to it, and the holder before
        waiting: deque[tuple[int, int | None]] = deque([(start, None)])
        while waiting:
            i, before = waiting.popleft()
            for holder in self.sets[i]:
                if holder in via:
                    continue
                via[holder] = (i, before)
                if self._room[holder]:
                    self._shift(holder, via)
                    return set()
                # What another set sends to this holder can go elsewhere.
                waiting += [(j, holder) for j in self._of_holder[holder] if self.sent[j][holder]]
        return set(via)

    def _shift(self, end: int, via: dict[int, tuple[int, int | None]]) -> None:
        steps: list[tuple[int, int, int | None]] = []
        at: int | None = end
        while at is not None:
            i, before = via[at]
            steps.append((i, at, before))
            at = before
        amount = min(self._left[steps[-1][0]], self._room[end])
        amount = min([amount, *(self.sent[i][before] for i, _, before in steps if before is not None)])
        for i, holder, before in steps:
            self.sent[i][holder] += amount
            if before is not None:
                self.sent[i][before] -= amount
        self._left[steps[-1][0]] -= amount
        self._room[end] -= amount


def _edge(a: tuple[str, int], b: tuple[str, int]) -> tuple[int, int]:
    return (a[1], b[1]) if a[0] == "set" else (b[1], a[1])


def _path(
    tree: dict[tuple[str, int], dict[tuple[str, int], None]], start: tuple[str, int], end: tuple[str, int]
) -> list[tuple[str, int]]:
    """Return the nodes from start to end; none if they are not connected."""
    before: dict[tuple[str, int], tuple[str, int]] = {start: start}
    waiting = deque([start] if start in tree else [])
    while waiting:
        at = waiting.popleft()
        if at == end:
            path = [end]
            while path[-1] != start:
                path.append(before[path[-1]])
            return path[::-1]
        for one in tree[at]:
            if one not in before:
                before[one] = at
                waiting.append(one)
    return []
