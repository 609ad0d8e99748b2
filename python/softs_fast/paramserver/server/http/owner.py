"""What the owner of a run sees and does: status, control, page, health, metrics."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from http import HTTPStatus
from pathlib import Path
from typing import get_args

from ....monitoring import Family, metrics_text, unlabelled
from ....records import replace
from ...rounds import events
from ...wire import answers
from ...wire.answers import Code
from ...wire.limits import MAX_WAIT_S
from ...wire.messages import Control, MemberState, RunState, Status
from ..driver import Driver
from .pushes import Pushes
from .request import Reply, Request, decoded, failure, no_route
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

#: What the run is told by an action of the owner; a kick names a worker.
_EVENTS: dict[str, events.Event] = {
    "start": events.Start(),
    "pause": events.Pause("by the owner"),
    "resume": events.Resume(),
    "stop": events.Stop("stopped by the owner"),
}


class Owner:
    """Status for people and programs.

    Args:
        driver: Driver of the run.
        pushes: Pushes of the workers.
        sessions: Sessions of the run.
    """

    def __init__(self, driver: Driver, pushes: Pushes, sessions: Sessions) -> None:
        self._driver = driver
        self._pushes = pushes
        self._uploads = pushes.uploads
        self._sessions = sessions
        self.sent_bytes = 0

    def public(self, path: str) -> Reply | None:
        """Return what needs no proof: the page without its data, health, metrics; None for other paths."""
        if path == "/healthz":
            is_well = self._driver.file_trouble is None
            text = b"ok\n" if is_well else (self._driver.file_trouble or "").encode() + b"\n"
            status = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
            return Reply(status, text, "text/plain; charset=utf-8")
        if path == "/metrics":
            upload_bytes = self._uploads.n_bytes + self._driver.kept_bytes
            numbers = _metrics(self._driver, upload_bytes, self._pushes.n_bytes, self.sent_bytes)
            return Reply(HTTPStatus.OK, numbers.encode(), "text/plain; version=0.0.4")
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
                raise no_route(request)

    async def status(self, request: Request) -> Reply:
        """Return the status, once it is another one than that of `since`."""
        since = request.query.get("since", "-1")
        until_s = asyncio.get_running_loop().time() + request.wait_s(MAX_WAIT_S)
        while str(self._driver.serial) == since:
            if not await self._driver.wait_for_change(until_s):
                return Reply(HTTPStatus.NO_CONTENT)
        return Reply.of(self._status())

    def _status(self) -> Status:
        now, trouble = self._driver.status(), self._driver.file_trouble
        members = []
        for member in now.members:
            upload = self._uploads.find(member.worker_id)
            arrived, whole = (0, 0) if upload is None else (upload.offset, len(upload.payload))
            silent_s = round(member.silent_s, 1)
            members.append(replace(member, silent_s=silent_s, uploaded_bytes=arrived, upload_bytes=whole))
        return replace(
            now,
            serial=self._driver.serial,
            waiting_for=now.waiting_for + (f"; {trouble}" if trouble else ""),
            members=tuple(members),
            metric=self._driver.evaluation.last,
            log=tuple(line.text for line in self._driver.lines),
            next_control=self._sessions.owner_n,
        )

    def _control(self, body: bytes) -> None:
        wish = decoded(Control, body)
        answer = self._driver.tell(_EVENTS.get(wish.action) or events.Kick(wish.worker_id, "by the owner"))
        if answer == events.UNKNOWN:
            text = f"there is no worker {wish.worker_id[:64]}"
            raise failure(Code.BAD_REQUEST, text, status=HTTPStatus.NOT_FOUND)
        if wish.action == "kick":
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


def _metrics(driver: Driver, upload_bytes: int, received_bytes: int, sent_bytes: int) -> str:
    """Return the numbers of the server in the text format of Prometheus."""
    status, metric = driver.status(), driver.evaluation.last
    states = Counter(member.state for member in status.members)
    run_states = [({"state": one}, float(status.state == one)) for one in get_args(RunState)]
    workers = [({"state": one}, float(states[one])) for one in get_args(MemberState)]
    families: list[Family] = [
        ("state", "gauge", "1 for what the run does.", run_states),
        ("workers", "gauge", "Workers by state.", workers),
    ]
    for name, kind, text, value in (
        ("version", "gauge", "Version of the weights.", status.version),
        ("timeline", "gauge", "Times that the server was started.", status.timeline),
        ("pushes_pending", "gauge", "Pushes that no step has used.", status.have),
        ("samples_total", "counter", "Samples that steps have used.", status.samples),
        ("refused_total", "counter", "Requests with a push that did not count.", status.refused),
        ("skipped_total", "counter", "Steps that were not finite.", status.skipped),
        ("received_bytes_total", "counter", "Bytes of pushes.", received_bytes),
        ("sent_bytes_total", "counter", "Bytes of weights.", sent_bytes),
        ("upload_bytes", "gauge", "Memory of pushes.", upload_bytes),
        ("step_seconds", "gauge", "Length of the last step.", driver.step_s),
        ("file_failing", "gauge", "1 if the last file could not be written.", float(driver.file_trouble is not None)),
        ("loss", "gauge", "Mean loss of the last step.", status.loss),
        ("metric", "gauge", "Result of the last evaluation.", metric),
    ):  # fmt: skip
        if value is not None:
            families.append((name, kind, text, unlabelled(value)))
    return metrics_text((f"paramserver_{name}", kind, text, values) for name, kind, text, values in families)
