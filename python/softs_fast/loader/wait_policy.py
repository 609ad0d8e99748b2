"""How long an iterator waits for a sample, and when it gives up."""

from __future__ import annotations

import gc
import math
import multiprocessing
import time

from torch.utils.data import get_worker_info

from ..errors import SampleTimeout
from ..market import Client

__all__ = ["WAIT_MS", "WaitPolicy"]

#: The longest wait before an iterator checks whether another product is wanted, or its trainer has exited.
WAIT_MS = 100


class WaitPolicy:
    """Decides after each wait that gave nothing whether to wait again.

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
        self._request_timeout = request_timeout
        self._first_wait_ms = self._wait_ms(0.0)
        self._starved_s = _STARVED_S if request_timeout is None else min(request_timeout, _STARVED_S)
        self.restart()

    def restart(self) -> None:
        """Begin to wait."""
        self._asked_at = self._waiting_since = time.monotonic()
        self._starved_since: float | None = None
        self.wait_ms = self._first_wait_ms

    def check(self, product: str, is_starved: bool = False) -> None:
        """Return after a request that got nothing if it should be made again.

        Args:
            product: what was asked for.
            is_starved: nothing can come, because the user holds all slots.

        Raises:
            SampleTimeout: request_timeout has passed, or the user releases nothing; subclass and text name the cause.
            StopIteration: this is a DataLoader's worker, and its trainer has exited.
        """
        if _trainer_exited():
            raise StopIteration
        now = time.monotonic()
        if is_starved:
            self._starve(product, now)
            return
        self._starved_since = None
        waited_s = now - self._waiting_since
        if self._request_timeout is not None and waited_s >= self._request_timeout:
            raise self._client.diagnose(product, waited_s)
        if self._max_failures is not None and waited_s >= _FAILING_S:
            n_failures = self._client.n_failures(product)
            if n_failures and n_failures >= self._max_failures:
                raise self._client.diagnose(product, waited_s)
        # The client waits by itself; this keeps a request that returns at once from spinning.
        asked_s = now - self._asked_at
        if self._shortest_ms == WAIT_MS or asked_s * 1000 < self.wait_ms:
            time.sleep(max(0.0, self._retry_delay - asked_s))
        self._asked_at = time.monotonic()
        self.wait_ms = self._wait_ms(self._asked_at - self._waiting_since)

    def _starve(self, product: str, now: float) -> None:
        """Give other threads, and cycles of garbage, time to release a block."""
        if self._starved_since is None:
            self._starved_since = now
            gc.collect()
        elif now - self._starved_since >= self._starved_s:
            raise SampleTimeout(
                f"no sample of product {product!r}: all {self._client.slot_count} slots are held, as "
                f"{self._client.n_blocks_held} batches with tensors that are still in use; release them, keep copies "
                f"(tensor.clone()), or raise num_slots"
            )
        self.wait_ms = _STARVED_WAIT_MS

    def _wait_ms(self, waited_s: float) -> int:
        wait_ms = min(max(self._shortest_ms, int(waited_s * 1000 * _LATE)), WAIT_MS)
        if self._request_timeout is None:
            return wait_ms
        return max(1, min(wait_ms, math.ceil((self._request_timeout - waited_s) * 1000)))


def _trainer_exited() -> bool:
    """Return whether this is a DataLoader's worker and its parent has exited: no process takes another sample."""
    parent = multiprocessing.parent_process()
    return get_worker_info() is not None and parent is not None and not parent.is_alive()


_STARVED_S = 1.0
#: Orders that fail while a switch reaches all suppliers are no reason to give up.
_FAILING_S = 1.0
_STARVED_WAIT_MS = 10
#: A switch in another process is noticed this much too late, as a part of the time that was waited.
_LATE = 1 / 8
