"""Starts the workers of a fleet, watches them, starts again those that fail, and ends them: one thread."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection
from typing import Any

from ..errors import FleetError
from ..market import WorkerReport
from .fork_server import ForkServer, server_for
from .importable import make_main_importable
from .member import Member
from .restarts import RestartPolicy, Restarts
from .standard_streams import keep_standard_numbers
from .worker_process import DRAIN_S

__all__ = ["Supervisor"]

logger = logging.getLogger(__name__)

#: A worker that was told to end is killed after this time, seconds. Its own limit is shorter.
_END_S = 3.0
#: How often a worker that is to start looks for the process that starts it, seconds.
_LOOK_S = 0.02


class Supervisor:
    """The workers of a fleet, numbered from 0.

    Args:
        make_worker: Function called in each process; returns its worker, not started.
        environment_of: Function of the number of a worker; returns the variables of its process.
        policy: Rules for starting a worker again that has failed. One that fails before it has ever served is not
            started again.
        start_timeout_s: How long a worker that starts again may take until it serves, seconds.
        report: Function called in the thread of this object with all workers, and how their number was changed last,
            whenever either has changed.
    """

    def __init__(
        self,
        make_worker: Callable[[], Any],
        environment_of: Callable[[int], Mapping[str, str]],
        policy: RestartPolicy,
        start_timeout_s: float,
        report: Callable[[Sequence[WorkerReport], str], None],
    ) -> None:
        keep_standard_numbers()
        make_main_importable()
        self._make_worker = make_worker
        self._environment_of = environment_of
        self._policy = policy
        self._start_timeout_s = start_timeout_s
        self._report = report
        self._reported: tuple[list[WorkerReport], str] = ([], "")
        self._changed = threading.Condition()
        self._wanted, self._scaled = 0, ""
        self._is_closing, self._end_s = False, _END_S
        #: Starts the processes; None before the first one.
        self._server: ForkServer | None = None
        #: By number; those beyond the wanted ones are ending.
        self._members: dict[int, Member] = {}
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="softs-fleet", daemon=True)
        self._thread.start()

    def scale(self, n_workers: int, timeout_s: float, progress: Callable[[int], None]) -> None:
        """Have so many workers, and wait until all of them serve.

        Args:
            n_workers: Number of workers.
            timeout_s: Longest wait until all of them serve, seconds. Those that are too many have their own limit.
            progress: Function called about every second with the number of those that serve.

        Raises:
            FleetError: one failed before it served, or some took too long. There are as many as before then, if those
                were fewer.
        """
        with self._changed:
            before, self._wanted = self._wanted, n_workers
        self._wake()
        try:
            self._wait_until_serving(n_workers, timeout_s, progress)
        except BaseException:
            # Those that serve go on.
            with self._changed:
                self._wanted = min(before, n_workers)
            self._wake()
            raise

    def _wait_until_serving(self, n_workers: int, timeout_s: float, progress: Callable[[int], None]) -> None:
        give_up = time.monotonic() + timeout_s
        with self._changed:
            while True:
                if self._is_closing:
                    raise FleetError("the fleet has ended")
                present = [self._members.get(number) for number in range(n_workers)]
                members = [member for member in present if member is not None]
                failed = [member for member in members if member.state == "given up"]
                if failed:
                    # One that was killed may be why others failed that waited for it.
                    first = next((member for member in failed if member.was_killed), failed[0])
                    raise FleetError(f"{first.name} failed: {first.error}")
                n_serving = sum(member.state in ("serving", "ended") for member in members)
                if n_serving == n_workers and len(self._members) == n_workers:
                    return
                if n_serving < n_workers and time.monotonic() >= give_up:
                    raise FleetError(f"{n_serving} of {n_workers} workers serve after {timeout_s:g} s")
                progress(n_serving)
                self._changed.wait(1.0)

    def aim(self, n_workers: int, reason: str) -> None:
        """Have so many workers, without a wait: those that are too many end when their calls have.

        Args:
            n_workers: Number of workers.
            reason: What to report of it.
        """
        with self._changed:
            self._wanted, self._scaled = n_workers, reason
        self._wake()

    def serving(self) -> set[int]:
        """The processes of the workers that serve."""
        with self._changed:
            members = self._members.values()
            return {one.process.pid for one in members if one.state == "serving" and one.process is not None}

    def failed_to_start(self) -> int | None:
        """The smallest number of a worker that was given up before it has ever served; None: there is none."""
        with self._changed:
            failed = (
                number
                for number, one in self._members.items()
                if one.state == "given up" and not (one.has_served or one.is_ending)
            )
            return min(failed, default=None)

    def states(self) -> dict[str, str]:
        """The state of each worker, by its name."""
        with self._changed:
            return {member.name: member.state for _, member in sorted(self._members.items())}

    def wait(self) -> None:
        """Block until no worker runs or will start again."""
        with self._changed:
            while not self._is_closing and not all(
                member.state in ("ended", "given up") for member in self._members.values()
            ):
                # In slices, so that signals are handled.
                self._changed.wait(4.0)

    def reason(self, number: int, timeout_s: float) -> str:
        """How the last run of a worker has failed, as soon as its process has ended; empty if it has not."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closing or self._has_ended(number), timeout_s)
            member = self._members.get(number)
            return member.last_error if member is not None and self._has_ended(number) else ""

    def kill(self, number: int) -> None:
        """End the process of a worker at once; nothing if it does not run."""
        with self._changed:  # under which ended processes are reaped, so the number is that of the worker
            member = self._members.get(number)
            if member is not None:
                member.kill()

    def _has_ended(self, number: int) -> bool:
        """Return whether the last run has ended; the next one may have begun, and does not serve yet."""
        member = self._members.get(number)
        return (
            member is None or member.process is None or bool(member.last_error and member.state == "starting")
        )

    def error(self) -> str | None:
        """Why a worker was given up that has served; None: none was.

        Of one that has not, `scale` tells; one that was added by `aim` is not needed.
        """
        with self._changed:
            lost = [one for one in self._members.values() if one.state == "given up" and one.has_served]
            return f"{lost[0].name} failed: {lost[0].error}" if lost else None

    def close(self, within_s: float = _END_S) -> None:
        """End all workers and wait until their processes have ended. Idempotent.

        Args:
            within_s: how long a worker may take that is in a call, seconds.
        """
        with self._changed:
            self._is_closing, self._end_s = True, within_s
        self._wake()
        self._thread.join()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # the thread has ended
            os.write(self._wake_write, b"x")

    # -- in the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._step():
                pass
        finally:
            with self._changed:
                self._is_closing = True
                for member in self._members.values():
                    member.end()
                    member.kill()
                self._changed.notify_all()
            read, write = self._wake_read, self._wake_write
            self._wake_read = self._wake_write = -1
            os.close(read)
            os.close(write)

    def _step(self) -> bool:
        """Do what is due, then wait for the next event; whether all is over."""
        now = time.monotonic()
        with self._changed:
            self._start_and_end(now)
            self._changed.notify_all()
            if self._is_closing and not self._members:
                return True
            members = [member for _, member in sorted(self._members.items())]
            sources = {source: member for member in members for source in member.sources}
            deadlines = [when for when in map(self._next_of, members) if when is not None]
            reports = [
                WorkerReport(one.name, one.state, one.last_error, one.failed_at, one.threads)
                for one in members
            ]
            reported = reports, self._scaled
        if reported != self._reported:
            self._reported = reported
            self._report(*reported)
        timeout_s = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        ready = connection.wait([self._wake_read, *sources], timeout_s)
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)
        with self._changed:
            for source in ready:
                member = sources.get(source)
                if member is not None:
                    self._handle(member, source)
        return False

    def _next_of(self, member: Member) -> float | None:
        """Return when a member is to be killed or to start again, if nothing happens before."""
        is_to_start = member.process is None and member.state in ("starting", "pausing")
        if is_to_start or member.is_ending:
            return member.since
        if member.state == "starting" and member.has_served:
            return member.since + self._start_timeout_s
        return None

    def _handle(self, member: Member, source: Any) -> None:
        if source is member.output:
            member.read_output()
        elif source is member.pipe:
            member.read_message(time.monotonic())
        elif member.process is not None and source == member.process.sentinel:
            self._ended(member)

    def _ended(self, member: Member) -> None:
        now = time.monotonic()
        has_ended_well = member.reap(now)
        if member.is_ending:
            return
        if has_ended_well:
            member.state = "ended"
            logger.info("%s has ended", member.name)
            return
        served_s = now - member.since if member.state == "ending" else 0.0
        pause_s = member.restarts.pause_after(served_s) if member.has_served else None
        if pause_s is None:
            member.state = "given up"
            logger.error("%s failed and is not started again: %s", member.name, member.error)
            return
        member.state, member.since = "pausing", now + pause_s
        logger.warning("%s failed and starts again in %.1f s: %s", member.name, pause_s, member.error)

    def _start_and_end(self, now: float) -> None:
        wanted = 0 if self._is_closing else self._wanted
        for number, member in list(self._members.items()):
            if number >= wanted and not member.is_ending:
                member.is_ending, member.since = True, now + DRAIN_S + _END_S
                member.end(drains=not self._is_closing)
            if member.is_ending and self._is_closing:
                member.since = min(member.since, now + self._end_s)
            if not member.is_ending:
                due = self._next_of(member)
                if due is None or now < due:
                    continue
                if member.process is None:
                    self._start(member, now)
                else:
                    member.error = f"it did not serve within {self._start_timeout_s:g} s of its restart"
                    member.since = now
                    member.kill()
            elif member.process is None:
                del self._members[number]
            elif now >= member.since:
                member.since = now + _END_S
                member.kill()
        for number in range(wanted):
            if number not in self._members:
                environment = self._environment_of(number)
                member = Member(f"worker {number}", self._make_worker, environment, Restarts(self._policy))
                self._members[number] = member
                self._start(member, now)

    def _start(self, member: Member, now: float) -> None:
        try:
            server = self._server_for(member)
            if server is None:
                member.since = now + _LOOK_S
                return
            member.start(now, server)
        except Exception as error:
            # No memory, no descriptor, or a function that cannot be sent to another process.
            member.state, member.error = "given up", f"its process cannot start: {error}"
            member.last_error, member.failed_at = member.error, now
            logger.exception("%s cannot start", member.name)

    def _server_for(self, member: Member) -> ForkServer | None:
        """Return the process that starts a member, or None while that begins: it imports torch."""
        if self._server is None or (self._server.is_ready() and self._server.has_ended()):
            self._server = server_for(member.environment)
        return self._server if self._server.is_ready() or self._server.has_ended() else None
