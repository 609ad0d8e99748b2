"""Workers of a flow on several hosts: forks, of which each believes itself on the host that it is told, or is there."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from networks import Host, move_to
from waiting import WATCHDOG_S, free_ports

import softs_fast.dataflow as df
from softs_fast.cli import main
from softs_fast.dataflow.store import segments
from softs_fast.trust import write_token

_PR_SET_PDEATHSIG = 1


def serve(name: str, pid: int | None, command: list[str], log: str) -> None:
    """Be a worker on a host: by its name alone, or in the namespaces of a process."""
    with open(log, "wb") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    if pid is None:
        if name:
            segments.boot_id = lambda: name
            socket.gethostname = lambda: name
        sys.exit(main(command))
    move_to(pid)
    # What is forked has the processes of that host.
    sys.exit(in_child(lambda: main(command)) & 0xFF)


def in_child(body: Callable[[], int | None]) -> int:
    """Do something in a fork, which ends when this process does; returns its exit code, and 99 after an exception."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    code = 99
    try:
        code = body() or 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def serve_again(*args: Any) -> None:
    """Be a launcher that starts a worker again until its flow has ended; each is a fork."""
    while in_child(lambda: serve(*args)):
        pass


@contextmanager
def on_hosts(
    folder: Path,
    function: str,
    hosts: Sequence[str],
    arguments: dict[str, Any] | None = None,
    again: Collection[int] = (),
    **options: Any,
) -> Iterator[tuple[df.Flow, HostWorkers]]:
    """Start the workers of a flow, and open it with this process as its master.

    Args:
        folder: As for `HostWorkers`, and `function`, `hosts`, `arguments`, `again`.
        options: Options of `df.Flow.on_hosts`.
    """
    with (
        HostWorkers(folder, function, arguments, hosts=hosts, again=again) as workers,
        workers.flow(**options) as flow,
    ):
        yield flow, workers


def told(flow: df.Flow) -> int:
    """Return the bytes that were to go between hosts so far."""
    return flow._session.runner.held.n_bytes


class HostWorkers:
    """The processes of the workers of one flow; a context manager.

    Args:
        folder: Folder for the token.
        function: Name of the function that makes the flow.
        arguments: Arguments of the function.
        listen: Endpoint at which the master listens; None: a free port of loopback.
        hosts: Names of the hosts of workers 0, 1, ..., which are started on entry; more may be started later.
        again: Which of these are started again until the flow has ended.
    """

    def __init__(
        self,
        folder: Path,
        function: str,
        arguments: dict[str, Any] | None = None,
        listen: str | None = None,
        hosts: Sequence[str] = (),
        again: Collection[int] = (),
    ) -> None:
        self.token = folder / "token"
        write_token(self.token)
        self.function, self.arguments = function, arguments or {}
        self._hosts, self._again = hosts, again
        self.endpoint = listen or f"tcp://127.0.0.1:{free_ports()[0]}"
        #: The last one of each worker.
        self.processes: dict[int, Any] = {}
        self._all: list[Any] = []

    def flow(self, **options: Any) -> df.Flow:
        """Return the flow, with this process as its master."""
        return df.Flow.on_hosts(
            self.function, self.arguments, listen=self.endpoint, token_file=self.token, **options
        )

    def start(
        self,
        worker: int,
        name: str = "",
        host: Host | None = None,
        token: Path | None = None,
        again: bool = False,
        **other: Any,
    ) -> Any:
        """Start a worker; returns its process.

        Args:
            worker: Number of the worker.
            name: Name of the host that the worker believes itself on; empty: this one.
            host: Host on which the worker runs.
            token: Path of the worker's token, if it has another one.
            again: Whether the worker is started again until the flow has ended.
            other: Arguments that its flow has beside those of the master.
        """
        command = [
            "flow",
            "worker",
            self.endpoint,
            self.function,
            "--rank",
            str(worker),
            "--lost-after",
            "10",
            "--exit-when-lost",
        ]
        command += ["--token-file", str(token or self.token), "--connect-timeout", str(WATCHDOG_S)]
        for key, value in {**self.arguments, **other}.items():
            command += ["--argument", f"{key}={json.dumps(value)}"]
        arguments = (name, host.pid if host is not None else None, command, str(self._log(worker)))
        target = serve_again if again else serve
        process = multiprocessing.get_context("forkserver").Process(target=target, args=arguments)
        self._all.append(process)
        self.processes[worker] = process
        process.start()
        return process

    def log(self, worker: int) -> str:
        """Wait for the end of a worker, which has failed; returns what it has written to standard error."""
        self.processes[worker].join(WATCHDOG_S)
        assert self.processes[worker].exitcode == 1
        return self._log(worker).read_text()

    def _log(self, worker: int) -> Path:
        return self.token.parent / f"worker{worker}.log"

    def __enter__(self) -> HostWorkers:
        """Start the workers of the hosts that were named."""
        for worker, name in enumerate(self._hosts):
            self.start(worker, name, again=worker in self._again)
        return self

    def __exit__(self, *error: object) -> None:
        """Wait until all have ended; what has not is killed."""
        for process in self._all:
            process.join(WATCHDOG_S if error[0] is None else 5.0)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
