"""Random histories that fail say by which seed they are made again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def noted(seed: int) -> Iterator[None]:
    """Name the seed in an error of the block."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
