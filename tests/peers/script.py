"""Scripts that print the pids of their processes in one line, and then go on."""

import subprocess
import sys


def started(*arguments: str) -> tuple[subprocess.Popen[str], set[int]]:
    """A script of Python that has printed its pids, and these."""
    script = subprocess.Popen(
        [sys.executable, "-W", "ignore", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert script.stdout is not None
    return script, {int(pid) for pid in script.stdout.readline().split()}
