"""Each wheel in an empty environment of its Python."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent


def check(python: Path, wheel: Path, version: str, architectures: Sequence[str], folder: Path) -> None:
    """Install a wheel with its requirements, and use it without torch.

    Args:
        python: makes the environment.
        wheel: a file for this Python.
        version: what the package must say of itself.
        architectures: what `build_info` must say of CUDA.
        folder: empty; the environment and sockets go there.

    Raises:
        SystemExit: a step failed; the message has all that it printed.
    """
    programs = install(python, wheel, folder)
    said = run(programs / "python", "-I", "-c", "import softs_fast; print(softs_fast.__version__)")
    if said.strip() != version:
        raise SystemExit(f"{wheel.name} says that it is {said.strip()}; need {version}")
    run(programs / "softs-fast", "--help")
    # -I, above and below: neither PYTHONPATH nor the current folder may lend it another package.
    run(programs / "python", "-I", "-W", "error", HERE / "round_trip.py", folder, *architectures)


def check_pure(python: Path, wheel: Path, version: str, folder: Path) -> None:
    """Install the wheel without native modules, and see that it says so; `check` has the arguments.

    Raises:
        SystemExit: a step failed, the version is another one, or native modules are there.
    """
    programs = install(python, wheel, folder)
    program = "import softs_fast; print(softs_fast.__version__, softs_fast.NATIVE_ERROR is not None)"
    said = run(programs / "python", "-I", "-W", "error", "-c", program)
    if said.split() != [version, "True"]:
        raise SystemExit(f"{wheel.name} says {said.strip()}; need {version} True: no native modules")
    run(programs / "softs-fast", "paramserver", "worker", "--help")


def check_loader(folder: Path, packages: Path) -> None:
    """Use the wheel that `check` has installed in a folder with torch, which lies in the packages of another environment."""
    environment = os.environ | {"PYTHONPATH": str(packages), "OMP_NUM_THREADS": "1"}
    run(folder / "venv" / "bin" / "python", "-P", HERE / "loader_trip.py", env=environment)


def install(python: Path, wheel: Path, folder: Path) -> Path:
    """Make an environment with a wheel; returns the folder of its programs."""
    run(python, "-m", "venv", folder / "venv")
    programs = folder / "venv" / "bin"
    run(programs / "python", "-m", "pip", "install", "--quiet", wheel)
    return programs


def run(*command: str | Path, env: Mapping[str, str] | None = None, cwd: Path = Path("/")) -> str:
    """Run a command to its end; returns what it printed.

    Raises:
        SystemExit: it failed; the message has all that it printed.
    """
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=cwd, check=False)
    if done.returncode != 0:
        words = " ".join(str(word) for word in command)
        raise SystemExit(f"{words}: exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout
