"""Workers of a flow on several hosts: forks, of which each believes itself on the host that it is told, or is there."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import socket
from pathlib import Path
from typing import Any

from network import Host, move_to

import softs_fast.dataflow as df
from softs_fast.dataflow.backends.fleet_processes import declaration_of
from softs_fast.dataflow.control import new_token, write_token
from softs_fast.dataflow.moves import segments
from softs_fast.dataflow.worker.by_hand import run_worker

WATCHDOG_S = 45.0


def serve(
    name: str, pid: int | None, endpoint: str, worker: int, function: str, arguments: dict[str, Any], token: str
) -> None:
    """Be a worker on a host: by its name alone, or in the namespaces of a process."""
    if pid is not None:
        move_to(pid)
        # What is forked has the processes of that host.
        child = os.fork()
        if child:
            signal.signal(signal.SIGTERM, lambda number, frame: os.kill(child, signal.SIGKILL))
            os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)
    if name:
        segments.boot_id = lambda: name  # type: ignore[assignment]
    build = functools.partial(declaration_of, function, arguments)
    run_worker(endpoint, worker, build, Path(token), wait_s=WATCHDOG_S, stall_s=10.0)


class HostWorkers:
    """The processes of the workers of one flow; a context manager.

    Args:
        folder: for the token.
        function: that makes the flow.
        arguments: what it is given.
        listen: where the master listens; None: a free port of loopback.
    """

    def __init__(
        self, folder: Path, function: str, arguments: dict[str, Any] | None = None, listen: str | None = None
    ) -> None:
        self.token = folder / "token"
        write_token(self.token, new_token())
        self.function, self.arguments = function, arguments or {}
        self.endpoint = listen or f"tcp://127.0.0.1:{free_port()}"
        self.processes: dict[int, Any] = {}

    def flow(self, **options: Any) -> df.Flow:
        """Return the flow, with this process as its master."""
        return df.Flow.on_hosts(
            self.function, self.arguments, listen=self.endpoint, token_file=self.token, **options
        )

    def start(self, worker: int, name: str = "", host: Host | None = None, **other: Any) -> None:
        """Start a worker; `other` is what its flow has beside the arguments of the master."""
        arguments = (
            *(name, host.pid if host is not None else None, self.endpoint, worker),
            *(self.function, {**self.arguments, **other}, str(self.token)),
        )
        process = multiprocessing.get_context("forkserver").Process(target=serve, args=arguments)
        self.processes[worker] = process
        process.start()

    def __enter__(self) -> HostWorkers:
        """Return it."""
        return self

    def __exit__(self, *error: object) -> None:
        """Wait until all have ended; what has not is killed."""
        for process in self.processes.values():
            process.join(WATCHDOG_S if error[0] is None else 5.0)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()


def free_port() -> int:
    """Return a port of loopback at which nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
