"""The measured loops. They run in the client's process and use only the API that both packages share.

`python -m benches` runs them for a time in a process of their own (`benches.role`); the pytest-benchmark
files run the per-sample steps in pytest's process. Every loop reads each sample out of its slot before it
releases the slot.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

PRODUCT = "bench"
# A run of a package that loses its slots ends after so many new clients; its rate is that of the measured time.
MAX_RESTARTS = 20
STALL_MS = 500
DRAIN_MS = 300
REQUEST_MS = 1_000
SAMPLES_PER_MODEL = 20


class ReadMedium(Protocol):
    """The part of a medium that a client reads from."""

    address: str

    def read(self, slot_id: int) -> bytes:
        """Copy a slot out."""


class SampleClient(Protocol):
    """The part of `softs.Client` that the loops use."""

    medium: ReadMedium

    def request_sample(self, product_id: str, timeout_ms: int = ...) -> int | None:
        """Wait for one sample."""

    def request_slot(self, product_id: str) -> str | None:
        """Order into a free slot."""

    def poll_completions(self, timeout_ms: int = ...) -> int:
        """Wait for finished orders."""

    def get_completed(self) -> int | None:
        """Take a finished slot."""

    def release_slot(self, slot_id: int) -> None:
        """Release a slot."""


class Stream(Protocol):
    """Samples of a model that can be changed; each contains the number of its model."""

    def set_model(self, model: int) -> None:
        """Request another model from now on."""

    def take(self) -> int:
        """Wait for a sample; return the number of its model."""


def take_one(client: SampleClient) -> bytes:
    """Request, read and release one sample.

    Raises:
        TimeoutError: no sample within 30 s.
    """
    slot = client.request_sample(PRODUCT, REQUEST_MS)
    if slot is None:
        slot = _keep_asking(client)
    data = client.medium.read(slot)
    client.release_slot(slot)
    return data


def pump(client: SampleClient, timeout_ms: int) -> tuple[int, int]:
    """Order into every free slot, then read and release all that is finished; wait only where nothing is.

    Returns:
        Orders that were accepted, and samples that were taken.
    """
    n_ordered = 0
    while client.request_slot(PRODUCT) is not None:
        n_ordered += 1
    n_taken = _take_finished(client)
    while n_taken == 0 and client.poll_completions(timeout_ms):
        n_taken = _take_finished(client)
    return n_ordered, n_taken


def take_pipelined(client: SampleClient, n_samples: int) -> None:
    """Take a number of samples, every free slot on order all the time.

    Raises:
        TimeoutError: nothing came for half a second; softs does so once all slots are lost.
    """
    n_left = n_samples
    while n_left > 0:
        _, n_taken = pump(client, STALL_MS)
        if n_taken == 0:
            raise TimeoutError(f"no sample for {STALL_MS} ms, {n_left} of {n_samples} missing")
        n_left -= n_taken


def repeat(take: Callable[[], object], n_samples: int, seconds: float) -> dict[str, Any]:
    """Take again and again for a time.

    Args:
        take: takes `n_samples` samples.
        n_samples: samples per call of `take`.
        seconds: time to measure.

    Returns:
        samples, seconds, samples_per_s, p50_us and p99_us of one call of `take`.
    """
    clock = time.perf_counter_ns
    took_ns = array("q")
    start = now = clock()
    end = start + int(seconds * 1e9)
    while now < end:
        take()
        after = clock()
        took_ns.append(after - now)
        now = after
    return {**_rate(len(took_ns) * n_samples, (now - start) / 1e9), **percentiles(took_ns)}


def one_by_one(client: SampleClient, seconds: float) -> dict[str, Any]:
    """Take samples one after the other for a time: request, read, release; returns as `repeat`."""
    return repeat(partial(take_one, client), 1, seconds)


def pipelined(
    client: SampleClient, reconnect: Callable[[], SampleClient], n_slots: int, seconds: float
) -> dict[str, Any]:
    """Keep every slot on order for a time.

    softs can lose slots under pipelining: an order is accepted and its slot is never released. A client that
    takes nothing for half a second is therefore replaced by a fresh one, and the wait and the replacement are
    left out of the measured time (in favour of the package that stalls). Slots that are still on order after
    0.3 s without a result count as lost.

    Args:
        client: connected, with every slot free.
        reconnect: makes another such client after a stall.
        n_slots: slots of each client.
        seconds: time to measure.

    Returns:
        samples, seconds, samples_per_s, lost_slots, restarts, slots_used.

    Raises:
        TimeoutError: stalled 20 times without a sample.
    """
    total = lost = restarts = outstanding = 0
    active_s = 0.0
    resumed = last_taken = time.perf_counter()
    while active_s + (last_taken - resumed) < seconds:
        n_ordered, n_taken = pump(client, STALL_MS)
        total += n_taken
        outstanding += n_ordered - n_taken
        if n_taken:
            last_taken = time.perf_counter()
        elif time.perf_counter() - last_taken >= STALL_MS / 1e3:
            active_s += last_taken - resumed
            lost += _lost(client, outstanding)
            resumed, outstanding = last_taken, 0
            if restarts == MAX_RESTARTS:
                if total == 0:
                    raise TimeoutError(f"no sample from {restarts + 1} clients; is a supplier running?")
                break
            restarts += 1
            client = reconnect()
            resumed = last_taken = time.perf_counter()
    active_s += last_taken - resumed
    lost += _lost(client, outstanding)
    return {
        **_rate(total, active_s),
        "lost_slots": lost,
        "restarts": restarts,
        "slots_used": n_slots * (restarts + 1),
    }


def loader(batches: Iterator[dict[str, Any]], batch_size: int, seconds: float) -> dict[str, Any]:
    """Take batches from a data loader for a time, each kept until the next one; returns as `repeat`."""
    batch: dict[str, Any] = {}

    def take() -> None:
        nonlocal batch
        batch = next(batches)

    return repeat(take, batch_size, seconds)


def fresh(open_stream: Callable[[], Stream], first_model: int, seconds: float) -> dict[str, Any]:
    """Change the model repeatedly, and measure the time to the first sample of the new one.

    Between two changes some samples of the new model are taken, so that every slot is on order when the next
    change comes. A stream that ends in a timeout is replaced by a fresh one, and its change is left out (in
    favour of the package that stalls).

    Args:
        open_stream: makes a stream with a short timeout.
        first_model: number of the first model to request; each later one has the next number.
        seconds: time to measure.

    Returns:
        switches, stale_samples (of the old model, after the change), restarts, seconds, p50_us, p99_us.

    Raises:
        TimeoutError: 21 streams stalled.
    """
    clock = time.perf_counter_ns
    took_ns = array("q")
    n_stale = restarts = 0
    stream, model = open_stream(), first_model
    start = clock()
    while clock() - start < seconds * 1e9 or not took_ns:
        model += 1
        try:
            changed = clock()
            stream.set_model(model)
            while stream.take() != model:
                n_stale += 1
            took_ns.append(clock() - changed)
            for _ in range(SAMPLES_PER_MODEL):
                stream.take()
        except RuntimeError as error:
            if restarts == MAX_RESTARTS:
                raise TimeoutError(f"{restarts + 1} streams stalled, the last: {error}") from error
            restarts += 1
            stream = open_stream()
    elapsed_s = (clock() - start) / 1e9
    counts = {"switches": len(took_ns), "stale_samples": n_stale, "restarts": restarts}
    return {**counts, "seconds": elapsed_s, **percentiles(took_ns)}


def idle(seconds: float) -> dict[str, Any]:
    """Do nothing for a time, with the connection open."""
    time.sleep(seconds)
    return {"seconds": seconds}


def percentiles(took_ns: array[int]) -> dict[str, float]:
    """p50_us and p99_us of times in nanoseconds."""
    ordered = sorted(took_ns)
    last = len(ordered) - 1
    return {f"p{p}_us": ordered[round(last * p / 100)] / 1e3 for p in (50, 99)}


def _keep_asking(client: SampleClient) -> int:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        slot = client.request_sample(PRODUCT, REQUEST_MS)
        if slot is not None:
            return slot
    raise TimeoutError(f"no sample of {PRODUCT!r} within 30 s; are broker and supplier running?")


def _lost(client: SampleClient, outstanding: int) -> int:
    while True:
        n_taken = _take_finished(client)
        outstanding -= n_taken
        if n_taken == 0 and client.poll_completions(DRAIN_MS) == 0:
            return max(outstanding, 0)


def _take_finished(client: SampleClient) -> int:
    n_taken = 0
    while (slot := client.get_completed()) is not None:
        client.medium.read(slot)
        client.release_slot(slot)
        n_taken += 1
    return n_taken


def _rate(samples: int, seconds: float) -> dict[str, Any]:
    return {"samples": samples, "seconds": seconds, "samples_per_s": samples / seconds}
