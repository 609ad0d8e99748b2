"""Plain TCP sockets on a host: a listener that sends back what it receives, and a caller; forks of zygote.py that call `run`.

Each event has the time of the machine's monotonic clock at which it was seen.
"""

import hashlib
import random
import socket
import sys
import threading
import time
from typing import Any

from role import say, wait_for_end

_MANY = 1 << 16


def receive(connection: socket.socket, number: int, back: bool) -> None:
    """Report what arrives by a connection of this number, and send it back if asked."""
    digest, n_bytes = hashlib.blake2b(), 0
    while data := connection.recv(_MANY):
        digest.update(data)
        n_bytes += len(data)
        say(
            event="received",
            connection=number,
            n_bytes=n_bytes,
            digest=digest.hexdigest(),
            at=time.monotonic(),
        )
        if back:
            connection.sendall(data)


def start_receiving(*arguments: Any) -> None:
    threading.Thread(target=receive, args=arguments, daemon=True).start()


def run_listener(options: dict[str, Any]) -> None:
    """Listens at an address."""
    family = socket.AF_INET6 if ":" in options["address"] else socket.AF_INET
    listener = socket.create_server((options["address"], 0), family=family)

    def accept() -> None:
        number = 0
        while True:
            start_receiving(listener.accept()[0], number, True)
            number += 1

    threading.Thread(target=accept, daemon=True).start()
    say(event="ready", port=listener.getsockname()[1])
    wait_for_end()


def run_caller(options: dict[str, Any]) -> None:
    """Obeys "connect ADDRESS PORT", after which it sends by the new connection, and "send NUMBER_OF_BYTES"."""
    connections: list[socket.socket] = []
    data = random.Random(options["seed"])
    say(event="ready")
    for line in sys.stdin:
        name, *words = line.split()
        if name == "connect":
            connections.append(socket.create_connection((words[0], int(words[1]))))
            start_receiving(connections[-1], len(connections) - 1, False)
            segment = connections[-1].getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
            say(event="connected", segment=segment, at=time.monotonic())
        else:
            sent = data.randbytes(int(words[0]))
            say(event="sending", digest=hashlib.blake2b(sent).hexdigest(), at=time.monotonic())
            connections[-1].sendall(sent)


def run(role: str, options: dict[str, Any]) -> None:
    """Do what a role does."""
    {"listener": run_listener, "caller": run_caller}[role](options)
