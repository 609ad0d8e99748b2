"""The worker: a supplier that passes the model set by the leading student to its generator."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

from ..configs import BatchConfig
from ..errors import ConfigError
from ..market import FilesystemMedium, Medium, ShmMedium, Supplier, default_endpoint, place_of
from .generator_adapters import CurrentModel, OrderRefused, by_product
from .model import PATTERN, Model
from .model_listener import ModelListener

__all__ = ["Worker"]

logger = logging.getLogger(__name__)


class Worker:
    """Makes samples of the model that students want.

    Give one function: `generator_fn`, `batch_generator_fn` or `fill_fn`. After the arguments named below, each may take
    two more by position, without a default or by these names: ``sequence`` (``sequences``: a tuple), the number of the
    sample in its student's stream, and ``rank``, that of the student. A sample that depends only on model, sequence,
    rank and a seed is the same from every worker, so an ordered stream can be repeated. An exception of a function is
    sent to the student with its traceback.

    Until the leader has set a model, a worker waits, and logs a warning after 5 s. Orders of an earlier model are
    refused.

    Args:
        generator_fn: ``generator_fn(model_id, model_cfg)`` returns one sample: bytes, bytearray or memoryview of
            exactly slot_size; with a batch_config also a mapping {name: dtype [*shape]} of tensors or arrays.
            `model_cfg` is one dict for all calls, or None.
        slot_size: Bytes of one sample; default: that of batch_config.
        backend_endpoint: The broker's backend; default: that of the fleet which this process belongs to, or else a path
            in /tmp.
        control_pub_endpoint: Endpoint at which the broker announces models; default: as for backend_endpoint.
        worker_id: A number for logs and errors; default: the process number.
        batch_generator_fn: ``batch_generator_fn(model_id, model_cfg, n)`` returns n samples for one student: a list of
            bytes, or all n end to end; with a batch_config also a mapping {name: dtype [n, *shape]}.
        fill_fn: ``fill_fn(model_id, model_cfg, out)`` makes one sample in place, see `Supplier`.
        batch_config: Layout of a sample, for functions that return or fill tensors or arrays.
        max_batch: The largest n.
        max_wait_ms: How long a batch that is not full waits for more orders, milliseconds.
        medium_cls: Class of the students' medium. With the default, files that orders name (an absolute path) are
            written too, within the limits of file_dirs.
        spin_us: How long it polls for work before it blocks, as long as polling finds work often enough, microseconds.
        file_dirs: Directories in which students' files may lie, such as those of a medium that users wrote; files that
            a softs-fast client created are always allowed.
        allow_remote: Lets orders name TCP mediums on other machines.
        send_timeout_ms: How long `start` waits for the broker, milliseconds.

    Raises:
        ConfigError: not exactly one function, or an argument is malformed.
    """

    def __init__(
        self,
        generator_fn: Callable[..., Any] | None = None,
        slot_size: int = 0,
        backend_endpoint: str | None = None,
        control_pub_endpoint: str | None = None,
        worker_id: int | None = None,
        *,
        batch_generator_fn: Callable[..., Any] | None = None,
        fill_fn: Callable[..., Any] | None = None,
        batch_config: BatchConfig | None = None,
        max_batch: int = 64,
        max_wait_ms: float = 0.0,
        medium_cls: Callable[..., Medium] = ShmMedium,
        spin_us: float = 20.0,
        file_dirs: Sequence[str] = (),
        allow_remote: bool = False,
        send_timeout_ms: int = 10000,
    ) -> None:
        if worker_id is not None and (not isinstance(worker_id, int) or isinstance(worker_id, bool)):
            raise ConfigError(f"worker_id must be a whole number or None, got {worker_id!r}")
        self.worker_id = os.getpid() if worker_id is None else worker_id
        self.backend_endpoint = backend_endpoint or default_endpoint("backend")
        self.control_pub_endpoint = control_pub_endpoint or default_endpoint("control_pub")
        self._current = CurrentModel()
        self._listener: ModelListener | None = None
        self._supplier = _WorkerSupplier(
            _by_product(self._current, generator_fn, 0),
            [PATTERN],
            self.backend_endpoint,
            medium_cls,
            slot_size,
            send_timeout_ms,
            batch_generator_fn=_by_product(self._current, batch_generator_fn, 1),
            fill_fn=_by_product(self._current, fill_fn, 1),
            batch_config=batch_config,
            max_batch=max_batch,
            max_wait_ms=max_wait_ms,
            spin_us=spin_us,
            file_dirs=file_dirs,
            allow_remote=allow_remote,
            name=f"{os.uname().nodename}:{self.worker_id}",
        )
        # Errors name the user's function and not the one around it.
        self._supplier._place = place_of(generator_fn or batch_generator_fn or fill_fn)
        self.slot_size = self._supplier.slot_size

    @property
    def generation(self) -> int:
        """Generation of the model; 0: no model was set yet."""
        return self._current.model.generation

    @property
    def model_id(self) -> str | None:
        """Name of the model that it makes samples of; None: none was set yet."""
        return self._current.model.model_id if self.generation else None

    @property
    def model_cfg(self) -> dict[str, Any] | None:
        """Configuration of the model, as passed to `set_model`."""
        return self._current.model.model_cfg

    def hello(self) -> dict[str, Any]:
        """Register with the broker, waiting until one answers; optional, because `start` does it too.

        Returns:
            ``{"ok": True, "error": None, "peer_id": number}``.

        Raises:
            HelloError: no broker within send_timeout_ms.
        """
        return self._supplier.hello()

    def start(self) -> None:
        """Register with the broker, waiting until one answers, and begin to work in a thread.

        Raises:
            HelloError: no broker within send_timeout_ms; or this worker was stopped: then make another one.
            ConfigError: control_pub_endpoint is malformed.
        """
        self._supplier._check_not_stopped()
        if self._listener is not None:
            return
        self._listener = ModelListener(
            self.control_pub_endpoint, self._switch, self._stop_for_leader, f"worker {self.worker_id}"
        )
        try:
            self._supplier.start()
        except BaseException:
            # A later call may find a broker.
            self._listener.close()
            self._listener = None
            raise

    def run(self) -> None:
        """Work until the leader sends STOP, another thread calls `stop`, or Ctrl-C.

        Raises:
            KeyboardInterrupt: Ctrl-C; the worker has stopped by then.
            HelloError, ConfigError: as `start`.
            SystemExit: as `wait`.
        """
        self.start()
        try:
            self.wait()
        finally:
            self.stop()

    def wait(self) -> None:
        """Block until the worker has stopped; return at once if it is not running.

        Raises:
            SystemExit: the generator called `sys.exit`; likewise any other exception that ended the worker. Raised once.
        """
        self._supplier.wait()

    def stop(self, *, timeout_s: float = 2.0) -> None:
        """Disconnect from the broker, waiting for a running call of the generator. Idempotent.

        It cannot start again.

        Args:
            timeout_s: Seconds after which the orders of that call go to another worker.
        """
        self._current.close()
        self._supplier.stop(timeout_s=timeout_s)
        if self._listener is not None:
            self._listener.close()

    def _switch(self, model: Model) -> None:
        newest = self._current.model
        if (model.generation, model.model_id, model.encoded_cfg) == (
            newest.generation,
            newest.model_id,
            newest.encoded_cfg,
        ):
            return  # the model is announced again on each connection
        logger.info("worker %d: generation %d, model %r", self.worker_id, model.generation, model.model_id)
        self._current.set(model)

    def _stop_for_leader(self) -> None:
        logger.info("worker %d: the leader has sent STOP", self.worker_id)
        self.stop()

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(self, *args: object) -> None:
        self.stop()


class _WorkerSupplier(Supplier):
    """A supplier that also writes to the files of mediums that users have written."""

    def _open(self, address: str) -> Medium:
        if address.startswith("/") and issubclass(self._medium_cls, ShmMedium):
            return FilesystemMedium.attach_limited(address, file_dirs=self._file_dirs)
        return super()._open(address)

    def _writes_to(self) -> Literal["shm", "file", "shm or file", "tcp", "tickets"] | None:
        kind = super()._writes_to()
        return "shm or file" if kind == "shm" else kind

    def _explain(self, product_id: str, problem: object) -> str:
        if isinstance(problem, OrderRefused):
            return self._failure(product_id, problem)
        return super()._explain(product_id, problem)

    def _failure(self, product_id: str, error: Exception) -> str:
        # Refusals are part of every switch, and no error of the generator.
        if isinstance(error, OrderRefused):
            logger.debug("order of %r refused: %s", product_id, error)
            return f"{_REFUSED}{error}"
        return super()._failure(product_id, error)


def _by_product(
    current: CurrentModel, function: Callable[..., Any] | None, n_before: int
) -> Callable[..., Any] | None:
    return None if function is None else by_product(current, function, n_before)


#: Prefix by which broker and client know that the order is not tried again; see docs/wire.md.
_REFUSED = "refused: "
