"""What is measured: sizes, sides and scenarios.

A *side* says which package plays which role, so the same scenario runs over softs alone, over softs_fast
alone, and over softs peers behind a softs_fast broker. A *scenario* is one workload at one sample size with
one fleet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# softs refuses orders past `max_queue_per_product` (16 by default); no scenario is about that limit.
PRODUCT_QUEUE = 65_536

WorkloadName = Literal["one_by_one", "pipelined", "loader", "idle"]


@dataclass(frozen=True)
class Size:
    """A sample: `x` float32 with the given shape, then `y` int64 [1].

    Attributes:
        label: how the size is written in names and tables.
        x_shape: shape of `x`.
    """

    label: str
    x_shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of one sample, which is the slot size."""
        n_x = 1
        for length in self.x_shape:
            n_x *= length
        return 4 * n_x + 8


SMALL = Size("64 B", (14,))
IMAGE = Size("600 KB", (3, 224, 224))
LARGE = Size("4 MiB", (1_048_574,))


@dataclass(frozen=True)
class Side:
    """Which package plays which role.

    Attributes:
        name: key of this side in the results.
        broker: module that provides `Broker`.
        supplier: module that provides `Supplier`.
        client: module that provides `Client` and `SoftDataLoader`.
    """

    name: str
    broker: str
    supplier: str
    client: str

    @classmethod
    def pure(cls, package: str) -> Side:
        """All roles played by one package."""
        return cls(package, package, package, package)


@dataclass(frozen=True)
class Scenario:
    """One workload at one sample size with one fleet.

    Attributes:
        name: key in the results and the pattern that `--only` matches.
        workload: function of `benches.workloads`.
        size: the sample.
        n_slots: slots of each client.
        n_suppliers: supplier processes.
        n_clients: client processes; their rates are added.
        mixed: compare brokers under unmodified peers of the first package instead of whole packages.
        batch_size: samples per batch of the loader.
    """

    name: str
    workload: WorkloadName
    size: Size
    n_slots: int
    n_suppliers: int = 1
    n_clients: int = 1
    mixed: bool = False
    batch_size: int = 32

    def sides(self, baseline: str, candidate: str) -> tuple[Side, Side]:
        """The two sides to compare, the baseline first."""
        if self.mixed:
            peers = Side.pure(baseline)
            return peers, Side(f"{candidate} broker", candidate, baseline, baseline)
        if baseline == candidate:
            return Side.pure(baseline), Side(f"{candidate} again", candidate, candidate, candidate)
        return Side.pure(baseline), Side.pure(candidate)


def _one_by_one(size: Size, n_slots: int) -> Scenario:
    return Scenario(
        f"one by one, {size.label}, {n_slots} slot{'s'[: n_slots > 1]}", "one_by_one", size, n_slots
    )


def _pipelined(size: Size) -> Scenario:
    return Scenario(f"pipelined, {size.label}, 16 slots", "pipelined", size, 16)


def _loader(size: Size, n_slots: int) -> Scenario:
    return Scenario(f"loader batch 32, {size.label}, {n_slots} slots", "loader", size, n_slots)


SCENARIOS: tuple[Scenario, ...] = (
    *(_one_by_one(size, 16) for size in (SMALL, IMAGE, LARGE)),
    *(_one_by_one(size, 1) for size in (SMALL, IMAGE, LARGE)),
    *(_pipelined(size) for size in (SMALL, IMAGE, LARGE)),
    *(_loader(size, n_slots) for size in (SMALL, IMAGE, LARGE) for n_slots in (8, 32)),
    Scenario("mixed fleet, 1 client, 1 supplier", "one_by_one", SMALL, 16, mixed=True),
    Scenario("mixed fleet, 3 clients, 3 suppliers", "one_by_one", SMALL, 16, 3, 3, mixed=True),
    Scenario("idle", "idle", SMALL, 16),
)
