"""The ASGI application: which request is answered by what."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from http import HTTPStatus
from typing import Any, cast, get_args

from ....errors import WireError
from ...rounds import events
from ...rounds.events import Version
from ...wire import answers, signing
from ...wire.answers import Code
from ...wire.header import HEADER_BYTES, PROTOCOL
from ...wire.limits import MAX_JOIN_BYTES, MAX_REQUEST_BYTES, WHOLE_FRAME_BYTES
from ...wire.manifest import Manifest
from ...wire.messages import DataRange, DataRequest, Heartbeat, JoinAnswer, JoinRequest, Leave, nonce_of
from ..driver import Driver
from ..training.weights import PullCodec
from .budget import LOG, Budget
from .owner import Owner
from .pushes import Pushes, refusal_of
from .request import (
    Disconnected,
    Message,
    Receive,
    Refusal,
    Reply,
    Request,
    Send,
    decoded,
    failure,
    no_route,
    send_reply,
)
from .sessions import Session, Sessions

__all__ = ["Application"]

#: For the body of a join.
_JOIN_S = 30.0


class Application:
    """All requests.

    Args:
        driver: Driver of the run.
        sessions: Sessions of the workers.
        pushes: Pushes of the workers.
        world_size: Workers that the run expects.
        has_token: Whether TLS lets in no peers but holders of the token of the job: they need no invite.
    """

    def __init__(
        self, driver: Driver, sessions: Sessions, pushes: Pushes, world_size: int, has_token: bool
    ) -> None:
        self._driver = driver
        self._sessions = sessions
        self._pushes = pushes
        self._owner = Owner(driver, pushes, sessions)
        self._manifest, self._config = driver.weights.manifest, driver.config
        self._world_size = world_size
        self._has_token = has_token
        self.budget = Budget()
        #: Answers with weights that are under way.
        self.n_sending = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive, self.budget)
        request.key = self._sessions.answer_key
        if request.authorization is not None:
            session = self._sessions.find(request.authorization.worker_id)
            request.key = request.key if session is None else session.key
        try:
            reply = await self._answer(request)
        except Refusal as refusal:
            reply = refusal.reply
        except Disconnected:
            return
        except Exception:
            LOG.exception("%s %s failed", request.method, request.path[:64])
            text = "the server has failed over this request"
            reply = failure(Code.INTERNAL, text, "its log says why").reply
        finally:
            self.budget.release(request.connection)
        is_weights = reply.frame is not None
        self.n_sending += is_weights
        try:
            await send_reply(send, reply, request, str(self._driver.run.version))
        finally:
            self.n_sending -= is_weights

    async def _answer(self, request: Request) -> Reply:
        if request.method == "GET" and (public := self._owner.public(request.path)) is not None:
            self.budget.spend()
            request.key = None
            return public
        if self._has_token and (request.method, request.path) == ("GET", answers.INVITE):
            request.prove()
            request.key = None
            return Reply.of(self._sessions.admission)
        if request.path == answers.JOIN and request.method == "POST":
            return await self._join(request)
        if not request.path.startswith("/v1/"):
            raise no_route(request)
        session = self._session(request)
        if request.path.startswith(answers.PUSH) and session.worker_id != signing.OWNER:
            return await self._push(request, session)
        body = await request.body(MAX_REQUEST_BYTES) if request.method == "POST" else b""
        self._authenticate(request, session, body)
        if session.worker_id == signing.OWNER:
            return await self._owner.answer(request, body)
        return await self._of_worker(request, session.worker_id, body)

    # --- What proves itself ---

    def _session(self, request: Request) -> Session:
        """Return the session that a request names; nothing is proven yet.

        Raises:
            Refusal: there is none, or too many requests without a proof have been made.
        """
        if request.authorization is None:
            self.budget.spend()
            raise failure(
                Code.BAD_MAC,
                "the request has no signature",
                "start a worker with the invite that the server printed",
            )
        session = self._sessions.find(request.authorization.worker_id)
        if session is None:
            self.budget.spend()
            raise refusal_of(events.UNKNOWN, self._driver)
        return session

    def _authenticate(
        self, request: Request, session: Session, digested: bytes = b"", offset: int | None = None
    ) -> None:
        if not request.is_signed(session.key, digested, offset):
            self.budget.spend()
            raise failure(Code.BAD_MAC, "the signature of the request is wrong", "join again")
        request.prove()
        assert request.authorization is not None
        is_read = session.worker_id == signing.OWNER and request.method == "GET"
        if not is_read and not self._sessions.take(session, request.authorization.n):
            raise failure(
                Code.REPLAYED,
                f"the counter {request.authorization.n} was used before, or is too old",
                "send it again with a new counter",
            )

    async def _join(self, request: Request) -> Reply:
        try:
            async with asyncio.timeout(_JOIN_S):
                body = await request.body(MAX_JOIN_BYTES)
        except TimeoutError:
            text = f"the join took longer than {_JOIN_S:g} s"
            raise failure(Code.BAD_REQUEST, text, status=HTTPStatus.REQUEST_TIMEOUT) from None
        # Nothing is parsed before the signature is checked, which needs the nonce alone.
        nonce = nonce_of(body)
        key = self._sessions.join_key(nonce)
        is_new = request.authorization is not None and request.authorization.worker_id == signing.NEW
        if not is_new or not request.is_signed(key, body):
            self.budget.spend()
            raise failure(
                Code.BAD_MAC,
                "the worker does not have the secret of this run",
                "start it with the invite that the server printed",
            )
        request.prove()
        request.key = key
        if not self._sessions.use_nonce(nonce):
            raise failure(Code.REPLAYED, "the nonce of the join was used before")
        wish = decoded(JoinRequest, body, MAX_JOIN_BYTES)
        if PROTOCOL not in wish.protocols:
            raise failure(
                Code.PROTOCOL,
                f"the worker has the protocols {list(wish.protocols)}; the server has {PROTOCOL}",
                "install the same version of softs-fast on both sides",
            )
        # Of a large model it takes long: other workers are answered meanwhile.
        await asyncio.to_thread(self._compare, wish.manifest)
        return Reply.of(self._admit(wish, nonce))

    def _admit(self, wish: JoinRequest, nonce: bytes) -> JoinAnswer:
        worker_id = secrets.token_hex(8)
        before = self._sessions.latest(wish.instance) or wish.old_id or None
        answer = self._driver.tell(events.Join(worker_id, wish.name, before, wish.instance))
        if not isinstance(answer, events.Welcome):
            raise refusal_of(answer, self._driver)
        if len(self._sessions) > 2 * self._driver.run.n_known + 64:
            self._sessions.keep(self._driver.run.knows)
        own = self._sessions.begin(worker_id, nonce, wish.instance)
        self._driver.note(f'"{wish.name}" joins with rank {answer.rank}')
        return JoinAnswer(worker_id, answer.rank, self._world_size, self._config, own.hex(), *answer.version)

    def _compare(self, theirs: str) -> None:
        if hmac.compare_digest(theirs.encode(), self._manifest.encoded):
            return
        try:
            difference = self._manifest.first_difference(Manifest.decode(theirs.encode()))
        except WireError as error:
            difference = str(error)
        raise failure(
            Code.OTHER_MANIFEST,
            f"the worker has another model: {difference}",
            "use the same job on both sides",
        )

    # --- Workers ---

    async def _push(self, request: Request, session: Session) -> Reply:
        if request.path == answers.PUSH and request.method == "POST":
            most = HEADER_BYTES + WHOLE_FRAME_BYTES
            head = await request.head(HEADER_BYTES, most)
            self._authenticate(request, session, head)
            rest = (await request.body(most))[HEADER_BYTES:]
            self._pushes.n_bytes += len(rest)
            return await self._pushes.announce(session.worker_id, head, rest)
        base = _version(request.path.removeprefix(f"{answers.PUSH}/"))
        upload = self._pushes.uploads.find(session.worker_id, base)
        if request.method == "HEAD":
            self._authenticate(request, session)
            self._expect(self._driver.tell(events.Seen(session.worker_id)), events.Noted)
            if upload is None:
                return Reply(HTTPStatus.NOT_FOUND)
            return Reply(HTTPStatus.OK, offset=upload.offset)
        if request.method != "PUT":
            raise no_route(request)
        if upload is None:
            # Its header is needed to check the signature.
            raise failure(Code.NO_UPLOAD, f"no push for version {base} was announced", "announce it")
        offset = request.digits(answers.UPLOAD_OFFSET, 1 << 62)
        self._authenticate(request, session, upload.head, offset)
        if offset is None:
            raise failure(Code.BAD_REQUEST, f"a part has no {answers.UPLOAD_OFFSET}")
        return await self._pushes.part(upload, request, offset)

    async def _of_worker(self, request: Request, worker_id: str, body: bytes) -> Reply:
        tell = self._driver.tell
        match request.method, request.path:
            case "GET", answers.MODEL:
                return await self._pull(request, worker_id)
            case "POST", answers.HEARTBEAT:
                progress = decoded(Heartbeat, body).progress
                self._expect(tell(events.Seen(worker_id, progress)), events.Noted)
            case "POST", answers.DATA:
                return self._data(worker_id, body)
            case "POST", answers.LEAVE:
                reason = decoded(Leave, body).reason
                left = (
                    events.Leave(worker_id, f"it has failed: {reason}", True)
                    if reason
                    else events.Leave(worker_id)
                )
                self._expect(tell(left), events.Noted)
                self._pushes.uploads.drop(worker_id)
            case "POST", answers.PAUSE:
                self._expect(tell(events.Rest(worker_id)), events.Noted)
            case "POST", answers.RESUME:
                self._expect(tell(events.Rest(worker_id, is_over=True)), events.Noted)
            case "GET", answers.STATUS:
                self._expect(tell(events.Seen(worker_id)), events.Noted)
                return await self._owner.status(request)
            case _:
                raise no_route(request)
        return Reply(HTTPStatus.NO_CONTENT)

    async def _pull(self, request: Request, worker_id: str) -> Reply:
        have = Version(*_version(request.query["have"])) if "have" in request.query else None
        codec = request.query.get("codec", "f32")
        if codec not in get_args(PullCodec):
            raise failure(Code.BAD_REQUEST, f"there is no codec {codec[:16]!r} of weights")
        until_s = asyncio.get_running_loop().time() + request.wait_s(self._config.max_wait_s)
        answer = self._driver.tell(events.Pull(worker_id, have))
        while isinstance(answer, events.Hold):
            if not await self._driver.wait_for_change(until_s):
                return Reply(HTTPStatus.NO_CONTENT)
            answer = self._driver.tell(events.Pull(worker_id, have, is_again=True))
        self._expect(answer, events.Serve)
        frame = await self._driver.weights.frame(cast(PullCodec, codec), have)
        begin = _range(request.headers.get("range"), len(frame))
        wanted = request.headers.get("if-match")
        if wanted is not None and wanted.strip('"') != frame.header.signed_digest.hex():
            raise failure(
                Code.BAD_RANGE,
                "there are newer weights",
                "ask for all of them",
                status=HTTPStatus.PRECONDITION_FAILED,
            )
        status = HTTPStatus.PARTIAL_CONTENT if begin else HTTPStatus.OK
        self._owner.sent_bytes += len(frame) - begin
        return Reply(status, frame=frame, begin=begin)

    def _data(self, worker_id: str, body: bytes) -> Reply:
        if self._config.data != "leases":
            raise failure(
                Code.BAD_REQUEST, "this run hands out no samples: each worker takes those of its rank"
            )
        wish = decoded(DataRequest, body)
        answer = self._driver.tell(events.Take(worker_id, wish.n, wish.number))
        self._expect(answer, events.Granted)
        assert isinstance(answer, events.Granted)
        if not answer.ranges:
            return Reply(HTTPStatus.NO_CONTENT)
        ranges = tuple((one.start, one.stop) for one in answer.ranges)
        return Reply.of(DataRange(answer.ranges[0].epoch, self._config.seed, ranges))

    def _expect(self, answer: events.Action | None, kind: type[Any]) -> None:
        """Raise what an answer of the machine means, unless it is of this kind."""
        if not isinstance(answer, kind):
            raise refusal_of(answer, self._driver)


def _version(text: str) -> Version:
    try:
        return Version(*answers.parse_version(text))
    except WireError as error:
        raise failure(Code.BAD_REQUEST, str(error)) from None


def _range(text: str | None, n: int) -> int:
    """Return the first byte that is wanted."""
    if text is None:
        return 0
    begin = text.removeprefix("bytes=").removesuffix("-")
    if not (begin.isascii() and begin.isdigit() and len(begin) < 20 and int(begin) < n):
        raise failure(Code.BAD_RANGE, f"no such range of {n} bytes")
    return int(begin)
