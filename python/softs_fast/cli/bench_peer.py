"""One process of ``softs-fast bench``: ``python -m softs_fast.cli.bench_peer ROLE '{"option": value}'``.

Prints one JSON object per line. Ends when its standard input is closed, so the end of the bench ends this process.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from ..configs import BatchConfig, TensorSpec
from ..errors import SampleTimeout, SoftsError
from ..market import Broker, Client, EndpointConfig, ShmMedium, Supplier
from .bench import LOADER_BATCH, percentiles

__all__ = ["main"]

#: Largest number of slots of the client, and of bytes in them: more would not be faster, and shared memory is scarce.
_MAX_SLOTS, _MAX_SLOT_BYTES = 64, 256 << 20
#: Interval at which a wait for a sample checks whether the bench is over, milliseconds.
_SLICE_MS = 100
#: Part of a measurement's time that passes before it counts.
_WARM_UP = 0.2
#: So much longer a measurement goes on that has counted nothing, seconds.
_LATE_S = 10.0


def main(role: str, options: dict[str, Any]) -> int:
    """Wait for a first byte, play one role until standard input ends, and return the exit status."""
    if not os.read(0, 1):
        return 0
    # Clients connect and close here by design, so their log records are not shown.
    logging.disable(logging.WARNING)
    stop = threading.Event()
    threading.Thread(target=_stop_at_end_of_input, args=(stop,), daemon=True).start()
    try:
        {"broker": _run_broker, "supplier": _run_supplier, "client": _run_client}[role](options, stop)
    except SoftsError as error:
        if not stop.is_set():
            print(f"softs-fast: {role} of the bench: {error}", file=sys.stderr)
            return 1
    return 0


def _stop_at_end_of_input(stop: threading.Event) -> None:
    # Not sys.stdin: this thread would still hold its lock when the interpreter ends.
    while os.read(0, 4096):
        pass
    stop.set()


def _say(**event: Any) -> None:
    with contextlib.suppress(BrokenPipeError):  # the bench is over
        print(json.dumps(event), flush=True)


def _run_broker(options: dict[str, Any], stop: threading.Event) -> None:
    with Broker(EndpointConfig(options["frontend"], options["backend"])):
        _say(event="ready")
        stop.wait()


def _run_supplier(options: dict[str, Any], stop: threading.Event) -> None:
    with contextlib.ExitStack() as stack:
        for size in options["sizes"]:
            sample = bytes(size)
            stack.enter_context(
                Supplier(_maker(sample), [_product(size)], options["backend"], ShmMedium, size)
            )
        _say(event="ready")
        stop.wait()


def _maker(sample: bytes) -> Callable[[str], bytes]:
    return lambda product_id: sample


def _run_client(options: dict[str, Any], stop: threading.Event) -> None:
    frontend, seconds = options["frontend"], options["seconds"]
    for size in options["sizes"]:
        n_slots = max(2, min(_MAX_SLOTS, _MAX_SLOT_BYTES // size))
        with Client(frontend, ShmMedium, size, n_slots) as client:
            _say(
                event="one_by_one",
                size=size,
                samples_s=_throughput(client, _product(size), seconds, stop),
            )
        with Client(frontend, ShmMedium, size, 1) as client:
            _say(event="latency", size=size, seconds=_latencies(client, _product(size), seconds, stop))
        if options["with_torch"]:
            _say(
                event="loader",
                size=size,
                samples_s=_loader_throughput(frontend, size, n_slots, seconds, stop),
            )
        if stop.is_set():
            return


def _throughput(client: Client, product: str, seconds: float, stop: threading.Event) -> float:
    """Return samples per second, each requested, copied out and released."""
    read, release, request = client.medium.read, client.release_slot, client.request_sample
    meter = _Meter(seconds)
    while not stop.is_set() and meter.goes_on():
        slot = request(product, _SLICE_MS)
        if slot is not None:
            read(slot)
            release(slot)
            meter.count += 1
    return meter.rate()


def _latencies(client: Client, product: str, seconds: float, stop: threading.Event) -> list[float]:
    """Return median and 99th percentile of the seconds from the release of the only slot to its next sample."""
    taken: list[float] = []
    meter = _Meter(seconds)
    started = time.perf_counter()
    while not stop.is_set() and meter.goes_on():
        slot = client.request_sample(product, _SLICE_MS)
        if slot is not None:
            taken.append(time.perf_counter() - started)
            meter.count += 1
            # A released slot may be ordered ahead at once.
            started = time.perf_counter()
            client.release_slot(slot)
    return percentiles(taken[meter.count_before :])


def _loader_throughput(
    frontend: str, size: int, n_slots: int, seconds: float, stop: threading.Event
) -> float:
    from .. import SoftDataLoader

    config = BatchConfig([TensorSpec("x", (size,), "uint8")])
    loader = SoftDataLoader(
        _product(size),
        frontend,
        config,
        ShmMedium,
        num_slots=n_slots,
        request_timeout=10.0,
        batch_size=LOADER_BATCH,
    )
    meter = _Meter(seconds)
    batches = iter(loader)
    try:
        while not stop.is_set() and meter.goes_on():
            next(batches)
            meter.count += LOADER_BATCH
    finally:
        del batches
        loader.soft_dataset.close()
    return meter.rate()


class _Meter:
    """Counts events during some seconds, without a warm-up."""

    def __init__(self, seconds: float) -> None:
        self.count = self.count_before = 0
        self._is_warm = False
        self._started = time.perf_counter()
        self._warm_at = self._started + seconds * _WARM_UP
        self._end_at = self._started + seconds

    def goes_on(self) -> bool:
        """Return whether there is time left, or nothing has been counted and may still be."""
        now = time.perf_counter()
        if not self._is_warm and now >= self._warm_at:
            self._is_warm, self._started, self.count_before = True, now, self.count
        late_s = _LATE_S if self.count == self.count_before else 0.0
        return now < self._end_at + late_s or not self._is_warm

    def rate(self) -> float:
        """Return the count per second.

        Raises:
            SampleTimeout: nothing was counted.
        """
        if self.count == self.count_before:
            raise SampleTimeout("no sample arrived during the measurement; give it more --duration")
        return (self.count - self.count_before) / (time.perf_counter() - self._started)


def _product(size: int) -> str:
    return f"bench-{size}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], json.loads(sys.argv[2])))
