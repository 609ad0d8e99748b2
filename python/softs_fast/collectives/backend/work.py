"""What the backend returns for a call: an object to wait for, and the futures of those that ask for one."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist

from softs_fast.collectives.agreement import by_value
from softs_fast.errors import ConfigError, ForkedError, PeerLost, SegmentError

# How long a thread waits for a call before it looks whether the group is left.
_SLICE_S = 0.2
# How long callbacks may take when the group is left.
_CALLBACKS_S = 5.0


class CallOutcome(Protocol):
    """What becomes of a call."""

    def wait(self, seconds: float | None = None) -> bool:
        """Return whether the call has ended; wait so long for it, with None until it has."""

    def differences(self) -> list[bytes]:
        """Return what each rank said if they made different calls, else nothing; raise what the call raised."""


class BackendLost(PeerLost, dist.DistBackendError):
    """A rank has died, left, or is too late; the text names it. The group cannot be used any more."""


class BackendMismatch(ConfigError, dist.DistBackendError):
    """Ranks make different calls; the text says which rank makes which. Nothing was moved, and the group goes on."""


def error_of(error: Exception) -> Exception:
    """Return the error that a caller of torch.distributed expects for one of the native side."""
    if isinstance(error, PeerLost):
        return BackendLost(str(error))
    if isinstance(error, ConfigError | SegmentError | ForkedError):
        return error
    return dist.DistBackendError(str(error))


def check_differences(said: Sequence[bytes]) -> None:
    """Raise BackendMismatch if the ranks made different calls: texts of theirs."""
    if said:
        texts = [text.decode(errors="replace") for text in said]
        raise BackendMismatch(f"ranks make different calls: {by_value(texts)}")


class SoftsWork(dist.Work):
    """A call that was given to the queue of its group.

    Args:
        outcomes: What becomes of the calls, in order.
        kept: Tensors in the memory of which they read and write.
        results: Tensors of the caller that have the result.
        finish: What is left to do once the calls have ended, on the first thread that learns it; None for nothing.
        completer: What completes futures.
    """

    def __init__(
        self,
        outcomes: Sequence[CallOutcome],
        kept: Sequence[torch.Tensor] | None,
        results: list[torch.Tensor],
        finish: Callable[[], None] | None,
        completer: Completer,
    ) -> None:
        super().__init__()
        self._outcomes = outcomes
        self._kept = kept
        self._results = results
        self._finish = finish
        self._completer = completer
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._is_over = False
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Return True once the call has ended well; a time-out of 0 is that of the call alone.

        Raises:
            BackendLost: a rank is lost.
            BackendMismatch: ranks make different calls.
            DistBackendError: the call has not ended in time; it goes on.
        """
        seconds = timeout.total_seconds()
        if not self.ended(seconds if seconds > 0 else None):
            raise dist.DistBackendError(f"Timed out: the call has not ended within {seconds:g} s")
        if self._error is not None:
            raise self._error
        return True

    def ended(self, seconds: float | None) -> bool:
        """Return whether the call has ended, for whatever reason; wait so long for it, seconds.

        With None it waits for the end, which the time-out of the call bounds, and makes the call here if it has not begun.
        """
        if self._is_over:
            return True
        for outcome in self._outcomes:
            if not outcome.wait(seconds):
                return False
        with self._lock:
            if not self._is_over:
                try:
                    for outcome in self._outcomes:
                        check_differences(outcome.differences())
                    if self._finish is not None:
                        self._finish()
                except Exception as error:
                    self._error = error_of(error)
                self._is_over = True
                self._kept = self._finish = None
        return True

    def uses(self, storage: torch.UntypedStorage) -> bool:
        """Return whether the call may read or write a storage."""
        return any(tensor.untyped_storage() is storage for tensor in self._kept or ())

    def is_completed(self) -> bool:
        """Return whether the call has ended."""
        return self.ended(0.0)

    def is_success(self) -> bool:
        """Return whether the call has ended well."""
        return self.ended(0.0) and self._error is None

    def exception(self) -> Exception | None:
        """Return the error of the call; None while there is none."""
        return self._error if self.ended(0.0) else None

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that have the result."""
        return self._results

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future of the tensors that have the result; callbacks of it may make calls and wait for them."""
        with self._lock:
            if self._future is not None:
                return self._future
            ended: torch.futures.Future[None] = torch.futures.Future()
            # An exception that is set, instead of raised by a callback, is a value to the reducer of DDP: it crashes.
            self._future = ended.then(self._raise_or_return)
        self._completer.add(self, ended)
        return self._future

    def _raise_or_return(self, ended: torch.futures.Future[None]) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._results


class Pending:
    """The calls of a group that have not ended: their memory is in use, whether or not the caller keeps their works."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._works: deque[SoftsWork] = deque()
        self._left: list[object] = []

    def add(self, work: SoftsWork) -> SoftsWork:
        """Keep a call until it has ended; return it."""
        with self._lock:
            self._works.append(work)
            # Those of one queue end in order; a message that is under way holds others, which costs memory alone.
            while self._works and self._works[0].ended(0.0):
                self._works.popleft()
        return work

    def uses(self, storage: torch.UntypedStorage) -> bool:
        """Return whether a call that has not ended, or was left behind, may read or write a storage."""
        with self._lock:
            works = [work for work in self._works if not work.ended(0.0)]
        return bool(self._left) or any(work.uses(storage) for work in works)

    def keep(self, memory: object) -> None:
        """Keep what calls may use that an interrupt has left behind: it is not known when they end."""
        self._left.append(memory)


class Completer:
    """Completes the futures of one group, in the order of its calls.

    A callback of a future may wait for a later call, so there is always a thread that waits for the next call while
    others are in callbacks; threads without work end with `close`.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._works: deque[tuple[SoftsWork, torch.futures.Future[None]]] = deque()
        self._threads: set[threading.Thread] = set()
        self._n_ready = 0
        self._is_closed = False

    def add(self, work: SoftsWork, ended: torch.futures.Future[None]) -> None:
        """Complete a future once its call has ended."""
        with self._lock:
            self._works.append((work, ended))
            self._ensure_ready()
            self._lock.notify()

    def close(self) -> None:
        """End the threads; a callback may take a few seconds yet.

        A thread that is inside of torch when the interpreter ends would abort the process.
        """
        with self._lock:
            self._is_closed = True
            self._lock.notify_all()
            threads = self._threads - {threading.current_thread()}
        give_up_at = time.monotonic() + _CALLBACKS_S
        for thread in threads:
            thread.join(max(give_up_at - time.monotonic(), 0.0))

    def _ensure_ready(self) -> None:
        if self._works and not self._n_ready:
            self._n_ready += 1
            thread = threading.Thread(target=self._run, name="softs-futures", daemon=True)
            self._threads.add(thread)
            thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._works and not self._is_closed:
                    self._lock.wait()
                if not self._works:
                    break
                work, ended = self._works.popleft()
            while not work.ended(_SLICE_S):
                if self._is_closed:
                    return
            with self._lock:
                self._n_ready -= 1
                self._ensure_ready()
            ended.set_result(None)
            # A thread that waits for the next call keeps no tensors of this one.
            del work, ended
            with self._lock:
                self._n_ready += 1
        with self._lock:
            self._n_ready -= 1
            self._threads.discard(threading.current_thread())
