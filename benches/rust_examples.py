"""Builds and runs the examples that measure the Rust crates, and reads the JSON that they print."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from benches.machine import REPOSITORY

LIMIT_S = 300


class ExampleError(RuntimeError):
    """An example cannot be built, or failed; the cause is on standard error."""


def build(crate: str, name: str) -> None:
    """Build an example in release.

    Raises:
        ExampleError: cargo is missing, or fails.
    """
    cargo = shutil.which("cargo")
    if cargo is None:
        raise ExampleError(f"cargo is missing; it builds {name}")
    _call([cargo, "build", "--quiet", "--release", "-p", crate, "--example", name])


def path(name: str) -> str:
    """Return where an example is once it is built."""
    folder = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
    return str(folder / "release" / "examples" / name)


def run(name: str, *options: object, core: int | None = None) -> dict[str, Any]:
    """Run an example that is built.

    Args:
        name: Name of the example.
        options: Arguments of the example.
        core: CPU that all of the example shares, where there is `taskset`; None: any.

    Raises:
        ExampleError: it fails, or takes longer than 5 minutes.
    """
    command = [path(name), *map(str, options)]
    taskset = shutil.which("taskset")
    if core is not None and taskset:
        command = [taskset, "--cpu-list", str(core), *command]
    report: dict[str, Any] = json.loads(_call(command))
    return report


def _call(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ExampleError(str(error)) from error
    return done.stdout
