"""How an iterator gets its samples: it follows the model, waits, gives up, and counts."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from typing import Any

from ..configs import BatchConfig
from ..market import Client
from .product.subscription import Course, Plan, WantedProduct
from .readers.block_rows import BlockRows
from .readers.copying import GatherReader, RowReader, SampleReader
from .readers.device import DeviceBlockReader, DeviceReader
from .readers.views import BlockReader
from .stream_lock import LOST, Turn
from .wait_policy import WAIT_MS, WaitPolicy

#: What fills batches.
Reader = GatherReader | RowReader | BlockReader | DeviceReader | DeviceBlockReader

__all__ = ["Stream"]

Tensors = dict[str, Any]


class Stream:
    """The samples that one iterator takes from a client.

    Args:
        client: who orders them.
        config: what a slot holds.
        model: names the product that is wanted.
        course: has the client order it.
        positions: how many samples of each product were handed out; kept up to date.
        plan: which samples to ask for, if the client hands them out in order.
        turn: that of all who take samples of these streams.
        retry_delay: seconds, the shortest time between two requests that got nothing.
        request_timeout: seconds without a sample after which to give up; None: never.
        max_failures: orders that may fail in a row before it gives up; None: any number.
        first_wait_ms: how long to wait before looking for the first time whether the model has changed; then for an
            eighth of the time that it has waited already, so that a switch in another process is seen before a supplier
            has made much of a sample of the old model.
    """

    def __init__(
        self,
        client: Client,
        config: BatchConfig,
        model: WantedProduct,
        course: Course,
        positions: dict[str, int],
        plan: Plan | None,
        turn: Turn,
        retry_delay: float,
        request_timeout: float | None,
        max_failures: int | None = None,
        first_wait_ms: int = WAIT_MS,
    ) -> None:
        self._client = client
        self._config = config
        self._model = model
        self._positions = positions
        self._course = course
        self._plan = plan
        self._turn = turn
        self._product = model.read()
        self._patience = WaitPolicy(client, retry_delay, request_timeout, max_failures, first_wait_ms)

    @property
    def product(self) -> str:
        """The product of what was yielded last."""
        return self._product

    def give_back(self, product: str, n: int) -> None:
        """Take the last n samples of a product for not handed out; it is not the one of what was yielded last."""
        if product in self._positions:
            self._positions[product] -= n

    def samples(self) -> Iterator[Tensors]:
        """Yield copies of samples, `{name: dtype [*shape]}`."""
        client, patience, positions, turn = self._client, self._patience, self._positions, self._turn
        request_sample, release_slot, read_model_id = (
            client.request_sample,
            client.release_slot,
            self._model.read,
        )
        reader = SampleReader(self._config, client.medium)
        read, take, me = reader.read, reader.take, weakref.ref(reader)
        product = self._product
        patience.restart()
        while True:
            with turn.lock:
                if turn.last is not me or turn.product != product:
                    product = self._resume()
                turn.last = LOST
                if read_model_id() != product:
                    product = self._switch()
                slot_id = request_sample(product, timeout_ms=patience.wait_ms)
                if slot_id is not None:
                    try:
                        read(slot_id)
                    finally:
                        release_slot(slot_id)
                    if read_model_id() != product:
                        continue
                    positions[product] += 1
                turn.last = me
            if slot_id is not None:
                # No local variable keeps the sample: its memory is free when those who got it let it go.
                yield take()
                patience.restart()
            elif read_model_id() == product and not patience.goes_on(product):
                return

    def batches(self, reader: Reader) -> Iterator[Tensors]:
        """Yield the batches of a reader, `{name: dtype [n_rows, *shape]}`, all samples of one model each."""
        n_rows, take, positions, turn = reader.n_rows, reader.take, self._positions, self._turn
        is_busy, clock, me = False, time.perf_counter, weakref.ref(reader)
        while True:
            with turn.lock:
                if turn.last is not me or turn.product != self._product:
                    self._resume()
                turn.last = LOST
                if not self._fill(reader):
                    return
                # No local variable keeps the batch: its memory is free when those who got it let it go.
                batch = [take()]
                positions[self._product] += n_rows
                if is_busy:
                    reader.begin(self._product)
                turn.last = me
            given = clock()
            yield batch.pop()
            is_busy = clock() - given >= _BUSY_S

    def rows(self, reader: BlockRows) -> Iterator[Tensors]:
        """Yield the samples of blocks one by one, `{name: dtype [*shape]}`, views of slots."""
        positions, read_model_id, turn = self._positions, self._model.read, self._turn
        rows, me = reader.rows, weakref.ref(reader)
        while True:
            with turn.lock:
                if turn.last is not me or turn.product != self._product:
                    self._resume()
                if rows and read_model_id() != self._product:
                    rows.clear()
                    # The model may be the same again by now: then these are due once more.
                    self._switch()
                if not rows:
                    turn.last = LOST
                    if not self._fill(reader.blocks):
                        return
                    reader.split()
                    turn.last = me
                positions[self._product] += 1
                row = [rows.pop()]
            yield row.pop()

    def _fill(self, reader: Reader) -> bool:
        """Fill a batch of the model that is wanted; return whether anybody wants one still."""
        patience, read_model_id = self._patience, self._model.read
        n_rows, fill = reader.n_rows, reader.fill
        product = self._product
        patience.restart()
        done = 0
        while True:
            if read_model_id() != product:
                # No batch has samples of two models: those that are there are dropped.
                reader.forget()
                product, done = self._switch(), 0
            elif done == n_rows:
                return True
            before, done = done, fill(product, done, patience.wait_ms)
            if done > before:
                patience.restart()
            elif read_model_id() == product and not patience.goes_on(product, reader.is_starved):
                return False

    def _resume(self) -> str:
        """Go to the first sample that nobody got: another iterator has had the turn, or has not come to its end."""
        last = self._turn.last()
        if last is not None:
            last.forget()
        return self._switch()

    def _switch(self) -> str:
        """Begin with the product that is wanted now, and return it."""
        self._product = self._turn.product = self._course.enter(self._positions, self._plan)
        self._patience.restart()
        return self._product


#: Who works for so long on a batch lets the next one be put together meanwhile.
_BUSY_S = 0.0005
