"""The program of docs/launchers.md under a real Ray, in an environment of its own: a trainer and the coordinator are killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
DRIVER = Path(__file__).with_name("ray_driver.py")
N_STEPS = 3000


def environment() -> Path:
    """An environment with Ray; torch and the rest are those of this Python. Kept beside what is built."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
    folder = target / f"ray-{sys.version_info[0]}.{sys.version_info[1]}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        command = [python, "-m", "pip", "install", "--quiet", "ray"]
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
    Path(packages, "packages_of_the_tests.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return python


def session_of(leader: int) -> Iterator[int]:
    """Iterate over the processes of a session: Ray's own live on if their driver is killed."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getsid(int(folder.name)) == leader:
                yield int(folder.name)


@pytest.mark.slow
# Downloads of some 100 MB the first time.
@pytest.mark.timeout(600)
def test_ray_starts_a_trainer_and_the_coordinator_again(short_path: Path) -> None:
    python = environment()
    home = short_path / "home"
    home.mkdir()
    settings = {
        # Ray writes into both.
        "HOME": str(home),
        "RAY_TMPDIR": str(short_path),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(REPOSITORY / "python"),
    }
    driver = subprocess.Popen(
        [python, DRIVER, short_path / "state"],
        env=os.environ | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, errors = driver.communicate(timeout=240)
    finally:
        for process in session_of(driver.pid):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        driver.wait()
    assert driver.returncode == 0, errors
    said = [
        json.loads(line) for line in out.splitlines() if line.startswith(("[", '"')) and "pid=" not in line
    ]
    # The mean of the gradients of the data 0, 1, 2, 0, ... is 1; the learning rate is an eighth. All of it is exact.
    weights = [[-N_STEPS / 8] * 8]
    assert said == ["killed both", [weights, weights]]
