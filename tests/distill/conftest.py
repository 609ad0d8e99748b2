"""A school, and a generator for tests that care for no sample."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from school import School


@pytest.fixture
def school(short_path: Path) -> Iterator[School]:
    """A school; nothing is started yet."""
    with contextlib.ExitStack() as stack:
        yield School(short_path, stack)


@pytest.fixture
def zeros() -> Any:
    """Makes samples of zeros."""
    return lambda model_id, model_cfg: {
        "model": 0,
        "rank": 0,
        "sequence": 0,
        "filling": np.zeros(64, np.uint8),
    }
