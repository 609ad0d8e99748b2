"""The process from which workers are forked: it has imported the package and torch, and nothing of the program's.

A worker is there in milliseconds then, when it starts again too. One server is shared by all fleets and flows of a process
that would give their workers the same surroundings. It is not that of `multiprocessing`, of which a program chooses what it
imports, and which has the environment of its first user.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from multiprocessing.context import set_spawning_popen
from multiprocessing.popen_forkserver import Popen
from multiprocessing.reduction import dump
from multiprocessing.resource_tracker import getfd
from multiprocessing.spawn import get_executable, get_preparation_data
from multiprocessing.util import Finalize, _args_from_interpreter_flags  # type: ignore[attr-defined]
from typing import Any

from ..errors import FleetError
from .threads import THREADS

__all__ = ["ForkServer", "WorkerProcess", "last_server", "libraries_here", "server_for"]

#: Modules of others that a server imports where this process has: those that only define things. What a program imports
#: besides may start threads, open devices or draw random numbers, of which each worker needs its own.
_LIBRARIES = ("numpy", "torch", "torch._dynamo", "transformers")
#: What the names of modules of this package begin with that it imports, too, where this process has.
_OWN = "softs_fast."
#: Changes with each test of pytest, and no library reads it.
_IGNORED = "PYTEST_CURRENT_TEST"
_STATUS = struct.Struct("i")

_last: ForkServer | None = None


@dataclass(frozen=True)
class _Surroundings:
    """What a worker gets from its server, and cannot change itself once libraries are loaded."""

    environment: Mapping[str, str]
    libraries: tuple[str, ...]
    executable: bytes
    cores: frozenset[int]
    limits: tuple[tuple[int, int], ...]

    @classmethod
    def now(cls, further: Mapping[str, str], libraries: Sequence[str]) -> _Surroundings:
        return cls(
            {name: value for name, value in (os.environ | further).items() if name != _IGNORED},
            tuple(name for name in _LIBRARIES if name in {*libraries_here(), *libraries}),
            os.fsencode(get_executable()),
            frozenset(os.sched_getaffinity(0)),
            tuple(
                resource.getrlimit(getattr(resource, name))
                for name in dir(resource)
                if name.startswith("RLIMIT_")
            ),
        )

    def have(self, others: _Surroundings) -> bool:
        """Return whether these are others, with or without further libraries."""
        same = replace(self, libraries=others.libraries) == others
        return same and set(self.libraries) >= set(others.libraries)


def libraries_here() -> tuple[str, ...]:
    """Return the libraries of this process that a server imports, too."""
    return tuple(name for name in _LIBRARIES if name in sys.modules)


def server_for(environment: Mapping[str, str], libraries: Sequence[str] = ()) -> ForkServer:
    """Return a server for workers that this process starts now; the last one, if that has all that it would have.

    Args:
        environment: Variables of a worker beside those of this process. Only the number of threads is read when
            libraries are loaded.
        libraries: Libraries that this process is about to import, beside those that it has.
    """
    global _last
    threads = {name: environment[name] for name in (THREADS,) if name in environment}
    wanted = _Surroundings.now(threads, libraries)
    known = None if _last is None or _last.owner != os.getpid() or _last.has_ended() else _last
    if known is None or not known.surroundings.have(wanted):
        known = _last = ForkServer(wanted)
    return known


def last_server() -> ForkServer | None:
    """Return the server that was started last, which is kept for the next fleet."""
    return _last


class ForkServer:
    """A server that has been started. It ends when nothing uses it any more, and with this process."""

    def __init__(self, surroundings: _Surroundings) -> None:
        self.surroundings = surroundings
        self.owner = os.getpid()
        self.link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own = [name for name in sys.modules if name.startswith(_OWN)]
        path = get_preparation_data("")["sys_path"]
        program = (
            f"import sys; sys.path[:] = {path!r}; from softs_fast.fleet.forking import main; "
            f"main({theirs.fileno()}, {self.owner})"
        )
        with theirs:
            process = subprocess.Popen(
                [surroundings.executable, *_args_from_interpreter_flags(), "-c", program],
                env=surroundings.environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        # It is reaped below, and not by each fork of this process that has a copy of the object.
        process.returncode = 0
        self.pid = process.pid
        # After multiprocessing has waited for the workers.
        Finalize(self, _end, (self.link, self.pid), exitpriority=-1)
        with contextlib.suppress(OSError):  # it has ended already
            self.link.send("\n".join([*surroundings.libraries, *own]).encode())

    def is_ready(self) -> bool:
        """Return whether it has imported all."""
        return bool(self._events() & select.POLLIN)

    def has_ended(self) -> bool:
        """Return whether its process has ended, or is about to."""
        return bool(self._events() & select.POLLHUP)

    def fork(self, descriptors: list[int]) -> None:
        """Have it start a process.

        Args:
            descriptors: What the process gets, as `forking.main` expects it.

        Raises:
            FleetError: the server has ended.
        """
        try:
            socket.send_fds(self.link, [b"fork"], descriptors)
        except OSError as error:
            global _last
            _last = None if _last is self else _last
            raise FleetError(
                f"the process that starts workers has ended: {error}; its own message is above"
            ) from error

    def _events(self) -> int:
        poll = select.poll()
        poll.register(self.link, select.POLLIN)
        return next((events for _, events in poll.poll(0)), 0)


class WorkerProcess(multiprocessing.Process):
    """A process of `multiprocessing` that a server starts.

    Args:
        server: The server.
        environment: All variables of the process.
        output: Descriptor that gets what it prints, from its first line on.
        target: Function that it runs.
        args: Arguments of the function.
        name: Name of the process.
    """

    #: That of processes which the worker starts.
    _start_method = "spawn"

    def __init__(
        self,
        server: ForkServer,
        environment: Mapping[str, str],
        output: int,
        target: Callable[..., object],
        args: tuple[object, ...],
        name: str,
    ) -> None:
        super().__init__(target=target, args=args, name=name)
        self._begin = server, dict(environment), output

    @staticmethod
    def _Popen(process: Any) -> Any:
        server, environment, output = process.__dict__.pop("_begin")
        return _Popen(process, server, environment, output)


class _Popen(Popen):
    """How `multiprocessing` sees a process of a server: what it pickles for it goes through memory that it inherits.

    So a process that is killed before it has read its arguments holds nothing up, whatever their size.
    """

    def __init__(
        self, process: WorkerProcess, server: ForkServer, environment: dict[str, str], output: int
    ) -> None:
        self._server, self._environment, self._output = server, environment, output
        super().__init__(process)

    def _launch(self, process: WorkerProcess) -> None:
        prepared = get_preparation_data(process.name)
        if not os.path.exists(prepared.get("init_main_from_path", "")):
            # A program from standard input has no file; what workers run is of a module then.
            prepared.pop("init_main_from_path", None)
        parts = (self._environment, prepared, process)
        with contextlib.ExitStack() as ours:
            memory = os.memfd_create("softs-fleet")
            ours.callback(os.close, memory)
            set_spawning_popen(self)
            try:
                with open(memory, "wb", closefd=False) as file:
                    for part in parts:
                        dump(part, file)
            finally:
                set_spawning_popen(None)
            self.sentinel, status = os.pipe()
            ours.callback(os.close, status)
            parent, alive = os.pipe()
            ours.callback(os.close, parent)
            self.finalizer = Finalize(self, _close, (alive, self.sentinel))
            given = [memory, status, self._output, parent, getfd(), *self._fds]  # type: ignore[attr-defined]
            try:
                self._server.fork(given)
            except BaseException:
                self.finalizer()
                raise
        self.pid = self._read() or 0
        if self.pid < 0:
            self.finalizer()
            raise OSError(-self.pid, os.strerror(-self.pid))
        if not self.pid:  # the server has ended
            self.returncode = -signal.SIGKILL

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        if self.returncode is None and wait([self.sentinel], 0 if flag == os.WNOHANG else None):
            # A worker is killed when its server ends.
            status = self._read()
            self.returncode = -signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status)
        return self.returncode

    def _read(self) -> int | None:
        """Return the next number that the server tells of the process."""
        data = os.read(self.sentinel, _STATUS.size)
        return _STATUS.unpack(data)[0] if data else None


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _end(link: socket.socket, pid: int) -> None:
    link.close()
    with contextlib.suppress(OSError):  # another part of the program has waited for it
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
