"""Waits that sleep until their end, and that a signal can interrupt."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

__all__ = ["join", "wait_for_call"]


def join(thread: threading.Thread, timeout_s: float | None = None) -> None:
    """Wait until a thread has ended, or for so many seconds; None for as long as it takes."""
    limit_s = None if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX)
    # A thread that has ended needs no other one: Python 3.11 waits for ever for one that begins while the interpreter ends.
    if thread.is_alive():
        wait_for_call(lambda: thread.join(limit_s))


def wait_for_call(call: Callable[[], object]) -> None:
    """Wait until a call has ended that raises nothing; a handler of a signal runs at once, and what it raises ends the wait.

    A signal that arrives just before the main thread waits for a lock, or in another thread, does not wake it. So the call
    has a thread of its own then, and the main thread waits for a socket, to which Python writes when a signal arrives.
    """
    sockets: list[socket.socket] = []
    ended = threading.Event()

    def run() -> None:
        try:
            call()
        finally:
            ended.set()
            with (
                sockets[2] as done,
                suppress(OSError),
            ):  # the wait is over, or there are as many as the socket takes
                done.send(b"\0", socket.MSG_NOSIGNAL)

    try:
        if threading.current_thread() is threading.main_thread():
            sockets += socket.socketpair()
            sockets += [sockets[1].dup()]
            threading.Thread(target=run, name="softs-wait", daemon=True).start()
    except (OSError, RuntimeError) as error:
        # There are no more descriptors or threads, as when the interpreter ends.
        if isinstance(error, RuntimeError) and not str(error).startswith("can't"):
            # `start` makes this of what a handler raises while it waits for the thread to begin.
            raise error.__context__ or error from None
        while sockets:
            sockets.pop().close()
    if not sockets:
        call()
        return
    with sockets[0] as reader, sockets[1] as writer:
        # Whatever `socket.setdefaulttimeout` says.
        reader.setblocking(True)
        writer.setblocking(False)
        set_wakeup_fd = partial(signal.set_wakeup_fd, warn_on_full_buffer=False)
        before: list[int] = []
        try:
            # In one step with noting what was set before: a handler may raise between any two.
            before.extend(map(set_wakeup_fd, [writer.fileno()]))
            while not ended.is_set():
                # Handlers run when this has returned, and what they raise must not take a byte along.
                reader.recv(1, socket.MSG_PEEK)
                _pass_on(reader, before[0])
        finally:
            if before:
                signal.set_wakeup_fd(before[0])
                _pass_on(reader, before[0])


def _pass_on(reader: socket.socket, before: int) -> None:
    """Have an event loop of the program see each signal."""
    with suppress(OSError):  # there is none, or its own buffer is full
        seen = reader.recv(4096, socket.MSG_DONTWAIT).replace(b"\0", b"")
        if seen and before >= 0:
            os.write(before, seen)
