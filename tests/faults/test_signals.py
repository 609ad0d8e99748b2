"""Ctrl-C during each call that can wait for long: it ends at once, and the process with it."""

import signal
import subprocess
import sys

import pytest
from market import Market

SCRIPT = """
import sys, softs_fast
frontend, backend, call = sys.argv[1:]
client = softs_fast.Client(frontend, softs_fast.ShmMedium, 128, 1, send_timeout_ms=600_000)
supplier = softs_fast.Supplier(lambda p: b"", ["p"], backend, softs_fast.ShmMedium, 128, send_timeout_ms=600_000)
calls = {
    "request_sample": lambda: client.request_sample("p", timeout_ms=600_000),
    "poll_completions": lambda: client.poll_completions(600_000),
    "hello": client.hello,
    "supplier.start": supplier.start,
}
try:
    print("waiting", flush=True)
    calls[call]()
    print("returned")
except KeyboardInterrupt:
    print("interrupted")
finally:
    client.close()
    supplier.stop()
"""


@pytest.mark.parametrize("call", ["request_sample", "poll_completions", "hello", "supplier.start"])
def test_ctrl_c_ends_a_call_that_waits(market: Market, call: str) -> None:
    if call in ("request_sample", "poll_completions"):
        market.broker()
    script = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, market.frontend, market.backend, call],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert script.stdout is not None
    assert script.stdout.readline() == "waiting\n"
    script.send_signal(signal.SIGINT)
    out, errors = script.communicate(timeout=45)
    assert out == "interrupted\n", errors
    assert script.returncode == 0, errors
