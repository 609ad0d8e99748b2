"""Imports a package once and forks a peer per request: softs takes seconds to import, and the tests start hundreds of its peers.

``python zygote.py PACKAGE``; each line on standard input is ``{"role", "options", "socket"}``; the fork connects to that Unix
socket and uses it as its standard input and output. Its pid is the first thing it says.
"""

import importlib
import json
import os
import signal
import socket
import sys

import role


def main() -> None:
    package = importlib.import_module(sys.argv[1])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        request = json.loads(line)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(request["socket"])
            for descriptor in (0, 1):
                os.dup2(connection.fileno(), descriptor)
            connection.close()
            sys.stdin = os.fdopen(0, "r", closefd=False)
            sys.stdout = os.fdopen(1, "w", closefd=False)
            role.say(event="born", pid=os.getpid())
            status = 1
            try:
                role.RUN[request["role"]](package, request["options"])
                status = 0
            finally:
                os._exit(status)


if __name__ == "__main__":
    main()
