"""Where the thread of a worker is in its Python code, for a master that asks while the thread is busy."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..link.stream import WorkerStream

__all__ = ["STACK", "answers_stack"]

#: What a master asks for.
STACK = "stack"
#: The system ignores it by default, and hardly any program uses it, so one that comes at a wrong time does no harm.
#: Source: runtime/signal_unix.go of Go, which interrupts its threads by it for these reasons.
_SIGNAL = signal.SIGURG


@contextmanager
def answers_stack(link: WorkerStream) -> Iterator[None]:
    """Have the native thread of a link answer where the thread is that enters this. The link is closed at the end.

    The native thread sends a signal to this one, and its handler, which is C and needs no GIL, writes the stack. Stacks of
    other threads are left out: they may change while they are read, and such a read ends the process with SIGSEGV within
    seconds of trying (Python 3.11). A thread reads its own between two of its instructions.

    Args:
        link: Link to the master.
    """
    if _is_taken(_SIGNAL):
        link.publish(STACK, f"no stack: {_SIGNAL.name} has a handler of the program".encode())
        try:
            yield
        finally:
            link.close()
        return
    pipe = link.stack_pipe()
    faulthandler.register(_SIGNAL, file=pipe, all_threads=False)
    try:
        link.answer_stack(STACK, _SIGNAL)
        yield
    finally:
        link.close()  # from here on nothing sends the signal
        faulthandler.unregister(_SIGNAL)
        os.close(pipe)


def _is_taken(number: signal.Signals) -> bool:
    """Return whether a signal has a handler, of Python or of a library, or is ignored on purpose."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(("SigCgt:", "SigIgn:")) and int(line.split()[1], 16) & 1 << (number - 1):
            return True
    return False
