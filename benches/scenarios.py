"""Sizes, sides and scenarios of the measurements.

A *side* assigns a package to each role, so the same scenario runs with softs alone, with softs_fast alone, and with
softs peers at a softs_fast broker. Further sides are options that only the candidate has, and other software
(`benches.opponents`). A *scenario* is one workload at one sample size with one fleet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

# softs refuses orders past `max_queue_per_product` (16 by default); no scenario is about that limit.
PRODUCT_QUEUE = 65_536

FASTER_FIFO = "faster-fifo"
ICEORYX2 = "iceoryx2"
ICEORYX2_ZERO_COPY = "iceoryx2, zero copy"
ICEORYX2_BATCHES = "iceoryx2, zero copy, batches"
COPIES = "bare copies"
TORCH = "torch DataLoader, 3 workers"

WorkloadName = Literal["one_by_one", "pipelined", "loader", "training", "fresh", "idle"]


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
THUMBNAIL = Size("48 KB", (3, 64, 64))
IMAGE = Size("600 KB", (3, 224, 224))
LARGE = Size("4 MiB", (1_048_574,))


@dataclass(frozen=True)
class Side:
    """The package of each role.

    Attributes:
        name: key of this side in the results.
        broker: module that provides `Broker`.
        supplier: module that provides `Supplier`.
        client: module that provides `Client` and `SoftDataLoader`.
        opponent: key in `benches.opponents.OPPONENTS`; there is no broker and no supplier then.
        batch_generator: suppliers make many samples per call, as tensors.
        zero_copy: batches of the loader are views of the slots.
        prefetch: samples on order or finished at most; default: all slots.
    """

    name: str
    broker: str
    supplier: str
    client: str
    opponent: str = ""
    batch_generator: bool = False
    zero_copy: bool = False
    prefetch: int | None = None

    @classmethod
    def pure(cls, package: str) -> Side:
        """All roles played by one package."""
        return cls(package, package, package, package)

    @classmethod
    def other(cls, opponent: str) -> Side:
        """Software that is neither package."""
        return cls(opponent, "", "", "", opponent)


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
        call_s: seconds that one call of the generator takes.
        beside: measure the further sides too.
        length: factor of the length of a run; rare or noisy events need longer runs.
        quick: part of a quick run.
    """

    name: str
    workload: WorkloadName
    size: Size
    n_slots: int
    n_suppliers: int = 1
    n_clients: int = 1
    mixed: bool = False
    batch_size: int = 32
    call_s: float = 0.0
    beside: bool = False
    length: float = 1.0
    quick: bool = True

    def sides(self, baseline: str, candidate: str) -> tuple[Side, ...]:
        """The two sides to compare, the baseline first, then the further ones."""
        if self.mixed:
            peers = Side.pure(baseline)
            return peers, Side(f"{candidate} broker", candidate, baseline, baseline)
        if baseline == candidate:
            return Side.pure(baseline), Side(f"{candidate} again", candidate, candidate, candidate)
        further = self._further(Side.pure(candidate)) if self.beside else ()
        return Side.pure(baseline), Side.pure(candidate), *further

    def _further(self, candidate: Side) -> tuple[Side, ...]:
        zero_copy = replace(candidate, name=f"{candidate.name}, zero copy", zero_copy=True)
        match self.workload:
            case "one_by_one":
                # Few slots, used again and again, stay in the cache.
                few = replace(candidate, name=f"{candidate.name}, prefetch 3", prefetch=3)
                return few, *(Side.other(name) for name in (FASTER_FIFO, ICEORYX2, ICEORYX2_ZERO_COPY))
            case "training":
                return (zero_copy,)
            case "loader":
                batches = f"{candidate.name}, batch generator"
                return (
                    replace(candidate, name=batches, batch_generator=True),
                    zero_copy,
                    replace(zero_copy, name=f"{batches}, zero copy", batch_generator=True),
                    Side.other(ICEORYX2_BATCHES),
                    Side.other(COPIES),
                    Side.other(TORCH),
                )
            case _:
                return ()


def _one_by_one(size: Size, n_slots: int) -> Scenario:
    name = f"one by one, {size.label}, {n_slots} slot{'s'[: n_slots > 1]}"
    quick = n_slots > 1 or size is SMALL
    return Scenario(name, "one_by_one", size, n_slots, beside=n_slots > 1, quick=quick)


def _pipelined(size: Size) -> Scenario:
    return Scenario(f"pipelined, {size.label}, 16 slots", "pipelined", size, 16, quick=size is SMALL)


def _loader(size: Size, n_slots: int) -> Scenario:
    name = f"loader batch 32, {size.label}, {n_slots} slots"
    quick = n_slots >= 32 or size is IMAGE
    return Scenario(name, "loader", size, n_slots, beside=n_slots >= 32, quick=quick)


def _training(size: Size) -> Scenario:
    name = f"training batch 32, {size.label}, 64 slots"
    return Scenario(name, "training", size, 64, beside=True, length=5, quick=size is THUMBNAIL)


SCENARIOS: tuple[Scenario, ...] = (
    *(_one_by_one(size, 16) for size in (SMALL, IMAGE, LARGE)),
    *(_one_by_one(size, 1) for size in (SMALL, IMAGE, LARGE)),
    *(_pipelined(size) for size in (SMALL, IMAGE, LARGE)),
    *(_loader(size, n_slots) for size in (SMALL, IMAGE, LARGE) for n_slots in (8, 32)),
    *(_training(size) for size in (THUMBNAIL, IMAGE)),
    Scenario("mixed fleet, 1 client, 1 supplier", "one_by_one", SMALL, 16, mixed=True, quick=False),
    Scenario("mixed fleet, 3 clients, 3 suppliers", "one_by_one", SMALL, 16, 3, 3, mixed=True),
    Scenario(
        "set_model, 4 suppliers, 2 clients, calls of 1 ms", "fresh", SMALL, 16, 4, 2, call_s=1e-3, length=4
    ),
    Scenario("idle", "idle", SMALL, 16),
)
