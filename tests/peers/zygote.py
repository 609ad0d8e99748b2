"""Imports a script once and forks a process per request to run it: torch and softs take seconds to import.

``python zygote.py SCRIPT [PACKAGE]``. Each line on standard input is ``{"role", "options", "variables", "socket", "host"}``,
where the host is a process of it, or null. A fork connects to that Unix socket, moves to the host, forks the peer, and
waits for it. The peer has the socket as its standard input and output and calls ``run(role, options)`` of the script. The
first event on the socket has the peer's pid as the zygote's host knows it, the last one its exit status.
"""

import atexit
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from networks import move_to


def main() -> None:
    script = Path(sys.argv[1])
    sys.path.insert(0, str(script.parent))
    for package in sys.argv[2:]:
        importlib.import_module(package)
    module = importlib.import_module(script.stem)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        request = json.loads(line)
        if os.fork() == 0:
            supervise(module, request)
            return


def supervise(module: ModuleType, request: dict[str, Any]) -> None:
    """Fork the peer and report its end; returns in the peer, when it has done its work."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(request["socket"])
    # This one tells the pids of this host, also from another one.
    proc = os.open("/proc", os.O_RDONLY | os.O_CLOEXEC)
    if request["host"] is not None:
        move_to(request["host"])
    peer = os.fork()
    if peer == 0:
        pid = int(os.readlink("self", dir_fd=proc))
        os.close(proc)
        become(module, request, connection, pid)
        return
    _, status = os.waitpid(peer, 0)
    event = {"event": "ended", "status": os.waitstatus_to_exitcode(status)}
    # The test may have closed its end.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    connection.sendall(json.dumps(event).encode() + b"\n")
    os._exit(0)


def become(module: ModuleType, request: dict[str, Any], connection: socket.socket, pid: int) -> None:
    """Do the work of the peer, and end it: the end of the interpreter takes a second where torch is imported."""
    for descriptor in (0, 1):
        os.dup2(connection.fileno(), descriptor)
    connection.close()
    sys.stdin = os.fdopen(0, "r", closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    os.environ.update(request["variables"])
    report(event="born", pid=pid)
    try:
        module.run(request["role"], request["options"])
    except Exception:
        report(event="problem", problem=traceback.format_exc())
        raise
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def report(**event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
