"""Segments of softs, which no process removes when their owner was killed."""

from collections.abc import Iterable
from pathlib import Path


def remove(addresses: Iterable[str]) -> None:
    """Remove segments that may still be there."""
    for address in addresses:
        Path("/dev/shm", address).unlink(missing_ok=True)
