"""Whether a worker that says Hello is let in, and to which seat."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from .messages import PROTOCOL, Contract, Hello, Refused
from .options import JobOptions
from .seats import Seats, Worker

# Processes that are remembered because they may not take part any more.
_MOST_ENDED = 1024
# The largest numbers of the wire.
_MAX_NUMBER = 1 << 53


@dataclass(frozen=True)
class Admission:
    """A worker is let in.

    Attributes:
        seat: Seat that the worker gets; None for a spare.
        known: The worker, if it is the same process; its connection is a new one.
        replaced: The earlier process of the same name, if there is one.
    """

    seat: int | None
    known: Worker | None = None
    replaced: Worker | None = None


@dataclass(frozen=True)
class Contested:
    """Another process has the name or the seat, or trains something else, and is connected or may connect again.

    If that connection ends, the newcomer takes the place; there is no other proof that the process before is dead.

    Attributes:
        refused: Answer to the newcomer if the other connection lasts.
        is_connected: whether there is a connection now, or may be one in a moment.
    """

    refused: Refused
    is_connected: bool


@dataclass
class Gate:
    """What must be remembered of workers that are not there any more: bounded, whatever they do.

    Attributes:
        evicted: Processes that were evicted, by name and incarnation.
        replaced: Processes of which others have taken the place.
        used: Seats that a process has had.
        restarts: Times at which a seat was taken again, by seat.
        contract: What the job trains, from its first epoch on; None before it, and until the next one if it is not known.
    """

    evicted: deque[tuple[str, int]] = field(default_factory=lambda: deque(maxlen=_MOST_ENDED))
    replaced: deque[tuple[str, int]] = field(default_factory=lambda: deque(maxlen=_MOST_ENDED))
    used: set[int] = field(default_factory=set)
    restarts: dict[int, deque[float]] = field(default_factory=dict)
    contract: Contract | None = None

    def judge(
        self, options: JobOptions, seats: Seats, hello: Hello, identity: str | None, now_s: float
    ) -> Admission | Contested | Refused:
        """Return what becomes of a worker."""
        wrong = _mismatch(options, hello, identity)
        if wrong is not None:
            return wrong
        if (hello.worker_id, hello.incarnation) in self.evicted:
            return Refused(
                "evicted",
                f'worker "{hello.worker_id}" was evicted; start it again, so that it is another process',
            )
        known = seats.by_id.get(hello.worker_id)
        if (hello.worker_id, hello.incarnation) in self.replaced:
            there = f", at {known.address}" if known is not None and known.address else ""
            return Refused(
                "older",
                f'another process has taken the place of this one of worker "{hello.worker_id}"{there}; end this process, '
                "or give it another worker id",
                hello.worker_id,
            )
        foreign = self._foreign(options, seats, hello, now_s)
        if foreign is not None:
            return foreign
        if known is None:
            return self._newcomer(options, seats, hello, now_s)
        if hello.incarnation == known.incarnation:
            return Admission(known.seat, known=known)
        if known.is_present(now_s):
            return Contested(
                Refused(
                    "taken",
                    f'worker "{hello.worker_id}" is connected as another process'
                    f"{known.address and f', at {known.address}'}; end that process or evict it, or give this one another "
                    "worker id",
                    known.id,
                ),
                known.conn is not None,
            )
        return self._admit(options, known.seat, now_s, known) or Admission(known.seat, replaced=known)

    def _foreign(
        self, options: JobOptions, seats: Seats, hello: Hello, now_s: float
    ) -> Contested | Refused | None:
        """Return what becomes of a worker that trains something else than the job; None if it trains the same.

        Before the first epoch the job trains what the workers do that are connected, or have a seat kept for them. So all that
        are connected train the same, whether they are new, connect again or take another one's place.
        """
        if self.contract is not None:
            return _differing(hello, self.contract, "the job")
        others = [
            one for one in seats.by_id.values() if one.id != hello.worker_id and one.contract is not None
        ]
        kept = (one for one in others if not one.is_missing(now_s, options.kept_s))
        holder = next((one for one in others if one.conn is not None), None) or next(kept, None)
        if holder is None or holder.contract is None:
            return None
        refused = _differing(hello, holder.contract, holder.name, holder.id)
        return None if refused is None else Contested(refused, holder.conn is not None)

    def _newcomer(
        self, options: JobOptions, seats: Seats, hello: Hello, now_s: float
    ) -> Admission | Contested | Refused:
        seat = seats.choose(hello.wanted_seat, now_s, options.kept_s)
        if seat is not None:
            return self._admit(options, seat, now_s, seats.by_number.get(seat)) or Admission(seat)
        wanted = hello.wanted_seat
        if wanted is not None and wanted in seats.by_number:
            holder = seats.by_number[wanted]
            return Contested(
                Refused(
                    "taken",
                    f"{holder.name} has the seat and is connected{holder.address and f', at {holder.address}'}",
                    holder.id,
                ),
                holder.conn is not None,
            )
        if len(seats.spares()) >= options.max_spares:
            return Refused(
                "full", f"all {seats.n_seats} seats and all {options.max_spares} places for spares are taken"
            )
        return Admission(None)

    def _admit(
        self, options: JobOptions, seat: int | None, now_s: float, before: Worker | None
    ) -> Refused | None:
        """Count that a process takes a seat, also one that the process before has left; return why it may not."""
        if seat is not None and not self.take(options, seat, now_s):
            return Refused(
                "restarts",
                f"{f'seat {seat}' if before is None else before.name} was restarted {options.max_restarts} times in "
                f"{options.restart_window_s:g} s, the most that this job permits",
            )
        return None

    def take(self, options: JobOptions, seat: int, now_s: float) -> bool:
        """Count that a process takes a seat, if that is no restart or one that is permitted; return whether it is."""
        if options.max_restarts is None:
            return True
        if seat not in self.used:
            self.used.add(seat)
            return True
        times = self.restarts.setdefault(seat, deque())
        while times and times[0] <= now_s - options.restart_window_s:
            times.popleft()
        if len(times) >= options.max_restarts:
            return False
        times.append(now_s)
        return True


def _differing(hello: Hello, contract: Contract, owner: str, held_by: str = "") -> Refused | None:
    """Name the first term in which a worker differs from a contract; None if it differs in none."""
    ours, theirs = ({one.name: one.value for one in terms} for terms in (contract, hello.contract))
    name = min((name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)), default=None)
    if name is None:
        return None
    has, expected = (repr(terms[name]) if name in terms else "missing" for terms in (theirs, ours))
    return Refused(
        "contract",
        f'worker "{hello.worker_id}" trains something else: its {name!r} is {has}, and that of {owner} is {expected}; start '
        "all ranks of a job with the same script, and give another training a coordinator of its own",
        held_by,
    )


def _mismatch(options: JobOptions, hello: Hello, identity: str | None) -> Refused | None:
    if hello.protocol != PROTOCOL:
        return Refused(
            "protocol",
            f"worker speaks version {hello.protocol} of the protocol, the coordinator {PROTOCOL}; install the same "
            "version of softs-fast",
        )
    if hello.job != options.name:
        return Refused(
            "job",
            f'worker belongs to job "{hello.job[:200]}"; this is the coordinator of "{options.name[:200]}"; name the job by '
            "job= (torchrun: --rdzv-id, and --standalone makes a random one), and by --job of the coordinator",
        )
    if not hello.worker_id:
        return Refused("identity", "worker id is empty")
    if identity is not None and identity != hello.worker_id:
        return Refused(
            "identity",
            f'worker "{hello.worker_id[:200]}" has proven to be "{identity[:200]}"; it can act for itself only',
        )
    numbers: Iterable[int] = (
        hello.incarnation,
        hello.wanted_seat or 0,
        hello.last.epoch,
        hello.last.committed,
        hello.engine_epoch,
    )
    if not all(0 <= number < _MAX_NUMBER for number in numbers):
        return Refused("protocol", f"incarnation, seat, epoch and step are from 0 to {_MAX_NUMBER}")
    return None
