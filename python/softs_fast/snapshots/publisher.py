"""Publishes the tensors of a model beside its training."""

from __future__ import annotations

import json
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from softs_fast.process import Closing

from ..errors import ConfigError
from .finite import are_finite
from .pace import Pace
from .staging import Staging, by_device
from .window import RemoteWindow, Window, as_json

__all__ = ["Publisher"]

# Half of what torch's `at::internal::GRAIN_SIZE` is.
_SERIAL_ITEMS = 1 << 14

#: Tensors by name, or a function that returns those of the moment.
Tensors = Mapping[str, Tensor] | Callable[[], Mapping[str, Tensor]]

_ByDevice = dict[torch.device | None, dict[str, Tensor]]


class Publisher(Closing):
    """Publishes a model in a window, beside the forward and backward pass of the next step.

    Buffers, which change in the forward pass, are copied inside the call of `offer`. Parameters, which change only when
    the optimizer steps, are copied by a thread; a hook lets the optimizer's step wait for the end of that copy. Tensors
    on CUDA devices go through pinned memory: the stream of the training waits for their copies, but not the process.
    In a fork of the process that made the window, calls that publish raise ForkedError.

    Args:
        window: Window with the layout of parameters and buffers together; stays open.
        parameters: Tensors by name, or a function that returns them. A function is called for each version, so that
            it finds the tensors of the model after `load_state_dict(assign=True)` too; what the window does not hold
            is left out.
        buffers: Tensors like the parameters; also all else that may change before the next step of the optimizer.
        optimizer: Optimizer that changes the parameters. Call `wait` before anything else changes them.
        every: Steps from one version to the next; 0 publishes the first one, and then only what others ask for.
        inspect: Whether the thread looks at each copy if its parameters are finite; buffers may have any values. A
            version that is not is published with the metric NaN.

    Raises:
        ConfigError: the tensors do not fit the window's layout, or `every` is negative.

    Example:
        >>> from softs_fast.snapshots import SnapshotLayout
        >>> model = torch.nn.Linear(3, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with Window(SnapshotLayout.of(model.state_dict())) as window:
        ...     with Publisher(window, lambda: dict(model.named_parameters()), {}, optimizer) as publisher:
        ...         for step in range(3):
        ...             model(torch.ones(3)).sum().backward()
        ...             optimizer.step()
        ...             _ = publisher.offer(step=step, metric=None, trained=step)
        ...     with RemoteWindow.open(window.address) as seen:
        ...         seen.header().step
        0
    """

    def __init__(
        self,
        window: Window,
        parameters: Tensors,
        buffers: Tensors,
        optimizer: Optimizer,
        *,
        every: int = 0,
        inspect: bool = False,
    ) -> None:
        self._window = window
        self._parameters = parameters
        self._buffers = buffers
        self._stagings: dict[torch.device, Staging] = {}
        self._pace = Pace(every)
        self._inspect = inspect
        self._inspection = _Inspection()
        self._copier = _Copier()
        self._guard = _Guard(self._copier)
        self._find()
        hook = optimizer.register_step_pre_hook(self._guard)
        # Also when the interpreter exits: the memory of the parameters must outlast the copy.
        self._finalizer = weakref.finalize(self, _end, hook, self._copier)

    def offer(
        self,
        *,
        step: int,
        metric: float | None,
        trained: int,
        config: Mapping[str, Any] | None = None,
        others: Iterable[RemoteWindow] = (),
    ) -> bool:
        """Begin to publish, if it is time to or another process asks; call it between two steps of the optimizer.

        Args:
            step: Step of this process; published with the tensors, like the next three.
            metric: Metric of this process; None if it has none.
            trained: Steps since the start, or the last replacement of the tensors.
            config: A small dict.
            others: Windows that may ask for a newer version.

        Returns:
            Whether a version was begun; it is published when the copy ends.

        Raises:
            ConfigError: the window or the publisher is closed, the config is too long or not JSON, or tensors no longer
                fit the window, such as after a change of their dtype.
            RuntimeError: CUDA failed; also of the copy before.
        """
        now_s = self._ready()
        if now_s is None or not (self._pace.is_due(step) or self._window.is_asked(others)):
            return False
        self._begin(now_s, step, metric, trained, config)
        return True

    def begin(
        self, *, step: int, metric: float | None, trained: int, config: Mapping[str, Any] | None = None
    ) -> bool:
        """Begin to publish, whether it is time to or not; not while a version is copied, nor too soon after one.

        Arguments, result and errors are those of `offer`.
        """
        now_s = self._ready()
        if now_s is None:
            return False
        self._begin(now_s, step, metric, trained, config)
        return True

    def is_busy(self) -> bool:
        """Return whether a version is copied now."""
        return self._copier.is_busy()

    def wait(self) -> None:
        """Wait until the version that was begun is published.

        Raises:
            ConfigError: the copy failed, because the window was closed.
            RuntimeError: CUDA failed.
        """
        self._copier.wait()

    def inspected(self) -> tuple[int, bool]:
        """Return the newest version that was inspected, 0 if none was, and whether its floats are finite."""
        return self._inspection.version, self._inspection.is_finite

    def close(self) -> None:
        """Wait for the copy that runs, remove the hook, and end the thread; a second call does nothing."""
        self._finalizer()

    def _ready(self) -> float | None:
        """Return the time; None if no copy may begin now."""
        if not self._finalizer.alive:
            raise ConfigError("the publisher is closed")
        now_s = time.monotonic()
        ended_s = self._copier.take_end()
        if ended_s is not None:
            self._pace.end(ended_s)
            self._copier.wait()  # raises what it raised
        return now_s if self._pace.is_possible(now_s) else None

    def _begin(
        self, now_s: float, step: int, metric: float | None, trained: int, config: Mapping[str, Any] | None
    ) -> None:
        said = None if config is None else json.loads(as_json(config))
        parameters, buffers = self._find()
        on_host = parameters.pop(None, {})
        window, inspect, inspection = self._window, self._inspect, self._inspection
        window.begin()
        window.write(buffers.pop(None, {}))
        staged = {device: self._staging(device) for device in parameters.keys() | buffers.keys() if device}
        for device, staging in staged.items():
            staging.submit(parameters.get(device, {}), buffers.get(device, {}))

        def copy() -> None:
            window.write(on_host)
            is_finite = not inspect or are_finite(_pieces(on_host.values()))
            for device, staging in staged.items():
                pinned = staging.finish()
                window.write(pinned)
                is_finite = is_finite and (
                    not inspect or are_finite(_pieces(pinned[name] for name in parameters.get(device, {})))
                )
            version = window.commit(
                step=step, metric=metric if is_finite else math.nan, trained=trained, config=said
            )
            if inspect:
                inspection.version, inspection.is_finite = version, is_finite

        self._guard.hold_for(staged.values(), has_host=bool(on_host))
        self._pace.begin(step, now_s)
        self._copier.start(copy)

    def _find(self) -> tuple[_ByDevice, _ByDevice]:
        """Return the local tensors of parameters and buffers, by device, that are published now.

        Raises:
            ConfigError: They do not fit the window.
        """
        late, early = _now(self._parameters), _now(self._buffers)
        layout = self._window.layout
        bound = layout.bind(
            {name: tensor for name, tensor in {**early, **late}.items() if name in layout.by_name}
        )
        names = [entry.names[0] for entry in layout.tensors]
        # Detached, the memory outlives the copy, even if a parameter gets other memory meanwhile.
        local = {name: tensor.detach() for name, tensor in zip(names, bound, strict=True)}
        return (
            by_device({name: tensor for name, tensor in local.items() if name in late}),
            by_device({name: tensor for name, tensor in local.items() if name not in late}),
        )

    def _staging(self, device: torch.device) -> Staging:
        if device not in self._stagings:
            self._stagings[device] = Staging(device)
        return self._stagings[device]


@dataclass
class _Inspection:
    """What the thread has seen of the newest version that it has inspected."""

    version: int = 0
    is_finite: bool = True


def _end(hook: RemovableHandle, copier: _Copier) -> None:
    hook.remove()
    copier.close()


def _pieces(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield tensors in pieces that torch computes in the calling thread: others would start threads for it alone."""
    for tensor in tensors:
        yield from torch.split(tensor.reshape(-1), _SERIAL_ITEMS)


def _now(tensors: Tensors) -> Mapping[str, Tensor]:
    return tensors() if callable(tensors) else tensors


class _Guard:
    """The hook before a step of the optimizer: parameters change only after they have been copied."""

    def __init__(self, copier: _Copier) -> None:
        self._copier = copier
        self._staged: Collection[Staging] = ()
        self._has_host = False

    def hold_for(self, staged: Collection[Staging], *, has_host: bool) -> None:
        """Let the next steps wait for copies of devices, and of the host if there are some."""
        self._staged, self._has_host = staged, has_host

    def __call__(self, *_: object) -> None:
        if not self._copier.is_busy():
            return
        for staging in self._staged:
            staging.hold()
        if self._has_host:
            self._copier.wait()


class _Copier:
    """A thread that runs one copy at a time, and blocks in between."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._copy: Callable[[], None] | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._ended_s: float | None = None
        self._error: BaseException | None = None

    def start(self, copy: Callable[[], None]) -> None:
        """Run a copy beside the caller; none runs."""
        with self._changed:
            self._copy = copy
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="softs-publisher", daemon=True)
                self._thread.start()

    def take_end(self) -> float | None:
        """Return once, for each copy, when it ended."""
        with self._changed:
            ended_s, self._ended_s = self._ended_s, None
            return ended_s

    def is_busy(self) -> bool:
        """Return whether a copy runs, or one has failed and not raised yet."""
        return self._copy is not None or self._error is not None

    def wait(self) -> None:
        """Wait until no copy runs; raise what it raised, once."""
        if os.getpid() != self._pid:  # a fork has no such thread
            return
        with self._changed:
            while self._copy is not None:
                self._changed.wait()
            error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Let the copy end, then the thread."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        with self._changed:
            while True:
                while self._copy is None and not self._is_closed:
                    self._changed.wait()
                copy = self._copy
                if copy is None:
                    return
                self._changed.release()
                try:
                    copy()
                except Exception as error:
                    self._error = error
                finally:
                    self._changed.acquire()
                self._ended_s = time.monotonic()
                self._copy = None
                self._changed.notify_all()
