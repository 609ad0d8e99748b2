"""Changes the number of workers of a fleet while it runs: looks at the load, decides, and has workers start or end."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from ..errors import SoftsError
from ..monitoring import Observer, Snapshot, rates_between
from ..repeated_log import RepeatedLog
from .scaling import LOOK_S, Load, Scaling

__all__ = ["Autoscaler", "Loads", "load_between"]

logger = logging.getLogger(__name__)

#: What stands for the wait of students that have no counters on this machine, while their orders queue at the broker.
_QUEUED_WAITS = 0.5


class Looks(Protocol):
    """What measures a load. The thread of the autoscaler calls it, and closes it at its end."""

    def look(self) -> Load | None:
        """Return the load since the last look; None if it is not known.

        Raises:
            SoftsError: a broker does not answer.
        """

    def close(self) -> None:
        """Measure no more."""


class Scaled(Protocol):
    """What is scaled: the workers of a fleet, or its hosts."""

    def failed_to_start(self) -> int | None:
        """Return the smallest number of one that could not start, if there is one."""

    def aim(self, number: int, reason: str, /) -> None:
        """Have so many from now on, without a wait, and report the reason."""


class Autoscaler:
    """One thread, from its start to `end`.

    Args:
        looks: What measures the load.
        scaled: What it scales, of which all of the smallest number serve.
        bounds: The smallest and the largest number.
        unit: Name of one in texts.
    """

    def __init__(self, looks: Looks, scaled: Scaled, bounds: tuple[int, int], unit: str = "worker") -> None:
        self._looks, self._scaled = looks, scaled
        self._unit = unit
        self._range = f"{bounds[0]} to {bounds[1]}"
        self._scaling = Scaling(*bounds)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="softs-fleet-load", daemon=True)
        self._thread.start()

    @property
    def n_wanted(self) -> int:
        """The number that is wanted now."""
        return self._scaling.n_workers

    def end(self) -> None:
        """Decide nothing more, and leave the number as it is. Idempotent."""
        self._is_over.set()

    def join(self) -> None:
        """Wait until the thread has ended; after `end`. A broker that answers no more takes it up to 2 s."""
        self._thread.join()

    def _run(self) -> None:
        log = RepeatedLog(logger)
        with contextlib.closing(self._looks):
            while not self._is_over.wait(LOOK_S):
                try:
                    load = self._looks.look()
                except SoftsError as error:
                    log.log(logging.WARNING, str(error), f"the load of the fleet is not known: {error}")
                    continue
                self._follow(load)
            log.flush()

    def _follow(self, load: Load | None) -> None:
        n_before = self._scaling.n_workers
        failed = self._scaled.failed_to_start()
        if failed is not None:
            self._scaling.fail(failed, time.monotonic())
            reason = f"{self._unit} {failed} could not start"
        elif load is not None:
            reason = self._scaling.decide(load, time.monotonic())
        else:
            return
        if reason:
            n_wanted = self._scaling.n_workers
            decision = f"{n_before} to {n_wanted} {self._unit}s, {reason}"
            logger.info("%s; within %s", decision, self._range)
            self._scaled.aim(n_wanted, decision)


class Loads:
    """The load of a broker from look to look.

    Args:
        frontend: Endpoint of the broker for clients.
        serving: Function that returns the process numbers of the workers that serve.
    """

    def __init__(self, frontend: str, serving: Callable[[], set[int]]) -> None:
        self._observer = Observer(frontend)
        self._serving = serving
        self._before: tuple[Snapshot, set[int]] | None = None

    def look(self) -> Load | None:
        """Return the load since the last look; None if that found none.

        Raises:
            SoftsError: the broker does not answer.
        """
        before, self._before = self._before, None
        self._before = now = self._observer.snapshot(), self._serving()
        return None if before is None else load_between(before, now)

    def close(self) -> None:
        """Disconnect. Idempotent."""
        self._observer.close()


def load_between(before: tuple[Snapshot, set[int]], now: tuple[Snapshot, set[int]]) -> Load:
    """Return the load of a fleet between two looks, each with the process numbers of its workers that serve.

    Orders of students without a segment on this machine go through the broker, which knows only how many of them wait.
    """
    (old, pids_before), (new, pids) = before, now
    rates = rates_between(old, new)
    students = [(client.samples_s, client.waited) for client in rates.clients.values()]
    waits = _QUEUED_WAITS if min(_queued(old), _queued(new)) > 0 else 0.0
    students.append((rates.wire_orders_s or 0.0, waits))
    n_leased = sum(supplier.leases > 0 for supplier in new.suppliers or ())
    served = pids & pids_before
    by_wire = len(served) * n_leased / max(1, len(new.suppliers or ()))
    by_lane = sum(rate.busy for pid, rate in rates.suppliers.items() if pid in served)
    return Load(len(served), min(by_wire + by_lane, float(len(served))), students)


def _queued(snapshot: Snapshot) -> int:
    return sum(product.queued for product in snapshot.products or ())
