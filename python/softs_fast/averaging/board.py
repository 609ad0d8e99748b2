"""What a rank knows of the others, and how it gets at their weights: the only way out of `SelectiveAveraging`."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch.optim import Optimizer

from softs_fast.averaging.decide import Member
from softs_fast.averaging.reports import Report


@dataclass(frozen=True)
class Donation:
    """The snapshot of a donor that was averaged.

    Attributes:
        rank: Rank of the donor.
        weight: Its share of the average.
        version: Version of the snapshot.
        step: Step of the donor when it published the snapshot.
        metric: Metric of the donor when it published the snapshot.
        age_s: Age of the snapshot when it was read, seconds.
        config: Dict that the donor published with the snapshot, or None.
    """

    rank: int
    weight: float
    version: int
    step: int
    metric: float | None
    age_s: float
    config: Mapping[str, Any] | None


@dataclass(frozen=True)
class Refused:
    """Why an average could not be had, such as that a result is not finite.

    Attributes:
        rank: The donor that is the reason; None if none of them alone is.
        reason: Reason, as text.
    """

    rank: int | None
    reason: str


@dataclass(frozen=True)
class Event:
    """A replacement.

    Attributes:
        rank: The rank that was replaced.
        step: Its number of steps.
        reason: Reason for the replacement, as text.
        metric: Metric that the rank reported before the replacement.
        donations: The snapshots that it took; none after `reset_weights`.
        waited_steps: Steps from the check to the change of the weights: until the others had reported, until the donors
            had answered, and while the sum was fetched.
        is_kept: False if `accept` refused it, and all is as it was before.
        chance: A generator of random numbers that depends on seed, rank and number of the replacement alone.
    """

    rank: int
    step: int
    reason: str
    metric: float | None
    donations: tuple[Donation, ...]
    waited_steps: int
    is_kept: bool
    chance: random.Random

    @property
    def config(self) -> Mapping[str, Any]:
        """What the donor with the most weight had published with its snapshot; empty without a donor."""
        best = max(self.donations, key=lambda one: one.weight, default=None)
        return (best.config if best is not None else None) or {}


class Fetch(Protocol):
    """A weighted sum of snapshots, whole, and finite where it must be. It is there until the next `Board.fetch`."""

    @property
    def donations(self) -> Sequence[Donation]:
        """The snapshots that it was made of."""

    def apply(self, into: Mapping[str, torch.Tensor]) -> None:
        """Copy the sum into tensors.

        Args:
            into: Tensors to overwrite, by name: those given to `Board.open`, all or some of them.
        """


@runtime_checkable
class Board(Protocol):
    """The other ranks, as one rank sees them, and its own place among them. No call waits for another rank."""

    @property
    def rank(self) -> int:
        """This rank's number."""

    def open(self, tensors: Mapping[str, torch.Tensor], as_is: Set[str] = frozenset()) -> bytes:
        """Take a place for snapshots of such tensors; return the digest of their names, shapes and dtypes.

        Args:
            tensors: All that is shared, by name.
            as_is: Names of those that may have any values, such as buffers with masks; others must be finite.
        """

    @property
    def is_fixed(self) -> bool:
        """Whether no rank joins later: then each one that lives is waited for at a check."""
        return False

    def members(self) -> Sequence[Member]:
        """Return the other ranks with their reports, as known now."""

    def unseen(self) -> Mapping[int, str]:
        """Return why ranks that may be alive cannot be read here, by rank."""
        return {}

    def report(self, report: Report) -> None:
        """Show the state of this rank at a check to the others, before they or it decide."""

    def publish(
        self,
        tensors: Mapping[str, torch.Tensor],
        *,
        step: int,
        metric: float | None,
        trained: int,
        config: Mapping[str, Any] | None,
    ) -> int:
        """Make a snapshot for the others; return its version, or that of the one before if none can begin now."""

    def follow(self, optimizer: Optimizer | None, late: Collection[str]) -> None:
        """Learn which tensors change in steps of an optimizer alone; `publish` may copy those beside the training.

        A board that copies all of them in `publish` has nothing to do here.

        Args:
            optimizer: None if there is none.
            late: names of the tensors.
        """
        return

    def settle(self) -> None:
        """Wait until the tensors that were published last are copied, so that they may change."""
        return

    def inspected(self) -> tuple[int, bool] | None:
        """Return a version, and whether its floats are finite; None if the board does not look at that."""
        return None

    def ask(self, ranks: Iterable[int]) -> None:
        """Ask ranks for newer snapshots."""

    def is_asked(self) -> bool:
        """Return whether another rank has asked for a newer snapshot than the last one."""

    def fetch(self, donors: Sequence[tuple[int, float]]) -> None:
        """Begin to fetch the weighted sum of snapshots beside the training; what was begun before is dropped.

        The sum is that of weight times snapshot: of floats; of integers and bool it is the largest.

        Args:
            donors: rank and weight of each.
        """

    def fetched(self) -> Fetch | Refused | None:
        """Return what `fetch` has brought; None while it is under way. Never waits."""

    def difference(self, rank: int) -> str:
        """Return in words how the tensors of another rank differ from this rank's."""

    def close(self) -> None:
        """Leave; a second call does nothing."""
