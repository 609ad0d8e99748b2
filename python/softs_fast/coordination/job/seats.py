"""Which worker has which seat."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from .messages import Contract, Hello, Member, WorkerState


@dataclass
class Worker:
    """A worker that is connected, or has a seat that is kept for it.

    Attributes:
        id: Name of the worker.
        incarnation: Random number of its process.
        address: Address at which other members reach it.
        conn: Number of its connection; None while it is away.
        away_since_s: Time at which its connection ended.
        back_until_s: Time until which it may connect again as if it had not been away.
        ready: State that it reported when it began to wait for a table; None if it does not wait for one.
        ready_since_s: Time since which it waits for a table.
        told: Boot and number of the epoch of which it was told last on this connection; None for none.
        seat: Number of its seat; None for a spare.
        is_leaving: Whether it leaves at the end of the present step.
        resting_since_s: Time since which it leaves and is in no step; None if it may be in one.
        was_member: Whether it came with the state of an epoch.
        contract: What it trains; None if it has not said so to this coordinator.
        can_follow: Whether it can copy a state, and serve its own, while the members of an epoch make steps.
    """

    id: str
    incarnation: int
    address: str
    conn: int | None = None
    away_since_s: float = 0.0
    back_until_s: float = 0.0
    ready: WorkerState | None = None
    ready_since_s: float = 0.0
    told: tuple[int, int] | None = None
    seat: int | None = None
    is_leaving: bool = False
    resting_since_s: float | None = None
    was_member: bool = False
    contract: Contract | None = None
    can_follow: bool = False

    @property
    def number(self) -> int:
        """Its seat; -1 of a spare."""
        return -1 if self.seat is None else self.seat

    @property
    def name(self) -> str:
        """How texts name it."""
        return f'spare "{self.id}"' if self.seat is None else f'seat {self.seat} ("{self.id}")'

    def is_process(self, member: Member) -> bool:
        """Return whether it is the process that a table names."""
        return (member.worker_id, member.incarnation) == (self.id, self.incarnation)

    def is_present(self, now_s: float) -> bool:
        """Return whether it is connected, or may connect again as if it had not been away."""
        return self.conn is not None or now_s < self.back_until_s

    def is_missing(self, now_s: float, kept_s: float) -> bool:
        """Return whether it has been away for longer than its seat is kept."""
        return self.conn is None and now_s >= max(self.away_since_s + kept_s, self.back_until_s)


@dataclass
class Seats:
    """Workers by seat, by name and by connection."""

    n_seats: int
    by_number: dict[int, Worker] = field(default_factory=dict)
    by_id: dict[str, Worker] = field(default_factory=dict)
    by_conn: dict[int, Worker] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Worker]:
        """Iterate over the workers that have a seat, by its number."""
        return (self.by_number[number] for number in sorted(self.by_number))

    @property
    def are_connected(self) -> bool:
        """Whether no worker is away."""
        return len(self.by_conn) == len(self.by_id)

    def spares(self) -> list[Worker]:
        """Return the workers without a seat, in the order in which they came."""
        if len(self.by_id) == len(self.by_number):
            return []
        return [worker for worker in self.by_id.values() if worker.seat is None]

    def choose(self, wanted: int | None, now_s: float, kept_s: float) -> int | None:
        """Return a seat for a new worker: the wanted one or, without a wish, the lowest that is free."""
        numbers = range(self.n_seats) if wanted is None else range(wanted, min(wanted + 1, self.n_seats))
        free = (number for number in numbers if number not in self.by_number)
        # A launcher that gives numbers knows that the worker before has ended.
        kept_s = kept_s if wanted is None else 0.0
        missing = (
            number
            for number in numbers
            if number in self.by_number and self.by_number[number].is_missing(now_s, kept_s)
        )
        return next(free, next(missing, None))

    def add(self, worker: Worker, seat: int | None) -> None:
        """Give a worker a seat, or make it a spare; a worker that had the seat is removed."""
        if seat is not None and seat in self.by_number:
            self.remove(self.by_number[seat])
        worker.seat = seat
        self.by_id[worker.id] = worker
        if seat is not None:
            self.by_number[seat] = worker
        if worker.conn is not None:
            self.by_conn[worker.conn] = worker

    def remove(self, worker: Worker) -> None:
        """Remove a worker."""
        self.disconnect(worker)
        if self.by_id.get(worker.id) is worker:
            del self.by_id[worker.id]
        if worker.seat is not None and self.by_number.get(worker.seat) is worker:
            del self.by_number[worker.seat]

    def connect(self, worker: Worker, conn: int, hello: Hello) -> None:
        """Note that a worker is connected."""
        worker.conn = conn
        worker.address = hello.address
        worker.ready = worker.told = None
        worker.was_member = hello.last.epoch > 0
        worker.contract = hello.contract
        worker.can_follow = hello.can_follow
        self.by_conn[conn] = worker

    def disconnect(self, worker: Worker) -> None:
        """Note that a worker is not connected."""
        if worker.conn is not None:
            self.by_conn.pop(worker.conn, None)
        worker.conn = None
        worker.ready = None

    def resize(self, n_seats: int) -> None:
        """Change the number of seats; workers above it become spares, and those of them that are away are removed."""
        self.n_seats = n_seats
        for number in [number for number in self.by_number if number >= n_seats]:
            worker = self.by_number.pop(number)
            worker.seat = None
            if worker.conn is None:
                self.remove(worker)
