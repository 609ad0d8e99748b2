"""What the owner of a run sees and does: status, control, page, health, metrics."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from http import HTTPStatus
from pathlib import Path

from ....monitoring import Family, metrics_text, unlabelled
from ....records import replace
from ...rounds import events
from ...wire import answers
from ...wire.answers import Code
from ...wire.limits import MAX_WAIT_S
from ...wire.messages import Control, Status
from ..driver import Driver
from .pushes import Pushes
from .request import Reply, Request, decoded, failure, no_route
from .sessions import Sessions
from .uploads import Uploads

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
            text = _metrics(self._driver, self._uploads, self._pushes.n_bytes, self.sent_bytes).encode()
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
                    text = f"there is no worker {wish.worker_id[:64]}"
                    raise failure(Code.BAD_REQUEST, text, status=HTTPStatus.NOT_FOUND)
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


def _metrics(driver: Driver, uploads: Uploads, received_bytes: int, sent_bytes: int) -> str:
    """Return the numbers of the server in the text format of Prometheus."""
    status = driver.status()
    states = Counter(member.state for member in status.members)
    run_states = ("waiting", "open", "grace", "apply", "paused", "done")
    families: list[Family] = [
        ("paramserver_version", "gauge", "Version of the weights.", unlabelled(status.version)),
        ("paramserver_timeline", "gauge", "Times that the server was started.", unlabelled(status.timeline)),
        (
            "paramserver_state",
            "gauge",
            "1 for what the run does.",
            [({"state": name}, float(status.state == name)) for name in run_states],
        ),
        (
            "paramserver_workers",
            "gauge",
            "Workers by state.",
            [({"state": name}, float(states[name])) for name in ("joining", "active", "paused", "stalled")],
        ),
        ("paramserver_pushes_pending", "gauge", "Pushes that no step has used.", unlabelled(status.have)),
        ("paramserver_samples_total", "counter", "Samples that steps have used.", unlabelled(status.samples)),
        (
            "paramserver_refused_total",
            "counter",
            "Requests with a push that did not count.",
            unlabelled(status.refused),
        ),
        ("paramserver_skipped_total", "counter", "Steps that were not finite.", unlabelled(status.skipped)),
        ("paramserver_received_bytes_total", "counter", "Bytes of pushes.", unlabelled(received_bytes)),
        ("paramserver_sent_bytes_total", "counter", "Bytes of weights.", unlabelled(sent_bytes)),
        ("paramserver_upload_bytes", "gauge", "Memory of pushes.", unlabelled(uploads.n_bytes)),
        ("paramserver_step_seconds", "gauge", "Length of the last step.", unlabelled(driver.step_s)),
        (
            "paramserver_file_failing",
            "gauge",
            "1 if the last file could not be written.",
            unlabelled(float(driver.file_trouble is not None)),
        ),
    ]
    if status.loss is not None:
        families.append(("paramserver_loss", "gauge", "Mean loss of the last step.", unlabelled(status.loss)))
    if driver.evaluation.last is not None:
        families.append(
            (
                "paramserver_metric",
                "gauge",
                "Result of the last evaluation.",
                unlabelled(driver.evaluation.last),
            )
        )
    return metrics_text(families)
