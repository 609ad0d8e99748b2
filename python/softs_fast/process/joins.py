"""Waits that sleep until their end, and that a signal can interrupt."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable
from contextlib import suppress

__all__ = ["join", "wait_for_call"]


def join(thread: threading.Thread, timeout_s: float | None = None) -> None:
    """Wait until a thread has ended, or for so many seconds; None for as long as it takes."""
    wait_for_call(lambda: thread.join(timeout_s))


def wait_for_call(call: Callable[[], object]) -> None:
    """Wait until a call has ended that raises nothing; a handler of a signal runs at once, and what it raises ends the wait.

    A signal that arrives just before the main thread waits for a lock, or in another thread, does not wake it. So the call
    has a thread of its own then, and the main thread waits for a pipe, to which Python writes when a signal arrives.
    """
    if threading.current_thread() is not threading.main_thread():
        call()
        return
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    ended, said = threading.Event(), os.dup(writer)

    def run() -> None:
        call()
        ended.set()
        with suppress(OSError):  # a signal has ended the wait, or the pipe is full of signals
            os.write(said, b"\0")
        os.close(said)

    threading.Thread(target=run, name="softs-wait", daemon=True).start()
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        events = select.poll()
        events.register(reader, select.POLLIN)
        while not ended.is_set():
            events.poll()
            seen = os.read(reader, 4096)
            if before >= 0:
                # An event loop of the program is to see each signal.
                with suppress(OSError):
                    os.write(before, seen.replace(b"\0", b""))
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)
        os.close(reader)
