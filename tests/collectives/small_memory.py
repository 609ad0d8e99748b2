"""Programs on a host that has little shared memory."""

import os
import subprocess
import sys

import pytest


def run_in_small_memory(program: str, *arguments: str) -> str:
    """Run a program where /dev/shm has 1 MiB, and return what it prints; skip the test where that is not possible."""
    alone = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*alone, "true"], capture_output=True).returncode != 0:
        pytest.skip("no unprivileged namespaces on this machine")
    command = 'mount -t tmpfs -o size=1m none /dev/shm && exec "$@"'
    done = subprocess.run(
        [*alone, "sh", "-c", command, "sh", sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
