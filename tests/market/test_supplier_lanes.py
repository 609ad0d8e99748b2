"""Suppliers that serve clients through the memory of their slots: what their functions may be, and what they do wrong."""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import eventually

from softs_fast import (
    BatchConfig,
    Broker,
    ConfigError,
    EndpointConfig,
    FilesystemMedium,
    ShmMedium,
    Supplier,
    TensorSpec,
    _core,
)

SLOT = 16
N_SLOTS = 8
WATCHDOG_MS = 20_000


class Student:
    """A client with lanes."""

    def __init__(self, frontend: str, medium: Any, **options: Any) -> None:
        self.medium = medium
        self.core = _core.Client(
            frontend,
            medium.address,
            medium.slot_size,
            medium.num_slots,
            segment=medium._segment,
            **options,
        )

    def sample(self, product: str = "p") -> bytes:
        slot = self.core.request_sample(product, WATCHDOG_MS)
        assert slot is not None, self.core.failure(product)
        data: bytes = self.medium.read(slot)
        self.core.release_slot(slot)
        return data

    def failure(self) -> str:
        """The text of the first order that fails, after the samples that are finished."""
        for _ in range(WATCHDOG_MS // 20):
            slot = self.core.request_sample("p", 20)
            if slot is not None:
                self.core.release_slot(slot)
            found = self.core.failure("p")
            if found is not None:
                return found[1]
        pytest.fail("no order failed")


class Market:
    """A broker, and what is on it."""

    def __init__(self, frontend: str, backend: str, stack: ExitStack) -> None:
        self.frontend, self.backend, self._stack = frontend, backend, stack
        stack.enter_context(Broker(EndpointConfig(frontend, backend)))

    def student(self, medium: Any = None, slot_size: int = SLOT, **options: Any) -> Student:
        medium = medium or ShmMedium(None, slot_size, N_SLOTS, create=True)
        self._stack.callback(medium.unlink)
        self._stack.callback(medium.close)
        student = Student(self.frontend, medium, **options)
        self._stack.callback(student.core.close)
        return student

    def teacher(self, generator_fn: Any = None, medium: Any = ShmMedium, **options: Any) -> "Teacher":
        options = {"slot_size": SLOT, "product_ids": ["p.*"]} | options
        supplier = Supplier(generator_fn, endpoint=self.backend, medium_cls=medium, **options)
        teacher = Teacher(supplier)
        self._stack.callback(supplier.stop)
        supplier.start()
        return teacher


class Teacher:
    """A supplier, and how many leases it got from the broker."""

    def __init__(self, supplier: Supplier) -> None:
        self.supplier, self.n_leases = supplier, 0
        fulfil = supplier._fulfil

        def count(*lease: Any) -> str | None:
            self.n_leases += 1
            return fulfil(*lease)

        supplier._fulfil = count  # type: ignore[method-assign]


@pytest.fixture
def market(frontend: str, backend: str) -> Iterator[Market]:
    """A market with a broker."""
    with ExitStack() as stack:
        yield Market(frontend, backend, stack)


def number(n: int) -> bytes:
    return n.to_bytes(8, "little") * 2


def until_by_lane(student: Student, teacher: Teacher) -> None:
    """Take samples until 50 in a row came without the broker."""
    for _ in range(1000):
        before = teacher.n_leases
        for _ in range(50):
            student.sample()
        if teacher.n_leases == before:
            return
    pytest.fail("samples come by the broker")


XY = BatchConfig([TensorSpec("x", (2,), "float32"), TensorSpec("y", (), "int64")])


def fill(product_id: str, out: memoryview, sequence: int) -> None:
    out[:] = number(sequence)


GENERATORS: dict[str, dict[str, Any]] = {
    "sample": {"generator_fn": lambda p, sequence: number(sequence)},
    "bytearray": {"generator_fn": lambda p, sequence: bytearray(number(sequence))},
    "view": {"generator_fn": lambda p, sequence: memoryview(number(sequence))},
    "strided": {
        "generator_fn": lambda p, sequence: memoryview(b"".join(bytes([b, 0]) for b in number(sequence)))[::2]
    },
    "wide": {"generator_fn": lambda p, sequence: memoryview(number(sequence)).cast("Q")},
    "batch": {"batch_generator_fn": lambda p, n, sequences: [number(s) for s in sequences]},
    "batch, end to end": {"batch_generator_fn": lambda p, n, sequences: b"".join(map(number, sequences))},
    "fill": {"fill_fn": fill},
}


@pytest.mark.parametrize("kind", GENERATORS)
@pytest.mark.parametrize("medium", ["shm", "file"])
def test_an_ordered_stream_is_the_same_whatever_the_function(
    market: Market, kind: str, medium: str, tmp_path: Path
) -> None:
    file = FilesystemMedium(str(tmp_path / "slots"), SLOT, N_SLOTS, create=True) if medium == "file" else None
    teacher = market.teacher(**GENERATORS[kind], medium=FilesystemMedium if file else ShmMedium)
    student = market.student(file, ordered=True)
    for n in range(300):
        assert student.sample() == number(n)
    assert teacher.n_leases < 300, "samples come by the lane"
    until_by_lane(student, teacher)


def test_batches_are_as_large_as_they_may_be(market: Market) -> None:
    sizes = []

    def generate(product_id: str, n: int) -> list[bytes]:
        sizes.append(n)
        return [bytes(SLOT)] * n

    teacher = market.teacher(batch_generator_fn=generate, max_batch=4, max_wait_ms=5.0)
    student = market.student()
    until_by_lane(student, teacher)
    for _ in range(200):
        student.sample()
    assert max(sizes) == 4, "never more, and not always less"


def test_tensors_go_into_the_slot(market: Market) -> None:
    """With each kind of function that can return or fill tensors."""

    def tensors(p: str, sequence: int) -> dict[str, Any]:
        return {"x": np.full(2, sequence, np.float32), "y": np.int64(sequence)}

    def batch(p: str, n: int, sequences: tuple[int, ...]) -> dict[str, Any]:
        numbers = np.array(sequences)
        return {"x": np.repeat(numbers.astype(np.float32), 2).reshape(n, 2), "y": numbers}

    def in_place(p: str, out: dict[str, Any], sequence: int) -> None:
        out["x"][...] = sequence
        out["y"][...] = sequence

    functions = {"generator_fn": tensors, "batch_generator_fn": batch, "fill_fn": in_place}
    for i, (name, function) in enumerate(functions.items()):
        teacher = market.teacher(**{name: function}, batch_config=XY, product_ids=[f"p{i}"])
        student = market.student(ordered=True)
        for n in range(200):
            sample = np.frombuffer(student.sample(f"p{i}"), np.uint8)
            assert (sample[:8].view(np.float32) == n).all()
            assert sample[8:].view(np.int64) == n
        assert teacher.n_leases < 200, "samples come by the lane"


def test_large_samples_are_copied_whole(market: Market) -> None:
    large = 1 << 20
    data = os.urandom(large)
    teacher = market.teacher(lambda p: data, slot_size=large)
    student = market.student(slot_size=large)
    for _ in range(50):
        assert student.sample() == data
    assert teacher.n_leases < 50


def open_undecodable() -> None:
    raise ValueError("cannot decode " + os.fsdecode(b"img_\xff.png"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"generator_fn": lambda p: b"x" * 15}, ["returned 15 bytes, need slot_size=16"]),
        ({"generator_fn": lambda p: memoryview(b"")}, ["returned 0 bytes"]),
        ({"generator_fn": lambda p: ["x"]}, ["returned list, need bytes"]),
        ({"generator_fn": lambda p: 1 // 0}, ["Traceback", "ZeroDivisionError", "<lambda>"]),
        ({"batch_generator_fn": lambda p, n: [b"x"] * n}, ["returned 1 bytes, need slot_size=16"]),
        ({"batch_generator_fn": lambda p, n: []}, ["returned 0 samples"]),
        ({"fill_fn": lambda p, out: out[99]}, ["Traceback", "IndexError"]),
        ({"generator_fn": lambda p: open_undecodable()}, ["Traceback", "img_\\udcff.png"]),
        ({"batch_generator_fn": lambda p, n: open_undecodable()}, ["Traceback", "img_\\udcff.png"]),
        ({"fill_fn": lambda p, out: open_undecodable()}, ["Traceback", "img_\\udcff.png"]),
    ],
)
def test_what_a_function_does_wrong_reaches_the_client(
    market: Market, options: dict[str, Any], words: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    good, is_good = number(7), threading.Event()
    is_good.set()
    name, function = next(iter(options.items()))

    def either(*arguments: Any) -> Any:
        if not is_good.is_set():
            return function(*arguments)
        if name == "generator_fn":
            return good
        if name == "batch_generator_fn":
            return [good] * arguments[1]
        arguments[1][:] = good
        return None

    n_arguments = {"generator_fn": 1}.get(name, 2)
    wrapped = (lambda p: either(p)) if n_arguments == 1 else (lambda p, out: either(p, out))
    teacher = market.teacher(**{name: wrapped})
    student = market.student()
    until_by_lane(student, teacher)
    is_good.clear()
    text = student.failure()
    for word in [*words, "'p'", f"supplier {teacher.supplier._name}"]:
        assert word in text
    is_good.set()
    for _ in range(20):
        assert student.sample() == good


@pytest.mark.parametrize("kind", ["generator_fn", "fill_fn"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_function_that_ends_its_thread_gives_its_orders_back(market: Market, kind: str) -> None:
    is_time = threading.Event()

    def generate(product_id: str) -> bytes:
        if is_time.is_set():
            raise SystemExit
        return bytes(SLOT)

    def fill(product_id: str, out: memoryview) -> None:
        out[:] = generate(product_id)

    teacher = market.teacher(**{kind: generate if kind == "generator_fn" else fill})
    student = market.student()
    until_by_lane(student, teacher)
    is_time.set()
    thread = teacher.supplier._main_thread
    assert thread is not None
    while thread.is_alive():
        slot = student.core.request_sample("p", 10)
        if slot is not None:
            student.core.release_slot(slot)
    other = market.teacher(lambda p: number(5))
    # All slots are released: none is blocked by an order of the first one.
    for _ in range(4 * N_SLOTS):
        student.sample()
    until_by_lane(student, other)
    assert student.sample() == number(5)


def test_a_function_that_is_assigned_anew_is_used_from_then_on(market: Market) -> None:
    teacher = market.teacher(lambda p: number(1))
    student = market.student()
    until_by_lane(student, teacher)
    teacher.supplier.generator_fn = lambda p, sequence: number(2)
    student.core.discard(WATCHDOG_MS)
    for _ in range(N_SLOTS + 1):
        last = student.sample()
    assert last == number(2)
    with pytest.raises(ConfigError, match="another function"):
        market.teacher(fill_fn=fill).supplier.generator_fn = lambda p: b""


def test_a_function_that_keeps_a_view_of_a_slot_is_logged(
    market: Market, caplog: pytest.LogCaptureFixture
) -> None:
    kept: list[Any] = []

    def keep(product_id: str, out: memoryview) -> None:
        out[:] = number(3)
        kept.append(np.frombuffer(out, np.uint8))

    teacher = market.teacher(fill_fn=keep)
    student = market.student()
    until_by_lane(student, teacher)
    told = [record for record in caplog.records if "kept a view of its slot" in record.getMessage()]
    assert len(told) == 1
    assert bytes(kept[0]) == number(3), "the memory stays where it is"
    kept.clear()


def test_a_view_cannot_be_used_after_the_call(market: Market) -> None:
    kept: list[memoryview] = []

    def keep(product_id: str, out: memoryview) -> None:
        out[:] = number(3)
        kept.append(out)

    teacher = market.teacher(fill_fn=keep)
    until_by_lane(market.student(), teacher)
    with pytest.raises(ValueError, match="released"):
        kept[-1][0] = 1
    kept.clear()


class Shouting(ShmMedium):
    """Writes in a way of its own."""

    def write(self, byte_offset: int, data: Any) -> bool:
        return super().write(byte_offset, bytes(data).upper())


def test_a_medium_that_writes_in_its_own_way_uses_no_lanes(market: Market) -> None:
    teacher = market.teacher(lambda p: b"a" * SLOT, medium=Shouting)
    student = market.student()
    for _ in range(50):
        assert student.sample() == b"A" * SLOT
    assert teacher.n_leases >= 50


def test_an_error_that_is_no_unicode_reaches_the_client_by_the_broker_too(market: Market) -> None:
    market.teacher(lambda p: open_undecodable(), medium=Shouting)
    assert "img_\\udcff.png" in market.student().failure()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"weights": {"p": 0}}, "weight of 'p' must be from 1 to 1000, have 0"),
        ({"weights": {"p": 1.5}}, "have 1.5"),
        ({"weights": {"(": 1}}, "weights: Invalid product_id pattern"),
        ({"max_wait_ms": -1}, "max_wait_ms"),
        ({"max_wait_ms": float("nan")}, "max_wait_ms"),
        ({"spin_us": -1}, "spin_us"),
        ({"fill_fn": fill}, "exactly one"),
        ({"slot_size": 0}, "slot_size"),
        ({"endpoint": ""}, "endpoint"),
    ],
)
def test_what_a_supplier_cannot_be_made_of(options: dict[str, Any], match: str) -> None:
    arguments = {"product_ids": ["p"], "endpoint": "ipc://x", "medium_cls": ShmMedium, "slot_size": 8}
    with pytest.raises(ConfigError, match=match):
        Supplier(lambda p: b"", **(arguments | options))  # type: ignore[arg-type]


CLIENT = """
import sys
from softs_fast import ShmMedium, _core
medium = ShmMedium(None, 16, 8, create=True)
client = _core.Client(sys.argv[1], medium.address, 16, 8, segment=medium._segment)
for _ in range(2000):
    client.release_slot(client.request_sample("p", 20_000))
print(medium.address, flush=True)
sys.stdin.read()
"""


@contextmanager
def student_process(frontend: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", CLIENT, frontend], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip()
        yield process
    finally:
        process.kill()
        process.communicate()
        _core.sweep()


@pytest.mark.parametrize("has_broker", [True, False])
def test_the_lanes_of_a_client_that_was_killed_are_released(
    frontend: str, backend: str, has_broker: bool
) -> None:
    with (
        Broker(EndpointConfig(frontend, backend)) as broker,
        Supplier(lambda p: bytes(16), ["p"], backend, ShmMedium, 16),
        student_process(frontend) as process,
    ):
        assert n_watched(process.pid) == 1
        if not has_broker:
            broker.stop()
        process.kill()
        eventually(lambda: n_watched(process.pid) == 0, "no thread waits for the dead client")


def n_watched(process: int) -> int:
    """How many descriptors this process has of another one, to know when that ends; earlier tests may have left others."""
    found = 0
    for descriptor in Path("/proc/self/fdinfo").iterdir():
        with suppress(FileNotFoundError):
            found += f"Pid:\t{process}\n" in descriptor.read_text()
    return found
