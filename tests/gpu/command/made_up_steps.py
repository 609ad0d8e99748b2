"""Steps that end in every way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

#: Longer than any test runs.
FOR_EVER_S = 600


def passes(quick: bool) -> dict[str, Any]:
    print("some output")
    return {"note": "found it", "quick": quick, "is the leader of its session": os.getsid(0) == os.getpid()}


def fails(quick: bool) -> None:
    raise ValueError("first line\nthe cause")


def crashes(quick: bool) -> None:
    print("before the crash", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def is_killed(quick: bool) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def exits(quick: bool) -> None:
    os._exit(3)


def hangs(quick: bool) -> None:
    _start_children()
    time.sleep(FOR_EVER_S)


def hangs_and_ignores_signals(quick: bool) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(FOR_EVER_S)


def passes_late(quick: bool) -> None:
    time.sleep(10)


def prints_megabytes(quick: bool) -> None:
    for _ in range(64):
        os.write(1, b"x" * (1 << 20))
    os.write(1, "the end, \xe4".encode() + b"\xff\n")


def prints_for_ever(quick: bool) -> None:
    while True:
        os.write(1, b"y" * 1000)


def leaves_children(quick: bool) -> dict[str, Any]:
    return {"pids": _start_children()}


def crashes_at_its_end(quick: bool) -> dict[str, Any]:
    import atexit
    import multiprocessing.util

    atexit.register(crashes, quick)
    multiprocessing.util.Finalize(None, crashes, (quick,), exitpriority=1)
    return {}


def never_ends_after_its_result(quick: bool) -> dict[str, Any]:
    import threading

    threading.Thread(target=time.sleep, args=(FOR_EVER_S,)).start()
    return {"note": "done"}


def _start_children() -> list[int]:
    """A child, one in a process group of its own, and a grandchild without a parent; all have the output open."""
    sleeps = [sys.executable, "-c", f"import time; time.sleep({FOR_EVER_S})"]
    children = [subprocess.Popen(sleeps), subprocess.Popen(sleeps, process_group=0)]
    # The orphan has the output of the step, not the pipe by which its number comes.
    forks = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:], stdout=2).pid)"
    orphan = subprocess.run([sys.executable, "-c", forks, *sleeps], stdout=subprocess.PIPE, check=True)
    pids = [*(child.pid for child in children), json.loads(orphan.stdout)]
    print(json.dumps({"pids": pids}), flush=True)
    return pids
