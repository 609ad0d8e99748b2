"""The client: owns slots, orders samples into them, and hands out the finished slots."""

import logging
import math
import os
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from .. import _core
from ..configs import RaggedLayout
from ..errors import (
    BrokerTimeout,
    ConfigError,
    GeneratorFailed,
    HelloError,
    NoBroker,
    NoSupplier,
    SampleTimeout,
    SoftsError,
    SuppliersBusy,
)
from ..process import Closing
from ..repeated_log import RepeatedLog
from .fleet_report import FleetReport, read_report
from .mediums import CudaIpcMedium, Medium, ShmMedium, create_medium
from .mediums.segment import SegmentMedium

#: `Client.leave_after`.
LeaveAfter = Callable[[str, Any, int], bool]

logger = logging.getLogger(__name__)

#: A diagnosis waits for the broker for at most this long.
_DIAGNOSE_MS = 1000


class Client(Closing):
    """Orders samples into the slots of a medium that it owns.

    Args:
        endpoint: The broker's frontend.
        medium_cls: Class of the medium; called as ``medium_cls(address=, slot_size=, num_slots=, create=True)``.
        slot_size: Bytes of one sample.
        num_slots: Samples that can be on order, finished, or in use at a time.
        address: Address of the medium; default: chosen by the medium.
        send_timeout_ms: How long a request waits for the broker, milliseconds.
        ordered: Hand samples of a product out strictly by their sequence numbers, 0, 1, 2, ...: with a generator
            that depends on that number only, the stream is the same for any number of suppliers.
        prefetch: Samples on order or finished ahead of requests at most; default: all slots. Where copies limit a
            stream, the client goes on with so few that caches keep them.
        spin_us: How long a wait polls for a result before it blocks, microseconds.
        block: Slots that are handed out together, by `lease` only; slots that do not fill a block are not used.
        share: (i, n): the samples have the sequence numbers i, i + n, i + 2n, ..., so that n clients with i from 0 to
            n - 1 have different samples of one stream; default: all numbers.
        scribble: Overwrite slots with 0xFF when they are released, so that a later read of one is noticed.
        ragged: Layout of ragged tensors, `BatchConfig.ragged`, where samples have some and slot_size is that of the
            longest: a link to another host then carries only the bytes of each sample. Only `ShmMedium` records it.

    Raises:
        ConfigError: a number is out of range, `ragged` does not fit slot_size, or the endpoint is malformed.
        SegmentError: the medium cannot be created.
    """

    def __init__(
        self,
        endpoint: str,
        medium_cls: Callable[..., Medium],
        slot_size: int,
        num_slots: int,
        address: str | None = None,
        send_timeout_ms: int = 5000,
        *,
        ordered: bool = False,
        prefetch: int | None = None,
        spin_us: float = 20.0,
        block: int = 1,
        share: tuple[int, int] = (0, 1),
        scribble: bool = False,
        ragged: RaggedLayout | None = None,
    ) -> None:
        if slot_size < 1 or num_slots < 1:
            raise ConfigError(f"slot_size and num_slots must be at least 1, have {slot_size} and {num_slots}")
        if not 1 <= block <= num_slots:
            raise ConfigError(f"block must be between 1 and num_slots ({num_slots}), have {block}")
        if share[0] < 0 or share[1] < 1:
            raise ConfigError(f"share must be (i, n) with i >= 0 and n >= 1, have {share}")
        if prefetch is not None and prefetch < 1:
            raise ConfigError(f"prefetch must be at least 1, have {prefetch}")
        if not 0 <= spin_us < math.inf:
            raise ConfigError(f"spin_us must be a finite number of microseconds >= 0, have {spin_us}")
        self.endpoint = endpoint
        #: Whether a sample has come to a loader; it is the loader that says so.
        self.has_delivered = False
        self._log = RepeatedLog(logger)
        self.slot_count = num_slots
        self.send_timeout_ms = send_timeout_ms
        # Segments of dead clients are removed before our own slots need the memory.
        _core.sweep()
        self.medium = create_medium(medium_cls, address, slot_size, num_slots, ragged)
        #: Whether slots are overwritten when they are released.
        self.scribbles = scribble
        #: Whether samples are delivered strictly by sequence.
        self.is_ordered = ordered
        try:
            if not isinstance(self.medium.address, str):
                raise ConfigError(f"the medium's address must be a str, have {self.medium.address!r}")
            self._core = _core.Client(
                endpoint,
                self.medium.address,
                self.medium.slot_bytes(slot_size),
                num_slots,
                segment=self.medium._segment
                if isinstance(self.medium, CudaIpcMedium)
                else own_segment(self.medium),
                medium=self.medium.native_kind,
                ordered=ordered,
                prefetch=prefetch,
                block=block,
                share=share,
                scribble=scribble and not isinstance(self.medium, CudaIpcMedium),
                spin_us=spin_us,
            )
        except BaseException:
            self.medium.close()
            self.medium.unlink()
            raise
        # Also runs at interpreter exit, so that a client that was never closed leaves no segment.
        self._finalizer = weakref.finalize(self, _close, self._core, self.medium, os.getpid())

    def hello(self) -> dict[str, Any]:
        """Register with the broker, waiting until one answers; optional, because orders do it too.

        Returns:
            ``{"ok": True, "error": None, "peer_id": number}``.

        Raises:
            HelloError: no broker answered within send_timeout_ms (a RuntimeError, as in softs).
        """
        peer_id = self._core.hello(self.send_timeout_ms)
        self._relay_log()
        if peer_id is None:
            cause = self._core.connection_error or f"no answer from {self.endpoint}"
            raise HelloError(f"HELLO failed: timeout after {self.send_timeout_ms} ms: {cause}")
        return {"ok": True, "error": None, "peer_id": peer_id}

    def request_slot(self, product_id: str) -> str | None:
        """Put one free slot on order.

        Returns:
            The order's id; ``None`` if no slot is free, or no broker answered within send_timeout_ms.
        """
        order_id = self._core.request_slot(product_id, self.send_timeout_ms)
        if order_id is None:
            self._relay_log()
        return order_id

    def poll_completions(self, timeout_ms: int = 0) -> int:
        """Wait for results; return how many arrived since the last call."""
        return self._core.poll_completions(max(timeout_ms, 0))

    def get_completed(self) -> int | None:
        """Return the oldest finished slot of any product; it stays held until `release_slot`."""
        return self._core.take_completed()

    def release_slot(self, slot_id: int) -> None:
        """Release a held slot, so that it can be ordered again.

        Raises:
            ConfigError: there is no such slot, or it is not held (released twice).
        """
        self._core.release_slot(slot_id)

    def request_sample(self, product_id: str, timeout_ms: int = 1000) -> int | None:
        """Return a finished slot of `product_id`, waiting for one if necessary.

        All free slots are kept on order for the products requested lately, so that usually one is ready.

        Returns:
            The slot, held until `release_slot`; ``None`` if none was finished within timeout_ms (`diagnose` returns
            the cause).
        """
        slot_id = self._core.request_sample(product_id, max(timeout_ms, 0))
        if slot_id is None:
            self.maintain()
        return slot_id

    def gather(
        self, product_id: str, n: int, done: int, targets: Sequence[tuple[Any, ...]], timeout_ms: int
    ) -> int:
        """Copy samples of `product_id` into rows `done` to `n` of a batch, all that are finished within timeout_ms.

        The slots are released at once. Needs a medium in a segment (`own_segment`), and blocks of 1.

        Args:
            product_id: Product to order.
            n: Number of rows of the batch.
            done: Number of rows that are filled already.
            targets: One tuple per tensor: its offset in a slot, bytes, and writable contiguous memory for n rows;
                length / n bytes of each slot are copied there. If the slots are to be decoded, a third item is the
                native codec (`softs_fast.codecs`), and the memory is that of the decoded rows. For ragged tensors one
                more: the native layout, memory for their offsets, and a list with memory for the values of each.
            timeout_ms: How long to wait, milliseconds.

        Returns:
            Number of rows that are filled now.

        Raises:
            ConfigError: the arguments do not fit each other or the slots, or there is no segment.
            WireError: a slot has content that its codec does not write; the slot was released.
        """
        n_filled = self._core.gather(product_id, n, done, list(targets), timeout_ms)
        if n_filled < n:
            self.maintain()
        return n_filled

    def gather_ahead(self, product_id: str, n: int, targets: Sequence[tuple[int, Any]]) -> "_core.Ahead":
        """Begin to copy finished samples into the n rows of a batch, in a native thread that waits for no sample.

        Args:
            product_id: Product to order.
            n: Number of rows of the batch.
            targets: Tuples as for `gather`, without codecs. The memory must not be read before ``finish()``.

        Returns:
            A handle; its ``finish()`` waits for the thread and returns how many rows are filled.

        Raises:
            ConfigError: the targets do not fit, or there is no segment.
        """
        return self._core.gather_ahead(product_id, n, list(targets))

    def lease(self, product_id: str, timeout_ms: int) -> "_core.Lease | None":
        """Return a block of neighbouring slots with consecutive samples of `product_id`, waiting if necessary.

        Returns:
            Their memory, uint8 [block * slot_stride of the medium], held until nothing refers to it any more; ``None``
            if no block was complete within timeout_ms. With `CudaIpcMedium` the memory contains the slots' tickets,
            and the samples are on the device.

        Raises:
            ConfigError: there is no segment.
        """
        lease = self._core.lease(product_id, timeout_ms)
        if lease is None:
            self.maintain()
        return lease

    def n_failures(self, product_id: str) -> int:
        """Return how many orders of `product_id` have failed since the last one that did not."""
        failure = self._core.failure(product_id)
        return 0 if failure is None else failure[0]

    @property
    def n_blocks_held(self) -> int:
        """Number of blocks that are leased and not released."""
        return self._core.n_blocks_held

    @property
    def n_numbered(self) -> int:
        """How many numbers of its share were ordered, from the first on, of the product of which most were."""
        return self._core.n_numbered

    def position(self, product_id: str) -> int:
        """Return how many samples of the product's stream were handed out, including those before a `seek`."""
        return self._core.position(product_id)

    def seek(self, product_id: str, start: int, run: int, stride: int, position: int) -> tuple[int, int]:
        """Go to another position of the product's stream.

        Samples that are finished or on order stay so if the stream hands them out from there on, at most 16 times all
        slots ahead; the others are discarded, as all are with a `CudaIpcMedium`. What no supplier has begun is made behind
        earlier numbers.

        Sample i has number start + (i // run) * stride + i % run of this client's share, so that several DataLoader
        workers can each make every stride-th run.

        Args:
            product_id: Product of the stream.
            start: Number of the first sample.
            run: Number of samples that follow each other.
            stride: Distance from the beginning of one run to that of the next, in samples.
            position: Index i of the next sample.

        Returns:
            Samples that stay, and samples that are discarded.
        """
        if isinstance(self.medium, CudaIpcMedium):
            # A finished sample may be on its way on a device, and is lost if its writer has died: the stream goes back
            # for that.
            self.discard()
        return self._core.seek(product_id, start, run, stride, position)

    def discard(self) -> int:
        """Make all open orders and finished samples stale: none of them is handed out any more.

        Slots that a supplier is writing become free when it has finished.

        Returns:
            Number of orders that were cancelled before a supplier had started them.
        """
        cancelled = self._core.discard(self.send_timeout_ms)
        self._relay_log()
        return cancelled

    def follow(self, product_id: str, *, ahead: bool = True) -> None:
        """Follow a product: hand out its samples only from now on; everything else is discarded, see `discard`.

        Calls in other threads that wait for another product return without a sample, as do later ones. This call waits
        up to send_timeout_ms for the broker if the broker has orders to cancel.

        Args:
            product_id: the product to follow.
            ahead: order samples of it now, ahead of the first request.
        """
        self._core.follow(product_id, ahead, self.send_timeout_ms)
        self._relay_log()

    def leave_after(self, product_id: str, memory: Any, word: int) -> bool:
        """Block while `memory` begins with `word`, four bytes; then leave `product_id`, if it is followed.

        To leave a product is to discard its orders, which needs no interpreter; requests get no sample until `follow`
        is called. The call may also return early.

        Returns:
            Whether the product was left.
        """
        return self._core.leave_after(product_id, memory, word)

    def cancel(self, order_id: str) -> bool:
        """Cancel one order; return ``False`` if a supplier has it already, or it is unknown."""
        return self._core.cancel(order_id, self.send_timeout_ms)

    def get_stats(self) -> dict[str, Any]:
        """Return the broker's statistics: the fields of `BrokerStats`, with ``ok`` and ``error``.

        Raises:
            BrokerTimeout: no answer within send_timeout_ms (a RuntimeError, as in softs).
        """
        stats = self._core.stats(None, self.send_timeout_ms)
        if stats is None:
            cause = self._core.connection_error or "it is connected but does not answer"
            raise BrokerTimeout(f"STATS failed: timeout after {self.send_timeout_ms} ms: {cause}")
        return {"ok": True, "error": None, **stats}

    def diagnose(self, product_id: str, waited_s: float) -> SampleTimeout:
        """Return the cause why no sample of `product_id` arrived for `waited_s` seconds, as an exception to raise."""
        head = f"no sample of product {product_id!r} within {waited_s:.1f} s: "
        cause = self._core.connection_error
        if cause is not None:
            return NoBroker(head + cause)
        stats: dict[str, Any] | None = None
        started = time.monotonic()
        try:
            stats = self._core.stats(product_id, _DIAGNOSE_MS)
        except SoftsError as error:
            return SampleTimeout(f"{head}{error}")
        if stats is None:
            cause = self._core.connection_error
            if cause is None:
                silence = time.monotonic() - started
                cause = f"the broker at {self.endpoint} is connected but has not answered for {silence:.1f} s"
            return NoBroker(head + cause)
        if self._core.n_held == self.slot_count:
            return SampleTimeout(
                f"{head}all {self.slot_count} slots are held by the caller; release_slot gives them back"
            )
        n_connected, patterns = stats["connected_suppliers"], sorted(stats["product_ids"])
        diagnosis = stats.get("diagnosis")
        if n_connected == 0 or (diagnosis is not None and diagnosis["matching_suppliers"] == 0):
            if diagnosis is not None and diagnosis["unable_suppliers"]:
                n_unable, why = diagnosis["unable_suppliers"], diagnosis["unable"]
                return NoSupplier(
                    f"{head}none of the {n_unable} suppliers that make it can serve this client: {why}"
                )
            serving = ", ".join(repr(p) for p in patterns[:20]) or "nothing"
            more = f" and {len(patterns) - 20} more" if len(patterns) > 20 else ""
            return NoSupplier(
                f"{head}no supplier for it at {self.endpoint} ({n_connected} connected, serving {serving}{more})"
                f"{self._cause_of_fleet()}"
            )
        failure = self._core.failure(product_id)
        if failure is not None:
            count, text = failure
            return GeneratorFailed(f"{head}{count} orders in a row failed; the last one: {text}")
        if diagnosis is None:
            return SuppliersBusy(
                f"{head}{n_connected} suppliers connected, none has delivered{self._cause_of_fleet()}"
            )
        n_busy, busiest_s, n_open = (diagnosis[key] for key in ("busy_suppliers", "busiest_s", "queued"))
        n_in_lane, n_open_in_lane = self._core.lane_state(product_id)
        if n_open_in_lane:
            # The broker does not know the orders in lanes.
            n_busy, busiest_s, n_open = n_busy + n_in_lane, max(busiest_s, waited_s), n_open + n_open_in_lane
        n_matching = diagnosis["matching_suppliers"]
        return SuppliersBusy(
            f"{head}{min(n_busy, n_matching)} of {n_matching} matching suppliers busy, "
            f"the longest for {busiest_s:.1f} s; {n_open} orders wait{self._cause_of_fleet()}"
        )

    @property
    def fleet(self) -> FleetReport | None:
        """What the fleet of the broker says of its workers; None if the broker is not that of a fleet on this host."""
        return read_report(self.endpoint)

    def _cause_of_fleet(self) -> str:
        fleet = self.fleet
        return "" if fleet is None else fleet.cause()

    def close(self) -> None:
        """Disconnect from the broker, close and remove the medium. Idempotent.

        All later calls that need the broker or a slot raise SegmentError, also those that wait in other threads;
        `release_slot` does not.
        """
        self._finalizer()

    def gather_pipeline(self, n_threads: int) -> "_core.GatherPipeline":
        """A queue of batches that native threads fill in order, ahead of the caller. Call `maintain` now and then.

        Args:
            n_threads: how many threads copy.

        Raises:
            ConfigError: there is no segment.
            SegmentError: the client is closed.
        """
        return self._core.gather_pipeline(n_threads)

    def maintain(self) -> None:
        """Relay log records, and keep the name of the segment; for callers that wait for samples without this class."""
        self._relay_log()
        if isinstance(self.medium, ShmMedium):
            # On Python before 3.13 the exit of a softs supplier removes the name, and no other supplier can attach.
            self.medium.ensure_linked()

    def _relay_log(self) -> None:
        for level, text in self._core.take_log():
            self._log.relay(level, text)


def own_segment(medium: Medium) -> _core.Segment | None:
    """Return the native segment of a medium, for reads that bypass the medium's methods.

    None if it has no segment, or a subclass overrides how it reads.
    """
    if not isinstance(medium, SegmentMedium):
        return None
    as_ever = (
        getattr(medium.read, "__func__", None) is SegmentMedium.read
        and getattr(medium.read_into, "__func__", None) is SegmentMedium.read_into
    )
    return medium._segment if as_ever else None


def _close(core: _core.Client, medium: Medium, owner_pid: int) -> None:
    core.close()
    # In a fork the medium still belongs to the parent.
    if os.getpid() == owner_pid:
        # A supplier that cannot open a segment's memory any more tells by the missing name that it is closed.
        by_name = isinstance(medium, SegmentMedium)
        first, last = (medium.unlink, medium.close) if by_name else (medium.close, medium.unlink)
        try:
            first()
        finally:
            last()
