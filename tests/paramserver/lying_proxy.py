"""A slow and lying proxy: it limits bodies, drops answers, sends error pages, cuts connections at a byte."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler

from http_thread import HttpThread
from waiting import WATCHDOG_S

PAGE = b"<html><body><h1>502 Bad Gateway</h1>tunnel not found</body></html>"


@dataclass(frozen=True)
class Fault:
    """What happens to one request.

    Attributes:
        page: status of an error page of the proxy; the server never sees the request.
        drop_answer: the server answers, and the worker never sees it.
        cut_request: bytes of the request's body that reach the server before the connection is lost.
        cut_answer: bytes of the answer's body that reach the worker before the connection is lost.
        replay: the request is sent twice, and the worker sees the second answer.
        change: byte of the answer's body that is changed.
    """

    page: int = 0
    drop_answer: bool = False
    cut_request: int | None = None
    cut_answer: int | None = None
    replay: bool = False
    change: int | None = None


class LyingProxy:
    """Forwards to a server, with a fault for each request that `fault` chooses.

    Args:
        port: Port of the server.
        fault: Function of the method, the path and the number of the request, from 0; returns the fault, or None.
        max_body: Most bytes of a request's body; longer ones are refused with a page of status 413.
    """

    def __init__(
        self,
        port: int,
        fault: Callable[[str, str, int], Fault | None] = lambda *_: None,
        max_body: int = 1 << 30,
    ) -> None:
        self.target, self.fault, self.max_body = port, fault, max_body
        self.n_requests = 0
        self.n_faults = 0
        self._lock = threading.Lock()
        self._http = HttpThread(self.forward)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.port}"

    def __enter__(self) -> LyingProxy:
        return self

    def __exit__(self, *arguments: object) -> None:
        self._http.stop()

    def forward(self, handler: BaseHTTPRequestHandler) -> None:
        """Treat one request."""
        n = int(handler.headers.get("Content-Length", 0))
        with self._lock:
            number, self.n_requests = self.n_requests, self.n_requests + 1
        fault = self.fault(handler.command, handler.path, number) or Fault()
        if fault != Fault():
            self.n_faults += 1
        if n > self.max_body:
            # As nginx does: the page comes before the body was read, and the connection ends.
            handler.close_connection = True
            self._page(handler, 413)
            handler.rfile.read(n)
            return
        body = handler.rfile.read(n)
        if fault.page:
            self._page(handler, fault.page)
            return
        if fault.cut_request is not None:
            self._send_part(handler, body[: fault.cut_request])
            self._lose(handler)
            return
        for _ in range(2 if fault.replay else 1):
            status, headers, data = self._ask(handler, body)
        if fault.drop_answer:
            self._lose(handler)
            return
        if fault.change is not None and data:
            changed = bytearray(data)
            changed[fault.change % len(data)] ^= 1
            data = bytes(changed)
        handler.send_response(status)
        for name, value in headers:
            if name.lower() not in ("server", "date"):
                handler.send_header(name, value)
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(data if fault.cut_answer is None else data[: fault.cut_answer])
        if fault.cut_answer is not None:
            handler.wfile.flush()
            self._lose(handler)

    def _ask(self, handler: BaseHTTPRequestHandler, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.target, timeout=WATCHDOG_S)
        try:
            connection.request(handler.command, handler.path, body, dict(handler.headers))
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        except OSError:
            return 502, [("Content-Type", "text/html"), ("Content-Length", str(len(PAGE)))], PAGE
        finally:
            connection.close()

    def _send_part(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        """Have the server see the head of the request and the beginning of its body, and then the end of the connection."""
        with socket.create_connection(("127.0.0.1", self.target), timeout=WATCHDOG_S) as upstream:
            head = f"{handler.command} {handler.path} HTTP/1.1\r\n" + "".join(
                f"{name}: {value}\r\n" for name, value in handler.headers.items()
            )
            upstream.sendall(head.encode() + b"\r\n" + body)

    def _lose(self, handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        handler.connection.shutdown(socket.SHUT_RDWR)

    def _page(self, handler: BaseHTTPRequestHandler, status: int) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", "text/html")
        handler.send_header("Content-Length", str(len(PAGE)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(PAGE)
