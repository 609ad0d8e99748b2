"""The supplier: calls a generator and writes the samples that it returns into the ordered slots."""

import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from .. import _core
from ..configs import BatchConfig
from ..errors import ConfigError, HelloError
from ..process import join
from ..repeated_log import RepeatedLog
from .device_output import DeviceOutput
from .endpoints import variable_of
from .failure_text import own_traceback, place_of, raised_at
from .generators import Generator, make_generator
from .mediums import CudaIpcMedium, FilesystemMedium, Medium, ShmMedium, TCPMedium
from .mediums.base import taken_apart
from .mediums.segment import SegmentMedium

logger = logging.getLogger(__name__)

#: Mediums kept open at a time; a client has one.
_MAX_WRITERS = 64
#: A batch waits at most a minute for more orders.
_MAX_WAIT_MS = 60_000
#: The longest time to poll for work before the thread blocks.
_MAX_SPIN_US = 1_000_000
_MAX_WEIGHT = 1000


class Supplier:
    """Serves the products that its patterns match.

    Give one function: `generator_fn`, `batch_generator_fn` or `fill_fn`. If it takes one more positional argument,
    without a default or called ``sequence`` (``sequences``), it also gets the number of the sample in its client's
    stream. An exception that it raises is sent to the client with its traceback.

    Clients on this machine are served through lanes in their own memory, with `ShmMedium` and `FilesystemMedium`; all
    other clients, and those of softs, are served through the broker.

    Args:
        generator_fn: ``generator_fn(product_id)`` returns one sample: bytes, bytearray or memoryview of exactly
            slot_size; with a batch_config also a mapping {name: dtype [*shape]} of tensors or arrays. A new function
            may be assigned while the supplier runs.
        product_ids: patterns of the products it can make: regular expressions matched with the whole product id, by a
            linear-time engine (no look-around, no back-references). Text without special characters matches itself.
        endpoint: the broker's backend; it may be left out in a process of a `Fleet`, which SOFTS_FAST_BACKEND tells it.
        medium_cls: class of the clients' medium; ``medium_cls.attach(address)`` opens it. A `functools.partial` of
            `TCPMedium` chooses its ``allow_remote``.
        slot_size: bytes of one sample; default: that of batch_config.
        send_timeout_ms: how long `start` waits for the broker, milliseconds.
        batch_generator_fn: ``batch_generator_fn(product_id, n)`` returns n samples: a list of bytes, or all n end to
            end; with a batch_config also a mapping {name: dtype [n, *shape]}.
        fill_fn: ``fill_fn(product_id, out)`` makes one sample in place: `out` is the memory of the slot, a writable
            memoryview uint8 [slot_size], or with a batch_config a mapping {name: dtype [*shape]} on that memory. It is
            valid during the call only: a later write damages other samples. A fork may not write to it (SIGSEGV).
        batch_config: layout of a sample, for functions that return or fill tensors or arrays.
        max_batch: the largest n.
        max_wait_ms: how long a batch that is not full waits for more orders, milliseconds.
        weights: {pattern: weight from 1 to 1000} for products that share this supplier's time, counted in samples; the
            first pattern that matches counts; without one the weight is 1.
        spin_us: how long it polls for work before it blocks, as long as polling finds work often enough, microseconds.
        file_dirs: directories in which orders may name files (file medium); files created by a softs-fast client are
            always allowed.
        allow_remote: lets orders name TCP mediums on other machines.
        name: its name in errors and in `softs-fast top`; default: host and process number.

    Raises:
        ConfigError: not exactly one function, or an argument is malformed.
    """

    def __init__(
        self,
        generator_fn: Callable[..., Any] | None = None,
        product_ids: Sequence[str] = (),
        endpoint: str = "",
        medium_cls: Callable[..., Medium] = ShmMedium,
        slot_size: int = 0,
        send_timeout_ms: int = 10000,
        *,
        batch_generator_fn: Callable[..., Any] | None = None,
        fill_fn: Callable[..., Any] | None = None,
        batch_config: BatchConfig | None = None,
        max_batch: int = 64,
        max_wait_ms: float = 0.0,
        weights: Mapping[str, int] | None = None,
        spin_us: float = 20.0,
        file_dirs: Sequence[str] = (),
        allow_remote: bool = False,
        name: str | None = None,
    ) -> None:
        if slot_size == 0 and batch_config is not None:
            slot_size = batch_config.nbytes()
        if slot_size < 1:
            raise ConfigError(f"slot_size must be at least 1, have {slot_size}; or give a batch_config")
        if not 0 <= max_wait_ms <= _MAX_WAIT_MS:
            raise ConfigError(f"max_wait_ms must be from 0 to {_MAX_WAIT_MS}, have {max_wait_ms}")
        if not 0 <= spin_us <= _MAX_SPIN_US:
            raise ConfigError(f"spin_us must be from 0 to {_MAX_SPIN_US}, have {spin_us}")
        weights = dict(weights or {})
        for pattern, weight in weights.items():
            if not isinstance(weight, int) or not 1 <= weight <= _MAX_WEIGHT:
                raise ConfigError(
                    f"the weight of {pattern!r} must be from 1 to {_MAX_WEIGHT}, have {weight!r}"
                )
        endpoint = endpoint or os.environ.get(variable_of("backend"), "")
        opened, options = taken_apart(medium_cls)
        if not (isinstance(opened, type) and issubclass(opened, Medium)):
            raise ConfigError(
                f"medium_cls must be a class of mediums or a functools.partial of one, got {medium_cls!r}"
            )
        self._medium_cls = opened
        self._output = _device_output(opened, batch_config, slot_size)
        self._generator = make_generator(
            generator_fn,
            batch_generator_fn=batch_generator_fn,
            fill_fn=fill_fn,
            slot_size=slot_size,
            batch_config=batch_config,
            max_batch=max_batch,
            output=self._output,
        )
        self._generator_fn = generator_fn
        self._place = place_of(self._generator.function)
        self._failures = RepeatedLog(logger)
        self._batch_config = batch_config
        self.product_ids = product_ids
        self.endpoint = endpoint
        self.slot_size = slot_size
        self._slot_bytes = opened.slot_bytes(slot_size)
        self.send_timeout_ms = send_timeout_ms
        self._max_wait_ms = float(max_wait_ms)
        self._file_dirs = tuple(file_dirs)
        self._allow_remote = allow_remote or bool(options.get("allow_remote"))
        self._writers: dict[str, Medium] = {}
        self._main_thread: threading.Thread | None = None
        self._is_stopped = False
        #: What has ended the main thread, until `wait` raises it.
        self._ended_by: BaseException | None = None
        self._name = f"{os.uname().nodename}:{os.getpid()}" if name is None else name
        self._core = _core.Supplier(
            endpoint,
            list(product_ids),
            self._name,
            self._slot_bytes,
            self._writes_to(),
            [os.fspath(directory) for directory in file_dirs],
            list(weights.items()),
            float(spin_us),
        )
        # A daemon thread must not be inside native code when the interpreter ends.
        self._stop_at_exit = weakref.finalize(self, _core.Supplier.stop, self._core)

    @property
    def generator_fn(self) -> Callable[..., Any] | None:
        """The function that makes one sample; None if this supplier has another kind of function.

        Raises:
            ConfigError: when it is assigned to a supplier of another kind, or not a function.
        """
        return self._generator_fn

    @generator_fn.setter
    def generator_fn(self, function: Callable[..., Any]) -> None:
        if self._generator_fn is None:
            raise ConfigError("this supplier makes its samples with another function than generator_fn")
        self._generator = make_generator(
            function, slot_size=self.slot_size, batch_config=self._batch_config, output=self._output
        )
        self._generator_fn = function
        self._place = place_of(function)
        self._core.renew()

    def hello(self) -> dict[str, Any]:
        """Register with the broker, waiting until one answers; optional, because `start` does it too.

        Returns:
            ``{"ok": True, "error": None, "peer_id": number}``.

        Raises:
            HelloError: no broker within send_timeout_ms, it refused the patterns, or this supplier was stopped.
        """
        self._check_not_stopped()
        _core.sweep()
        peer_id = self._core.hello(self.send_timeout_ms)
        self._relay_log()
        if peer_id is None:
            cause = self._core.connection_error or f"no answer from {self.endpoint}"
            raise HelloError(f"HELLO failed: timeout after {self.send_timeout_ms} ms: {cause}")
        return {"ok": True, "error": None, "peer_id": peer_id}

    def start(self) -> None:
        """Register with the broker, waiting until one answers, and begin to work in a thread.

        Raises:
            HelloError: as `hello`; after `stop` make another supplier (a RuntimeError, as in softs).
        """
        self._check_not_stopped()
        if self._main_thread is not None:
            return
        self.hello()
        self._main_thread = threading.Thread(target=self._main_loop, name="softs-supplier", daemon=True)
        self._main_thread.start()

    def stop(self, *, timeout_s: float = 2.0) -> None:
        """Say GOODBYE, wait for a call of the generator that runs, disconnect. Idempotent; it cannot start again.

        Args:
            timeout_s: Seconds after which the orders of that call go to another supplier.
        """
        self._is_stopped = True
        self._core.stop()
        thread = self._main_thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=timeout_s)
        # From here on a generator that still runs may not write: the broker gives its order to another supplier.
        self._core.close()
        self._relay_log()

    def wait(self) -> None:
        """Block until the supplier has stopped; return at once if it is not running. Ctrl-C ends the wait.

        Raises:
            SystemExit: the generator called `sys.exit`; likewise any other exception that ended the supplier. Raised once.
        """
        if self._main_thread is not None:
            join(self._main_thread)
        error, self._ended_by = self._ended_by, None
        if error is not None:
            raise error

    def _main_loop(self) -> None:
        try:
            self._core.serve(self._current_generator, self._fulfil, self._explain, self._max_wait_ms)
        except BaseException as error:
            self._ended_by = error
            raise
        finally:
            # Also when the generator ended this thread (SystemExit): its order must go to another supplier.
            self._is_stopped = True
            self._core.stop()
            self._core.close()
            self._relay_log()
            self._failures.flush()
            for writer in self._writers.values():
                writer.close()
            self._writers.clear()
            if self._output is not None:
                self._output.close()

    def _writes_to(self) -> Literal["shm", "file", "shm or file", "tcp", "tickets"] | None:
        """Return the kind of its medium, for the native side; None if a subclass overrides how it writes."""
        known = (CudaIpcMedium, ShmMedium, FilesystemMedium, TCPMedium)
        return next((base.native_kind for base in known if _writes_as(self._medium_cls, base)), None)

    def _check_not_stopped(self) -> None:
        if self._is_stopped:
            raise HelloError(
                f"HELLO failed: supplier {self._name} was stopped and cannot start again; make another one"
            )

    def _current_generator(self) -> Generator:
        return self._generator

    def _explain(self, product_id: str, problem: object) -> str:
        """Log a failure in a lane; return the text for the client."""
        self._relay_log()
        if isinstance(problem, Exception):
            return f"supplier {self._name}: {self._failure(product_id, problem)}"
        text = f"{self._generator_for(product_id)} {problem}"
        self._failures.log(logging.WARNING, problem, text)
        return f"supplier {self._name}: {text}"

    def _generator_for(self, product_id: str) -> str:
        return f"the generator for product {product_id!r} ({self._place})"

    def _failure(self, product_id: str, error: Exception) -> str:
        """Log an exception of the generator; return the text for the client."""
        place = f"product {product_id!r}: {self._place}"
        # Not by the text, which may have other numbers each time.
        key = (type(error), raised_at(error))
        self._failures.log(logging.ERROR, key, f"generator failed for {place}", error)
        return f"the generator failed for {place}\n{own_traceback(error)}\n"

    def _fulfil(
        self,
        product_id: str,
        medium: tuple[str, int],
        offset: int,
        client_slot_size: int,
        sequence: int,
    ) -> str | None:
        """Serve a lease of the broker; return None, or the error for the client."""
        error = self._make_and_write(product_id, medium, offset, client_slot_size, sequence)
        if error is not None:
            self._relay_log()
        return error

    def _make_and_write(
        self,
        product_id: str,
        medium: tuple[str, int],
        offset: int,
        client_slot_size: int,
        sequence: int,
    ) -> str | None:
        if client_slot_size not in (0, self._slot_bytes):
            return f"slot_size differs: this supplier has {self._slot_bytes}, the client {client_slot_size}"
        # Before the sample is made: a supplier that cannot write it need not make it.
        writer = self._writer_for(product_id, *medium)
        if isinstance(writer, str):
            return writer
        try:
            data = self._make(product_id, sequence)
        except Exception as error:
            return self._failure(product_id, error)
        if not isinstance(data, (bytes, bytearray, memoryview)):
            return f"{self._generator_for(product_id)} returned {type(data).__name__}, need bytes"
        n_bytes = data.nbytes if isinstance(data, memoryview) else len(data)
        if n_bytes != self.slot_size:
            return (
                f"{self._generator_for(product_id)} returned {n_bytes} bytes, need slot_size={self.slot_size}"
            )
        if isinstance(data, memoryview) and not data.c_contiguous:
            data = data.tobytes()
        config = self._batch_config
        if (
            config is not None
            and config.ragged is not None
            and _is_same(type(writer), SegmentMedium, "write")
        ):
            # Owners of TCP mediums, and mediums of users, rely on the size.
            data = memoryview(data)[: config.sample_nbytes(data)]
        return self._write(writer, medium, offset, data)

    def _writer_for(self, product_id: str, address: str, segment_id: int) -> Medium | str:
        """Return the medium of an order, or why it cannot be written to."""
        writer = self._writers.get(address)
        if writer is not None and not _is_named(writer, segment_id):
            # Its client, or another one, has made it anew.
            self._writers.pop(address).close()
            writer = None
        try:
            writer = self._attach(address) if writer is None else writer
        except Exception as error:
            # As text: a record that is kept must not keep this frame, and with it the supplier.
            logger.warning(
                "cannot open the medium %r of an order for product %r: %s", address, product_id, str(error)
            )
            return f"cannot open the medium {address!r}: {error}"
        if _is_named(writer, segment_id):
            return writer
        self._writers.pop(address).close()
        return (
            f"the medium {address!r} is another one on this host ({os.uname().nodename}) than that of the client; let "
            "suppliers and client share the file system, or join the hosts by a link"
        )

    def _write(
        self, writer: Medium, medium: tuple[str, int], offset: int, data: bytes | bytearray | memoryview
    ) -> str | None:
        address, segment_id = medium
        stride = writer.slot_stride if isinstance(writer, SegmentMedium) else 0
        if offset % (stride or self.slot_size) != 0:
            return f"offset {offset} is not that of a slot: slot_size is {self.slot_size}"
        may_write = self._core.may_write
        written: bool | None
        if not isinstance(writer, SegmentMedium):
            self._core.note_made()
        try:
            if isinstance(writer, SegmentMedium) and _has_write_if(type(writer)):
                written = writer.write_if(offset, data, may_write, segment_id)
            else:
                written = writer.write(offset, data) if may_write() else None
        except Exception as error:
            logger.exception("cannot write to the medium %r at offset %d", address, offset)
            return f"cannot write to the medium {address!r} at offset {offset}: {error}"
        if written is None:
            return "refused: its client has left the broker that gave this order, or that is gone"
        if not written:
            self._writers.pop(address).close()
            return f"cannot write {self.slot_size} bytes to the medium {address!r} at offset {offset}"
        return None

    def _make(self, product_id: str, sequence: int) -> object:
        """Return one sample: the unchecked result of a plain generator, or slot_size bytes of others."""
        generator = self._generator
        if generator.is_plain:
            return generator.function(product_id, *((sequence,) if generator.wants_sequence else ()))
        data = bytearray(self.slot_size)
        generator.make(product_id, (sequence,), (memoryview(data),))
        return data

    def _open(self, address: str) -> Medium:
        return self._medium_cls.attach_limited(
            address, file_dirs=self._file_dirs, allow_remote=self._allow_remote
        )

    def _attach(self, address: str) -> Medium:
        writer = self._open(address)
        # A mapping keeps the memory of a closed client alive, so mediums that are gone are closed here.
        for known, other in list(self._writers.items()):
            if isinstance(other, SegmentMedium) and other.is_gone:
                self._writers.pop(known).close()
        if len(self._writers) >= _MAX_WRITERS:
            oldest = next(iter(self._writers))
            self._writers.pop(oldest).close()
        self._writers[address] = writer
        if isinstance(writer, CudaIpcMedium) and self._output is not None:
            writer.share_writers(self._output.writers)
        return writer

    def _relay_log(self) -> None:
        for level, text in self._core.take_log():
            self._failures.relay(level, text)

    def __enter__(self) -> "Supplier":
        self.start()
        return self

    def __exit__(self, *args: object) -> None:
        self.stop()


def _device_output(
    medium_cls: type[Medium], config: BatchConfig | None, slot_size: int
) -> DeviceOutput | None:
    """Return the output for samples on devices; None for any other medium."""
    if not issubclass(medium_cls, CudaIpcMedium):
        return None
    if config is not None and (config.has_codecs or config.ragged is not None):
        raise ConfigError(
            "CudaIpcMedium moves tensors as they are, but a tensor of batch_config has a codec or is ragged; leave that "
            "out, or use ShmMedium"
        )
    return DeviceOutput(config, slot_size)


def _is_named(writer: Medium, segment_id: int) -> bool:
    """Return whether a medium is the segment of an order, as far as that can be known.

    The same path leads to other files on other hosts. A segment that is overwritten after this check has another
    number than the writer expects, and refuses the write under its lock.
    """
    return not isinstance(writer, SegmentMedium) or writer.is_named(segment_id)


def _has_write_if(medium_cls: type[Medium]) -> bool:
    """Return whether the class does not override `write`, so that `write_if` may be used."""
    return _is_same(medium_cls, SegmentMedium, "write") or _is_same(medium_cls, CudaIpcMedium, "write")


def _writes_as(medium_cls: type[Medium], base: type[Medium]) -> bool:
    ways = ("write", "attach", "attach_limited", "__init__")
    return issubclass(medium_cls, base) and all(_is_same(medium_cls, base, way) for way in ways)


def _is_same(cls: type, base: type, name: str) -> bool:
    mine, theirs = getattr(cls, name), getattr(base, name)
    return getattr(mine, "__func__", mine) is getattr(theirs, "__func__", theirs)
