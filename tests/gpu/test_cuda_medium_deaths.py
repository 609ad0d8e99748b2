"""kill -9 at the steps of a sample's way onto a device: the stream stays whole, or the error names what is lost."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cuda_market import CudaMarket, serve
from waiting import eventually

from softs_fast import Client, CudaIpcMedium, PeerLost, SampleTimeout, SoftDataLoader
from softs_fast.gpu.checks.samples import LARGE, check, sample
from softs_fast.market.mediums.cuda.slot_ticket import PATTERN_BYTES
from softs_fast.tensors import cuda

B = 4
#: A teacher's work on its device takes seconds.
STALLED = {"SOFTS_STANDIN_DELAY_US": "4000000"}

needs_standin = pytest.mark.skipif(not cuda.is_standin, reason="a GPU cannot be told to wait")


def new_loader(market: CudaMarket, **arguments: Any) -> SoftDataLoader:
    arguments = {"num_slots": 4 * B, "batch_size": B, "ordered": True, **arguments}
    return SoftDataLoader("p", market.endpoints.frontend, LARGE, CudaIpcMedium, **arguments)


def batches_of(market: CudaMarket, **arguments: Any) -> Iterator[dict[str, Any]]:
    """Batches of a loader that is closed with the iterator."""
    loader = new_loader(market, **arguments)
    try:
        yield from loader
    finally:
        loader.soft_dataset.close()


def test_killed_before_it_said_so(cuda_market: CudaMarket) -> None:
    """What it had claimed is made by the others; none is missing, none comes twice."""
    ends = [
        ("sample", "ticket read", 4),
        ("batch", "ticket read", 0),
        ("sample", "submitted", 0),
        ("batch", "submitted", 2),
    ]
    mortals = [
        cuda_market.teacher(serve("large", kind), point=point, n_before=n_before)
        for kind, point, n_before in ends
    ]
    cuda_market.teacher(serve("large", "batch"))
    for i, got in zip(range(40), batches_of(cuda_market), strict=False):
        check(LARGE, got, list(range(i * B, (i + 1) * B)))
        del got
    for mortal in mortals:
        assert mortal.wait() == -signal.SIGKILL


@needs_standin
def test_killed_after_it_said_so_ordered(cuda_market: CudaMarket) -> None:
    """The sample never comes: the student is told, and may go on with the same sample."""
    mortal = cuda_market.teacher(serve("large"), point="published", n_before=2 * B, environment=STALLED)
    loader = new_loader(cuda_market, zero_copy=True)
    with pytest.raises(PeerLost, match=f"is lost: process {mortal.pid} has ended"):
        next(iter(loader))
    assert mortal.wait() == -signal.SIGKILL
    cuda_market.teacher(serve("large"))
    for i, got in zip(range(10), loader, strict=False):
        check(LARGE, got, list(range(i * B, (i + 1) * B)))
        del got
    loader.soft_dataset.close()


@needs_standin
def test_killed_after_it_said_so(cuda_market: CudaMarket) -> None:
    """The lost sample is left out, and its slot is used again."""
    mortal = cuda_market.teacher(serve("large"), point="published", n_before=2 * B, environment=STALLED)
    batches = batches_of(cuda_market, ordered=False)
    # The others come when there is no other teacher.
    helper = cuda_market.helper_after(mortal, serve("large"))
    seen: set[int] = set()
    for _ in range(20):
        got = next(batches)
        numbers = got["y"].tolist()
        check(LARGE, got, numbers)
        assert not seen & set(numbers)
        seen |= set(numbers)
        del got
    helper.join()
    batches.close()  # type: ignore[attr-defined]


@needs_standin
@pytest.mark.parametrize("zero_copy", [False, True])
def test_a_device_that_is_late_is_waited_for(cuda_market: CudaMarket, zero_copy: bool) -> None:
    """No sample is lost while its writer lives; a wait ends in time, and the iterator goes on."""
    late = {"SOFTS_STANDIN_DELAY_US": "700000"}
    cuda_market.teacher(serve("large", "batch"), environment=late)
    loader = new_loader(cuda_market, zero_copy=zero_copy, num_slots=2 * B, request_timeout=0.2)
    with pytest.raises(SampleTimeout):
        next(iter(loader))
    loader.soft_dataset.request_timeout = 60.0
    for i, got in zip(range(3), loader, strict=False):
        check(LARGE, got, list(range(i * B, (i + 1) * B)))
        del got
    loader.soft_dataset.close()


@needs_standin
@pytest.mark.parametrize("environment", [{}, {"SOFTS_STANDIN_DEVICES": "0"}], ids=["by event", "by segment"])
def test_a_slot_is_not_written_while_a_device_still_writes_an_earlier_sample(
    cuda_market: CudaMarket, environment: dict[str, str]
) -> None:
    """A switch frees slots before the samples of the old product are there."""
    late = {"SOFTS_STANDIN_DELAY_US": "500000"}
    cuda_market.teacher(serve("large", "batch", product="old"), environment=late)
    cuda_market.teacher(serve("large", "batch", where="host", product="new"), environment=environment)
    client = Client(cuda_market.endpoints.frontend, CudaIpcMedium, LARGE.nbytes(), 2, ordered=True)
    with client:
        medium = client.medium
        assert isinstance(medium, CudaIpcMedium)
        # The first ones may come by the broker, and are there then.
        for _ in range(4):
            slot = client.request_sample("old", timeout_ms=20_000)
            assert slot is not None
            client.release_slot(slot)
        client.seek("new", 100, 1, 1, 0)
        client.follow("new")
        addresses = []
        for _ in range(2):
            slot = client.request_sample("new", timeout_ms=20_000)
            assert slot is not None
            addresses.append(medium.settle(slot))
        # By now the device is done with the old product.
        time.sleep(2)
        for i, address in enumerate(addresses, 100):
            assert address is not None
            there = cuda.tensor_over(address, "uint8", (LARGE.nbytes(),), (1,), 0, medium.arena)
            assert there.numpy().tobytes() == LARGE.encode(**sample(LARGE, i))


@needs_standin
def test_bytes_of_a_lost_sample(cuda_market: CudaMarket) -> None:
    mortal = cuda_market.teacher(serve("large"), point="published", n_before=2, environment=STALLED)

    def read_five() -> None:
        # The first may come by the broker, and is there then.
        for _ in range(5):
            slot = client.request_sample("p", timeout_ms=20_000)
            assert slot is not None
            try:
                client.medium.read(slot)
            finally:
                client.release_slot(slot)

    with (
        Client(cuda_market.endpoints.frontend, CudaIpcMedium, LARGE.nbytes(), 2) as client,
        pytest.raises(PeerLost, match=str(mortal.pid)),
    ):
        read_five()


def arenas_of(pid: int) -> int:
    """How many arenas for LARGE a process has open: what is as large is nothing else."""
    n_bytes = 4 * B * -(-LARGE.nbytes() // 256) * 256 + PATTERN_BYTES
    allocated = -(-n_bytes // (2 << 20)) * (2 << 20)
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    spans = [line.split()[0].split("-") for line in lines if "/memfd:standin" in line]
    return sum(int(end, 16) - int(begin, 16) == allocated for begin, end in spans)


def test_student_killed_and_restarted(cuda_market: CudaMarket) -> None:
    """A teacher that has the old one's arena open writes to the new one's, and closes the old one."""
    teacher = cuda_market.teacher(serve("large", "batch"))
    options = {"config": "large", "batch_size": B, "n_batches": 6, "zero_copy": True}
    for _ in range(2):
        student = cuda_market.student(**options)
        student.event("took")
        student.kill()
    batches = batches_of(cuda_market, zero_copy=True)
    for i in range(6):
        check(LARGE, next(batches), list(range(i * B, (i + 1) * B)))

    def has_one_arena() -> bool:
        next(batches)
        return arenas_of(teacher.pid) == 1

    if cuda.is_standin:
        eventually(has_one_arena, "only the new arena is open")
    batches.close()  # type: ignore[attr-defined]


@needs_standin
def test_student_killed_while_it_reads(cuda_market: CudaMarket) -> None:
    """Its events are never done; no call waits for them for long."""
    cuda_market.teacher(serve("large", "batch"))
    options = {"config": "large", "batch_size": B, "n_batches": 2, "zero_copy": False}
    student = cuda_market.student(environment=STALLED, stalled=True, **options)
    student.event("took")
    student.kill()
    for i, got in zip(range(6), batches_of(cuda_market), strict=False):
        check(LARGE, got, list(range(i * B, (i + 1) * B)))
        del got
