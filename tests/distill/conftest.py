"""A school, a control channel, and generators for tests that care for no sample."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from control_channel import Channel
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


@pytest.fixture
def choosy(zeros: Any) -> Any:
    """Makes samples of zeros, and fails on the model "bad"."""

    def generate(model_id: str, model_cfg: Any) -> Any:
        if model_id == "bad":
            raise ValueError("boom of model bad")
        return zeros(model_id, model_cfg)

    return generate


@pytest.fixture
def channel(short_path: Path) -> Iterator[Channel]:
    """A control channel; its peers end with the test."""
    channel = Channel(short_path)
    yield channel
    channel.close()
