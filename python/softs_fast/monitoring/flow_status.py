"""Flows of this user on this host: where their status sockets are, and what they say."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import time
from pathlib import Path
from typing import Annotated

from ..errors import ConfigError
from ..identity import Process, this_process
from ..records import Finite, Json, Record, most, replace

__all__ = [
    "FlowFunction",
    "FlowView",
    "FlowWorkerView",
    "flow_folder",
    "flows",
    "is_own_folder",
    "socket_name",
]

#: The credentials of the process at the other end of a socket: pid, uid, gid.
_CREDENTIALS = struct.Struct("3i")
_Text = Annotated[str, most(1 << 17)]
_MANY = most(1 << 16)


class FlowFunction(Record):
    """A function of a flow: rows that are ready, rows of one pass, calls that run, and the age of the oldest one."""

    name: _Text
    ready: int
    needed: int
    running: int
    seconds: Finite


class FlowWorkerView(Record):
    """A worker of a flow: its process, what it is inside of, for how long, and what else there is to say."""

    worker: int
    pid: int
    inside: _Text
    ticket: int
    seconds: Finite
    state: _Text


class FlowView(Record):
    """A flow at one moment."""

    name: _Text
    pid: int
    #: Seconds since it was opened, and since a call has ended.
    open_s: Finite
    quiet_s: Finite
    steps: int
    rows: int
    n_bytes: int
    #: Age of the rows that training had last.
    age: int
    #: What the thread of the flow does, and for how long.
    doing: _Text
    doing_s: Finite
    functions: Annotated[tuple[FlowFunction, ...], _MANY]
    workers: Annotated[tuple[FlowWorkerView, ...], _MANY]
    #: Why it has said nothing; the numbers are 0 then.
    error: _Text = ""
    #: `time.monotonic()` when it was asked.
    at_s: float = 0.0

    @classmethod
    def silent(cls, pid: int, error: str, at_s: float) -> FlowView:
        """Return what is known of a flow that has said nothing."""
        return cls("-", pid, 0.0, 0.0, 0, 0, 0, 0, "", 0.0, (), (), error, at_s)


_STATUS: Json[FlowView] = Json(FlowView, most_bytes=1 << 20, what="its status")


def flow_folder() -> Path:
    """Return the folder of this user in which each flow has a socket, named by its process and a number."""
    own = os.environ.get("XDG_RUNTIME_DIR", "")
    if own and Path(own).is_dir():
        return Path(own, "softs-flows")
    return Path("/tmp", f"softs-flows-{os.getuid()}")


def socket_name(number: int) -> str:
    """Return the name of a socket of this process.

    The process is named as the rule of liveness needs it: by its number, its start and its pid namespace.

    Args:
        number: Number of the flow in this process.

    Raises:
        SegmentError: /proc cannot be read.
    """
    return "-".join(map(str, (*this_process(), number)))


def is_own_folder(folder: Path) -> bool:
    """Return whether a folder is this user's and no other one may enter it; in /tmp another user may have made it."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def flows(timeout_s: float = 2.0) -> tuple[FlowView, ...]:
    """Ask all flows of this user on this host, the oldest process number first. Sockets that were left behind go.

    Args:
        timeout_s: Longest wait for each answer, seconds; a flow that holds the GIL for longer is listed with that.

    Raises:
        ConfigError: the folder belongs to another user.
    """
    folder = flow_folder()
    if not folder.exists():
        return ()
    if not is_own_folder(folder):
        raise ConfigError(f"{folder} is not a folder of this user alone; remove it, or set XDG_RUNTIME_DIR")
    found = []
    for path in sorted(folder.iterdir(), key=_place_of):
        view = _ask(path, timeout_s) if _place_of(path) else None
        if view is not None:
            found.append(view)
    return tuple(found)


def _place_of(path: Path) -> tuple[int, ...]:
    """Return the four numbers of `socket_name`; none for other files, and sockets that are being made."""
    words = path.name.split("-")
    is_socket = path.name.isascii() and len(words) == 4 and all(word.isdigit() for word in words)
    return tuple(map(int, words)) if is_socket and len(path.name) < 64 else ()


def _ask(path: Path, timeout_s: float) -> FlowView | None:
    (pid, started, namespace, _), at_s = _place_of(path), time.monotonic()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(timeout_s)
        try:
            link.connect(os.fspath(path))
            _, uid, _ = _CREDENTIALS.unpack(
                link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            )
            if uid != os.getuid():
                return None
            status = _STATUS.decode(_read(link, at_s + timeout_s))
            return replace(status, at_s=at_s, error="")
        except (ConnectionRefusedError, FileNotFoundError):
            # A socket gets its name when it listens, so no process listens any more.
            pass
        except TimeoutError:
            if Process(pid, started, namespace).is_alive():  # or a fork of it holds its socket
                text = f"no answer within {timeout_s:g} s; its Python code may hold the GIL"
                return FlowView.silent(pid, text, at_s)
        except (OSError, ValueError) as error:
            return FlowView.silent(pid, f"it cannot be asked: {error}", at_s)
    with contextlib.suppress(OSError):
        path.unlink()
    return None


def _read(link: socket.socket, end_s: float) -> bytes:
    data = bytearray()
    while len(data) <= _STATUS.most_bytes:
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        link.settimeout(left_s)
        part = link.recv(1 << 16)
        if not part:
            return bytes(data)
        data += part
    return bytes(data)
