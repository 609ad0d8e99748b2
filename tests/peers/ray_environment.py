"""Programs under a real Ray, which is in an environment of its own: it brings some 100 MB."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def environment() -> Path:
    """An environment with Ray; torch and the rest are those of this Python. Kept beside what is built."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
    target.mkdir(exist_ok=True)
    with (target / "ray-train.lock").open("w") as lock:
        # A test of another file may need it at the same moment.
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _installed(target / f"ray-train-{sys.version_info[0]}.{sys.version_info[1]}")


def _installed(folder: Path) -> Path:
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        command = [python, "-m", "pip", "install", "--quiet", "ray[train]"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            if "No matching distribution" in done.stderr:
                pytest.skip(f"there is no Ray for Python {sys.version_info[0]}.{sys.version_info[1]}")
            lost = re.search(r"connection broken by '(.*)': (\S+)", done.stderr)
            if lost:
                pytest.skip(f"the package index cannot be reached for Ray ({lost[2]}): {lost[1][:200]}")
            raise AssertionError(done.stderr)
        (folder / "complete").touch()
    packages = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    # Programs of other tests may be starting there: they find the whole file, or an older one.
    listed = Path(packages, "packages_of_the_tests.new")
    listed.write_text(f"{sysconfig.get_path('purelib')}\n")
    listed.replace(listed.with_suffix(".pth"))
    return python


def session_of(leader: int) -> Iterator[int]:
    """Iterate over the processes of a session: Ray's own live on if their driver is killed."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getsid(int(folder.name)) == leader:
                yield int(folder.name)


@contextmanager
def driver(program: Path, *arguments: str | Path, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a program that uses Ray, in `folder`, with its errors in a file there; all of its processes end with it."""
    home = folder / "home"
    home.mkdir()
    settings = {
        # Ray writes into both.
        "HOME": str(home),
        "RAY_TMPDIR": str(folder),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Lines that differ by a number would be left out.
        "RAY_DEDUP_LOGS": "0",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(REPOSITORY / "python"),
    }
    with (
        open(folder / "errors", "w") as errors,
        subprocess.Popen(
            [environment(), program, *arguments],
            env=os.environ | settings,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            for member in session_of(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(member, signal.SIGKILL)
