"""The thread of an open flow that answers `softs-fast top`, and reports when no call ends."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from ...monitoring import flow_folder, is_own_folder, socket_name
from .watchdog import Watchdog

__all__ = ["WatchThread"]

logger = logging.getLogger("softs_fast.dataflow")

#: How long a process that has asked may take to read its answer, seconds.
_SEND_S = 1.0
_numbers = count()


class WatchThread:
    """It is blocked until it is asked, or a report is due.

    Args:
        status: returns the status of the flow; called in the thread.
        quiet_since: returns since when no call has ended; None: nothing remains, or the caller of the flow has the
            thread.
        report: returns why, for such a time and that of now; called in the thread.
        after_s: quiet seconds before the first report; None: there are no reports.
    """

    def __init__(
        self,
        status: Callable[[], dict[str, Any]],
        quiet_since: Callable[[], float | None],
        report: Callable[[float, float], str],
        after_s: float | None,
    ) -> None:
        self._status, self._quiet_since, self._report = status, quiet_since, report
        self._watchdog = Watchdog(after_s) if after_s is not None else None
        #: The last report, and since when it was quiet then.
        self.last = (0.0, "")
        self._path: Path | None = None
        self._listener = self._listen()
        self._wake, self._awaken = os.pipe()
        self._thread = threading.Thread(target=self._run, name="softs-flow-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, and remove the socket; idempotent. In a fork, do nothing: both are the parent's."""
        if self._awaken < 0 or not self._thread.is_alive():
            return
        os.write(self._awaken, b"x")
        self._thread.join()
        for descriptor in (self._wake, self._awaken):
            os.close(descriptor)
        self._wake = self._awaken = -1
        if self._listener is not None:
            self._listener.close()
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            with contextlib.suppress(OSError):  # other flows have sockets there
                self._path.parent.rmdir()

    def _listen(self) -> socket.socket | None:
        folder = flow_folder()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            name = socket_name(next(_numbers))
            while True:
                with contextlib.suppress(FileExistsError):
                    folder.mkdir(mode=0o700)
                if not is_own_folder(folder):
                    raise PermissionError(f"{folder} is not a folder of this user alone")
                with contextlib.suppress(FileNotFoundError):  # the last flow there has removed it just now
                    listener.bind(os.fspath(folder / f"new-{name}"))
                    break
            (folder / f"new-{name}").chmod(0o600)
            listener.listen(8)
            # Only a socket that listens has its name: one that refuses was left behind.
            self._path = (folder / f"new-{name}").rename(folder / name)
        except OSError as error:
            listener.close()
            logger.warning("softs-fast top cannot show this flow: no socket in %s: %s", folder, error)
            return None
        listener.setblocking(False)
        return listener

    def _run(self) -> None:
        # Not `select`: that refuses descriptors from 1,024 on.
        sources = selectors.PollSelector()
        for source in (self._wake, self._listener):
            if source is not None:
                sources.register(source, selectors.EVENT_READ)
        while True:
            wait_s = None
            if self._watchdog is not None:
                wait_s = self._watchdog.wait_s(self._quiet_since(), time.monotonic())
            ready = [key.fileobj for key, _ in sources.select(wait_s)]
            if self._wake in ready:
                return
            if self._listener in ready:
                self._answer()
            since_s, now_s = self._quiet_since(), time.monotonic()
            if self._watchdog is not None and self._watchdog.is_due(since_s, now_s) and since_s is not None:
                self.last = since_s, self._explained(since_s, now_s)
                logger.warning("%s", self.last[1])

    def _explained(self, since_s: float, now_s: float) -> str:
        try:
            return self._report(since_s, now_s)
        except Exception as error:
            # The flow changes while it is read; the next report will find it whole.
            return f"no call of the flow has ended for {now_s - since_s:.1f} s; more could not be read: {error!r}"

    def _answer(self) -> None:
        assert self._listener is not None
        try:
            link, _ = self._listener.accept()
        except OSError:  # it has gone again
            return
        with link:
            link.settimeout(_SEND_S)
            try:
                link.sendall(json.dumps(self._status()).encode())
            except OSError:
                return
            except Exception:
                # The flow changes while it is read; the next question will find it whole.
                logger.debug("the status of the flow could not be read", exc_info=True)
