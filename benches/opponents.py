"""Other software that moves samples between processes, each in the fastest configuration that we found.

A consumer is the measured process; its producers are its children, so they end with it. All send the same constant
bytes as our suppliers, and are ahead by at most as many samples as they have buffers for. None of them has products,
orders or a broker: each moves one stream from a fixed set of producers.
"""

from __future__ import annotations

import ctypes
import importlib
import mmap
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benches import workloads
from benches.scenarios import COPIES, FASTER_FIFO, ICEORYX2, ICEORYX2_BATCHES, ICEORYX2_ZERO_COPY, TORCH, Size

Take = Callable[[], Any]

N_WORKERS = 3
# As many as softs and softs_fast have slots in the same scenario.
FIFO_SAMPLES = 16
# One being written and one being read: more were slower, as they no longer fit into the cache.
ICEORYX2_SAMPLES = 1
PR_SET_PDEATHSIG = 1
# Each of the two counters in cache lines of its own.
_COUNTERS_BYTES = 4096
FOR_EVER_S = 3_600.0


@dataclass(frozen=True)
class Room:
    """The parameters of an opponent.

    Attributes:
        size: Size of the sample.
        data: Bytes of the sample.
        batch_size: Samples per batch, where there are batches.
        folder: Folder for files; it is removed afterwards, as are segments with names that begin with its name.
    """

    size: Size
    data: bytes
    batch_size: int
    folder: str


@dataclass(frozen=True)
class Opponent:
    """Other software.

    Attributes:
        module: what to import.
        open: starts its producers and returns what takes a sample, or a batch of them.
        takes_batches: whether that is a batch.
    """

    module: str
    open: Callable[[Room, ExitStack], Take]
    takes_batches: bool = False

    def measure(self, room: Room, stack: ExitStack, warm_up_s: float) -> Callable[[float], dict[str, Any]]:
        """Start, compare the first sample with the one that was sent, warm up; return a function that runs for a time.

        Raises:
            ValueError: the sample differs.
        """
        take, n_samples = self.open(room, stack), room.batch_size if self.takes_batches else 1
        workloads.repeat(take, n_samples, warm_up_s)
        return partial(workloads.repeat, take, n_samples)


def open_faster_fifo(room: Room, stack: ExitStack) -> Take:
    """Bytes through a faster-fifo queue, not pickled: one copy into it, one copy out of it, and one to `bytes`."""
    faster_fifo = importlib.import_module("faster_fifo")
    # Each message has a header of 8 bytes.
    n_bytes = FIFO_SAMPLES * (len(room.data) + 8)
    queue = faster_fifo.Queue(max_size_bytes=n_bytes, loads=bytes, dumps=_as_it_is)
    _start_producer(stack, _put_for_ever, queue, room.data)
    _expect(queue.get(), room.data)
    return queue.get  # type: ignore[no-any-return]


def open_iceoryx2(room: Room, stack: ExitStack, zero_copy: bool) -> Take:
    """Publish and subscribe: memmove into a loaned slice; read as `bytes`, or in place.

    Both sides poll instead of waiting for an event, which is faster and uses a core each.
    """
    n_bytes = len(room.data)
    _start_producer(stack, _publish_for_ever, room.folder, room.data, ICEORYX2_SAMPLES, 1)
    subscriber = _subscriber(room.folder, ICEORYX2_SAMPLES, 1)
    stack.callback(subscriber.delete)
    receive, string_at = subscriber.receive, ctypes.string_at
    view_of = (ctypes.c_uint8 * n_bytes).from_address

    def take_copy() -> bytes:
        sample = receive()
        while sample is None:
            sample = receive()
        data = string_at(sample.payload_ptr, n_bytes)
        sample.delete()
        return data

    def take_in_place() -> int:
        sample = receive()
        while sample is None:
            sample = receive()
        view = view_of(sample.payload_ptr)
        ends = view[0] + view[n_bytes - 1]
        sample.delete()
        return ends

    _expect(take_copy(), room.data)
    return take_in_place if zero_copy else take_copy


def open_iceoryx2_batches(room: Room, stack: ExitStack) -> Take:
    """Publish and subscribe, zero copy: a batch of samples is borrowed, read in place, and released after the next one.

    The batches of a loader have the same lifetime, in a loop that gives each of them a name.
    """
    n_bytes, batch_size = len(room.data), room.batch_size
    _start_producer(stack, _publish_for_ever, room.folder, room.data, batch_size, 2 * batch_size)
    subscriber = _subscriber(room.folder, batch_size, 2 * batch_size)
    stack.callback(subscriber.delete)
    receive = subscriber.receive
    view_of = (ctypes.c_uint8 * n_bytes).from_address
    held: list[Any] = []

    def take_in_place() -> int:
        borrowed, ends = [], 0
        while len(borrowed) < batch_size:
            sample = receive()
            if sample is not None:
                borrowed.append(sample)
                view = view_of(sample.payload_ptr)
                ends += view[0] + view[n_bytes - 1]
        for sample in held:
            sample.delete()
        held[:] = borrowed
        return ends

    _expect_batch(take_in_place(), room)
    return take_in_place


def open_copies(room: Room, stack: ExitStack) -> Take:
    """Only the two copies of a loader: by one process into a slot, by another one from there into a batch.

    It is `memmove` and two counters in shared memory that both processes poll: a bound, not a usable implementation.
    It has as many slots as a batch, and two alternating batches, as in a loop over a loader.
    """
    n_bytes, n_slots = len(room.data), room.batch_size
    stride = -(-n_bytes // 64) * 64
    memory = mmap.mmap(-1, _COUNTERS_BYTES + n_slots * stride)
    slots = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + _COUNTERS_BYTES
    counter = ctypes.c_uint64.from_buffer
    written, taken = counter(memory, 0), counter(memory, _COUNTERS_BYTES // 2)
    _start_producer(stack, _copy_for_ever, room.data, slots, stride, n_slots, written, taken)
    batches = [ctypes.create_string_buffer(room.batch_size * n_bytes) for _ in range(2)]
    memmove = ctypes.memmove

    def take() -> Any:
        batch = batches[0]
        batches.reverse()
        to, done = ctypes.addressof(batch), taken.value
        for row in range(room.batch_size):
            while written.value <= done:
                pass
            memmove(to + row * n_bytes, slots + done % n_slots * stride, n_bytes)
            done += 1
            taken.value = done
        return batch

    _expect(take()[:n_bytes], room.data)
    return take


def open_torch(room: Room, stack: ExitStack) -> Take:
    """A DataLoader; its workers collate constant tensors into shared memory, and the batch arrives without a copy."""
    import torch
    from torch.utils.data import DataLoader

    x = torch.frombuffer(bytearray(room.data[:-8]), dtype=torch.float32).reshape(room.size.x_shape)
    y = torch.frombuffer(bytearray(room.data[-8:]), dtype=torch.int64)
    # Forked workers start fastest, and need no pickled dataset.
    loader = DataLoader(
        _endless({"x": x, "y": y}),
        batch_size=room.batch_size,
        num_workers=N_WORKERS,
        multiprocessing_context="fork",
    )
    batches = iter(loader)
    first = next(batches)
    for number in range(room.batch_size):
        _expect(first["x"][number].numpy().tobytes() + first["y"][number].numpy().tobytes(), room.data)
    return partial(next, batches)


def _endless(sample: dict[str, Any]) -> Any:
    from torch.utils.data import IterableDataset

    class Endless(IterableDataset[dict[str, Any]]):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            while True:
                yield sample

    return Endless()


def _put_for_ever(queue: Any, data: bytes) -> None:
    while True:
        queue.put(data, timeout=FOR_EVER_S)


def _copy_for_ever(
    data: bytes, slots: int, stride: int, n_slots: int, written: ctypes.c_uint64, taken: ctypes.c_uint64
) -> None:
    memmove, n_bytes, done = ctypes.memmove, len(data), 0
    while True:
        while done - taken.value >= n_slots:
            pass
        memmove(slots + done % n_slots * stride, data, n_bytes)
        done += 1
        written.value = done


def _publish_for_ever(folder: str, data: bytes, n_buffered: int, n_borrowed: int) -> None:
    iceoryx2 = importlib.import_module("iceoryx2")
    publisher = (
        _service(folder, n_buffered, n_borrowed)
        .publisher_builder()
        .initial_max_slice_len(len(data))
        .max_loaned_samples(1)
        .backpressure_strategy(iceoryx2.BackpressureStrategy.RetryUntilDelivered)
        .create()
    )
    loan, memmove, n_bytes = publisher.loan_slice_uninit, ctypes.memmove, len(data)
    while True:
        sample = loan(n_bytes)
        memmove(sample.payload_ptr, data, n_bytes)
        sample.assume_init().send()


def _subscriber(folder: str, n_buffered: int, n_borrowed: int) -> Any:
    return _service(folder, n_buffered, n_borrowed).subscriber_builder().buffer_size(n_buffered).create()


def _service(folder: str, n_buffered: int, n_borrowed: int) -> Any:
    """The service, on a node of its own; its segments have the folder's name in theirs."""
    iceoryx2 = importlib.import_module("iceoryx2")
    config = iceoryx2.config.default()
    config.global_cfg.root_path = iceoryx2.Path.new(folder)
    config.global_cfg.prefix = iceoryx2.FileName.new(f"{Path(folder).name}_")
    node = iceoryx2.NodeBuilder.new().config(config).create(iceoryx2.ServiceType.Ipc)
    return (
        node.service_builder(iceoryx2.ServiceName.new(workloads.PRODUCT))
        .publish_subscribe(iceoryx2.Slice[ctypes.c_uint8])
        .enable_safe_overflow(False)
        .history_size(0)
        .subscriber_max_buffer_size(n_buffered)
        .subscriber_max_borrowed_samples(n_borrowed)
        .max_publishers(1)
        .max_subscribers(1)
        .open_or_create()
    )


def _start_producer(stack: ExitStack, work: Callable[..., None], *arguments: Any) -> None:
    # A fork, so that the queue's memory is shared; this process has no threads yet.
    context = multiprocessing.get_context("fork")
    producer = context.Process(target=_until_parent_dies, args=(work, *arguments), daemon=True)
    producer.start()
    stack.callback(producer.join)
    stack.callback(producer.kill)


def _until_parent_dies(work: Callable[..., None], *arguments: Any) -> None:
    # Also when the consumer is killed, so that it cannot end its producers.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    work(*arguments)


def _as_it_is(data: bytes) -> bytes:
    return data


def _expect(data: bytes, expected: bytes) -> None:
    if data != expected:
        raise ValueError(f"received {len(data)} bytes that are not the {len(expected)} that were sent")


def _expect_batch(ends: int, room: Room) -> None:
    if ends != room.batch_size * (room.data[0] + room.data[-1]):
        raise ValueError(f"received a batch of {room.batch_size} that is not what was sent")


OPPONENTS = {
    FASTER_FIFO: Opponent("faster_fifo", open_faster_fifo),
    ICEORYX2: Opponent("iceoryx2", partial(open_iceoryx2, zero_copy=False)),
    ICEORYX2_ZERO_COPY: Opponent("iceoryx2", partial(open_iceoryx2, zero_copy=True)),
    ICEORYX2_BATCHES: Opponent("iceoryx2", open_iceoryx2_batches, takes_batches=True),
    COPIES: Opponent("ctypes", open_copies, takes_batches=True),
    TORCH: Opponent("torch", open_torch, takes_batches=True),
}
