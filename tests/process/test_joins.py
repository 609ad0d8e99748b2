"""Waits for threads, which a signal ends."""

from __future__ import annotations

import subprocess
import sys

from waiting import WATCHDOG_S

ANOTHER_THREAD = """
import signal, sys, threading
from softs_fast import Broker, EndpointConfig

# The other thread runs only when this one has released the interpreter: in the wait.
sys.setswitchinterval(1000.0)
waits, never = threading.Event(), threading.Event()


def interrupt():
    waits.wait()
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    never.wait()


with Broker(EndpointConfig(*sys.argv[1:])) as broker:
    threading.Thread(target=interrupt, daemon=True).start()
    waits.set()
    try:
        broker.wait()
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_a_signal_ends_the_wait_whatever_thread_the_kernel_tells(frontend: str, backend: str) -> None:
    """It does not wake the main thread then, and neither does one that comes just before the wait."""
    done = subprocess.run(
        [sys.executable, "-c", ANOTHER_THREAD, frontend, backend],
        capture_output=True,
        text=True,
        check=False,
        timeout=WATCHDOG_S,
    )
    assert (done.stdout, done.stderr) == ("interrupted\n", "")
