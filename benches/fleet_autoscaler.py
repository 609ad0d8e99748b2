"""Hosts of teachers that the autoscaler adds and removes, in the simulated fleet, while the load of students steps.

The decisions are those of `softs_fast.fleet.scaling`, as `RayFleet(hosts=(a, b))` has them: a unit is a host.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

from benches.fleet_guests import SimulatedFleet
from softs_fast.fleet.scaling import LOOK_S, Load, Scaling

#: Needs in a row, as parts of all hosts, and how long each lasts, seconds.
STEPS = ((0.06, 40), (0.6, 50), (0.06, 50), (0.3, 40))
#: The fewest hosts, as a part of all.
LEAST = 0.02
STUDENTS_PER_HOST = 8
#: A student takes what it trains on in this time.
BATCH_S = 0.1
#: Mean time of a call for one sample, as in `fleet_sim`.
CALL_S = 0.2
#: From a decision until a host that was added dials, on average; and until one that was drained ends, which is before any
#: that was added with its number dials.
BOOT_S, DRAIN_S = 3.0, 1.0
#: The last looks of a step, of which waits are averaged.
N_LAST = 10


@dataclass
class Student:
    """What a student has got, and how long it has waited, since the last look; and since when it waits now, if it does."""

    n_samples: int = 0
    waited_s: float = 0.0
    since_s: float | None = None

    def wait(self, now_s: float) -> None:
        """Count the wait until now."""
        if self.since_s is not None:
            self.waited_s, self.since_s = self.waited_s + now_s - self.since_s, now_s


class ScaledFleet:
    """The students, the hosts and the decisions about them."""

    def __init__(
        self, fleet: SimulatedFleet, n_students: int, n_suppliers: int, n_hosts: int, seed: int
    ) -> None:
        self._fleet, self._random = fleet, random.Random(seed)
        self._first = n_students // STUDENTS_PER_HOST
        self._n_hosts = n_hosts - self._first
        self._per_host = n_suppliers / self._n_hosts
        self._scaling = Scaling(least_of(n_hosts), self._n_hosts)
        self._students = [Student() for _ in range(n_students)]
        self._serving, self._starting = set(range(self._scaling.n_workers)), set[int]()
        self._before: tuple[set[int], list[float]] = set(), []
        self._need = 0.0
        #: At each look: the time, the hosts that are needed and wanted, and the part of their time in which students waited.
        self.looks: list[tuple[float, float, int, float]] = []

    def begin(self) -> None:
        """Have students train, the load change and the autoscaler look."""
        began_s = 0.0
        for share, lasts_s in STEPS:
            self._fleet.at(0, began_s, lambda share=share: setattr(self, "_need", share * self._n_hosts))
            began_s += lasts_s
        for rank in range(len(self._students)):
            self._fleet.at(rank // STUDENTS_PER_HOST, 0.0, lambda rank=rank: self._take(rank))
        self._fleet.later(LOOK_S, self._look)

    def _take(self, rank: int) -> None:
        self._students[rank].since_s = self._fleet.now_s
        per_s = self._need * self._per_host / CALL_S / len(self._students)
        n = max(1, round(BATCH_S * per_s))
        self._fleet.take(rank, n, lambda: self._took(rank, n, n / per_s))

    def _took(self, rank: int, n: int, train_s: float) -> None:
        student = self._students[rank]
        student.wait(self._fleet.now_s)
        student.since_s, student.n_samples = None, student.n_samples + n
        self._fleet.later(train_s, lambda: self._take(rank))

    def _look(self) -> None:
        now_s, (serving, before) = self._fleet.now_s, self._before
        after = self._fleet.busy_s()
        self._before = set(self._serving), after
        students = []
        for student in self._students:
            student.wait(now_s)
            students.append((student.n_samples / LOOK_S, student.waited_s / LOOK_S))
            student.n_samples, student.waited_s = 0, 0.0
        if before:
            whole, served = self._per_host * LOOK_S, serving & self._serving
            n_busy = sum(min(1.0, (after[host] - before[host]) / whole) for host in served)
            if self._scaling.decide(Load(len(served), n_busy, students), now_s):
                self._aim(self._scaling.n_workers)
        waited = sum(waited for _, waited in students) / len(students)
        self.looks.append((now_s, self._need, self._scaling.n_workers, waited))
        self._fleet.later(LOOK_S, self._look)

    def _aim(self, n: int) -> None:
        for host in set(range(n)) - self._serving - self._starting:
            self._starting.add(host)
            delay_s = BOOT_S * self._random.uniform(0.5, 1.5)
            self._fleet.later(delay_s, lambda host=host: self._start(host))
        self._starting -= set(range(n, self._n_hosts))
        for host in self._serving - set(range(n)):
            self._serving.remove(host)
            self._fleet.drain(self._first + host)
            self._fleet.later(DRAIN_S, lambda host=host: self._fleet.end(self._first + host))

    def _start(self, host: int) -> None:
        if host in self._starting:
            self._starting.remove(host)
            self._serving.add(host)
            self._fleet.start(self._first + host)


def least_of(n_hosts: int) -> int:
    """Return the fewest of so many hosts, which serve from the beginning."""
    return max(1, round(LEAST * n_hosts))


def run(hosts: int, suppliers: int, students: int, **sizes: int) -> dict[str, Any]:
    """Simulate it.

    Returns:
        The report of `fleet_sim`, with `looks` (see `ScaledFleet`).
    """
    sizes |= {"hosts": hosts, "suppliers": suppliers, "students": students, "started": least_of(hosts)}
    with SimulatedFleet("steady", seconds=sum(lasts_s for _, lasts_s in STEPS), **sizes) as fleet:
        scaled = ScaledFleet(fleet, students, suppliers, hosts, sizes["seed"])
        return {**fleet.run(scaled.begin), "looks": scaled.looks}


def table(looks: list[tuple[float, float, int, float]]) -> str:
    """Return the steps of the load as a table of Markdown."""
    head = (
        "hosts needed",
        "hosts at the end",
        "fewest, most",
        "right after",
        "students wait at the end",
    )
    rows, began_s = [head, ("---:",) * len(head)], 0.0
    for _, lasts_s in STEPS:
        step = [look for look in looks if began_s < look[0] <= began_s + lasts_s]
        need, wanted = step[-1][1], [look[2] for look in step]
        # What the tests of the decisions ask for.
        wrong = [at for at, _, n, _ in step if not math.ceil(0.9 * need) <= n <= math.ceil(1.75 * need)]
        right_after_s = wrong[-1] + LOOK_S - began_s if wrong else 0.0
        right = "never" if right_after_s > lasts_s else f"{right_after_s:.0f} s"
        waited = sum(look[3] for look in step[-N_LAST:]) / N_LAST
        rows.append((
            f"{need:.0f}", f"{wanted[-1]}", f"{min(wanted)}, {max(wanted)}", right, f"{waited:.1%}",
        ))  # fmt: skip
        began_s += lasts_s
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
