"""Whether a worker that says Hello is let in, and to which seat."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from .messages import PROTOCOL, Hello, Refused
from .options import MAX_TEXT, JobOptions
from .seats import Seats, Worker

# Evicted processes that are remembered.
_MOST_EVICTED = 1024
# The largest numbers of the wire.
_MAX_NUMBER = 1 << 53


@dataclass(frozen=True)
class Admission:
    """A worker is let in.

    Attributes:
        seat: that it gets; None for a spare.
        known: the worker, if it is the same process; its connection is a new one.
        replaced: the earlier process of the same name, if there is one.
    """

    seat: int | None
    known: Worker | None = None
    replaced: Worker | None = None


@dataclass
class Gate:
    """What must be remembered of workers that are not there any more: bounded, whatever they do."""

    evicted: deque[tuple[str, int]] = field(default_factory=lambda: deque(maxlen=_MOST_EVICTED))
    restarts: dict[int, deque[float]] = field(default_factory=dict)

    def judge(
        self, options: JobOptions, seats: Seats, hello: Hello, identity: str | None, now_s: float
    ) -> Admission | Refused:
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
        if known is None:
            return self._newcomer(options, seats, hello, now_s)
        if hello.incarnation == known.incarnation:
            return Admission(known.seat, known=known)
        if hello.incarnation < known.incarnation and not known.is_missing(now_s, options.kept_s):
            return Refused(
                "older",
                f'worker "{hello.worker_id}" runs as a later process than this one, at {known.address or "no address"}; '
                "end this process, or give it another worker id",
                known.id,
            )
        if known.seat is not None and not self._may_restart(options, known.seat, now_s):
            return Refused(
                "restarts",
                f"{known.name} was restarted {options.restarts} times in {options.restarts_s:g} s, the most that this "
                "job permits",
            )
        return Admission(known.seat, replaced=known)

    def _newcomer(self, options: JobOptions, seats: Seats, hello: Hello, now_s: float) -> Admission | Refused:
        seat = seats.choose(hello.wanted_seat, now_s, options.kept_s)
        if seat is not None:
            before = seats.by_number.get(seat)
            if before is not None and not self._may_restart(options, seat, now_s):
                return Refused(
                    "restarts",
                    f"{before.name} was restarted {options.restarts} times in {options.restarts_s:g} s, the most that "
                    "this job permits",
                )
            return Admission(seat)
        wanted = hello.wanted_seat
        if wanted is not None and wanted in seats.by_number:
            holder = seats.by_number[wanted]
            return Refused(
                "taken",
                f"{holder.name} is connected from {holder.address or 'no address'}; it has the seat",
                holder.id,
            )
        if len(seats.spares()) >= options.spares:
            return Refused(
                "full", f"all {seats.n_seats} seats and all {options.spares} places for spares are taken"
            )
        return Admission(None)

    def _may_restart(self, options: JobOptions, seat: int, now_s: float) -> bool:
        """Count a restart of a seat, if it is permitted."""
        if options.restarts is None:
            return True
        times = self.restarts.setdefault(seat, deque())
        while times and times[0] <= now_s - options.restarts_s:
            times.popleft()
        if len(times) >= options.restarts:
            return False
        times.append(now_s)
        return True


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
            "job= (torchrun: --rdzv-id, and --standalone makes a random one), and by --name of the coordinator",
        )
    if not 0 < len(hello.worker_id) <= MAX_TEXT or len(hello.address) > MAX_TEXT:
        return Refused("identity", f"worker id and address have 1 to {MAX_TEXT} characters")
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
