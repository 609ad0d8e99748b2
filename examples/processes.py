"""Child processes that end with the process that started them, even if that one is killed."""

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, Protocol


class Service(Protocol):
    """The service of such a process, for example a Broker or a Worker."""

    def start(self) -> None:
        """Begin to work, in a thread."""

    def stop(self) -> None:
        """End the work."""


@contextlib.contextmanager
def running(make: Callable[..., Service], *calls: tuple[Any, ...]) -> Iterator[None]:
    """Run a service in a process of its own for each of `calls`, and stop them all when the block ends.

    Args:
        make: returns the service; called in the new process, and importable there.
        calls: the arguments of `make`, for one process each.
    """
    with started(_serve, *((make, arguments) for arguments in calls)):
        yield


@contextlib.contextmanager
def started(target: Callable[..., None], *calls: tuple[Any, ...]) -> Iterator[list[Connection]]:
    """Start a process for each of `calls`, yield a pipe to each, stop them all when the block ends.

    Args:
        target: called in the new process with one of `calls` and its end of the pipe; it returns when the pipe closes,
            and is importable.
        calls: arguments, for one process each.
    """
    context = multiprocessing.get_context("spawn")
    processes, pipes = [], []
    try:
        for arguments in calls:
            ours, theirs = context.Pipe()
            process = context.Process(target=target, args=(*arguments, theirs))
            # Ctrl-C in a terminal reaches this process too; it must outlive it to stop in good order.
            with interrupts_ignored():
                process.start()
                processes.append(process)
                pipes.append(ours)
            theirs.close()
        yield pipes
    finally:
        with interrupts_ignored():  # a second Ctrl-C must not cut this short
            for pipe in pipes:
                pipe.close()
            for process in processes:
                process.join(timeout=10)
                if process.is_alive():
                    process.kill()
                    process.join()


@contextlib.contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Ignore Ctrl-C inside the block; processes that start in it ignore it for life."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _serve(make: Callable[..., Service], arguments: tuple[Any, ...], pipe: Connection) -> None:
    service = make(*arguments)
    service.start()
    try:
        with contextlib.suppress(EOFError):
            pipe.recv_bytes()  # blocks until the other end closes, or dies
    finally:
        service.stop()
