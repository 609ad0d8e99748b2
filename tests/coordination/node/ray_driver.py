"""Runs the program of docs/launchers.md under Ray, and kills a trainer and the coordinator's actor meanwhile."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from softs_fast.coordination.session.calls import CoordinatorClient
from softs_fast.errors import PeerLost

PAGE = Path(__file__).parents[3] / "docs" / "launchers.md"
(program,) = re.findall(
    r"```python\n(.*?)```", PAGE.read_text().split("\n## Ray\n")[1].split("\n## ")[0], flags=re.DOTALL
)
# In this module, so that Ray sends the classes by value.
exec(compile(program, str(PAGE), "exec"), globals())

N_STEPS = 3000


def until(address: str, step: int) -> None:
    """Wait until members have begun a step."""
    while True:
        try:
            with CoordinatorClient(address) as client:
                for status in client.watch():
                    if any(seat.step >= step for seat in status.seats):
                        return
        except PeerLost:
            # It has not begun yet.
            time.sleep(0.05)


def process_of(title: str) -> int:
    """Return the process of an actor, of those that this Ray has started."""
    session = os.getsid(0)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if words[0].decode().startswith(title) and os.getsid(int(folder.name)) == session:
                return int(folder.name)
        except (OSError, UnicodeDecodeError):
            continue
    raise AssertionError(f"there is no process {title}")


def kill(address: str) -> None:
    """Kill a trainer, and the coordinator later."""
    until(address, 200)
    os.kill(process_of("ray::Trainer"), signal.SIGKILL)
    until(address, 1000)
    os.kill(process_of("ray::CoordinatorActor"), signal.SIGKILL)
    print(json.dumps("killed both"), flush=True)


if __name__ == "__main__":
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{probe.getsockname()[1]}"
    killer = threading.Thread(target=kill, args=[listen], daemon=True)
    killer.start()
    weights = main(listen, sys.argv[1], N_STEPS)  # type: ignore[name-defined]  # noqa: F821
    killer.join()
    print(json.dumps(weights), flush=True)
