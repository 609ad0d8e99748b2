"""Throughput under pytest-benchmark: `pytest benches/ --benchmark-only`.

A round is one sample (one by one), 200 samples (pipelined) or one batch (loader), so the rounds' medians can
be compared within a group. `extra_info` holds samples per second.
"""

from __future__ import annotations

from typing import Any

import pytest

from benches import workloads
from benches.conftest import PACKAGES, Connect, Load
from benches.scenarios import IMAGE, LARGE, SMALL, Size

by_package = pytest.mark.parametrize("package", PACKAGES)
by_size = pytest.mark.parametrize("size", [SMALL, IMAGE, LARGE], ids=lambda size: size.label.replace(" ", ""))

LOSES_SLOTS = pytest.mark.xfail(raises=TimeoutError, strict=False, reason="softs lost all its slots")
N_PIPELINED = 200
BATCH_SIZE = 32


@by_package
@by_size
@pytest.mark.parametrize("n_slots", [1, 16])
def test_one_by_one(benchmark: Any, connect: Connect, package: str, size: Size, n_slots: int) -> None:
    client = connect(package, size, n_slots)()
    benchmark.group = f"one by one, {size.label}, slots: {n_slots}"
    benchmark.pedantic(workloads.take_one, args=(client,), rounds=1_000, warmup_rounds=100)
    _describe(benchmark, size, 1)


@pytest.mark.parametrize("package", [pytest.param("softs", marks=LOSES_SLOTS), "softs_fast"])
@by_size
def test_pipelined(benchmark: Any, connect: Connect, package: str, size: Size) -> None:
    make = connect(package, size, 16)

    def fresh_client() -> tuple[tuple[workloads.SampleClient, int], dict[str, Any]]:
        return (make(), N_PIPELINED), {}

    benchmark.group = f"pipelined, {size.label}"
    benchmark.pedantic(workloads.take_pipelined, setup=fresh_client, rounds=5)
    _describe(benchmark, size, N_PIPELINED)


@by_package
@by_size
@pytest.mark.parametrize("n_slots", [8, 32])
def test_loader(benchmark: Any, load: Load, package: str, size: Size, n_slots: int) -> None:
    batches = load(package, size, n_slots, BATCH_SIZE)

    benchmark.group = f"loader batch {BATCH_SIZE}, {size.label}, {n_slots} slots"
    benchmark.pedantic(next, args=(batches,), rounds=20, warmup_rounds=3)
    _describe(benchmark, size, BATCH_SIZE)


def _describe(benchmark: Any, size: Size, n_samples: int) -> None:
    # There are no statistics under --benchmark-disable.
    if benchmark.stats is not None:
        samples_per_s = n_samples / benchmark.stats.stats.median
        benchmark.extra_info.update(samples_per_s=samples_per_s, bytes_per_s=samples_per_s * size.nbytes)
