"""Samples that cannot go to the device directly go through shared memory, and the log says why, once; what is wrong is an error."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
from cuda_market import CudaMarket, serve
from fork_check import check_fork
from process import Process
from waiting import eventually

from softs_fast import (
    BatchConfig,
    Client,
    CudaIpcMedium,
    GeneratorFailed,
    SegmentError,
    ShmMedium,
    SoftDataLoader,
    WireError,
    _core,
    _kernels,
)
from softs_fast.gpu.checks.samples import CONFIGS, EVERY, check
from softs_fast.identity import this_process
from softs_fast.market.mediums.cuda.slot_ticket import RECEIPT_AT, Place, Receipt, Ticket
from softs_fast.market.mediums.cuda.writers import Writers
from softs_fast.tensors import cuda

pytestmark = [
    pytest.mark.skipif(not cuda.is_standin, reason="sets what the stand-in can do"),
    # Python 3.12 and later warn about a fork of a process with threads, which is what is tested here.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]

B = 4
KINDS = ["sample", "bytes", "batch", "fill", "fill bytes"]
NO_DEVICE = {"SOFTS_STANDIN_DEVICES": "0"}
NO_IPC = {"SOFTS_STANDIN_NO_IPC": "1"}
TWO = {"SOFTS_STANDIN_DEVICES": "2"}
NO_PEERS = {**TWO, "SOFTS_STANDIN_NO_PEERS": "1"}
FALSE_PEERS = {**TWO, "SOFTS_STANDIN_FALSE_PEERS": "1"}


def take(market: CudaMarket, config: BatchConfig, n: int = 6, product: str = "p", **arguments: Any) -> None:
    """Take and check n batches."""
    loader = SoftDataLoader(
        product,
        market.endpoints.frontend,
        config,
        CudaIpcMedium,
        num_slots=3 * B,
        batch_size=B,
        ordered=True,
        request_timeout=20.0,
        **arguments,
    )
    for i, got in zip(range(n), loader, strict=False):
        check(config, got, list(range(i * B, (i + 1) * B)))
        assert all(cuda.device_of(tensor) == 0 for tensor in got.values() if tensor.numel())
        del got
    loader.soft_dataset.close()


def serve_all_kinds(**arguments: Any) -> list[dict[str, Any]]:
    """Each kind of generator, as a product of its own."""
    return [serve("every", kind, product=kind, **arguments) for kind in KINDS]


def reasons(teacher: Process) -> list[str]:
    teacher.end()
    return [text for text in teacher.logs if "shared memory" in text]


@pytest.mark.parametrize(
    ("environment", "where", "why"),
    [(NO_DEVICE, "host", "no CUDA device"), (NO_IPC, "device", "cudaIpcOpenMemHandle")],
    ids=["no device", "no ipc"],
)
def test_teacher_that_cannot_reach_the_device(
    cuda_market: CudaMarket, environment: dict[str, str], where: str, why: str
) -> None:
    teacher = cuda_market.teacher(*serve_all_kinds(where=where), environment=environment)
    for kind in KINDS:
        take(cuda_market, EVERY, product=kind)
    take(cuda_market, EVERY, product="sample", zero_copy=True)
    logged = reasons(teacher)
    # Once for each client.
    assert len(logged) == len(KINDS) + 1, logged
    assert all(f"process {os.getpid()} go through shared memory: " in text and why in text for text in logged)


def test_floats_are_cast_on_that_way_too(cuda_market: CudaMarket) -> None:
    cuda_market.teacher(serve("unaligned", "batch", where="host", wide=True), environment=NO_DEVICE)
    take(cuda_market, CONFIGS["unaligned"])


def test_teacher_on_another_device(cuda_market: CudaMarket) -> None:
    teacher = cuda_market.teacher(*serve_all_kinds(device=1), environment=TWO)
    for kind in KINDS:
        take(cuda_market, EVERY, product=kind)
    take(cuda_market, EVERY, product="sample", zero_copy=True)
    assert reasons(teacher) == []


@pytest.mark.parametrize(
    ("environment", "cause"),
    [
        (NO_PEERS, "CUDA device 1 cannot reach the client's, 0: there is no peer access"),
        (FALSE_PEERS, "CUDA device 1 reads other data in the client's memory than the client has written"),
    ],
    ids=["no access", "false access"],
)
def test_teacher_on_another_device_without_a_way_there(
    cuda_market: CudaMarket, environment: dict[str, str], cause: str
) -> None:
    teacher = cuda_market.teacher(serve("every", "batch", device=1), environment=environment)
    take(cuda_market, EVERY)
    (why,) = reasons(teacher)
    assert cause in why


def test_teachers_with_and_without_make_one_stream(cuda_market: CudaMarket) -> None:
    """A slot is written now by one way and now by the other."""
    cuda_market.teacher(serve("every", "sample", where="host"), environment=NO_DEVICE)
    cuda_market.teacher(serve("every", "sample"))
    cuda_market.teacher(serve("every", "sample", device=1), environment=TWO)
    take(cuda_market, EVERY, 30, debug=True)
    take(cuda_market, EVERY, 30, zero_copy=True, debug=True)


def test_student_without_a_device(cuda_market: CudaMarket) -> None:
    teacher = cuda_market.teacher(serve("every", "batch"))
    student = cuda_market.student(
        environment=NO_DEVICE, config="every", batch_size=B, n_batches=8, zero_copy=True
    )
    student.event("took")
    student.end()
    assert len([text for text in student.logs if "no CUDA device here" in text]) == 1
    assert reasons(teacher) == []


def test_shared_memory_that_is_full_is_an_error() -> None:
    """A slot larger than any machine's memory: what is reserved at first is its ticket."""
    huge = 1 << 40
    segment = _core.Segment.create_tickets(None, CudaIpcMedium.slot_bytes(huge), 2)
    try:
        segment.write(0, Ticket(1, 0, huge, this_process()).encode())
        slot = Writers(huge).slot(segment.reserve(0, RECEIPT_AT))
        with pytest.raises(SegmentError, match=r"/dev/shm full: need \d+ bytes"):
            slot.payload()
    finally:
        segment.close()
        segment.unlink()


def test_a_scribbled_ticket_is_an_error_and_nothing_is_written(cuda_market: CudaMarket) -> None:
    cuda_market.teacher(serve("every"))
    n_bytes = EVERY.nbytes()
    with Client(cuda_market.endpoints.frontend, CudaIpcMedium, n_bytes, 1) as client:
        medium = client.medium
        assert isinstance(medium, CudaIpcMedium)
        arena, segment = medium.arena, medium._segment
        assert arena is not None
        before = cuda.tensor_over(arena.memory.address, "uint8", [arena.memory.n_bytes], [1], 0, arena)
        before.fill_(0x5A)
        ticket = arena.ticket(0)
        forged = [
            os.urandom(RECEIPT_AT),
            bytes(RECEIPT_AT),
            ticket.encode()[:200] + b"x" + ticket.encode()[201:],
            dataclasses.replace(ticket, offset=256).encode(),
            dataclasses.replace(ticket, arena_bytes=n_bytes - 1).encode(),
            dataclasses.replace(ticket, payload_bytes=n_bytes - 1).encode(),
        ]
        for data in forged:
            segment.write(0, data)
            error: Exception | None = None

            def has_failed() -> bool:
                nonlocal error
                assert client.request_sample("p", timeout_ms=300) is None
                error = client.diagnose("p", 0.3)
                return isinstance(error, GeneratorFailed)

            # On a loaded machine the teacher may still be busy with the order.
            eventually(has_failed, "an error of the teacher")
            assert "ticket" in str(error) or "slot_size differs" in str(error), error
            assert (before == 0x5A).all()
        segment.write(0, ticket.encode())
        slot = client.request_sample("p", timeout_ms=20_000)
        assert slot is not None
        assert len(medium.read(slot)) == n_bytes


def test_a_receipt_that_is_none_is_an_error() -> None:
    medium = CudaIpcMedium(None, 8, 2, create=True)
    try:
        with pytest.raises(WireError, match="has no sample for this client"):
            medium.read(1)
        receipts = [
            (Receipt(medium._generation ^ 1, Place.IN_ARENA, 1, 1).encode(), "has no sample"),
            (b"\xff" * 32, "no receipt"),
        ]
        for data, why in receipts:
            medium._segment.write(RECEIPT_AT, data)
            with pytest.raises(WireError, match=why):
                medium.read(0)
    finally:
        medium.close()
        medium.unlink()


def test_other_mediums_are_told_apart(cuda_market: CudaMarket) -> None:
    teacher = cuda_market.teacher(serve("every"), medium="shm")
    with Client(cuda_market.endpoints.frontend, CudaIpcMedium, EVERY.nbytes(), 2) as client:
        assert client.request_sample("p", timeout_ms=1000) is None
        assert "it writes to shared memory, and the client has a CudaIpcMedium" in str(
            client.diagnose("p", 1.0)
        )
    teacher.end()
    cuda_market.teacher(serve("every"))
    with Client(cuda_market.endpoints.frontend, ShmMedium, EVERY.nbytes(), 2) as client:
        assert client.request_sample("p", timeout_ms=1000) is None
        assert "it writes to a CudaIpcMedium, and the client has shared memory" in str(
            client.diagnose("p", 1.0)
        )
    with ShmMedium(None, 8192, 2, create=True) as samples:
        with pytest.raises(SegmentError, match="another medium than CudaIpcMedium"):
            CudaIpcMedium.attach(str(samples.address))
        samples.unlink()
    with CudaIpcMedium(None, 10, 2, create=True) as tickets:
        with pytest.raises(SegmentError, match="use CudaIpcMedium"):
            ShmMedium.attach(str(tickets.address))
        attached = CudaIpcMedium.attach(str(tickets.address))
        assert (attached.slot_size, attached.write(0, b"0123456789"), tickets.read(0)) == (
            10,
            True,
            b"0123456789",
        )
        assert not attached.write(0, b"012345678"), "another size"
        assert not attached.write(4096 * 2, b"0123456789"), "no such slot"
        attached.close()
        tickets.unlink()


def test_a_failed_device_does_not_keep_a_segment_alive(
    cuda_market: CudaMarket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After a kernel has failed, every call of CUDA fails; the memory of the host is released all the same."""
    cuda_market.teacher(serve("every", "sample", where="host"), environment=NO_IPC)
    client = Client(cuda_market.endpoints.frontend, CudaIpcMedium, EVERY.nbytes(), 2)
    slot = client.request_sample("p", timeout_ms=20_000)
    assert slot is not None
    medium = client.medium
    assert isinstance(medium, CudaIpcMedium)
    # Its payload came through the segment and was registered with CUDA.
    medium.settle(slot)
    name = Path("/dev/shm", str(medium.address))
    assert name.exists()
    unregister = _kernels.cuda_unregister

    def fail(address: int, device: int) -> None:
        unregister(address, device)
        raise _kernels.CudaError("cudaErrorIllegalAddress: an illegal memory access was encountered")

    monkeypatch.setattr(_kernels, "cuda_unregister", fail)
    client.close()
    assert not name.exists()
    assert "stays registered with CUDA: cudaErrorIllegalAddress" in caplog.text


def test_a_fork_is_told_that_the_medium_is_its_parents() -> None:
    medium = CudaIpcMedium(None, 8, 2, create=True)
    check_fork(lambda: medium.read(0))
    medium.close()
    medium.unlink()


class RefusedArena:
    """The memory of a client that cannot be opened."""

    refusal = "it cannot be opened"
    is_open = False

    def __init__(self, is_gone: bool) -> None:
        self.is_gone = is_gone


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_client_that_has_gone_is_no_reason_for_a_warning(
    is_gone: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An order may arrive after the end of its client: the memory cannot be opened, and nothing reads the sample."""
    monkeypatch.setattr(
        "softs_fast.market.mediums.cuda.writers.RemoteArena", lambda ticket, device: RefusedArena(is_gone)
    )
    client = CudaIpcMedium(None, 8, 2, create=True)
    segment = _core.Segment.attach_tickets(client.address)
    Writers(8).slot(segment.reserve(0, RECEIPT_AT))
    assert caplog.text.count("go through shared memory: it cannot be opened") == (0 if is_gone else 1)
    client.close()
    client.unlink()
