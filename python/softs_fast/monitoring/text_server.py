"""A text over HTTP, such as metrics for Prometheus."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Self

from ..errors import ConfigError, EndpointInUse, PeerLost

__all__ = ["TextServer", "parse_address"]

#: A connection without data for so long is closed, seconds.
_TIMEOUT_S = 2.0


class TextServer:
    """Serves a text at ``/metrics``, in a thread, from `start` to `stop`.

    Args:
        read: returns the text, as it is now; called in the thread, for one request at a time.
        address: where to listen, ``host:port``; port 0 takes a free one.
        allow_remote: lets the address be reachable from other machines. There is no authentication.

    Raises:
        ConfigError: the address is malformed, or reachable from other machines without ``allow_remote=True``.
    """

    def __init__(self, read: Callable[[], str], address: str, *, allow_remote: bool = False) -> None:
        self._read_text = read
        self._address = parse_address(address, allow_remote)
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listen and begin to serve; returns at once.

        Raises:
            EndpointInUse: something else listens there.
            PeerLost: the operating system refused the address.
        """
        if self._server is not None:
            return
        family, host, port = self._address
        try:
            self._server = _Server(family, host, port, self._read_text)
        except OSError as error:
            text = f"cannot serve metrics at {host}:{port}: {error.strerror or error}"
            raise (EndpointInUse if error.errno == 98 else PeerLost)(text) from None
        self._thread = threading.Thread(target=self._server.serve_forever, name="softs-metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop listening after the current request. Idempotent."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
        self._server = self._thread = None

    @property
    def url(self) -> str:
        """URL of the metrics, with the port that was chosen."""
        host, port = self._address[1:]
        if self._server is not None:
            port = self._server.server_port
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *args: object) -> None:
        self.stop()


class _Server(HTTPServer):
    """An HTTP server for one request at a time: Prometheus asks every few seconds."""

    def __init__(self, family: socket.AddressFamily, host: str, port: int, read: Callable[[], str]) -> None:
        self.address_family = family
        self.read = read
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        # HTTPServer's own would look up the name of the host, which can take seconds.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a client that closed its connection."""


class _Handler(BaseHTTPRequestHandler):
    timeout = _TIMEOUT_S
    server: _Server

    def do_GET(self) -> None:
        if self.path.partition("?")[0] not in ("/", "/metrics"):
            self.send_error(404)
            return
        body = self.server.read().encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a line per request has no use."""


def parse_address(address: str, allow_remote: bool) -> tuple[socket.AddressFamily, str, int]:
    """Split ``host:port`` and look the host up: family, numeric host, port.

    Raises:
        ConfigError: it is malformed, or reachable from other machines without `allow_remote`.
    """
    host, colon, digits = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (digits.isascii() and digits.isdigit() and int(digits) < 1 << 16):
        raise ConfigError(f"address for metrics: have {address!r}, need host:port")
    try:
        found = socket.getaddrinfo(host, int(digits), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"address for metrics {address!r}: {error.strerror}") from None
    family, numeric = found[0][0], str(found[0][4][0])
    if not allow_remote and not ipaddress.ip_address(numeric.partition("%")[0]).is_loopback:
        raise ConfigError(
            f"metrics at {address} would be reachable from other machines, without authentication; "
            "use 127.0.0.1, or allow_remote=True"
        )
    return family, numeric, int(digits)
