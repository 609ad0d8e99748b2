"""The client: owns the slots, orders samples, hands out the slots that are filled."""

import logging
import os
import time
import weakref
from typing import Any

from .. import _core
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
from .mediums import Medium, ShmMedium

logger = logging.getLogger(__name__)

#: A diagnosis asks the broker for at most this long.
_DIAGNOSE_MS = 1000


class Client:
    """Orders samples into the slots of a medium that it owns.

    Args:
        endpoint: the broker's frontend.
        medium_cls: class of the medium; called as ``medium_cls(address=, slot_size=, num_slots=, create=True)``.
        slot_size: bytes of one sample.
        num_slots: samples that can be on order, finished, or in use at a time.
        address: of the medium; default: chosen by the medium.
        send_timeout_ms: how long a request waits for the broker, milliseconds.

    Raises:
        ConfigError: a size is not positive, or the endpoint is malformed.
        SegmentError: the medium cannot be created.
    """

    def __init__(
        self,
        endpoint: str,
        medium_cls: type[Medium],
        slot_size: int,
        num_slots: int,
        address: str | None = None,
        send_timeout_ms: int = 5000,
    ) -> None:
        if slot_size < 1 or num_slots < 1:
            raise ConfigError(f"slot_size and num_slots must be at least 1, have {slot_size} and {num_slots}")
        self.endpoint = endpoint
        self.slot_count = num_slots
        self.send_timeout_ms = send_timeout_ms
        # What dead clients left behind goes before our own slots need the room.
        _core.sweep()
        self.medium = medium_cls(address=address, slot_size=slot_size, num_slots=num_slots, create=True)
        try:
            if not isinstance(self.medium.address, str):
                raise ConfigError(f"the medium's address must be a str, have {self.medium.address!r}")
            self._core = _core.Client(endpoint, self.medium.address, slot_size, num_slots)
        except BaseException:
            self.medium.close()
            self.medium.unlink()
            raise
        # Also runs at interpreter exit, so that a client that was never closed leaves no segment.
        self._finalizer = weakref.finalize(self, _close, self._core, self.medium, os.getpid())

    def hello(self) -> dict[str, Any]:
        """Introduce this client to the broker, waiting for one to appear; optional, orders do it too.

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
            The order's id; ``None`` when no slot is free, or no broker was there within send_timeout_ms.
        """
        order_id = self._core.request_slot(product_id, self.send_timeout_ms)
        if order_id is None:
            self._relay_log()
        return order_id

    def poll_completions(self, timeout_ms: int = 0) -> int:
        """Wait for results; how many arrived since the last call."""
        return self._core.poll_completions(max(timeout_ms, 0))

    def get_completed(self) -> int | None:
        """The oldest finished slot, of whatever product; it is yours until `release_slot`."""
        return self._core.take_completed()

    def release_slot(self, slot_id: int) -> None:
        """Give a slot back, so that it can be ordered again.

        Raises:
            ConfigError: there is no such slot, or it is not handed out (released twice).
        """
        self._core.release_slot(slot_id)

    def request_sample(self, product_id: str, timeout_ms: int = 1000) -> int | None:
        """A finished slot of `product_id`, waiting for one if need be.

        All free slots are kept on order for the products asked for lately, so that usually one is ready.

        Returns:
            The slot, yours until `release_slot`; ``None`` when none came within timeout_ms (`diagnose` knows why).
        """
        slot_id = self._core.request_sample(product_id, max(timeout_ms, 0))
        if slot_id is None:
            self._relay_log()
            if isinstance(self.medium, ShmMedium):
                # On Python before 3.13 the exit of a softs supplier removes the name, and no other can attach.
                self.medium.ensure_linked()
        return slot_id

    def discard(self) -> int:
        """Forget everything ordered so far: none of it will be handed out any more.

        Slots that a supplier is working on come back when it has finished.

        Returns:
            How many orders were taken back before a supplier had started them.
        """
        cancelled = self._core.discard(self.send_timeout_ms)
        self._relay_log()
        return cancelled

    def cancel(self, order_id: str) -> bool:
        """Take one order back; ``False`` if a supplier has it already, or it is unknown."""
        return self._core.cancel(order_id, self.send_timeout_ms)

    def get_stats(self) -> dict[str, Any]:
        """The broker's statistics: the fields of `BrokerStats`, with ``ok`` and ``error``.

        Raises:
            BrokerTimeout: no answer within send_timeout_ms (a RuntimeError, as in softs).
        """
        stats = self._core.stats(None, self.send_timeout_ms)
        if stats is None:
            cause = self._core.connection_error or "it is connected but does not answer"
            raise BrokerTimeout(f"STATS failed: timeout after {self.send_timeout_ms} ms: {cause}")
        return {"ok": True, "error": None, **stats}

    def diagnose(self, product_id: str, waited_s: float) -> SampleTimeout:
        """Why no sample of `product_id` came for `waited_s` seconds, as an exception to raise."""
        head = f"no sample of product {product_id!r} within {waited_s:.1f} s: "
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
            serving = ", ".join(repr(p) for p in patterns[:20]) or "nothing"
            more = f" and {len(patterns) - 20} more" if len(patterns) > 20 else ""
            return NoSupplier(
                f"{head}no supplier for it at {self.endpoint} ({n_connected} connected, serving {serving}{more})"
            )
        failure = self._core.failure(product_id)
        if failure is not None:
            count, text = failure
            return GeneratorFailed(f"{head}{count} orders in a row failed; the last one: {text}")
        if diagnosis is None:
            return SuppliersBusy(f"{head}{n_connected} suppliers connected, none has delivered")
        return SuppliersBusy(
            f"{head}{diagnosis['busy_suppliers']} of {diagnosis['matching_suppliers']} matching suppliers busy, "
            f"the longest for {diagnosis['busiest_s']:.1f} s; {diagnosis['queued']} orders wait"
        )

    def close(self) -> None:
        """Leave the broker, close and remove the medium. Idempotent."""
        self._finalizer()

    def _relay_log(self) -> None:
        for record in self._core.take_log():
            logger.log(*record)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *args: object) -> None:
        self.close()


def _close(core: _core.Client, medium: Medium, owner_pid: int) -> None:
    core.close()
    # In a fork the medium still belongs to the parent.
    if os.getpid() == owner_pid:
        try:
            medium.close()
        finally:
            medium.unlink()
