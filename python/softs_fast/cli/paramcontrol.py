"""``softs-fast paramcontrol``: shows a parameter server that runs, or tells it what to do."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from ..errors import ConfigError
from .output import say
from .table import count, plain, rows_of

if TYPE_CHECKING:
    from ..paramserver.wire.messages import Status

__all__ = ["render", "run"]

_WAIT_S = 20.0


def run(arguments: argparse.Namespace) -> None:
    """Do one thing; `watch` goes on until a signal arrives.

    Raises:
        ConfigError: the owner's file cannot be used, or the server refuses.
        PeerLost: no server answers.
    """
    from ..paramserver.server.control import OwnerClient
    from ..paramserver.server.owner_file import read_owner
    from ..paramserver.wire.messages import Control

    if arguments.action == "kick" and not arguments.worker:
        raise ConfigError("which worker? give --worker ID, which the status shows")
    with OwnerClient(read_owner(arguments.state)) as client:
        if arguments.action == "status":
            _show(client.status(), arguments.json)
        elif arguments.action == "watch":
            since = -1
            while True:
                status = client.status(since, _WAIT_S)
                since = since if status is None else status.serial
                _show(status, arguments.json)
        else:
            client.control(Control(arguments.action, arguments.worker))
            say("done")


def render(status: Status) -> str:
    """Return a status as text."""
    loss = "" if status.loss is None else f", loss {status.loss:.4g}"
    metric = "" if status.metric is None else f", evaluation {status.metric:.4g}"
    lines = [
        f"version {status.timeline}.{status.version} of {status.target}, {status.state}{loss}{metric}",
        plain(status.waiting_for),
        f"{count(len(status.members), 'worker')} of {status.world}",
    ]
    if status.members:
        rows = [
            [
                str(one.rank),
                plain(one.name),
                one.worker_id,
                one.state,
                str(one.counted),
                str(one.stale),
                "-" if one.loss is None else f"{one.loss:.4g}",
                f"{one.uploaded * 100 // one.upload_bytes} %" if one.upload_bytes else "-",
            ]
            for one in status.members
        ]
        lines += ["", *rows_of("RANK WORKER ID STATE COUNTED STALE LOSS UPLOAD", rows, n_left=4)]
    return "\n".join(lines)


def _show(status: Status | None, as_json: bool) -> None:
    from ..paramserver.wire.records import encode

    if status is not None:
        say(json.dumps(json.loads(encode(status))) if as_json else render(status))
