"""What the owner of a run sees and does: status, control, page, health, metrics."""

from __future__ import annotations

import asyncio
import functools
from http import HTTPStatus
from pathlib import Path

from ....errors import WireError
from ...rounds import events
from ...wire import answers
from ...wire.answers import Code
from ...wire.limits import MAX_WAIT_S
from ...wire.messages import Control, MemberStatus, Status
from ...wire.records import decode
from ..driver import Driver
from .metrics import render
from .pushes import Pushes
from .request import Reply, Request, failure
from .sessions import Sessions

__all__ = ["Owner"]

#: The page at /: static files, which poll the status with the owner's key.
_FOLDER = Path(__file__).parent / "static"
_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
}
_POLICY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Owner:
    """Status for people and programs.

    Args:
        driver: Driver of the run.
        pushes: Pushes of the workers.
        sessions: Sessions of the run.
        world_size: Workers that the run expects.
    """

    def __init__(self, driver: Driver, pushes: Pushes, sessions: Sessions, world_size: int) -> None:
        self._driver = driver
        self._pushes = pushes
        self._uploads = pushes.uploads
        self._sessions = sessions
        self._world_size = world_size
        self.sent_bytes = 0

    def public(self, path: str) -> Reply | None:
        """Return what needs no proof: the page without its data, health, metrics; None for other paths."""
        if path == "/healthz":
            is_well = self._driver.file_trouble is None
            text = b"ok\n" if is_well else (self._driver.file_trouble or "").encode() + b"\n"
            status = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
            return Reply(status, text, "text/plain; charset=utf-8")
        if path == "/metrics":
            text = render(self._driver, self._uploads, self._pushes.n_bytes, self.sent_bytes).encode()
            return Reply(HTTPStatus.OK, text, "text/plain; version=0.0.4")
        return _page(path)

    async def answer(self, request: Request, body: bytes) -> Reply:
        """Answer a request of the owner.

        Raises:
            Refusal: there is no such request, or it cannot be done.
        """
        match request.method, request.path:
            case "GET", answers.STATUS:
                return await self.status(request)
            case "POST", answers.CONTROL:
                self._control(body)
                return Reply(HTTPStatus.NO_CONTENT)
            case _:
                raise failure(
                    HTTPStatus.NOT_FOUND,
                    Code.BAD_REQUEST,
                    f"there is no {request.method} {request.path[:64]}",
                )

    async def status(self, request: Request) -> Reply:
        """Return the status, once it is another one than that of `since`."""
        since, wait = request.query.get("since", "-1"), request.query.get("wait", "0")
        try:
            wait_s = min(max(0.0, float(wait)), MAX_WAIT_S)
        except ValueError:
            wait_s = 0.0
        until_s = asyncio.get_running_loop().time() + wait_s
        while str(self._driver.serial) == since:
            if not await self._driver.wait_for_change(until_s):
                return Reply(HTTPStatus.NO_CONTENT)
        return Reply.of(self._status())

    def _status(self) -> Status:
        now = self._driver.status()
        members = []
        for one in now.members:
            upload = self._uploads.find(one.worker_id)
            members.append(
                MemberStatus(
                    **vars(one) | {"silent_s": round(one.silent_s, 1)},
                    uploaded_bytes=0 if upload is None else upload.offset,
                    upload_bytes=0 if upload is None else len(upload.payload),
                )
            )
        trouble = self._driver.file_trouble
        return Status(
            serial=self._driver.serial,
            state=now.state,
            timeline=now.timeline,
            version=now.version,
            rounds=now.rounds,
            world_size=self._world_size,
            have=now.have,
            need=now.need,
            waiting_for=f"{now.text}, for {now.since_s:.0f} s" + (f"; {trouble}" if trouble else ""),
            members=tuple(members),
            loss=now.loss,
            metric=self._driver.evaluation.last,
            log=tuple(one.text for one in self._driver.lines),
            next_control=self._sessions.owner_n,
        )

    def _control(self, body: bytes) -> None:
        try:
            wish = decode(Control, body)
        except WireError as error:
            raise failure(HTTPStatus.BAD_REQUEST, Code.BAD_REQUEST, str(error)) from None
        tell = self._driver.tell
        match wish.action:
            case "start":
                tell(events.Start())
            case "pause":
                tell(events.Pause("by the owner"))
            case "resume":
                tell(events.Resume())
            case "stop":
                tell(events.Stop("stopped by the owner"))
            case "kick":
                if isinstance(tell(events.Kick(wish.worker_id, "by the owner")), events.Unknown):
                    raise failure(
                        HTTPStatus.NOT_FOUND, Code.BAD_REQUEST, f"there is no worker {wish.worker_id[:64]}"
                    )
                self._uploads.drop(wish.worker_id)
        self._driver.note(f"the owner says {wish.action}")
        self._driver.notify()


def _page(path: str) -> Reply | None:
    """Return a file of the page; None if there is none at this path."""
    if path not in _FILES:
        return None
    name, content_type = _FILES[path]
    return Reply(HTTPStatus.OK, _read(name), content_type, headers=dict(_POLICY))


@functools.cache
def _read(name: str) -> bytes:
    return (_FOLDER / name).read_bytes()
