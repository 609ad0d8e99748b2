"""What is known of steps that were sent, and how the reports of their workers become one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Protocol

from ...errors import FlowError
from ..declare.calls import MFCDef
from ..declare.hooks import Hook
from ..declare.ranks import rank_of, role_at
from ..declare.roles import Placement
from ..link.results import Failure
from ..link.tasks import MainTask
from ..master.order.steps import CallState, Step
from ..master.rows.records import Taken
from ..workers.backend import Done

__all__ = ["Observer", "SentStep", "digest_of_ranks", "failure_of", "mean_numbers", "owner_of"]


class Observer(Protocol):
    """What is told of parts of steps that have ended, and of rows that have gone."""

    def note(self, done: Done, step: Step, call: MFCDef | None, taken: Taken | None, n_rows: int) -> None:
        """A worker's part in a step has ended.

        Args:
            done: End of the part.
            step: Step that the part is of.
            call: Function of the step; None: it is a hook.
            taken: Rows of the call; None: they are not known, or it has none.
            n_rows: Number of rows in the flow.
        """

    def drop(self, ids: Sequence[int]) -> None:
        """Rows have left the flow."""


def failure_of(state: CallState, work: object, failure: Failure, where: str) -> FlowError:
    """Return the error of a call of which a step has failed."""
    what = f"hook {work.name} of {state.name}" if isinstance(work, Hook) else state.name
    ids = state.taken.ids if state.taken is not None else ()
    some = f" on {len(ids)} rows {list(ids[:8])}{' ...' if len(ids) > 8 else ''}" if ids else ""
    return FlowError(f"{what} failed{where}{some}: {failure.text}")


def owner_of(state: CallState, calls: Mapping[str, MFCDef]) -> Placement | None:
    """Return the role of a call: of a pool the replica that has it; None for hooks, and functions without a role."""
    role = calls[state.function.name].model_name if state.function is not None else None
    return role_at(role, min(state.mains)) if role is not None else None


class SentStep:
    """A step that was sent, and what its workers have reported: always in the order of the ranks.

    Args:
        step: Step with its ticket.
        ids: Ids of the rows that it reads.
        n_disturbed: See `RowTable`; the count when the step was sent.

    Attributes:
        parts: Part of the work of each worker, for a function on several workers.
        version: Version of the weights that have made the rows: the oldest of all workers; None if there is none.
    """

    def __init__(self, step: Step, ids: tuple[int, ...] = (), n_disturbed: int = 0) -> None:
        self.step, self.ids, self.n_disturbed = step, ids, n_disturbed
        self.parts: dict[int, MainTask] | None = None
        self.version: int | None = None
        self._done: list[Done] = []

    def add(self, done: Done, version: int | None) -> None:
        """A worker has done its part.

        Args:
            done: Report of the worker.
            version: Version of its weights.
        """
        self._done.append(done)
        if version is not None:
            self.version = version if self.version is None else min(self.version, version)

    def clear(self) -> list[Done]:
        """The step has failed; returns what was reported."""
        done, self._done = self._done, []
        return done

    @property
    def done(self) -> list[Done]:
        """What was reported."""
        return list(self._done)

    @property
    def seconds(self) -> float:
        """How long the slowest part took, with the reading of its rows."""
        return max((one.result.read_s + one.result.seconds for one in self._done), default=0.0)

    def check(self) -> None:
        """Check that each head has reported its rows, and no other worker has.

        Raises:
            FlowError: a worker has reported other rows.
        """
        for one in self._done:
            work = (self.parts or {}).get(one.worker)
            if work is not None and work.part is not None:
                due = work.ids[: work.part.n_real] if work.part.is_head else ()
                if one.result.ids != due:
                    raise FlowError(
                        f"worker {one.worker} has reported {len(one.result.ids)} rows {list(one.result.ids[:8])}; it "
                        f"had to report {len(due)} rows {list(due[:8])}"
                    )

    def made(self, role: Placement | None) -> list[Done]:
        """Return the reports that have rows, in the order of dp ranks.

        Args:
            role: Role of the function; None if it has none.
        """
        made = [one for one in self._done if one.result.ids]
        return sorted(made, key=lambda one: _rank(role, one.worker))

    def numbers(self, role: Placement | None) -> dict[str, float]:
        """Return the means of what was reported: over rows, or over ranks for what has no rows."""
        done = sorted(self._done, key=lambda one: _rank(role, one.worker))
        return mean_numbers(
            [(one.result.numbers, len(one.result.ids) or 1) for one in done if one.result.numbers]
        )

    def not_finite(self) -> dict[str, int]:
        """Return the rows with a NaN or an infinity by column, of all ranks."""
        counts: dict[str, int] = {}
        for one in self._done:
            for column, n in one.result.not_finite.items():
                counts[column] = counts.get(column, 0) + n
        return counts

    def digest(self, role: Placement | None) -> str:
        """Return the digest of all inputs."""
        return digest_of_ranks([one.result.digest for one in self.made(role)])


def _rank(role: Placement | None, worker: int) -> int:
    return rank_of(role, worker) if role is not None and worker in role.on else 0


def mean_numbers(reports: Sequence[tuple[Mapping[str, float], int]]) -> dict[str, float]:
    """Return the means of numbers by name, over the reports that have the name.

    Args:
        reports: numbers of each head, and how many rows they are of.
    """
    means: dict[str, float] = {}
    for name in {name: None for numbers, _ in reports for name in numbers}:
        own = [(numbers[name], n) for numbers, n in reports if name in numbers and n]
        if not own:
            continue
        first = own[0][0]
        # The mean of equal numbers is that number, to the last bit.
        if all(value == first for value, _ in own) or len(own) == 1:
            means[name] = first
        else:
            means[name] = sum(value * n for value, n in own) / sum(n for _, n in own)
    return means


def digest_of_ranks(digests: Sequence[str]) -> str:
    """Return one digest for those of all ranks; that of a single rank is as it is."""
    if len(digests) < 2 or not all(digests):
        return digests[0] if digests else ""
    return hashlib.blake2b(" ".join(digests).encode(), digest_size=8).hexdigest()
