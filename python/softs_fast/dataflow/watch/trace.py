"""A trace of a flow for Perfetto (ui.perfetto.dev) and chrome://tracing: one track for each worker."""

from __future__ import annotations

import json
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ..declare.calls import MFCDef
from ..declare.hooks import Hook
from ..master.master import DRIVER
from ..master.order.steps import Step
from ..master.rows.table import Taken
from ..workers.backend import Done

__all__ = ["Trace"]

_log = logging.getLogger(__name__)

#: Groups of rows of which the makers are kept, for arrows; those of older ones are dropped.
_MOST_GROUPS = 1 << 15


class Trace:
    """Writes events as they come, so a file of a process that was killed has all but those it was about to write.

    The format is the array form of the Trace Event Format, in which the end of the array may be missing. All times are of
    `time.monotonic`, which processes of a host share.

    Args:
        path: Path of the file, which only this user may read; an old one is overwritten.
        group: Number of rows of a group, which stay together.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, path: Path, group: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            self._file = os.open(path, flags, 0o600)
            os.fchmod(self._file, 0o600)
        except OSError as error:
            raise ConfigError(f"cannot write the trace {path}: {error.strerror}") from error
        self._path, self._group = path, group
        self._began_s = time.monotonic()
        self._pid = os.getpid()
        self._tracks: set[int] = set()
        self._n_arrows = 0
        #: Of each group the calls that made its columns: track, end in microseconds, columns.
        self._made: OrderedDict[int, list[tuple[int, float, frozenset[str]]]] = OrderedDict()
        self._write(b"[\n")
        self._events([self._event("M", 0, 0.0, name="process_name", args={"name": "flow"})])
        if self._file < 0:
            raise ConfigError(f"cannot write the trace {path}")

    def note(self, done: Done, step: Step, call: MFCDef | None, taken: Taken | None, n_rows: int) -> None:
        """Write what a worker's part in a step has done; nothing if another one has run it, or it was skipped.

        Args:
            done: End of the part.
            step: Step that the part is of.
            call: Function of the step; None: it is a hook.
            taken: Rows of the call; None: they are not known, or it has none.
            n_rows: Number of rows in the flow.
        """
        result, worker = done.result, done.worker
        if not result.seconds:
            return
        args = {
            "call": step.call,
            "ticket": step.ticket,
            "step": taken.step + 1 if taken is not None else 0,
        }
        whole_s = result.read_s + result.seconds
        began_s = self._begin(result.began_s, whole_s) / 1e6
        times = (began_s + result.read_s, result.seconds)
        if call is None:
            name = step.work.name if isinstance(step.work, Hook) else ""
            self.step(name, step.kind.name.lower(), worker, *times, args)
            return
        outputs = call.output_keys if result.failure is None else ()
        if result.read_s:
            self.step("data_transfer", "move", worker, began_s, result.read_s, args)
        self.step(call.name, "main", worker, *times, args | {"rows": len(result.ids)})
        self.rows(worker, *times, result.ids, call.input_keys, outputs, n_rows)

    def step(
        self,
        name: str,
        kind: str,
        worker: int,
        began_s: float,
        seconds: float,
        args: dict[str, Any],
    ) -> None:
        """A worker's part in a step has ended.

        Args:
            name: Name of the function or hook.
            kind: Kind of the step.
            worker: Number of the worker.
            began_s: Time at which it began, by the clock of its process; one that cannot be of this host is not used.
            seconds: Seconds that it took.
            args: Values that the trace shows beside it.
        """
        begin = self._begin(began_s, seconds)
        events = self._track(worker)
        events.append(
            self._event("X", worker, begin, name=name, cat=kind, dur=round(seconds * 1e6, 3), args=args)
        )
        self._events(events)

    def rows(
        self,
        worker: int,
        began_s: float,
        seconds: float,
        ids: Sequence[int],
        inputs: Sequence[str],
        outputs: Sequence[str],
        n_rows: int,
    ) -> None:
        """A main part has read and made rows: arrows come from the calls that made its inputs.

        Args:
            worker: Number of the worker that ran it.
            began_s: Time at which it began, as in `step`.
            seconds: Seconds that it took, as in `step`.
            ids: Ids of the rows.
            inputs: Columns that it has read.
            outputs: Columns that it has made.
            n_rows: Number of rows in the flow.
        """
        begin, events = self._begin(began_s, seconds), []
        wanted, groups = set(inputs), ids[:: self._group]
        makers = {
            (track, end): None
            for group in groups
            for track, end, columns in self._made.get(group, ())
            if columns & wanted
        }
        for track, end in makers:
            self._n_arrows += 1
            arrow: dict[str, Any] = {"name": "rows", "cat": "rows", "id": self._n_arrows}
            events.append(self._event("s", track, end, **arrow))
            events.append(self._event("f", worker, begin, bp="e", **arrow))
        if outputs:
            # An arrow begins within the slice.
            made = (worker, begin + seconds * 1e6 * 0.999, frozenset(outputs))
            for group in groups:
                self._made.setdefault(group, []).append(made)
            while len(self._made) > _MOST_GROUPS:
                self._made.popitem(last=False)
        events.append(self._event("C", DRIVER, begin + seconds * 1e6, name="rows", args={"rows": n_rows}))
        self._events(events)

    def drop(self, ids: Sequence[int]) -> None:
        """Rows have left the flow."""
        for row_id in ids:
            self._made.pop(row_id, None)

    def drop_all(self) -> None:
        """All rows have left the flow, which has gone back: their numbers will be given again."""
        self._made.clear()

    def close(self) -> None:
        """End the array; idempotent."""
        if self._file >= 0 and self._pid == os.getpid():
            last = self._event("M", 0, 0.0, name="process_labels", args={"labels": "ended"})
            self._write(json.dumps(last).encode() + b"\n]\n")
            self._end()

    def _begin(self, began_s: float, seconds: float) -> float:
        now_s = time.monotonic()
        is_ours = self._began_s <= began_s <= now_s
        return (began_s if is_ours else max(now_s - seconds, self._began_s)) * 1e6

    def _track(self, worker: int) -> list[dict[str, Any]]:
        if worker in self._tracks:
            return []
        self._tracks.add(worker)
        name = "the flow's own process" if worker == DRIVER else f"worker {worker}"
        return [self._event("M", worker, 0.0, name="thread_name", args={"name": name})]

    def _event(self, kind: str, worker: int, ts: float, **fields: Any) -> dict[str, Any]:
        # Tracks have numbers from 1.
        return {"ph": kind, "pid": self._pid, "tid": worker - DRIVER + 1, "ts": round(ts, 3), **fields}

    def _events(self, events: list[dict[str, Any]]) -> None:
        self._write("".join(f"{json.dumps(one)},\n" for one in events).encode())

    def _write(self, data: bytes) -> None:
        if self._file < 0:
            return
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            # What runs goes on: it is worth more than its trace.
            _log.warning("cannot write the trace %s any more: %s; it ends here", self._path, error.strerror)
            self._end()

    def _end(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
