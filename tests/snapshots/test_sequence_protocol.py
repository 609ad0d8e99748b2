"""The sequence protocol of csrc/snapshots, as a model: every order that the memory orders permit, all of them tried.

Writer and reader are lists of accesses. Two accesses of one side may be seen in another order by the other side unless
a rule of their memory orders forbids it: a release store and a fence keep what is before them, an acquire load and a
fence what is after them. All interleavings of all such orders run on one memory, which is what processors with
multi-copy atomic stores do (x86, ARMv8). The test shows that no reader accepts a torn version, and that the memory
orders are needed: without them a torn read is found. The release of `latest` and the orders of the sequence word each
suffice for what follows the copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

N_VERSIONS = 4
WORDS = ("x", "y")


@dataclass(frozen=True)
class Store:
    """A store of the writer."""

    place: str
    value: int
    #: All stores before it are visible first.
    releases: bool = False


@dataclass(frozen=True)
class Load:
    """A load of the reader, into a register of the same name."""

    register: str
    #: All loads after it are later.
    acquires: bool = False


#: What is kept in its order by a rule that can be left out: a fence between the stores or loads around it.
ORDERS = {
    "fence after the mark",
    "sequence released",
    "latest released",
    "sequence acquired",
    "fence before the check",
}


def writer(orders: set[str]) -> tuple[list[Store], set[tuple[int, int]]]:
    """The stores of versions 1 to N_VERSIONS, and pairs that cannot change their order."""
    stores: list[Store] = []
    fences: list[int] = []
    for version in range(1, N_VERSIONS + 1):
        half = version % 2
        stores.append(Store(f"sequence {half}", 2 * version - 1))
        if "fence after the mark" in orders:
            fences.append(len(stores))
        stores += [Store(f"{word} {half}", version) for word in WORDS]
        stores.append(Store(f"sequence {half}", 2 * version, "sequence released" in orders))
        stores.append(Store("latest", version, "latest released" in orders))
    kept = {
        (a, b)
        for b in range(len(stores))
        for a in range(b)
        if stores[b].releases or stores[a].place == stores[b].place or any(a < fence <= b for fence in fences)
    }
    return stores, kept


def reader(orders: set[str]) -> tuple[list[Load], set[tuple[int, int]]]:
    """The loads of one attempt, and pairs that cannot change their order. Addresses depend on `latest`."""
    loads = [
        Load("latest"),
        Load("sequence", "sequence acquired" in orders),
        *(Load(word) for word in WORDS),
        Load("check"),
    ]
    fence = len(loads) - 1 if "fence before the check" in orders else None
    kept = {
        (a, b)
        for b in range(len(loads))
        for a in range(b)
        # The half depends on `latest`, so its loads come later.
        if loads[a].acquires
        or a == 0
        or (fence is not None and a < fence <= b)
        # Loads of one word stay in order.
        or {loads[a].register, loads[b].register} == {"sequence", "check"}
    }
    return loads, kept


def torn_reads(orders: set[str]) -> list[str]:
    """Run all orders of all accesses; return what was accepted and is torn."""
    stores, store_kept = writer(orders)
    loads, load_kept = reader(orders)
    found: list[str] = []
    seen: set[tuple[int, int, tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]]] = set()
    start = {f"{place} {half}": 0 for place in ("sequence", *WORDS) for half in (0, 1)} | {"latest": 0}
    stack = [(0, 0, start, dict[str, int]())]
    while stack and not found:
        stored, loaded, memory, registers = stack.pop()
        key = (stored, loaded, tuple(sorted(memory.items())), tuple(sorted(registers.items())))
        if key in seen:
            continue
        seen.add(key)
        if loaded == (1 << len(loads)) - 1:
            version = registers["latest"]
            is_accepted = registers["sequence"] == registers["check"] == 2 * version and version > 0
            if is_accepted and any(registers[word] != version for word in WORDS):
                found.append(str(registers))
            continue
        for i, store in enumerate(stores):
            if not stored >> i & 1 and all(stored >> a & 1 for a, b in store_kept if b == i):
                stack.append((stored | 1 << i, loaded, memory | {store.place: store.value}, registers))
        for i, load in enumerate(loads):
            if not loaded >> i & 1 and all(loaded >> a & 1 for a, b in load_kept if b == i):
                half = registers["latest"] % 2 if i else 0
                place = {"latest": "latest", "check": f"sequence {half}"}.get(
                    load.register, f"{load.register} {half}"
                )
                value = registers | {load.register: memory[place]}
                stack.append((stored, loaded | 1 << i, memory, value))
    return found


def test_no_version_that_is_accepted_is_torn() -> None:
    assert torn_reads(ORDERS) == []


@pytest.mark.parametrize(
    "left_out",
    [
        {"fence after the mark"},
        {"fence before the check"},
        {"latest released", "sequence released"},
        {"latest released", "sequence acquired"},
    ],
)
def test_memory_orders_are_needed(left_out: set[str]) -> None:
    assert torn_reads(ORDERS - left_out) != []


@pytest.mark.parametrize("left_out", ["latest released", "sequence released", "sequence acquired"])
def test_one_of_two_is_enough(left_out: str) -> None:
    assert torn_reads(ORDERS - {left_out}) == []
