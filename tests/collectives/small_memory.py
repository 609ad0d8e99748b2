"""Programs on a host that has little shared memory."""

import tempfile
from pathlib import Path

import pytest
from scripts import run_script

_CANNOT = 77
_BEGIN = f"""
import ctypes, os, sys
libc, user, group = ctypes.CDLL(None), os.getuid(), os.getgid()
# Of a user and of mounts of its own.
if libc.unshare(0x10000000 | 0x00020000) != 0:
    sys.exit({_CANNOT})
for name, text in (("setgroups", "deny"), ("uid_map", f"0 {{user}} 1"), ("gid_map", f"0 {{group}} 1")):
    with open(f"/proc/self/{{name}}", "w") as file:
        file.write(text)
assert libc.mount(b"none", b"/dev/shm", b"tmpfs", 0, b"size=1m") == 0
"""


def run_in_small_memory(program: str, *arguments: str) -> str:
    """Run a program where /dev/shm has 1 MiB, and return what it prints; skip the test where that is not possible."""
    with tempfile.TemporaryDirectory(prefix="sf") as folder:
        script = Path(folder, "program.py")
        script.write_text(f"{_BEGIN}sys.argv[1:] = {arguments!r}\n{program}")
        done = run_script(script)
    if done.returncode == _CANNOT:
        pytest.skip("no unprivileged namespaces on this machine")
    assert done.returncode == 0, done.stderr
    return done.stdout
