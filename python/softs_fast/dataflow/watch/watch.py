"""All that watches one open flow: its thread, its trace, and groups that are dropped."""

from __future__ import annotations

import logging
import math
import os
import time
from pathlib import Path

from ...errors import FlowError
from ..declare.calls import TRAIN
from ..engine.runner import Runner
from ..workers.backend import Backend
from .drops import DropWatch
from .options import WatchOptions
from .status import quiet_since, report_of, status_of
from .thread import WatchThread
from .trace import Trace

__all__ = ["Watch"]

logger = logging.getLogger(__name__)

#: A flow that is to be ended looks so often whether it is, seconds.
_ABORT_S = 0.5


class Watch:
    """Begins when a flow is opened.

    Args:
        name: Name of the flow.
        options: Options of trace and watchdog.
        runner: Runner of the flow.
        backend: Backend of the flow.

    Raises:
        ConfigError: the trace cannot be written.
    """

    def __init__(self, name: str, options: WatchOptions, runner: Runner, backend: Backend) -> None:
        self._aborts = options.on_stall == "abort"
        self._runner, pid, opened_s = runner, os.getpid(), time.monotonic()
        # When all workers had begun; after it has gone back, infinite until they have again.
        self._begun_s = opened_s
        self._trace = None if options.trace is None else Trace(Path(options.trace), runner.master.plan.group)
        runner.observer = self._trace
        self._drops = _drops_of(runner)
        self._thread = WatchThread(
            lambda: status_of(name, pid, opened_s, self._runner, backend, time.monotonic()),
            lambda: self._quiet_since(backend),
            lambda since_s, now_s: report_of(self._runner, backend, since_s, now_s),
            options.watchdog_s,
        )

    def follow(self, runner: Runner) -> None:
        """Watch another runner from now on: the flow goes back to a common save. It is not quiet before `begun`."""
        self._begun_s = math.inf
        self._runner.observer = None
        if self._trace is not None:
            self._trace.drop_all()
        runner.observer, self._runner, self._drops = self._trace, runner, _drops_of(runner)

    def begun(self) -> None:
        """All workers have begun again."""
        self._begun_s = time.monotonic()

    def limit(self, timeout_s: float | None) -> float | None:
        """Return how long the flow may wait before it asks for an error."""
        if not self._aborts:
            return timeout_s
        return _ABORT_S if timeout_s is None else min(timeout_s, _ABORT_S)

    def error(self) -> FlowError | None:
        """Return why the flow is to be ended; None if it is not. That groups are dropped and no step is complete is logged."""
        counts = self._runner.master.rows.counts[TRAIN]
        dropping = self._drops.observe(counts.complete, counts.dropped)
        if dropping is not None:
            logger.warning("%s", dropping)
        since_s, text = self._thread.last
        # A report of the time before the flow has gone back says nothing of it now.
        found = text if since_s >= self._begun_s and text else dropping
        return FlowError(found) if self._aborts and found else None

    def dropped(self) -> str:
        """Return how many groups were dropped since the last step was complete, with the reasons; empty if there are none."""
        return self._drops.since(self._runner.master.rows.counts[TRAIN].dropped)

    def close(self) -> None:
        """End it."""
        self._thread.close()
        self._runner.observer = None
        if self._trace is not None:
            self._trace.close()

    def _quiet_since(self, backend: Backend) -> float | None:
        since_s = quiet_since(self._runner, backend)
        if since_s is None or math.isinf(self._begun_s):
            return None
        return max(since_s, self._begun_s)


def _drops_of(runner: Runner) -> DropWatch:
    return DropWatch(runner.master.plan.partitions[TRAIN].groups_per_step)
