"""How long an iterator waits for a sample, and when it gives up."""

from __future__ import annotations

import gc
import logging
import math
import multiprocessing
import time

from torch.utils.data import get_worker_info

from ..errors import NoSupplier, SampleTimeout
from ..market import Client

__all__ = ["WAIT_MS", "WaitPolicy"]

logger = logging.getLogger(__name__)

#: The longest wait before an iterator checks whether another product is wanted, or its trainer has exited.
WAIT_MS = 100


class WaitPolicy:
    """Decides after each wait that gave nothing whether to wait again. The cause of a long wait is logged every 10 s.

    Where the broker is that of a fleet, time in which a worker starts again does not count, and a wait ends at once when
    no worker of the fleet runs or will start again. It also ends if orders fail before a first sample has come, and go on to
    fail.

    Args:
        client: explains why nothing comes.
        retry_delay: seconds, the shortest time between two requests that got nothing.
        request_timeout: seconds without a sample after which to give up; None: never.
        max_failures: orders that may fail in a row before it gives up; None: any number.
        first_wait_ms: how long to wait before the first check whether another product is wanted; then for an eighth of
            the time that was waited already, so that a switch in another process is noticed before a supplier has made
            much of a sample of the old product.

    Attributes:
        wait_ms: how long the next wait may take.
    """

    def __init__(
        self,
        client: Client,
        retry_delay: float,
        request_timeout: float | None,
        max_failures: int | None = None,
        first_wait_ms: int = WAIT_MS,
    ) -> None:
        self._client = client
        self._max_failures = max_failures
        self._shortest_ms = first_wait_ms
        self._retry_delay = retry_delay
        self._timeout_s = math.inf if request_timeout is None else request_timeout
        self._first_wait_ms = self._wait_ms(0.0, self._timeout_s)
        self.restart()

    def restart(self) -> None:
        """Begin to wait."""
        self._asked_at = self._waiting_since = time.monotonic()
        self._report_at = self._waiting_since + _REPORT_S
        self._look_at = self._waiting_since + _LOOK_S
        self._give_up_at = self._waiting_since + self._timeout_s
        self._was_starved = False
        self._n_failures, self._failed_at = 0, self._waiting_since
        self.wait_ms = self._first_wait_ms

    def note_samples(self) -> None:
        """Note that samples have come, and begin to wait for the next ones."""
        self._client.has_delivered = True
        self.restart()

    def check(self, product: str, is_starved: bool = False) -> None:
        """Return after a request that got nothing if it should be made again.

        Args:
            product: Product of the request.
            is_starved: Whether nothing can come, because the user holds all slots.

        Raises:
            SampleTimeout: request_timeout has passed, or too many orders in a row have failed; subclass and text name
                the cause.
            StopIteration: this is a DataLoader's worker, and its trainer has exited.
        """
        if _trainer_exited():
            raise StopIteration
        if is_starved and not self._was_starved:
            # Cycles of garbage may hold a block.
            gc.collect()
            self._was_starved, self.wait_ms = True, _STARVED_WAIT_MS
            return
        self._was_starved = is_starved
        now = time.monotonic()
        waited_s = now - self._waiting_since
        self._note_failures(product, now)
        if not is_starved and now >= min(self._look_at, self._give_up_at):
            self._look_at = now + _LOOK_S
            self._look_at_fleet(product, now)
            if self._is_hopeless(now):
                raise self._cause(product, waited_s, is_starved)
        if self._has_given_up(product, now, is_starved):
            raise self._cause(product, waited_s, is_starved)
        if now >= self._report_at:
            logger.warning("still waiting: %s", self._cause(product, waited_s, is_starved))
            self._report_at = time.monotonic() + _REPORT_S
        if is_starved:
            self.wait_ms = _STARVED_WAIT_MS
            return
        # The client waits by itself; this keeps a request that returns at once from spinning.
        asked_s = now - self._asked_at
        if self._shortest_ms == WAIT_MS or asked_s * 1000 < self.wait_ms:
            time.sleep(max(0.0, self._retry_delay - asked_s))
        self._asked_at = time.monotonic()
        self.wait_ms = self._wait_ms(self._asked_at - self._waiting_since, self._give_up_at - self._asked_at)

    def _has_given_up(self, product: str, now: float, is_starved: bool) -> bool:
        waited_s = now - self._waiting_since
        if now >= self._give_up_at:
            return True
        if is_starved:
            return False
        if self._max_failures is None or waited_s < _FAILING_S:
            return False
        n_failures = self._client.n_failures(product)
        return n_failures > 0 and n_failures >= self._max_failures

    def _note_failures(self, product: str, now: float) -> None:
        if self._client.has_delivered:
            return
        n_failures = self._client.n_failures(product)
        if n_failures != self._n_failures:
            self._n_failures, self._failed_at = n_failures, now

    def _is_hopeless(self, now: float) -> bool:
        """Return whether no sample has ever come, and each supplier that is there fails.

        An order that fails has failed several times, at all suppliers that are free, and the next ones fail as soon. If
        none has failed for half of the wait, its first calls have failed, or another supplier, and a sample is being made.
        """
        if self._client.has_delivered or self._n_failures == 0:
            return False
        fleet = self._client.fleet
        if fleet is not None and fleet.is_starting:
            return False
        return now - self._failed_at < (now - self._waiting_since) * _FAILS_STILL

    def _look_at_fleet(self, product: str, now: float) -> None:
        """Give the fleet time to start a worker again.

        Raises:
            NoSupplier: no worker of the fleet will ever serve again, and no other supplier makes the product.
        """
        fleet = self._client.fleet
        if fleet is None:
            return
        if fleet.is_starting:
            self._give_up_at = now + self._timeout_s
        elif fleet.is_over:
            cause = self._cause(product, now - self._waiting_since, False)
            if isinstance(cause, NoSupplier):
                raise cause

    def _cause(self, product: str, waited_s: float, is_starved: bool) -> SampleTimeout:
        """Return why nothing came, as an exception to raise."""
        if not is_starved:
            return self._client.diagnose(product, waited_s)
        return SampleTimeout(
            f"no sample of product {product!r} within {waited_s:.1f} s: all {self._client.slot_count} slots are held, as "
            f"{self._client.n_blocks_held} batches with tensors that are still in use; release them, keep copies "
            f"(tensor.clone()), or raise num_slots"
        )

    def _wait_ms(self, waited_s: float, left_s: float) -> int:
        wait_ms = min(max(self._shortest_ms, int(waited_s * 1000 * _LATE)), WAIT_MS)
        return max(1, math.ceil(min(wait_ms, left_s * 1000)))


def _trainer_exited() -> bool:
    """Return whether this is a DataLoader's worker and its parent has exited: no process takes another sample."""
    parent = multiprocessing.parent_process()
    return get_worker_info() is not None and parent is not None and not parent.is_alive()


#: The cause of a wait is logged so often, seconds.
_REPORT_S = 10.0
#: How often a wait asks whether the workers of its fleet have ended, and whether all suppliers fail, seconds.
_LOOK_S = 0.5
#: The part of a wait in which an order has failed if all do: the pauses between them double.
_FAILS_STILL = 1 / 2
#: Orders that fail while a switch reaches all suppliers are no reason to give up.
_FAILING_S = 1.0
_STARVED_WAIT_MS = 10
#: A switch in another process is noticed this much too late, as a part of the time that was waited.
_LATE = 1 / 8
