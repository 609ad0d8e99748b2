"""Changes the number of workers of a fleet while it runs: looks at the load, decides, and has workers start or end."""

from __future__ import annotations

import logging
import threading
import time

from ..errors import SoftsError
from ..monitoring import Observer, Snapshot, rates_between
from .scaling import LOOK_S, Load, Scaling
from .workers import Workers

__all__ = ["Autoscaler", "load_between"]

logger = logging.getLogger(__name__)

#: What stands for the wait of students that have no counters on this machine, while their orders queue at the broker.
_QUEUED_WAITS = 0.5


class Autoscaler:
    """One thread, from its start to `end`.

    Args:
        frontend: The broker's endpoint for clients.
        workers: The workers, of which all of the smallest number serve.
        bounds: The smallest and the largest number.
    """

    def __init__(self, frontend: str, workers: Workers, bounds: tuple[int, int]) -> None:
        self._observer = Observer(frontend)
        self._workers = workers
        self._range = f"{bounds[0]} to {bounds[1]}"
        self._scaling = Scaling(*bounds)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="softs-fleet-load", daemon=True)
        self._thread.start()

    @property
    def n_workers(self) -> int:
        """The number that is wanted now."""
        return self._scaling.n_workers

    def end(self) -> None:
        """Decide nothing more, and leave the workers as they are. Idempotent."""
        self._is_over.set()

    def join(self) -> None:
        """Wait until the thread has ended; after `end`. A broker that answers no more takes it up to 2 s."""
        self._thread.join()

    def _run(self) -> None:
        before: tuple[Snapshot, set[int]] | None = None
        with self._observer:
            while not self._is_over.wait(LOOK_S):
                try:
                    now = self._observer.snapshot(), self._workers.serving()
                except SoftsError as error:
                    logger.warning("the load of the fleet is not known: %s", error)
                    before = None
                    continue
                self._look(before, now)
                before = now

    def _look(self, before: tuple[Snapshot, set[int]] | None, now: tuple[Snapshot, set[int]]) -> None:
        n_before = self._scaling.n_workers
        failed = self._workers.failed_to_start()
        if failed is not None:
            self._scaling.fail(failed, time.monotonic())
            reason = f"worker {failed} could not start"
        elif before is not None:
            reason = self._scaling.decide(load_between(before, now), time.monotonic())
        else:
            return
        if reason:
            n_workers = self._scaling.n_workers
            decision = f"{n_before} to {n_workers} workers, {reason}"
            logger.info("%s; within %s", decision, self._range)
            self._workers.aim(n_workers, decision)


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
    by_wire = len(pids) * n_leased / max(1, len(new.suppliers or ()))
    by_lane = sum(rate.busy for pid, rate in rates.suppliers.items() if pid in pids)
    n_serving = len(pids) if pids == pids_before else 0
    return Load(n_serving, min(by_wire + by_lane, float(len(pids))), students)


def _queued(snapshot: Snapshot) -> int:
    return sum(product.queued for product in snapshot.products or ())
