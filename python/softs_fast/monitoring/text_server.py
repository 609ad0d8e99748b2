"""Short texts over HTTP, such as metrics for Prometheus."""

from __future__ import annotations

import io
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any, Self

from ..errors import EndpointInUse, PeerLost
from ..trust import Address, bracketed, check_reachable, is_loopback

__all__ = ["Page", "PageServer", "TextServer", "page_address"]

#: A request has arrived in full, and its answer was taken, within this, seconds; a connection that is slower is closed.
_TIMEOUT_S = 2.0
#: Of the head of a request.
_MAX_HEAD_BYTES = 16 << 10
#: Connections that have a thread; a further one waits until one of them ends.
_MAX_CONNECTIONS = 16


@dataclass(frozen=True)
class Page:
    """An answer.

    Attributes:
        text: Text of the answer.
        status: Status code of HTTP.
        kind: Content type of the answer.
    """

    text: str
    status: int = 200
    kind: str = "text/plain; charset=utf-8"


class PageServer:
    """Serves pages, in threads, from `start` to `close`.

    Args:
        pages: Functions that return a page as it is now, by path; called in any thread, for one request at a time.
        address: Address to listen at, ``host:port``; port 0 takes a free one.
        what: Word for what the server serves, for the texts of errors and the name of the thread.
        allow_remote: Whether the address may be reachable from other machines. There is no authentication.

    Raises:
        ConfigError: the address is malformed, or reachable from other machines without ``allow_remote=True``.
    """

    def __init__(
        self,
        pages: Mapping[str, Callable[[], Page]],
        address: str,
        *,
        what: str = "metrics",
        allow_remote: bool = False,
    ) -> None:
        self._pages = pages
        self._what = what
        self._address = page_address(address, what, allow_remote)
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        #: Process that has started it.
        self._pid = 0

    def start(self) -> None:
        """Listen and begin to serve; returns at once.

        Raises:
            EndpointInUse: something else listens there.
            PeerLost: the operating system refused the address.
        """
        if self._server is not None:
            return
        try:
            self._server = _Server(self._address, self._pages)
        except OSError as error:
            text = f"cannot serve {self._what} at {self._address.target()}: {error.strerror or error}"
            raise (EndpointInUse if error.errno == 98 else PeerLost)(text) from None
        self._pid = os.getpid()
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            name=f"softs-{self._what}",
            # By itself it looks twice a second whether it is to end.
            kwargs={"poll_interval": None},
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening, and wait for the requests that have begun. Idempotent; a fork does nothing."""
        if os.getpid() != self._pid:
            return
        if self._server is not None and self._thread is not None:
            # This wakes it.
            with suppress(OSError):  # a close that a signal has ended has done it
                self._server.socket.shutdown(socket.SHUT_RDWR)
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
        self._server = self._thread = None

    @property
    def url(self) -> str:
        """URL of the first page, with the port that was chosen."""
        port = self._address.port if self._server is None else self._server.server_port
        return f"http://{bracketed(self._address.numeric[0])}:{port}{next(iter(self._pages))}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *args: object) -> None:
        self.close()


class TextServer(PageServer):
    """Serves a text at ``/metrics``.

    Args:
        read: returns the text, as it is now; called in any thread, for one request at a time.
        address: where to listen, ``host:port``; port 0 takes a free one.
        allow_remote: lets the address be reachable from other machines. There is no authentication.

    Raises:
        ConfigError: the address is malformed, or reachable from other machines without ``allow_remote=True``.
    """

    def __init__(self, read: Callable[[], str], address: str, *, allow_remote: bool = False) -> None:
        def page() -> Page:
            return Page(read(), kind="text/plain; version=0.0.4; charset=utf-8")

        super().__init__({"/metrics": page, "/": page}, address, allow_remote=allow_remote)


class _Server(ThreadingMixIn, HTTPServer):
    """An HTTP server with a thread for each connection, as browsers open some on which they ask nothing."""

    def __init__(self, address: Address, pages: Mapping[str, Callable[[], Page]]) -> None:
        self.address_family = address.family
        self.pages = pages
        self.making = threading.Lock()
        self._free = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        super().__init__((address.numeric[0], address.port), _Handler)

    def server_bind(self) -> None:
        # HTTPServer's own would look up the name of the host, which can take seconds.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        self._free.acquire()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """End a connection that `process_request` has taken; called once for each."""
        super().shutdown_request(request)
        self._free.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a client that closed its connection."""


class _Handler(BaseHTTPRequestHandler):
    timeout = _TIMEOUT_S
    server: _Server

    def setup(self) -> None:
        super().setup()
        # A client that sends a byte now and then would keep its thread for ever.
        head = _head(self.connection, time.monotonic() + _TIMEOUT_S)
        self.rfile.close()
        self.rfile = io.BufferedReader(io.BytesIO(head))

    def do_GET(self) -> None:
        read = self.server.pages.get(self.path.partition("?")[0])
        if read is None:
            self.send_error(404)
            return
        if not self._is_asked_by_its_name():
            self.send_error(403, "this page is for this machine: ask for it by its address, or as localhost")
            return
        with self.server.making:
            page = read()
        body = page.text.encode()
        self.send_response(page.status)
        self.send_header("Content-Type", page.kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _is_asked_by_its_name(self) -> bool:
        """Return whether a page of the loopback is asked for as one: by another name, a site in a browser asks."""
        if not is_loopback(str(self.server.server_address[0])):
            return True
        host = self.headers.get("Host", "").lower().removeprefix("[")
        name = host.partition("]")[0] if "]" in host else host.rpartition(":")[0] or host
        with suppress(ValueError):
            return name in ("", "localhost") or is_loopback(name)
        return False

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a line per request has no use."""


def _head(connection: socket.socket, end_s: float) -> bytes:
    """Return the head of a request.

    Raises:
        OSError: it has not arrived in time, or the client has closed the connection.
    """
    head = b""
    while b"\r\n\r\n" not in head and b"\n\n" not in head and len(head) < _MAX_HEAD_BYTES:
        connection.settimeout(max(end_s - time.monotonic(), 0.001))
        received = connection.recv(_MAX_HEAD_BYTES - len(head))
        if not received:
            raise ConnectionError("the client has closed the connection")
        head += received
    connection.settimeout(_TIMEOUT_S)
    return head


def page_address(text: str, what: str, allow_remote: bool) -> Address:
    """Look an address up at which pages are served, which all that reach it may read.

    Raises:
        ConfigError: it is malformed, or reachable from other machines without `allow_remote`.
    """
    address = Address.parse(text, what)
    remedy = "listen at 127.0.0.1, or say --allow-insecure or allow_remote=True"
    check_reachable(address, f"page of {what}", insecure=allow_remote, remedy=remedy)
    return address
