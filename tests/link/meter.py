"""A relay between two links, which counts what crosses it."""

from __future__ import annotations

import contextlib
import socket
import threading

READ_BYTES = 1 << 16


class Meter:
    """Passes connections on to an address; a context manager.

    Attributes:
        address: Where it listens, HOST:PORT.
        n_bytes: Bytes that have crossed to the ends that have dialled.
    """

    def __init__(self, to: str) -> None:
        host, _, port = to.rpartition(":")
        self._to = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.n_bytes = 0
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_: object) -> None:
        # A shutdown wakes the threads; the first one starts no others after it.
        for sockets, threads in (([self._listener], self._threads[:1]), (self._sockets, self._threads[1:])):
            for one in sockets:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()
        for one in (self._listener, *self._sockets):
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                dialled, _ = self._listener.accept()
                self._sockets.append(dialled)
                self._pass_on(dialled)

    def _pass_on(self, dialled: socket.socket) -> None:
        try:
            there = socket.create_connection(self._to)
        except ConnectionRefusedError:
            # The other end is not there yet; this one dials again.
            dialled.close()
            return
        self._sockets.append(there)
        for ends in ((dialled, there), (there, dialled)):
            thread = threading.Thread(target=self._carry, args=(*ends, ends[1] is dialled))
            self._threads.append(thread)
            thread.start()

    def _carry(self, source: socket.socket, sink: socket.socket, counts: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(READ_BYTES):
                self.n_bytes += len(data) if counts else 0
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
