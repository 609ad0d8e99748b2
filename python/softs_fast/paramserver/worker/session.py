"""The connection of one worker: it joins, signs, checks signatures, tries again, and joins again after a restart."""

from __future__ import annotations

import itertools
import logging
import os
import platform
import random
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from urllib.parse import urlsplit

from ...errors import ConfigError, PeerLost, WireError
from ...process import check_process
from ...trust import Outage, TlsFiles, tls_problem
from ..wire import answers, signing
from ..wire.answers import Code
from ..wire.header import HEADER_BYTES, PROTOCOL
from ..wire.invite import Invite
from ..wire.limits import MAX_JSON_BYTES
from ..wire.manifest import Manifest
from ..wire.messages import Admission, Failure, JoinAnswer, JoinRequest, decode, encode
from .exchanges import Answer, Download, Exchange, Request, Upload, refusal
from .options import WorkerOptions
from .retries import Retries, Trouble
from .transport import Response, Transport, TransportError, asked_seconds, foreign

__all__ = ["Session", "Traffic"]

_log = logging.getLogger("softs_fast.paramserver")

#: What is read of a page of another server.
_MAX_FOREIGN = 4 << 10
#: Signed answers that say: there is no such session any more.
_NO_SESSION = {(HTTPStatus.NOT_FOUND, Code.UNKNOWN_ID), (HTTPStatus.UNAUTHORIZED, Code.BAD_MAC)}
#: Signed answers to requests that are sent again after a pause.
_BUSY = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_REPLAYED = (HTTPStatus.UNAUTHORIZED, Code.REPLAYED)


@dataclass
class Traffic:
    """What a session has done so far.

    Attributes:
        sent_bytes: Bytes of bodies sent.
        received_bytes: Bytes of bodies received.
        failures: Attempts without an answer of the server.
        joins: Number of joins.
        trouble: Text of the last failure; "" while the server answers.
    """

    sent_bytes: int = 0
    received_bytes: int = 0
    failures: int = 0
    joins: int = 0
    trouble: str = ""


@dataclass
class _Keys:
    """Of one join.

    Attributes:
        answer: Answer of the server.
        session: Key of all requests.
        counters: Counter of the next request; threads share it.
    """

    answer: JoinAnswer
    session: bytes
    counters: Iterator[int] = field(default_factory=lambda: itertools.count(1))


class Session:
    """A worker's side of the protocol. Threads may share it: one for pushes and weights, one for heartbeats.

    Args:
        invite: Invite that the server printed, or one of a place. Each attempt takes the next one of several hosts.
        manifest: Manifest of the worker's model.
        options: WorkerOptions of the worker.

    Raises:
        ConfigError: urllib3 is missing, the proxy is invalid, the token file cannot be used, or `url_file` is given beside
            a place.
    """

    def __init__(self, invite: Invite, manifest: Manifest, options: WorkerOptions) -> None:
        self.invite = invite
        self.manifest = manifest
        self.traffic = Traffic()
        #: Rises while the worker trains; heartbeats carry it, so that the server knows a worker that hangs.
        self.progress = 0
        self.options = options
        if invite.place is not None and options.url_file is not None:
            raise ConfigError(
                "a file with the server's URL is for an invite; name several hosts instead: softs://HOST,HOST2/JOB?token_file=FILE"
            )
        self._transport = Transport(invite, options.proxy)
        self._keys: _Keys | None = None
        self._pid = os.getpid()
        self._joining = threading.Lock()
        self._is_closed = threading.Event()
        self._instance = secrets.token_hex(signing.NONCE_BYTES)
        hosts = (invite.url,) if invite.place is None else invite.place.addresses
        self._outage = Outage(hosts, time.monotonic())
        self._random = random.Random(secrets.randbits(64))

    @property
    def joined(self) -> JoinAnswer:
        """The answer to the last join.

        Raises:
            ConfigError: the worker has not joined.
        """
        return self._current().answer

    def join(self) -> JoinAnswer:
        """Join the run, or join it again with the same id.

        Raises:
            ConfigError: the secret is wrong, the model is another one, or the worker was removed.
            PeerLost: the server is out of reach for longer than `rejoin_timeout_s`.
            WireError: the server does not speak this protocol.
        """
        self._join_after(self._keys)
        return self.joined

    def run(self, exchange: Exchange) -> None:
        """Have requests sent until an exchange is done.

        Raises:
            ConfigError: the server refuses the worker for good.
            PeerLost: the server is out of reach for longer than `rejoin_timeout_s`, or the session was closed.
            WireError: the server does not understand a request, or refuses a push.
        """
        retries = Retries(self.options.rejoin_timeout_s)
        n_joins = 0
        while True:
            keys = self._current()
            request = exchange.next()
            self.progress += 1
            begin = time.monotonic()
            received = exchange.n_received if isinstance(exchange, Download) else 0
            try:
                answer = self._attempt(request, keys, exchange)
            except TransportError as error:
                if isinstance(exchange, Download) and exchange.n_received > received:
                    # Cut, but not without progress: that is no failure of which there may be only so many.
                    retries.answered()
                exchange.failed(error.trouble, time.monotonic() - begin, error.status)
                self._pause(retries, error)
                continue
            if (answer.status, answer.code()) in _NO_SESSION:
                self._join_after(keys)
                exchange.failed(Trouble.BUSY, 0.0, 0)
                if isinstance(exchange, Upload):
                    exchange.rejoined()
                n_joins += 1
                if n_joins > 1:
                    self._pause(retries, TransportError(Trouble.BUSY, "a session ended as soon as it began"))
                continue
            retries.answered()
            self._answered()
            if exchange.answered(answer, time.monotonic() - begin):
                return

    def attempt(self, exchange: Exchange) -> None:
        """Send one request, and no second one: for heartbeats, of which the next one makes up for it.

        Raises:
            PeerLost: there is no answer, or the server is busy.
            ConfigError: the server refuses the worker for good.
            WireError: the server does not understand a request.
        """
        keys = self._current()
        try:
            answer = self._attempt(exchange.next(), keys, exchange)
        except TransportError as error:
            raise PeerLost(f"{error.trouble.value}: {error}") from None
        if (answer.status, answer.code()) in _NO_SESSION:
            self._join_after(keys)
        else:
            exchange.answered(answer, 0.0)

    def close(self) -> None:
        """Close the connections; a thread that waits for another attempt gets PeerLost."""
        self._is_closed.set()
        self._transport.close()

    def _current(self) -> _Keys:
        if self._keys is None:
            raise ConfigError("the worker has not joined yet")
        return self._keys

    def _attempt(self, request: Request, keys: _Keys, exchange: Exchange) -> Answer:
        download = exchange if isinstance(exchange, Download) else None
        return self._send(request, keys.answer.worker_id, next(keys.counters), keys.session, download)

    def _send(
        self, request: Request, worker_id: str, n: int, key: bytes, download: Download | None = None
    ) -> Answer:
        """Send a request, signed, and read its answer.

        Raises:
            TransportError: there is no answer with the server's signature, or it says that the server is busy.
        """
        check_process(self._pid, "the worker of the parameter server")
        mac = signing.request_mac(
            key, worker_id=worker_id, method=request.method, target=request.target, n=n,
            upload_offset=request.offset, digested=request.digested,
        )  # fmt: skip
        headers = {"Authorization": str(signing.Authorization(worker_id, n, mac))}
        if request.offset is not None:
            headers[answers.UPLOAD_OFFSET] = str(request.offset)
        if request.begin:
            headers |= {"Range": f"bytes={request.begin}-", "If-Match": f'"{request.etag}"'}
        if request.body:
            is_push = request.target.startswith(answers.PUSH)
            headers["Content-Type"] = "application/octet-stream" if is_push else "application/json"
        with closing(
            self._transport.send(request.method, request.target, headers, request.body, request.held_s)
        ) as response:
            self.traffic.sent_bytes += sum(len(piece) for piece in request.body)
            answer = self._read(request, response, mac, key, download)
        if answer.status in _BUSY or (answer.status, answer.code()) == _REPLAYED:
            failure = _failure_of(answer.body)
            text = f"{answer.status}" if failure is None else failure.message
            raise TransportError(Trouble.BUSY, text, answer.status, answer.asked_s)
        return answer

    def _read(
        self, request: Request, response: Response, mac: str, key: bytes, download: Download | None
    ) -> Answer:
        status = response.status
        given = response.headers.get(answers.MAC)
        if given is None:
            raise foreign(response, b"" if request.method == "HEAD" else response.read(_MAX_FOREIGN))
        frame = download if status in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT) else None
        head = None if frame is None else frame.head(status)
        if head is not None or request.method == "HEAD":
            body = head or b""
        else:
            body = response.read(MAX_JSON_BYTES + 1 if frame is None else HEADER_BYTES)
        version, offset = response.headers.get(answers.VERSION), response.headers.get(answers.UPLOAD_OFFSET)
        self.traffic.received_bytes += len(body)
        if not any(
            signing.check_answer(
                signing.answer_mac(
                    one, request=mac, status=status, version=version, upload_offset=offset, digested=body
                ),
                given,
            )
            for one in (key, signing.answer_key(self.invite.secret, self.invite.job))
        ):
            raise foreign(response, body[:_MAX_FOREIGN])
        if frame is not None:
            if head is None:
                frame.begin(body)
            self._fill(response, frame)
            body = b""
        return Answer(
            status,
            body,
            int(offset) if offset is not None and offset.isascii() and offset.isdigit() else None,
            asked_seconds(response),
        )

    def _fill(self, response: Response, download: Download) -> None:
        while len(room := download.room()):
            n = response.readinto(room)
            if n == 0:
                raise TransportError(Trouble.CUT, f"{len(room)} bytes of a frame are missing")
            download.received(n)
            self.traffic.received_bytes += n
            self.progress += 1
        if not download.is_intact:
            download.restart()
            raise TransportError(Trouble.FOREIGN, "a frame was changed on the road")

    def _join_after(self, keys: _Keys | None) -> None:
        """Join, unless another thread has joined since these keys were current."""
        with self._joining:
            if self._keys is keys:
                self._keys = self._join()

    def _join(self) -> _Keys:
        retries = Retries(self.options.rejoin_timeout_s)
        while True:
            try:
                # Another host may have another run, until the worker is of one.
                if self.invite.place is not None and self._keys is None:
                    self._ask()
                return self._join_once()
            except TransportError as error:
                self._refuse_at_once(error)
                self._pause(retries, error)

    def _join_once(self) -> _Keys:
        secret, job = self.invite.secret, self.invite.job
        nonce = secrets.token_bytes(signing.NONCE_BYTES)
        body = encode(
            JoinRequest(
                (self.options.name or platform.node())[:128],
                (PROTOCOL,),
                self.manifest.encoded.decode(),
                nonce.hex(),
                self._keys.answer.worker_id if self._keys is not None else "",
                self._instance,
            )
        )
        key = signing.join_key(secret, job, nonce)
        answer = self._send(Request("POST", answers.JOIN, body, (body,)), signing.NEW, 0, key)
        if answer.status != HTTPStatus.OK:
            raise refusal(answer, f"the server at {self.invite.url} does not let the worker join")
        self._answered()
        self.traffic.joins += 1
        joined = answer.record(JoinAnswer)
        return _Keys(
            joined, signing.session_key(secret, job, nonce, bytes.fromhex(joined.nonce), joined.worker_id)
        )

    def _ask(self) -> None:
        """Ask for what an invite would have; the certificates of both ends are of the token.

        Raises:
            TransportError: there is no answer.
        """
        check_process(self._pid, "the worker of the parameter server")
        with closing(self._transport.send("GET", answers.INVITE, {})) as response:
            body = response.read(_MAX_FOREIGN)
            try:
                if response.status != HTTPStatus.OK:
                    raise foreign(response, body)
                told = decode(Admission, body)
            except WireError:
                raise foreign(response, body) from None
        self.invite = replace(self.invite, job=bytes.fromhex(told.job), secret=bytes.fromhex(told.secret))

    def _refuse_at_once(self, error: TransportError) -> None:
        """Before the first join, a wrong secret is the invite's fault, which time does not mend; with a place it is asked anew."""
        failure = _failure_of(error.body) if error.status == HTTPStatus.UNAUTHORIZED else None
        if self._keys is None and self.invite.place is None and failure is not None:
            raise ConfigError(
                f"the server at {self.invite.url} does not know the invite: {failure.message}; "
                "ask for the line that it prints now"
            ) from None

    def _answered(self) -> None:
        self.traffic.trouble = ""
        self._outage.connected()

    def _pause(self, retries: Retries, error: TransportError) -> None:
        """Wait as long as the machine says, and move to another URL if it says so."""
        if error.trouble is Trouble.CUT and self._keys is None and (problem := self._plain_problem()):
            error = TransportError(Trouble.CERTIFICATE, problem)
        now, cause = time.monotonic(), f"{self.invite.url}: {error.trouble.value}: {error}"
        attempt = self._outage.failed(
            now,
            cause,
            is_refusal=error.trouble is Trouble.CERTIFICATE,
            moves=error.trouble is not Trouble.BUSY,
        )
        if attempt.is_last:
            url = self.invite.url
            if self.invite.place is not None:
                raise ConfigError(f"no connection to the parameter server at {url}: {error}")
            raise ConfigError(f"the TLS of {url} is not the one of the invite: {error}; ask for a new invite")
        self.traffic.failures += 1
        draw = self._random.random()
        pause_s, asks_url = retries.failed(
            now, error.trouble, draw, asked_s=error.asked_s, cause=self._outage.cause
        )
        self.traffic.trouble = f"{error.trouble.value} ({error})"
        level = logging.WARNING if attempt.is_warning else logging.INFO
        _log.log(level, "no answer of the server, attempt %d: %s", retries.n_failed, cause)
        if self.invite.place is not None:
            if error.trouble is not Trouble.BUSY:
                self._take_host()
        elif asks_url or self.options.url_file is not None:
            self._look_for_url(asks_url)
        if self._is_closed.wait(pause_s):
            raise PeerLost("the session was closed")

    def _plain_problem(self) -> str | None:
        """Return why a server ends a connection without TLS, if it wants TLS."""
        url = urlsplit(self.invite.url)
        if url.scheme != "http" or url.hostname is None or self.options.proxy is not None:
            return None
        return tls_problem(url.hostname, url.port or 80, TlsFiles())

    def _take_host(self) -> None:
        """Use the host that is to be tried now, and the token file as it is now."""
        moved = self.invite.moved(f"https://{self._outage.host}")
        try:
            self._transport.move(moved)
        except ConfigError as error:
            # A file that is being replaced may be whole again at the next attempt.
            _log.warning("the server is not looked for at %s: %s", moved.url, error)
        else:
            self.invite = moved

    def _look_for_url(self, may_ask: bool) -> None:
        """Use the URL of the file, or ask a person for one."""
        url = None
        if self.options.url_file is not None:
            try:
                url = self.options.url_file.read_text().strip()[:2048]
            except (OSError, UnicodeDecodeError) as error:
                _log.warning("cannot read the URL in %s: %s", self.options.url_file, error)
        elif may_ask and self.options.ask_url is not None:
            url = self.options.ask_url()
        if not url or url.rstrip("/") == self.invite.url:
            return
        try:
            moved = Invite.parse(url) if "@" in url else self.invite.moved(url)
        except ConfigError as error:
            _log.warning("the new URL is not used: %s", error)
            return
        if (moved.job, moved.secret) != (self.invite.job, self.invite.secret):
            _log.warning("the new invite is of another job; start the worker again with it")
            return
        _log.info("the server has moved to %s", moved.url)
        self.invite = moved
        self._transport.move(moved)


def _failure_of(body: bytes) -> Failure | None:
    """Return what a body says that has no valid signature; None if it is no error of a server of this kind."""
    try:
        return decode(Failure, body)
    except WireError:
        return None
