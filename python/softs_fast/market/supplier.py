"""The supplier: calls a generator and writes what it returns into the slot that was ordered."""

import logging
import os
import threading
import traceback
import weakref
from collections.abc import Callable, Sequence

from .. import _core
from ..errors import ConfigError, HelloError
from .mediums import FilesystemMedium, Medium, ShmMedium, TCPMedium
from .mediums._segment import SegmentMedium

logger = logging.getLogger(__name__)

#: Mediums kept open at a time; a client has one.
_MAX_WRITERS = 64
#: `stop` waits this long for a generator that is running.
_STOP_S = 2.0


class Supplier:
    """Serves the products that its patterns match, one call of the generator per sample.

    Args:
        generator_fn: ``generator_fn(product_id) -> bytes`` of exactly slot_size; called in the supplier's thread. What it raises
            goes to the client with its traceback.
        product_ids: patterns of the products it can make: regular expressions matched with the whole product id, by a
            linear-time engine (no look-around, no back-references). Text without special characters matches itself.
        endpoint: the broker's backend.
        medium_cls: class of the clients' medium; ``medium_cls.attach(address)`` opens it.
        slot_size: bytes of one sample.
        send_timeout_ms: how long `start` waits for the broker, milliseconds.
        file_dirs: directories in which orders may name files (file medium); files created by a softs-fast client are allowed anyway.
        allow_remote: lets orders name TCP mediums on other machines.

    Raises:
        ConfigError: slot_size or the endpoint is malformed.
    """

    def __init__(
        self,
        generator_fn: Callable[[str], bytes],
        product_ids: list[str],
        endpoint: str,
        medium_cls: type[Medium],
        slot_size: int,
        send_timeout_ms: int = 10000,
        *,
        file_dirs: Sequence[str] = (),
        allow_remote: bool = False,
    ) -> None:
        if slot_size < 1:
            raise ConfigError(f"slot_size must be at least 1, have {slot_size}")
        self.generator_fn = generator_fn
        self.product_ids = product_ids
        self.endpoint = endpoint
        self.slot_size = slot_size
        self.send_timeout_ms = send_timeout_ms
        self._medium_cls = medium_cls
        self._file_dirs = tuple(file_dirs)
        self._allow_remote = allow_remote
        self._writers: dict[str, Medium] = {}
        self._main_thread: threading.Thread | None = None
        self._core = _core.Supplier(endpoint, list(product_ids), f"{os.uname().nodename}:{os.getpid()}")
        # A daemon thread must not be inside native code when the interpreter ends.
        self._stop_at_exit = weakref.finalize(self, _core.Supplier.stop, self._core)

    def start(self) -> None:
        """Introduce this supplier to the broker, waiting for one to appear, and begin to work in a thread.

        Raises:
            HelloError: no broker within send_timeout_ms, or it refused the patterns (a RuntimeError, as in softs).
        """
        if self._main_thread is not None:
            return
        _core.sweep()
        peer_id = self._core.hello(self.send_timeout_ms)
        self._relay_log()
        if peer_id is None:
            cause = self._core.connection_error or f"no answer from {self.endpoint}"
            raise HelloError(f"HELLO failed: timeout after {self.send_timeout_ms} ms: {cause}")
        self._main_thread = threading.Thread(target=self._main_loop, name="softs-supplier", daemon=True)
        self._main_thread.start()

    def stop(self) -> None:
        """Say GOODBYE, wait up to 2 s for a call of the generator that is running, disconnect. Idempotent."""
        self._core.stop()
        thread = self._main_thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=_STOP_S)
        # From here on a generator that still runs may not write: the broker gives its order to somebody else.
        self._core.close()
        self._relay_log()

    def _main_loop(self) -> None:
        try:
            work = self._core.next()
            while work is not None:
                error = self._fulfil(*work)
                if error is not None:
                    self._relay_log()
                work = self._core.finish_and_next(error)
        finally:
            # Also when the generator ended this thread (SystemExit): its order must go to somebody else.
            self._core.stop()
            self._core.close()
            self._relay_log()
            for writer in self._writers.values():
                writer.close()
            self._writers.clear()

    def _fulfil(self, product_id: str, address: str, offset: int, client_slot_size: int) -> str | None:
        """Make one sample and write it; the error for the client if that fails."""
        if client_slot_size not in (0, self.slot_size):
            return f"slot_size differs: this supplier has {self.slot_size}, the client {client_slot_size}"
        if offset % self.slot_size != 0:
            return f"offset {offset} is not that of a slot: slot_size is {self.slot_size}"
        try:
            data = self.generator_fn(product_id)
        except Exception:
            logger.exception("generator failed for product %r", product_id)
            return f"the generator failed for product {product_id!r}\n{traceback.format_exc()}"
        if not isinstance(data, (bytes, bytearray, memoryview)):
            return f"the generator for product {product_id!r} returned {type(data).__name__}, need bytes"
        n_bytes = data.nbytes if isinstance(data, memoryview) else len(data)
        if n_bytes != self.slot_size:
            return f"the generator for product {product_id!r} returned {n_bytes} bytes, need slot_size={self.slot_size}"
        writer = self._writers.get(address)
        if writer is None:
            try:
                writer = self._attach(address)
            except Exception as error:
                # As text: a record that is kept must not keep this frame, and with it the supplier.
                logger.warning(
                    "cannot open the medium %r of an order for product %r: %s",
                    address,
                    product_id,
                    str(error),
                )
                return f"cannot open the medium {address!r}: {error}"
        if not self._core.may_write():
            return "the broker that gave this order is gone"
        try:
            written = writer.write(offset, data)
        except Exception as error:
            logger.exception("cannot write to the medium %r at offset %d", address, offset)
            return f"cannot write to the medium {address!r} at offset {offset}: {error}"
        if not written:
            self._writers.pop(address).close()
            return f"cannot write {n_bytes} bytes to the medium {address!r} at offset {offset}"
        return None

    def _attach(self, address: str) -> Medium:
        medium_cls = self._medium_cls
        writer: Medium
        if issubclass(medium_cls, (ShmMedium, FilesystemMedium, TCPMedium)):
            writer = medium_cls.attach_limited(
                address, file_dirs=self._file_dirs, allow_remote=self._allow_remote
            )
        else:
            writer = medium_cls.attach(address)
        # A mapping keeps the memory of a client that has gone: a good moment to let go of those.
        for known, other in list(self._writers.items()):
            if isinstance(other, SegmentMedium) and other.is_gone:
                self._writers.pop(known).close()
        if len(self._writers) >= _MAX_WRITERS:
            oldest = next(iter(self._writers))
            self._writers.pop(oldest).close()
        self._writers[address] = writer
        return writer

    def _relay_log(self) -> None:
        for record in self._core.take_log():
            logger.log(*record)

    def __enter__(self) -> "Supplier":
        self.start()
        return self

    def __exit__(self, *args: object) -> None:
        self.stop()
