"""These tests need a CUDA device, or the stand-in for one: `make gpu`, or `python tests/gpu/standin`."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from cuda_market import CudaMarket, serve

from softs_fast import _kernels
from softs_fast.tensors import cuda

# Not skipped but left out: `make test` runs them on the stand-in.
collect_ignore_glob = [] if cuda.n_devices() else ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def device_in_use() -> None:
    """Use the device before a test looks at the open descriptors: the driver keeps those of its first use."""
    if cuda.n_devices() and not cuda.is_standin:
        torch.zeros(1, device="cuda")
        _kernels.CudaStream(0).close()


@pytest.fixture(scope="session")
def school() -> Iterator[CudaMarket]:
    """A market with one teacher, of a product for each way to make samples: CONFIG/KIND/WHERE, WIDE too where floats are to be cast."""
    ways = [
        (config, kind, where, wide)
        for config in ("every", "unaligned", "large")
        for kind in ("sample", "bytes", "batch", "batch of bytes", "fill", "fill bytes")
        for where in ("device", "host", "array", "mixed")
        for wide in (False, True)
        if kind in ("sample", "batch") or (where == "device" and not wide)
        if not (config == "unaligned" and kind.startswith("fill"))
    ]
    with tempfile.TemporaryDirectory(prefix="sf") as folder:
        market = CudaMarket(Path(folder))
        serves = [
            serve(
                config,
                kind,
                where=where,
                wide=wide,
                product="/".join([config, kind, where] + ["wide"] * wide),
            )
            for config, kind, where, wide in ways
        ]
        market.teacher(*serves)
        yield market
        market.end()


@pytest.fixture
def cuda_market(short_path: Path) -> Iterator[CudaMarket]:
    """A market; its processes end with the test."""
    market = CudaMarket(short_path)
    yield market
    market.end()
