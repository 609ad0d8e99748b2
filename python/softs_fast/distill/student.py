"""The student: sets the model that workers run, and takes samples one by one."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from threading import Condition, Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _core
from ..configs import BatchConfig
from ..errors import BrokerTimeout, HelloError, SampleTimeout
from ..market import Medium as MarketMedium
from ..market import ShmMedium, default_endpoint
from ..mediums import Medium, market_medium
from ..process import Closing, renewed_in_forks
from .model import NO_MODEL, Model, check_model_id, check_rank, encode_model_cfg, product_of
from .model_listener import ModelListener, model_of
from .orders import StudentOrders
from .shared_generation import SharedGeneration, new_generation_value, set_generation

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["SampleRef", "StudentClient"]

logger = logging.getLogger(__name__)


class _Wanted(NamedTuple):
    model: Model
    product: str


class SampleRef:
    """A finished sample; it stays in its slot until `StudentClient.release_slot`.

    Attributes:
        slot_id: number of the slot.
        generation: generation of its model.
    """

    __slots__ = ("_client", "generation", "slot_id")

    def __init__(self, slot_id: int, generation: int, client: StudentClient) -> None:
        self.slot_id = slot_id
        self.generation = generation
        self._client = client

    @property
    def data(self) -> bytes:
        """Return a copy of its bytes.

        Raises:
            SegmentError: the client is closed.
        """
        return self._client.read_slot(self.slot_id)

    def tensors(self) -> dict[str, Tensor]:
        """Return its tensors, `{name: dtype [*shape]}`, each with memory of its own.

        Raises:
            SegmentError: the client is closed.
            ImportError: torch is not installed.
        """
        return self._client.decode_slot(self.slot_id)

    def __repr__(self) -> str:
        return f"SampleRef(slot_id={self.slot_id}, generation={self.generation})"


class StudentClient(Closing):
    """One rank of the training. It owns slots; the student of rank 0 is the leader, which sets the model.

    Each use of `set_model` begins a new *generation*. No sample of an earlier one is handed out afterwards, neither by
    this client nor by a `DistillIterableDataset` that shares its `generation_value`.

    Args:
        student_rank: 0 is the leader. Each rank can be taken by one live student.
        slot_count: Samples that can be on order, finished, or in use at a time.
        batch_config: Layout of a sample.
        frontend_endpoint: The broker's frontend; default, as for the next two: that of the environment (of a process that
            `Fleet` or ``softs-fast run`` has started), or else a path in /tmp.
        control_endpoint: The broker's endpoint for students, by which the leader sets the model.
        control_pub_endpoint: The endpoint at which the broker announces the model, for `start_sub_listener`.
        medium: Memory for samples, one of `softs_fast.mediums` or your own, with slot_count slots of
            `batch_config.nbytes()`; it is closed and unlinked with this client. Default: one of medium_cls.
        medium_cls: Class of the medium that is created if `medium` is None.
        ordered: Hand the samples of each generation out strictly by their sequence numbers, 0, 1, 2, ...: if the
            workers' function depends on sequence and rank only, the stream is the same for any number of workers.
        prefetch: Samples on order or finished ahead of requests at most; default: all slots.
        send_timeout_ms: How long a request waits for the broker, milliseconds.

    Raises:
        ConfigError: an argument is out of range or malformed, or the medium has other slots than it should.
        SegmentError: the medium cannot be created.
    """

    def __init__(
        self,
        student_rank: int,
        slot_count: int,
        batch_config: BatchConfig,
        frontend_endpoint: str | None = None,
        control_endpoint: str | None = None,
        control_pub_endpoint: str | None = None,
        *,
        medium: Medium | None = None,
        medium_cls: Callable[..., MarketMedium] = ShmMedium,
        ordered: bool = False,
        prefetch: int | None = None,
        send_timeout_ms: int = 5000,
    ) -> None:
        self.student_rank = check_rank(student_rank)
        self.batch_config = batch_config
        self.control_endpoint = control_endpoint or default_endpoint("control")
        self.control_pub_endpoint = control_pub_endpoint or default_endpoint("control_pub")
        self.send_timeout_ms = send_timeout_ms
        self._generation_value = new_generation_value()
        self._changed = Condition()
        # Held while the client is switched to the wanted model.
        self._ordering: Lock
        renewed_in_forks(self, "_ordering")
        # If samples are taken from datasets only, this client orders none.
        self._orders_samples = False
        # The newest generation that was announced.
        self._announced = 0
        # The wanted model, as one tuple because another thread may change it, and the model on order.
        self._wanted = self._ordered = _Wanted(NO_MODEL, product_of(0, student_rank))
        self._listener: ModelListener | None = None
        # Created by hello(), because it takes the seat at once.
        self._control: _core.ControlStudent | None = None
        self._reader: Any = None
        n_bytes = batch_config.nbytes()
        self._client = StudentOrders(
            frontend_endpoint or default_endpoint("frontend"),
            medium_cls if medium is None else _factory(market_medium(medium, slot_count, n_bytes)),
            n_bytes,
            slot_count,
            None,
            send_timeout_ms,
            ordered=ordered,
            prefetch=prefetch,
            ragged=batch_config.ragged,
        )
        self._request = self._client._core.request_sample

    def hello(self) -> dict[str, Any]:
        """Take the seat of this rank at the broker, waiting until one answers, and learn the newest model.

        The seat is held until `close`, and taken again automatically after a restart of the broker.

        Returns:
            ``{"ok": True, "error": None, "peer_id": number, "generation": number, "model_id": str or None}``.

        Raises:
            HelloError: no broker answered within send_timeout_ms.
            ConfigError: a live student has this rank already, or control_endpoint is malformed.
        """
        self._client.hello()
        control = self._control
        if control is None:
            control = self._control = _core.ControlStudent(
                self.control_endpoint, self.student_rank, self.batch_config.nbytes()
            )
        answer = control.hello(self.send_timeout_ms)
        self._relay_log()
        if answer is None:
            cause = control.connection_error or f"no answer from {self.control_endpoint}"
            raise HelloError(f"HELLO failed: timeout after {self.send_timeout_ms} ms: {cause}")
        peer_id, generation, model_id, encoded_cfg = answer
        if generation:
            self._adopt(model_of(generation, model_id, encoded_cfg))
        return {
            "ok": True,
            "error": None,
            "peer_id": peer_id,
            "generation": self.generation,
            "model_id": self.model_id,
        }

    def set_model(self, model_id: str, model_cfg: Mapping[str, Any] | None = None) -> int:
        """As the leader, make workers run another model from now on.

        Orders and samples of the model before are cancelled or dropped.

        Args:
            model_id: its name, 1 to 256 bytes of UTF-8.
            model_cfg: passed to the workers' functions; anything that msgpack can encode, to at most 1020 KiB.

        Returns:
            The new generation.

        Raises:
            ConfigError: this is not the leader, or the arguments cannot be sent.
            BrokerTimeout: no broker answered within send_timeout_ms; the model may have been set nevertheless.
            HelloError: `hello` was not called before, and no broker answered now.
        """
        check_model_id(model_id)
        encoded_cfg = encode_model_cfg(model_cfg)
        control = self._control_after_hello()
        try:
            generation = control.set_model(model_id, encoded_cfg, self.send_timeout_ms)
        finally:
            self._relay_log()
        self._adopt(model_of(generation, model_id, encoded_cfg), goes_back=True)
        self._switch_client()
        return generation

    def stop_workers(self) -> None:
        """As the leader, stop all workers that listen.

        Raises:
            ConfigError: this is not the leader.
            BrokerTimeout: no broker answered within send_timeout_ms.
            HelloError: `hello` was not called before, and no broker answered now.
        """
        control = self._control_after_hello()
        try:
            control.stop_workers(self.send_timeout_ms)
        finally:
            self._relay_log()

    def start_sub_listener(self) -> None:
        """Start a thread that follows the models that the leader sets; the newest one at once. Idempotent.

        Raises:
            ConfigError: control_pub_endpoint is malformed.
        """
        if self._listener is None:
            owner = f"student {self.student_rank}"
            self._listener = ModelListener(self.control_pub_endpoint, self._follow, _do_nothing, owner)

    def wait_for_generation(self, generation: int, timeout_s: float = 30.0) -> None:
        """Wait until this client follows at least this generation.

        Raises:
            BrokerTimeout: it was not announced within timeout_s, or `start_sub_listener` was not called.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self.generation >= generation, timeout_s):
                raise BrokerTimeout(
                    f"student {self.student_rank} has not received generation {generation} within {timeout_s:.1f} s, "
                    f"it is at {self.generation}; it receives models at {self.control_pub_endpoint} after "
                    "start_sub_listener()"
                )

    def request_sample(self, timeout_ms: int = 1000) -> SampleRef | None:
        """Return a finished sample of the newest model, waiting for one if necessary.

        All free slots are kept on order, so that usually one is ready.

        Returns:
            The sample, held until `release_slot`; None if none was finished within timeout_ms (`diagnose` returns the
            cause).
        """
        wanted, waited_ms = self._wanted, 0
        if wanted is self._ordered and wanted.model.generation:
            waited_ms = 1 if timeout_ms >= 1 else 0
            slot_id = self._request(wanted.product, waited_ms)
            if slot_id is not None:
                if self._wanted is wanted:
                    return SampleRef(slot_id, wanted.model.generation, self)
                self._client.release_slot(slot_id)
        return self._wait_for_sample(time.monotonic() + (timeout_ms - waited_ms) / 1000)

    def release_slot(self, slot_id: int) -> None:
        """Release a held slot, so that it can be ordered again.

        Raises:
            ConfigError: there is no such slot, or it is not held (released twice).
        """
        self._client.release_slot(slot_id)

    def read_slot(self, slot_id: int) -> bytes:
        """Return a copy of the bytes of a slot.

        Raises:
            SegmentError: there is no such slot, or the client is closed.
        """
        return self._client.medium.read(slot_id)

    def decode_slot(self, slot_id: int) -> dict[str, Tensor]:
        """Return the tensors of a slot, `{name: dtype [*shape]}`, each with memory of its own.

        Raises:
            SegmentError: there is no such slot, or the client is closed.
            ConfigError: the medium returned another number of bytes than a sample has.
            ImportError: torch is not installed.
        """
        if self._reader is None:
            from ..loader import SampleReader

            self._reader = SampleReader(self.batch_config, self._client.medium)
        self._reader.read(slot_id)
        tensors: dict[str, Tensor] = self._reader.take()
        return tensors

    def diagnose(self, waited_s: float = 0.0) -> SampleTimeout:
        """Return the cause why no sample arrives, as an exception to raise."""
        return self._client.diagnose(self._wanted.product, waited_s)

    def get_stats(self) -> dict[str, Any]:
        """Return the broker's statistics, see `Client.get_stats`.

        Raises:
            BrokerTimeout: no answer within send_timeout_ms.
        """
        return self._client.get_stats()

    @property
    def generation(self) -> int:
        """Generation that this client follows; 0: no model was set yet."""
        return self._wanted.model.generation

    @property
    def generation_value(self) -> SharedGeneration:
        """The same in memory that other processes share, as the attribute `value`: for datasets."""
        return self._generation_value

    @property
    def model_id(self) -> str | None:
        """Name of the wanted model; None: none was set yet."""
        return self._wanted.model.model_id if self.generation else None

    @property
    def model_cfg(self) -> dict[str, Any] | None:
        """Configuration of the wanted model, as passed to `set_model`."""
        return self._wanted.model.model_cfg

    @property
    def medium(self) -> MarketMedium:
        """The medium that samples are written to."""
        return self._client.medium

    def close(self) -> None:
        """Release the seat, disconnect from the broker, close and remove the slots. Idempotent."""
        if self._listener is not None:
            self._listener.close()
        if self._control is not None:
            self._control.close()
        self._client.close()

    def _control_after_hello(self) -> _core.ControlStudent:
        if self._control is None:
            self.hello()
        assert self._control is not None
        return self._control

    def _relay_log(self) -> None:
        if self._control is not None:
            for record in self._control.take_log():
                logger.log(*record)

    def _follow(self, model: Model) -> None:
        # One broker only counts up. A lower number comes from another broker, which knows of no newer generation.
        goes_back, self._announced = model.generation < self._announced, model.generation
        # What the leader has set is the newest, and it tells a broker that has been started anew and has heard of an older one.
        is_leader = self.student_rank == 0 and self._control is not None
        if self._adopt(model, goes_back and not is_leader):
            if self._control is not None:
                self._control.note_model(model.generation, model.model_id, model.encoded_cfg)
            self._switch_client()

    def _adopt(self, model: Model, goes_back: bool = False) -> bool:
        """Switch to another model, of a later generation, or of any if `goes_back`; return False if nothing changes."""
        with self._changed:
            if model.generation <= self.generation and not goes_back:
                return False
            self._wanted = _Wanted(model, product_of(model.generation, self.student_rank))
            set_generation(self._generation_value, model.generation, model.digest)
            self._changed.notify_all()
        logger.info(
            "student %d: generation %d, model %r", self.student_rank, model.generation, model.model_id
        )
        return True

    def _switch_client(self) -> _Wanted:
        """Order only the wanted model, and return it; waits for an earlier model end."""
        with self._ordering:
            wanted = self._wanted
            if wanted is not self._ordered:
                self._client.follow(wanted.product, ahead=self._orders_samples)
                self._ordered = wanted
        return wanted

    def _wait_for_sample(self, deadline: float) -> SampleRef | None:
        self._orders_samples = True
        while True:
            left_s = max(deadline - time.monotonic(), 0.0)
            if self.generation == 0:
                with self._changed:
                    if not self._changed.wait_for(lambda: self.generation > 0, left_s):
                        return None
            wanted = self._switch_client()
            slot_id = self._client.request_sample(wanted.product, math.ceil(left_s * 1000))
            if slot_id is None:
                if left_s == 0:
                    return None
            elif self._wanted is wanted:
                return SampleRef(slot_id, wanted.model.generation, self)
            else:
                self._client.release_slot(slot_id)


def _factory(medium: MarketMedium) -> Callable[..., MarketMedium]:
    return lambda **_: medium


def _do_nothing() -> None:
    """Ignore STOP, which is for workers."""
