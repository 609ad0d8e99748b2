"""What the thread of a worker's program and that of its session share: the machine, and what it wants done."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from ...errors import PeerLost, SoftsError
from ..credentials import ClientCredentials
from ..job.messages import Fence, Hello, ToWorker
from ..job.participant import Action, Build, EndEngine, GiveUp, Participant, Say, Warn
from ..session.session import Session

__all__ = ["TICK_S", "Link", "Patience"]

#: Waits look for signals this often.
TICK_S = 0.1
# For the others to end their step, and for a connection that has ended to be made again.
_LEAVE_S, _AWAY_S = 10.0, 1.0


class Patience:
    """Decides how long a worker that leaves waits for the coordinator. No clock: the time is an argument."""

    def __init__(self, now_s: float) -> None:
        self._end_s = now_s + _LEAVE_S
        self._away_since_s: float | None = None

    def lasts(self, now_s: float, is_connected: bool) -> bool:
        """Return whether to wait on, with or without a connection to the coordinator at this time."""
        if is_connected:
            self._away_since_s = None
        elif self._away_since_s is None:
            self._away_since_s = now_s
        is_away = self._away_since_s is not None and now_s >= self._away_since_s + _AWAY_S
        return now_s < self._end_s and not is_away


class Link(ABC):
    """A session with the coordinator, and the machine that it tells what happens. A subclass ends engines.

    Attributes:
        logger: Logger of what happens.
        changed: Condition notified when anything here changes. Held for moments only: never during a call of the
            engine.
        machine: State machine that decides; used with the lock.
        session: Session with the coordinator.
        build: Engine that is to be built; None if none is.
        error: Error that is set once the worker is in no epoch any more.

    Args:
        coordinator: Place of the coordinator, HOST:PORT or ``softs://HOST[:PORT][,HOST2]/JOB?token_file=FILE``.
        hello: First message of a connection.
        credentials: Credentials with which the worker proves what it is.
        logger: Logger of what happens.
        orphan_s: Seconds without a coordinator after which the worker ends.

    Raises:
        ConfigError: an argument is wrong, or gRPC is not installed.
    """

    def __init__(
        self,
        coordinator: str,
        hello: Hello,
        credentials: ClientCredentials | None,
        logger: logging.Logger,
        orphan_s: float,
    ) -> None:
        self.logger = logger
        self.changed = threading.Condition()
        self.machine = Participant(hello)
        self.build: Build | None = None
        self.error: SoftsError | None = None
        self.session = Session(coordinator, self, credentials, limit_s=orphan_s)

    def wait_until_left(self, is_leaving: Callable[[], bool]) -> None:
        """Wait until the worker has left, or its coordinator is gone; with the lock."""
        patience = Patience(time.monotonic())
        while is_leaving() and patience.lasts(time.monotonic(), not self.session.trouble):
            self.changed.wait(TICK_S)

    def wait_for(self, is_so: Callable[[], object], bound_s: float) -> bool:
        """Wait until something is so, for `bound_s` at most; with the lock. Return whether it is."""
        end_s = time.monotonic() + bound_s
        while not is_so() and time.monotonic() < end_s:
            self.changed.wait(TICK_S)
        return bool(is_so())

    # --- By both threads, with the lock ---

    def do(self, actions: list[Action]) -> None:
        """Do what the machine wants."""
        for action in actions:
            match action:
                case Say(message):
                    self.session.send(message)
                case Build():
                    self.build = action
                case EndEngine(fence):
                    self.logger.info("epoch %d ends: %s", fence.epoch, fence.text)
                    self.end_engine(fence)
                case Warn(text):
                    self.logger.warning("%s", text)
                case GiveUp(refused):
                    self.error = PeerLost(f"the coordinator has refused this worker: {refused.text}")
        self.changed.notify_all()

    @abstractmethod
    def end_engine(self, fence: Fence) -> None:
        """End the calls of the epoch, and tell the machine when none is pending."""

    # --- By the thread of the session ---

    def hello(self) -> Hello:
        """Return the first message of a connection."""
        with self.changed:
            return self.machine.connected()

    def received(self, message: ToWorker) -> None:
        """Take a message."""
        with self.changed:
            self.do(self.machine.receive(message))

    def lost(self, text: str, is_warning: bool) -> None:
        """Note that there is no connection."""
        level = logging.WARNING if is_warning else logging.INFO
        self.logger.log(level, "no connection to the coordinator: %s", text)
        with self.changed:
            self.do(self.machine.disconnected())

    def ended(self, error: SoftsError) -> None:
        """Note that there will be none."""
        with self.changed:
            self.error = self.error or error
            self.changed.notify_all()
