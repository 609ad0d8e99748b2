"""An HTTP server in a thread that cuts all its connections when it ends."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from waiting import WATCHDOG_S


class HttpThread:
    """Answers requests of all methods, on each connection in a thread of its own.

    Args:
        answer: Function that takes the handler of a request, and writes the answer.
        port: Port of loopback; 0 for one that is free.
        context: TLS of the server; None for none.
    """

    def __init__(
        self,
        answer: Callable[[BaseHTTPRequestHandler], None],
        port: int = 0,
        context: ssl.SSLContext | None = None,
    ) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = WATCHDOG_S
            disable_nagle_algorithm = True

            def log_message(self, *arguments: Any) -> None:
                pass

            def _answer(self) -> None:
                answer(self)

            do_GET = do_POST = do_PUT = do_HEAD = _answer

            def handle(self) -> None:
                try:
                    super().handle()
                except OSError:
                    self.close_connection = True

        self._server = _Server(("127.0.0.1", port), Handler)
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def port(self) -> int:
        """At which it listens."""
        return int(self._server.server_address[1])

    def stop(self) -> None:
        """Stop listening, and cut all connections."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        for connection in list(self._server.connections):
            with suppress(OSError):
                # A thread that reads from it would keep it open.
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, *arguments: Any) -> None:
        self.connections: set[Any] = set()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)
