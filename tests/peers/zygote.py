"""Imports a script once and forks a process per request to run it: torch and softs take seconds to import.

``python zygote.py SCRIPT [PACKAGE]``. Each line on standard input is ``{"role", "options", "variables", "socket"}``. A
fork connects to that Unix socket, forks the peer, and waits for it. The peer has the socket as its standard input and
output and calls ``run(role, options)`` of the script. The first event on the socket has the peer's pid, the last one
its exit status.
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
    peer = os.fork()
    if peer == 0:
        become(module, request, connection)
        return
    _, status = os.waitpid(peer, 0)
    event = {"event": "ended", "status": os.waitstatus_to_exitcode(status)}
    # The test may have closed its end.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    connection.sendall(json.dumps(event).encode() + b"\n")
    os._exit(0)


def become(module: ModuleType, request: dict[str, Any], connection: socket.socket) -> None:
    """Do the work of the peer, and end it: the end of the interpreter takes a second where torch is imported."""
    for descriptor in (0, 1):
        os.dup2(connection.fileno(), descriptor)
    connection.close()
    sys.stdin = os.fdopen(0, "r", closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    os.environ.update(request["variables"])
    report(event="born", pid=os.getpid())
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
