"""The worker: a supplier whose generator is given the model that the leading student has set."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

from ..configs import BatchConfig
from ..errors import ConfigError
from ..market import FilesystemMedium, Medium, ShmMedium, Supplier
from ..market.protocol import ControlEndpoints, EndpointConfig
from .generator_adapters import CurrentModel, OrderRefused, by_product
from .model import PATTERN, Model
from .model_listener import Follower

__all__ = ["Worker"]

logger = logging.getLogger(__name__)


class Worker:
    """Makes samples of the model that students want.

    Give one function: `generator_fn`, `batch_generator_fn` or `fill_fn`. After the arguments named below, each may take two more by
    position, without a default or by these names: ``sequence`` (``sequences``: a tuple), the number of the sample in its student's
    stream, and ``rank``, that of the student. A sample that depends on nothing but model, sequence, rank and a seed is the same
    whichever worker makes it, so an ordered stream can be repeated. What a function raises goes to the student with its traceback.

    Until the leader has set a model, a worker waits, and says so in its log after 5 s. Orders of an earlier model are refused.

    Args:
        generator_fn: ``generator_fn(model_id, model_cfg)`` returns one sample: bytes, bytearray or memoryview of exactly slot_size;
            with a batch_config also a mapping {name: dtype [*shape]} of tensors or arrays. `model_cfg` is one dict for all calls, or
            None.
        slot_size: bytes of one sample; default: that of batch_config.
        backend_endpoint: the broker's backend.
        control_pub_endpoint: where the broker announces models.
        worker_id: a number for logs and errors; default: the process number.
        batch_generator_fn: ``batch_generator_fn(model_id, model_cfg, n)`` returns n samples for one student: a list of bytes, or all n
            end to end; with a batch_config also a mapping {name: dtype [n, *shape]}.
        fill_fn: ``fill_fn(model_id, model_cfg, out)`` makes one sample in place, see `Supplier`.
        batch_config: what a sample is made of, for functions that deal in tensors or arrays.
        max_batch: the largest n.
        max_wait_ms: how long a batch that is not full waits for more orders, milliseconds.
        medium_cls: class of the students' medium. With the default, files that orders name (an absolute path) are written too, within
            the limits of file_dirs.
        spin_us: how long it looks for work before it goes to sleep, as long as that pays off, microseconds.
        file_dirs: directories in which students' files may lie, such as those of a medium that users wrote themselves; files that a
            softs-fast client created are allowed anyway.
        allow_remote: lets orders name TCP mediums on other machines.
        send_timeout_ms: how long `start` waits for the broker, milliseconds.

    Raises:
        ConfigError: not exactly one function, or an argument is malformed.
    """

    def __init__(
        self,
        generator_fn: Callable[..., Any] | None = None,
        slot_size: int = 0,
        backend_endpoint: str = EndpointConfig.backend,
        control_pub_endpoint: str = ControlEndpoints.control_pub,
        worker_id: int | None = None,
        *,
        batch_generator_fn: Callable[..., Any] | None = None,
        fill_fn: Callable[..., Any] | None = None,
        batch_config: BatchConfig | None = None,
        max_batch: int = 64,
        max_wait_ms: float = 0.0,
        medium_cls: type[Medium] = ShmMedium,
        spin_us: float = 20.0,
        file_dirs: Sequence[str] = (),
        allow_remote: bool = False,
        send_timeout_ms: int = 10000,
    ) -> None:
        if worker_id is not None and (not isinstance(worker_id, int) or isinstance(worker_id, bool)):
            raise ConfigError(f"worker_id must be a whole number or None, got {worker_id!r}")
        self.worker_id = os.getpid() if worker_id is None else worker_id
        self.slot_size = batch_config.nbytes() if slot_size == 0 and batch_config is not None else slot_size
        self.backend_endpoint = backend_endpoint
        self.control_pub_endpoint = control_pub_endpoint
        self._current = CurrentModel()
        self._follower: Follower | None = None
        self._supplier = _WorkerSupplier(
            _by_product(self._current, generator_fn, 0),
            [PATTERN],
            backend_endpoint,
            medium_cls,
            self.slot_size,
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

    @property
    def generation(self) -> int:
        """Which use of `set_model` the model is from; 0: there was none yet."""
        return self._current.model.generation

    @property
    def model_id(self) -> str | None:
        """The model that it makes samples of; None: none was set yet."""
        return self._current.model.model_id if self.generation else None

    @property
    def model_cfg(self) -> dict[str, Any] | None:
        """What `set_model` was given with it."""
        return self._current.model.model_cfg

    def hello(self) -> dict[str, Any]:
        """Introduce this worker to the broker, waiting for one to appear; optional, `start` does it too.

        Returns:
            ``{"ok": True, "error": None, "peer_id": number}``.

        Raises:
            HelloError: no broker within send_timeout_ms.
        """
        return self._supplier.hello()

    def start(self) -> None:
        """Introduce this worker to the broker, waiting for one to appear, and begin to work in a thread.

        Raises:
            HelloError: no broker within send_timeout_ms.
            ConfigError: control_pub_endpoint is malformed.
        """
        if self._follower is not None:
            return
        self._follower = Follower(
            self.control_pub_endpoint, self._switch, self._stop_for_leader, f"worker {self.worker_id}"
        )
        try:
            self._supplier.start()
        except BaseException:
            self.stop()
            raise

    def run(self) -> None:
        """Work until the leader says STOP, another thread calls `stop`, or Ctrl-C.

        Raises:
            KeyboardInterrupt: Ctrl-C; the worker has stopped by then.
            HelloError, ConfigError: as `start`.
        """
        self.start()
        try:
            self._supplier.wait()
        finally:
            self.stop()

    def stop(self) -> None:
        """Leave the broker, waiting up to 2 s for a call of the generator that is running. Idempotent."""
        self._current.close()
        self._supplier.stop()
        if self._follower is not None:
            self._follower.close()

    def _switch(self, model: Model) -> None:
        newest = self._current.model
        if (model.generation, model.model_id, model.encoded_cfg) == (
            newest.generation,
            newest.model_id,
            newest.encoded_cfg,
        ):
            return  # it comes again with each connection
        logger.info("worker %d: generation %d, model %r", self.worker_id, model.generation, model.model_id)
        self._current.set(model)

    def _stop_for_leader(self) -> None:
        logger.info("worker %d: the leader says STOP", self.worker_id)
        self.stop()

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(self, *args: object) -> None:
        self.stop()


class _WorkerSupplier(Supplier):
    """A supplier that also writes to files of mediums that users have written themselves."""

    def _open(self, address: str) -> Medium:
        if address.startswith("/") and issubclass(self._medium_cls, ShmMedium):
            return FilesystemMedium.attach_limited(address, file_dirs=self._file_dirs)
        return super()._open(address)

    def _explain(self, product_id: str, problem: object) -> str:
        if isinstance(problem, OrderRefused):
            return self._failure(product_id, problem)
        return super()._explain(product_id, problem)

    def _failure(self, product_id: str, error: Exception) -> str:
        # Refusing is part of every switch, and no error of the generator's.
        if isinstance(error, OrderRefused):
            logger.debug("order of %r refused: %s", product_id, error)
            return f"{_REFUSED}{error}"
        return super()._failure(product_id, error)


def _by_product(
    current: CurrentModel, function: Callable[..., Any] | None, n_before: int
) -> Callable[..., Any] | None:
    return None if function is None else by_product(current, function, n_before)


#: Tells broker and client that another attempt is of no use, and nobody's fault; docs/wire.md.
_REFUSED = "refused: "
