"""Origin of a result: machine, versions, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parent.parent
DISTRIBUTIONS = ("softs", "softs-fast", "torch", "numpy", "pyzmq", "faster-fifo", "iceoryx2")


def describe_machine() -> dict[str, Any]:
    """CPU model, cores, memory, kernel, Python and library versions, and the load before the run."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.processor() or "unknown",
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int((_field("/proc/meminfo", "MemTotal") or "0 kB").split()[0]) / 2**20, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
        "versions": {name: _version(name) for name in DISTRIBUTIONS},
    }


def describe_commit() -> dict[str, Any]:
    """Commit of the checkout, and whether files differ from it."""
    return {"hash": _git("rev-parse", "HEAD"), "dirty": bool(_git("status", "--porcelain"))}


def _field(path: str, name: str) -> str | None:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
