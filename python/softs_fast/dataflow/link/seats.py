"""Which process is which worker of a flow, if launchers start workers again. Pure: no clock, no socket, no chance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...errors import ConfigError

__all__ = ["MOST_WORKERS", "Seated", "Seats", "new_seat", "worker_of"]

#: Numbers of workers are below this. It is a power of ten, so that numbers of seats can be read in the log.
MOST_WORKERS = 1_000_000
#: A seat is a number below 2^32.
_MOST_DRAWS = (1 << 32) // MOST_WORKERS


def new_seat(worker: int, drawn: int) -> int:
    """Return the number by which one process of a worker joins: its last six digits are those of the worker.

    Two processes of one worker may be connected at a time, when the first one is stopped and was given up.

    Args:
        worker: Number of the worker.
        drawn: Random number that is not below 0.

    Raises:
        ConfigError: the worker has no such number.
    """
    if not 0 <= worker < MOST_WORKERS:
        raise ConfigError(f"worker is {worker}; need 0 to {MOST_WORKERS - 1}")
    return worker + MOST_WORKERS * (drawn % _MOST_DRAWS)


def worker_of(seat: int) -> int:
    """Return the worker of a seat."""
    return seat % MOST_WORKERS


@dataclass(frozen=True)
class Seated:
    """A process that has joined.

    Attributes:
        seat: Number of the seat.
        pid: Id of the process, as it reports itself.
        host: Host of the process, as it reports itself.
    """

    seat: int
    pid: int
    host: str

    @property
    def worker(self) -> int:
        """Return the number of the worker."""
        return worker_of(self.seat)

    def __str__(self) -> str:
        """Return it in words."""
        return f"process {self.pid} of host {self.host}"


class Seats:
    """Of each worker the process that it is, and one that waits until that one has left.

    Args:
        workers: their numbers.
    """

    def __init__(self, workers: Iterable[int]) -> None:
        self._numbers = sorted(workers)
        self._held: dict[int, Seated] = {}
        self._waiting: dict[int, Seated] = {}

    def join(self, one: Seated, *, may_wait: bool) -> str:
        """A process has joined; returns why it is not taken, or an empty text.

        Args:
            one: the process.
            may_wait: whether it may wait for the end of another one that has its number.
        """
        worker = one.worker
        if worker not in self._numbers:
            numbers = ", ".join(map(str, self._numbers))
            return f"worker {worker} has no role in this flow; there are {numbers}"
        if worker not in self._held:
            self._held[worker] = one
            return ""
        other = self._held[worker]
        if may_wait and worker in self._waiting:
            other = self._waiting[worker]
        elif may_wait:
            self._waiting[worker] = one
            return ""
        return f"worker {worker} is joined already: {other}; each worker has a number of its own"

    def leave(self, seat: int) -> bool:
        """A process has left; returns whether it was its worker until now."""
        worker = worker_of(seat)
        if worker in self._waiting and self._waiting[worker].seat == seat:
            del self._waiting[worker]
        if not self.holds(seat):
            return False
        del self._held[worker]
        return True

    def give_up(self, worker: int) -> Seated | None:
        """The process of a worker is its worker no more, although it has not left; returns it."""
        return self._held.pop(worker, None)

    def follow(self, worker: int) -> Seated | None:
        """Make the process that waits for a number the one that has it; returns it. There is none, or it waits on: None."""
        if worker in self._held or worker not in self._waiting:
            return None
        self._held[worker] = self._waiting.pop(worker)
        return self._held[worker]

    def holds(self, seat: int) -> bool:
        """Return whether a process is its worker."""
        return worker_of(seat) in self._held and self._held[worker_of(seat)].seat == seat

    def seat(self, worker: int) -> int | None:
        """Return the seat of a worker; None if no process is that worker."""
        one = self._held.get(worker)
        return one.seat if one is not None else None

    @property
    def held(self) -> dict[int, Seated]:
        """Return the process of each worker that has one."""
        return dict(self._held)
