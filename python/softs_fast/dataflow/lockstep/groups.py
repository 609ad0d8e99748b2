"""Sums over ranks that are threads of one process, and what else the workers of a role do together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ...errors import FlowError
from ..declare.ranks import peers_along
from ..declare.roles import Placement
from ..reductions.sums import sum_in_order
from .threads import LockstepThreads

__all__ = ["LockstepGroups", "LockstepRanks", "Meetings"]

#: Of what a rank is in, so many characters are shown.
_MOST_SHOWN = 200


@dataclass
class _Meeting:
    """What workers have brought that wait for each other."""

    brought: dict[int, tuple[str, Any]] = field(default_factory=dict)
    result: Any = None
    error: str | None = None
    is_over: bool = False


class Meetings:
    """Where workers wait until all of them have come.

    Args:
        threads: in which they run.
    """

    def __init__(self, threads: LockstepThreads) -> None:
        self._threads = threads
        self._open: dict[Hashable, _Meeting] = {}

    def meet(
        self,
        worker: int,
        members: Sequence[int],
        key: Hashable,
        what: str,
        value: Any,
        combine: Callable[[list[Any]], Any],
        *,
        where: str = "",
    ) -> Any:
        """Wait until all members have come; returns what `combine` makes of their values, the same object for all.

        Args:
            worker: that comes; called in its thread.
            members: all that come; values are in their order.
            key: of the members and their purpose.
            what: in words; if members say different things, all fail.
            value: of this worker. It is not used any more when this returns.
            combine: called once.
            where: in words, for errors.

        Raises:
            FlowError: members say different things, or one does not come.
        """
        meeting = self._open.setdefault(key, _Meeting())
        meeting.brought[worker] = (what, value)
        if len(meeting.brought) < len(members):
            try:
                while not meeting.is_over:
                    self._threads.wait(worker, _shown(what, where))
            except FlowError:
                meeting.brought.pop(worker)
                raise
        else:
            del self._open[key]
            meeting.is_over = True
            said = {one: brought[0] for one, brought in meeting.brought.items()}
            if len(set(said.values())) > 1:
                each = "; ".join(f"worker {one} is in {_shown(said[one], where)}" for one in members)
                meeting.error = f"{each}; all ranks have to make the same calls, with the same shapes"
            else:
                meeting.result = combine([meeting.brought[one][1] for one in members])
            for one in members:
                self._threads.wake(one)
        if meeting.error is not None:
            raise FlowError(meeting.error)
        return meeting.result


def _shown(what: str, where: str) -> str:
    text = what if len(what) <= _MOST_SHOWN else f"{what[:_MOST_SHOWN]} ..."
    return f"{text} {where}".rstrip()


class LockstepRanks:
    """The ranks along one dimension of a mesh, all in this process; see `RankGroup`.

    Args:
        meetings: of all workers.
        worker: of this rank.
        members: the worker of each rank.
        name: of role and dimension.
    """

    def __init__(self, meetings: Meetings, worker: int, members: Sequence[int], name: str) -> None:
        self.size = len(members)
        self._meetings = meetings
        self._worker = worker
        self._members = tuple(members)
        self._name = name

    def any(self, what: str, flags: Sequence[bool] = ()) -> list[bool]:
        """Return for each flag whether it is set on any rank.

        Raises:
            FlowError: another rank does something else, or does not come.
        """
        found = self._meet(what, list(flags), lambda of: [any(one) for one in zip(*of, strict=True)])
        return list(found)

    def sum(self, parts: Sequence[Tensor], divisor: int, what: str | None = None) -> list[Tensor]:
        """Return the sums over all ranks in their order, divided by a number.

        Raises:
            FlowError: another rank does something else, or does not come.
        """
        sums = self._meet(
            what or "a sum", parts, lambda of: [sum_in_order(one, divisor) for one in zip(*of, strict=True)]
        )
        return [one.clone() for one in sums]

    def from_first(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors of rank 0.

        Raises:
            FlowError: another rank does not come.
        """
        return [one.clone() for one in self._meet("a broadcast", parts, lambda of: of[0])]

    def _meet(self, what: str, value: Any, combine: Callable[[list[Any]], Any]) -> Any:
        key = (self._name, self._members)
        return self._meetings.meet(self._worker, self._members, key, what, value, combine, where=self._name)


class LockstepGroups:
    """What the roles of one worker have for working together with others; see `RoleGroups`.

    Args:
        meetings: of all workers.
        worker: its number.
    """

    def __init__(self, meetings: Meetings, worker: int) -> None:
        self._meetings = meetings
        self._worker = worker

    def mesh(self, role: Placement) -> None:
        """There are no process groups of torch in one process."""

    def group(self, role: Placement) -> None:
        """There are no process groups of torch in one process."""

    def ranks(self, role: Placement) -> Mapping[str, LockstepRanks]:
        """Return the ranks along each dimension of a role in which there are several."""
        return {
            dim: LockstepRanks(
                self._meetings, self._worker, members, f"over {dim} of role {role.name!r} on {list(role.on)}"
            )
            for dim, members in peers_along(role, self._worker).items()
        }

    def agree(self, role: Placement, is_well: bool) -> bool:
        """Return whether all workers of a role say that it is well; each of them calls this.

        Raises:
            FlowError: one of them does not come.
        """
        key = ("agree", role.name)
        return bool(
            self._meetings.meet(
                self._worker, role.on, key, f"a step of all workers of role {role.name!r}", is_well, all
            )
        )
