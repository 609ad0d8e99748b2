"""What a process of a fleet runs: it makes its worker, reports that it serves, and ends with its fleet."""

from __future__ import annotations

import contextlib
import faulthandler
import inspect
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, Protocol, runtime_checkable

from .. import _core
from ..errors import ConfigError
from ..identity import Process
from .folder import remove_dead_folders
from .forking import outlive_server
from .standard_streams import print_to
from .threads import follow

__all__ = ["DRAIN", "DRAIN_S", "END", "ENDED", "FAILED", "SERVES", "serve"]

#: What is sent to the fleet: that the worker serves, this and a traceback, that it ends because it was stopped; and what
#: the fleet sends: to end, or to end when the call that runs has.
SERVES, FAILED, ENDED, END, DRAIN = b"serves", b"failed\n", b"ended", b"end", b"drain"
#: How long the call may go on of a worker that is not needed any more, seconds.
DRAIN_S = 60.0
#: So long after its fleet, or the server that has started it, was killed a process may still run, seconds.
_GRACE_S = 1.0
#: So long a worker may go on after its `stop` has failed, seconds.
_UNSTOPPED_S = 1.0


@runtime_checkable
class _Service(Protocol):
    """What a process of a fleet runs: a `Worker`, a `Supplier`, or what has their methods."""

    def start(self) -> None: ...
    def stop(self, **timeout: float) -> None: ...
    def wait(self) -> None: ...


def serve(
    make_worker: Callable[[], Any],
    environment: Mapping[str, str],
    fleet: Process,
    pipe: Connection,
    output: Connection,
) -> None:
    """Serve until the worker stops by itself or the fleet ends, whichever comes first.

    Args:
        make_worker: Function that returns the worker, not started.
        environment: Variables that are set before that function is called.
        fleet: Process of the fleet.
        pipe: Connection between the fleet and this process.
        output: Connection that receives what is printed.
    """
    # Ctrl-C in a terminal, and the end of a job of SLURM or MPI, are sent to this process too; the fleet ends it in good
    # order.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.environ.update(environment)
    follow()
    print_to(output.fileno())
    output.close()
    # The stack of a crash such as SIGSEGV is then among the last lines of output, which the fleet shows.
    faulthandler.enable(2, all_threads=False)
    _core.end_after(*fleet, _GRACE_S)
    outlive_server(_GRACE_S)
    try:
        worker = _made_by(make_worker)
        worker.start()
    except BaseException:
        _report(pipe, FAILED + traceback.format_exc().encode(errors="backslashreplace"))
        sys.exit(1)
    _report(pipe, SERVES)
    ended, end = multiprocessing.Pipe(duplex=False)
    errors: list[str] = []
    waiting = threading.Thread(target=_wait, args=(worker, end, errors), name="softs-fleet", daemon=True)
    waiting.start()
    is_orphan = is_drained = False
    if pipe in multiprocessing.connection.wait([pipe, ended]):
        try:
            is_drained = pipe.recv_bytes() == DRAIN
        except (EOFError, OSError):
            is_orphan = True
    try:
        worker.stop(**(_drain_of(worker) if is_drained else {}))
    except Exception:
        errors.append(traceback.format_exc())
    # No other thread may free the worker: torch aborts where a thread frees tensors while the interpreter ends.
    waiting.join(_UNSTOPPED_S if errors else None)
    if errors:
        _report(pipe, FAILED + errors[0].encode(errors="backslashreplace"))
    else:
        _report(pipe, ENDED)
    if is_orphan:
        _sweep_after(fleet)
    if errors:
        sys.exit(1)


def _drain_of(worker: _Service) -> dict[str, float]:
    """Return the arguments of `stop` by which the call that runs may go on; not each class of a user takes a limit."""
    parameters = inspect.signature(worker.stop).parameters.values()
    takes_it = any(one.name == "timeout_s" or one.kind is one.VAR_KEYWORD for one in parameters)
    return {"timeout_s": DRAIN_S} if takes_it else {}


def _wait(worker: _Service, end: Connection, errors: list[str]) -> None:
    try:
        worker.wait()
    except BaseException:
        # Also SystemExit: the generator has ended the thread of its supplier.
        errors.append(traceback.format_exc())
    end.close()


def _report(pipe: Connection, message: bytes) -> None:
    with contextlib.suppress(OSError):  # the fleet has ended
        pipe.send_bytes(message)


def _made_by(make_worker: Callable[[], Any]) -> _Service:
    worker = make_worker()
    if not isinstance(worker, _Service):
        name = getattr(make_worker, "__qualname__", str(make_worker))
        raise ConfigError(f"{name}() returned {type(worker).__name__}; it must return a Worker or a Supplier")
    return worker


def _sweep_after(fleet: Process) -> None:
    """Remove segments and folder of the fleet's process, which was killed; its last descriptor may not be closed yet."""
    while fleet.is_alive():
        time.sleep(0.01)
    _core.sweep()
    remove_dead_folders()
