"""Waits that sleep until their end, and that a signal can interrupt."""

from __future__ import annotations

import os
import signal
import socket
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
    has a thread of its own then, and the main thread waits for a socket, to which Python writes when a signal arrives.
    """
    sockets: list[socket.socket] = []
    ended = threading.Event()

    def run() -> None:
        with (
            sockets[2],
            suppress(OSError),
        ):  # a signal has ended the wait, or there are as many as the socket takes
            call()
            ended.set()
            sockets[2].send(b"\0")

    try:
        if threading.current_thread() is threading.main_thread():
            sockets += socket.socketpair()
            sockets += [sockets[1].dup()]
            sockets[1].setblocking(False)
            threading.Thread(target=run, name="softs-wait", daemon=True).start()
    except (OSError, RuntimeError):  # there are no more descriptors or threads, as when the interpreter ends
        while sockets:
            sockets.pop().close()
    if not sockets:
        call()
        return
    with sockets[0] as reader, sockets[1] as writer:
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            while not ended.is_set():
                seen = reader.recv(4096)
                if before >= 0:
                    # An event loop of the program is to see each signal.
                    with suppress(OSError):
                        os.write(before, seen.replace(b"\0", b""))
        finally:
            signal.set_wakeup_fd(before)
