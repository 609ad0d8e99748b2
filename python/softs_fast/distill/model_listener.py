"""Receives the models that the leader sets, in a thread that blocks until one is announced."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable

from .. import _core
from ..errors import WireError
from .model import Model, decode_model_cfg

__all__ = ["ModelListener", "model_of"]

logger = logging.getLogger(__name__)

#: Time without a model after which a warning is logged, milliseconds.
_WARN_AFTER_MS = 5000


class ModelListener:
    """Listens to a broker's announcements of models.

    Args:
        endpoint: the broker's control_pub.
        on_model: called in the listening thread with each model that is announced.
        on_stop: called there when the leader sends STOP.
        owner: name of the worker or student, for the log.

    Raises:
        ConfigError: the endpoint is malformed.
    """

    def __init__(
        self,
        endpoint: str,
        on_model: Callable[[Model], None],
        on_stop: Callable[[], None],
        owner: str,
    ) -> None:
        self._endpoint = endpoint
        self._on_model = on_model
        self._on_stop = on_stop
        self._owner = owner
        self._core = _core.ControlSubscriber(endpoint)
        self._thread = threading.Thread(target=self._listen, name="softs-listener", daemon=True)
        # A daemon thread must not be inside native code when the interpreter ends.
        self._close_at_exit = weakref.finalize(self, _core.ControlSubscriber.close, self._core)
        self._thread.start()

    def close(self) -> None:
        """Stop listening. Idempotent."""
        self._core.close()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _listen(self) -> None:
        warn_after_ms: int | None = _WARN_AFTER_MS
        while not self._core.is_closed:
            event = self._core.next_event(warn_after_ms)
            for record in self._core.take_log():
                logger.log(*record)
            if event is None:
                if warn_after_ms is not None and not self._core.is_closed:
                    logger.warning(
                        "%s waits for a model: the leader (rank 0) has not called set_model(), or no broker is at %s",
                        self._owner,
                        self._endpoint,
                    )
                    warn_after_ms = None
                continue
            if event[0] == "STOP":
                self._on_stop()
                continue
            warn_after_ms = None
            try:
                model = model_of(*event[1:])
            except WireError as error:
                logger.error(
                    "%s ignores model %r of generation %d: %s", self._owner, event[2], event[1], error
                )
                continue
            self._on_model(model)


def model_of(generation: int, model_id: str, encoded_cfg: bytes) -> Model:
    """Return a model from a broker's announcement.

    Raises:
        WireError: its configuration cannot be decoded.
    """
    return Model(generation, model_id, decode_model_cfg(encoded_cfg), encoded_cfg)
