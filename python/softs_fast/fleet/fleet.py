"""The fleet: a broker and its workers in one `with` block."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing.util
import numbers
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from ..distill import Worker
from ..errors import ConfigError, FleetError
from ..market import Supplier, WorkerReport, write_report
from ..process import check_process
from .autoscaler import Autoscaler, Loads
from .importable import check_importable, check_runs
from .orders import Orders
from .private_broker import FleetEndpoints, PrivateBroker
from .restarts import RestartPolicy
from .standard_streams import keep_standard_numbers
from .workers import Workers

__all__ = ["Fleet", "checked_bounds"]

#: Largest number of workers, and of hosts.
_MOST = 1024


class Fleet(Orders):
    """A broker in a private folder and worker processes that serve it, for the time of a ``with`` block.

        def make_worker():
            return sf.Worker(batch_generator_fn=generate, batch_config=config)

        if __name__ == "__main__":
            with sf.Fleet(make_worker, n_workers=4) as fleet:
                student = fleet.student(slot_count=64, batch_config=config)

    The block begins when all workers serve. What a worker prints appears on standard error after its name. A worker
    that fails later is started again, after a pause that doubles from 0.5 s to 30 s; one that has failed `max_restarts`
    times in a row is given up, and the block raises that at its end. A worker that ends by itself has failed, whatever
    its exit status; one that the leader stops is not started again.

    The broker, the workers and their segments end with the block, and with this process, even if it is killed: within
    about a second then.

    Args:
        make_worker: called in each process without arguments; returns a `Worker` or a `Supplier` that is not started.
            Without endpoints of its own it connects to this fleet. It must be importable there: a function of a module,
            or of a script that calls `Fleet` under ``if __name__ == "__main__":``, or a `functools.partial` of one; or a
            method of an object that can be pickled, such as `worker` of a teacher.
        n_workers: number of worker processes, 1 to 1024; or the fewest and the most, as ``(2, 16)``: then workers are
            added while students wait, and removed while workers idle.
        gpus: devices, by number or UUID, of which worker i sees only ``gpus[i % len(gpus)]``, by CUDA_VISIBLE_DEVICES.
        start_timeout_s: how long the start of the block waits for the workers, and how long a restart may take.
        max_restarts: failures in a row after which a worker is given up.

    Raises:
        ConfigError: an argument is out of range, or `make_worker` cannot be imported by another process.
    """

    def __init__(
        self,
        make_worker: Callable[[], Worker | Supplier],
        n_workers: int | tuple[int, int] = 1,
        *,
        gpus: Sequence[int | str] | None = None,
        start_timeout_s: float = 120.0,
        max_restarts: int = 5,
    ) -> None:
        self._bounds = checked_bounds("n_workers", n_workers)
        if not callable(make_worker):
            raise ConfigError(f"make_worker must be a function, got {type(make_worker).__name__}")
        check_importable(make_worker)
        if gpus is not None and (not gpus or not all(map(_is_device, gpus))):
            raise ConfigError(f"gpus must be numbers or UUIDs of devices, at least one, got {list(gpus)!r}")
        if max_restarts < 0:
            raise ConfigError(f"max_restarts must be at least 0, got {max_restarts}")
        if start_timeout_s <= 0:
            raise ConfigError(f"start_timeout_s must be more than 0, got {start_timeout_s}")
        self._n_workers = self._bounds[0]
        self._make_workers = functools.partial(
            Workers,
            make_worker,
            gpus=gpus,
            policy=RestartPolicy(max_restarts=max_restarts),
            start_timeout_s=start_timeout_s,
            most=self._bounds[1],
        )
        self._parts: _Parts | None = None
        self._pid = os.getpid()

    def start(self) -> None:
        """Start the broker and the workers, and wait until all serve; ``with`` calls it.

        Raises:
            FleetError: a worker failed before it served, with its traceback, or they took too long; or this fleet was
                closed.
        """
        if self._parts is not None:
            self._started()
            return
        check_runs()
        self._parts = _Parts.start(self._make_workers)
        # Also if the block is never left, or there is none: before multiprocessing waits for the workers. Not in a fork.
        self._end = multiprocessing.util.Finalize(self, self._parts.close, exitpriority=10)
        try:
            self._parts.workers.scale(self.n_workers)
            if self._bounds[0] < self._bounds[1]:
                self._parts.scale_by_load(self._bounds)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the workers and the broker; idempotent, and the end of the ``with`` block. It cannot start again."""
        if self._parts is not None:
            self._end()

    def scale(self, n_workers: int) -> None:
        """Have so many workers from now on, and wait until all serve.

        Those with the largest numbers end, each when its call has, or after 60 s.

        Raises:
            ConfigError: `n_workers` is out of range, or this fleet scales itself.
            FleetError: a worker failed before it served, or the fleet was not started.
            ForkedError: this is a fork of the process that started the fleet.
        """
        check_process(self._pid, "the fleet")
        n_workers = _checked_number("n_workers", n_workers)
        least, most = self._bounds
        if least < most:
            raise ConfigError(f"the load sets the number of workers of this fleet, from {least} to {most}")
        self._started().workers.scale(n_workers)
        self._n_workers = n_workers

    @property
    def n_workers(self) -> int:
        """The number of workers that is wanted now."""
        autoscaler = None if self._parts is None else self._parts.autoscaler
        return self._n_workers if autoscaler is None else autoscaler.n_wanted

    @property
    def endpoints(self) -> FleetEndpoints:
        """Where the broker is.

        Raises:
            FleetError: the fleet was not started.
        """
        return self._started().broker.endpoints

    def wait(self) -> None:
        """Block until no worker runs or will start again, for example because the leader has stopped them."""
        self._started().workers.wait()

    def states(self) -> dict[str, str]:
        """Return the state of each worker by its name: starting, serving, ending, pausing, ended or given up."""
        return self._started().workers.states()

    def __enter__(self) -> Fleet:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lost = None if self._parts is None else self._parts.workers.error()
        self.close()
        if lost is not None and kind is None:
            raise FleetError(lost)

    def _loads(self) -> Loads:
        """Return what measures the load of this fleet."""
        return self._started().loads()

    def _broker(self) -> PrivateBroker:
        return self._started().broker

    def _started(self) -> _Parts:
        if self._parts is None or not self._end.still_active():
            raise FleetError("the fleet is not running: use it within its with block; it cannot start again")
        return self._parts


@dataclass
class _Parts:
    """What runs while a fleet runs."""

    broker: PrivateBroker
    workers: Workers
    autoscaler: Autoscaler | None = None

    @classmethod
    def start(cls, make_workers: Callable[..., Workers]) -> _Parts:
        keep_standard_numbers()
        broker = PrivateBroker()

        def report(workers: Sequence[WorkerReport], scaled: str) -> None:
            # Without it, errors of clients do not have the cause.
            with contextlib.suppress(OSError):
                write_report(broker.folder, workers, scaled)

        return cls(broker, make_workers(broker.endpoints.as_environment(), report=report))

    def scale_by_load(self, bounds: tuple[int, int]) -> None:
        self.autoscaler = Autoscaler(self.loads(), self.workers, bounds)

    def loads(self) -> Loads:
        return Loads(self.broker.endpoints.frontend, self.workers.serving)

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            if self.autoscaler is not None:
                self.autoscaler.end()
                # Last: it may wait for a broker that is dead, and Ctrl-C ends that wait.
                stack.callback(self.autoscaler.join)
            stack.callback(self.broker.close)
            self.workers.close()


def checked_bounds(name: str, value: int | tuple[int, int]) -> tuple[int, int]:
    """Return the smallest and the largest number of an argument.

    Raises:
        ConfigError: it is neither a number from 1 to 1024 nor two of them, the smaller one first.
    """
    if not isinstance(value, (tuple, list)):
        return _checked_number(name, value), _checked_number(name, value)
    if len(value) != 2 or not all(_is_number(one) and 1 <= one <= _MOST for one in value):
        raise ConfigError(
            f"{name} must be a number, or the fewest and the most, each from 1 to {_MOST}, got {value!r}"
        )
    least, most = map(int, value)
    if least > most:
        raise ConfigError(f"{name} must have the fewest first, then the most, got {value!r}")
    return least, most


def _checked_number(name: str, value: int) -> int:
    if not _is_number(value) or not 1 <= value <= _MOST:
        raise ConfigError(f"{name} must be a number from 1 to {_MOST}, got {value!r}")
    return int(value)


def _is_device(value: Any) -> bool:
    return _is_number(value) or (isinstance(value, str) and value.startswith(("GPU-", "MIG-")))


def _is_number(value: Any) -> bool:
    """Return whether it is a whole number from 0 on, of Python or of numpy."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= 0
