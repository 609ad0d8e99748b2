"""What the process runs from which workers are forked, and what each of them does before its own function.

This process has one thread, computes nothing, and imports only what defines things: of OpenMP, CUDA and random numbers each
worker has its own.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import gc
import importlib
import multiprocessing
import os
import pickle
import select
import signal
import socket
import struct
import sys
import traceback
from multiprocessing.forkserver import _forkserver
from multiprocessing.resource_tracker import _resource_tracker
from multiprocessing.spawn import prepare
from typing import IO, Any

from .. import _core
from ..identity import Process, this_process
from .standard_streams import print_to
from .threads import follow

__all__ = ["main", "outlive_server"]

_STATUS = struct.Struct("i")
_MOST_BYTES, _MOST_DESCRIPTORS = 1 << 20, 253
#: A signal for a group of processes is for the fleet, which ends its server.
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1

#: The process of the server, in it and in what it has forked.
_server: Process | None = None


def main(number: int, fleet: int) -> None:
    """Start a process whenever one is asked for, and tell how it has ended, until the fleet and all of them have.

    Args:
        number: Descriptor of the socket on which processes are asked for.
        fleet: Process that asks.
    """
    handlers = {one: signal.signal(one, signal.SIG_IGN) for one in _IGNORED}
    global _server
    _server = this_process()
    link = socket.socket(fileno=number)
    for name in link.recv(_MOST_BYTES).decode().split("\n"):
        with contextlib.suppress(Exception):  # a worker that imports it raises the same
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a worker would copy each page of it
    link.send(b"ready")
    _Server(link, handlers).run(fleet)


def outlive_server(grace_s: float) -> None:
    """Have this process go on for so long after its server has ended, instead of ending with it.

    What kills a fleet's process may kill its server first, as Ray does: then only this process is left to remove the
    shared memory of the fleet.
    """
    assert _server is not None
    _core.end_after(*_server, grace_s)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0)


class _Server:
    def __init__(self, link: socket.socket, handlers: dict[signal.Signals, Any]) -> None:
        self._link = link
        self._handlers = handlers
        #: By the number of each process: the pipe in which its end is told.
        self._children: dict[int, int] = {}
        self._ended, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake)
        # A program that takes its signals from a descriptor has blocked them, and this process has its mask.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})

    def run(self, fleet: int) -> None:
        events = select.poll()
        events.register(self._link, select.POLLIN)
        events.register(self._ended, select.POLLIN)
        # A fork of the fleet's process may hold the other end of the socket for longer, so the kernel sends this signal, too.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCHLD)
        has_fleet = os.getppid() == fleet
        while has_fleet or self._children:
            ready = {descriptor for descriptor, _ in events.poll()}
            if self._ended in ready:
                os.read(self._ended, 4096)
                self._reap()
            if self._link.fileno() in ready:
                descriptors = self._asked()
                has_fleet = descriptors is not None
                if descriptors:
                    self._fork(descriptors)
            has_fleet = has_fleet and os.getppid() == fleet
            if not has_fleet and self._link.fileno() >= 0:
                events.unregister(self._link)
                self._link.close()

    def _asked(self) -> list[int] | None:
        """Return what the next process gets, nothing if it cannot be started; None if none is asked for any more."""
        try:
            data, descriptors, flags, _ = socket.recv_fds(self._link, 16, _MOST_DESCRIPTORS)
        except ConnectionResetError:  # the fleet never reads that this server is ready, it only looks
            return None
        if flags & socket.MSG_CTRUNC:
            # This process may open no more files: the workers that run go on.
            if len(descriptors) > 1:
                _tell(descriptors[1], -errno.EMFILE)
            for descriptor in descriptors:
                os.close(descriptor)
            return []
        return descriptors if data else None

    def _fork(self, descriptors: list[int]) -> None:
        memory, status, output, parent, tracker, *inherited = descriptors
        server = os.getpid()
        try:
            process = os.fork()
        except OSError as error:
            # No more processes or memory: the workers that run go on.
            _tell(status, -(error.errno or 1))
            for descriptor in descriptors:
                os.close(descriptor)
            return
        if process == 0:
            code = 1
            try:
                self._leave(server)
                os.close(status)
                print_to(output)
                os.close(output)
                _forkserver._inherited_fds = inherited  # type: ignore[attr-defined]
                _resource_tracker._fd = tracker  # type: ignore[attr-defined]
                with open(memory, "rb") as file:
                    file.seek(0)  # the position is that of the process which has written
                    code = _begun(file)._bootstrap(parent)
                atexit._run_exitfuncs()
            except BaseException:
                traceback.print_exc()
            finally:
                with contextlib.suppress(OSError, ValueError):
                    sys.stdout.flush()
                    sys.stderr.flush()
                # Without the end of the interpreter, in which torch aborts where a thread is left.
                os._exit(code)
        self._children[process] = status
        # Before the fleet learns of the process, so that it finds none of these here.
        for descriptor in (memory, output, parent, tracker, *inherited):
            os.close(descriptor)
        _tell(status, process)

    def _leave(self, server: int) -> None:
        """Become a process of its own, which ends with the server."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._link.close()
        for descriptor in (self._ended, self._wake, *self._children.values()):
            os.close(descriptor)
        # The server tells how a process has ended: without it, the fleet would not know.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != server:
            os._exit(1)

    def _reap(self) -> None:
        while self._children:
            process, status = os.waitpid(-1, os.WNOHANG)
            if process == 0:
                return
            told = self._children.pop(process)
            _tell(told, status)
            os.close(told)


def _tell(pipe: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the fleet has ended
        os.write(pipe, _STATUS.pack(number))


def _begun(file: IO[bytes]) -> Any:
    """Make this process as one of its own would be, and return what it runs, of the class of `multiprocessing`.

    Args:
        file: Its environment, what `multiprocessing` prepares, which has the path and the program, and what it runs.
    """
    os.environ.clear()
    os.environ.update(pickle.load(file))
    follow()
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed()
    if torch is not None:
        torch.default_generator.seed()
    current: Any = multiprocessing.current_process()
    # As multiprocessing does: it tells a program that is imported here from one that runs.
    current._inheriting = True
    try:
        prepare(pickle.load(file))
        return pickle.load(file)
    finally:
        del current._inheriting
