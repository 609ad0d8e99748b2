"""Time of a supplier's writes to slots on a device.

Client and supplier are one process on one device, so that the times are those of ticket, kernel, events and receipt
only. Rates are compared with a copy within the memory of the same device.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from softs_fast import _kernels
from softs_fast.configs import BatchConfig, TensorSpec
from softs_fast.market import CudaIpcMedium, DeviceOutput
from softs_fast.tensors import cuda

__all__ = ["measure"]

#: Bytes of a sample.
_SIZES = (4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20)
_N_SLOTS = 8
_ROUNDS = 30
_WARM_UP = 5
#: On the stand-in, of which no time means anything.
_STANDIN_SIZES, _STANDIN_ROUNDS = _SIZES[:2], 2


def measure(quick: bool) -> dict[str, Any]:
    """Return the fixed cost of a slot, and a row for each size of samples.

    A row has `bytes` of a sample; `submit_us`, the host's time per slot; `us`, the time per slot until the slots are
    written; `gb_s`, its rate; `copy_gb_s`, the rate of a copy of as many bytes; `share`, their ratio. Medians.

    Args:
        quick: ignored.
    """
    rounds = _STANDIN_ROUNDS if cuda.is_standin else _ROUNDS
    rows = [_row(size, rounds) for size in (_STANDIN_SIZES if cuda.is_standin else _SIZES)]
    largest = rows[-1]
    return {
        "note": f"{rows[0]['us']:.1f} us for a slot of {rows[0]['bytes']} bytes; "
        f"{largest['share']:.0%} of the rate of a copy for {largest['bytes'] >> 10} KiB",
        "device": _kernels.cuda_device_name(0),
        "standin": cuda.is_standin,
        "slots_per_call": _N_SLOTS,
        "fixed_us_per_slot": rows[0]["us"],
        "rows": rows,
    }


def _row(size: int, rounds: int) -> dict[str, Any]:
    config = BatchConfig([TensorSpec("x", (size // 4,), "float32")])
    medium = CudaIpcMedium(None, size, _N_SLOTS, create=True)
    output = DeviceOutput(config, size)
    try:
        step = medium.slot_bytes(size)
        slots = [
            memoryview(medium._segment.reserve(i * step, 512))  # type: ignore[arg-type]
            for i in range(_N_SLOTS)
        ]
        tensors = {"x": cuda.empty((_N_SLOTS, size // 4), "float32", 0)}
        arena = medium.arena
        assert arena is not None

        def write() -> None:
            output.put_all(tensors, slots)

        def finish() -> None:
            for event in arena.filled:
                event.synchronize()

        submit_s, write_s = _times(write, finish, rounds)
        stream = _kernels.CudaStream(0)
        copy_s = _times(
            lambda: _kernels.cuda_copy(
                arena.memory.address, tensors["x"].data_ptr(), _N_SLOTS * size, stream.handle
            ),
            stream.synchronize,
            rounds,
        )[1]
        stream.close()
        for slot in slots:
            slot.release()
    finally:
        output.close()
        medium.close()
        medium.unlink()
    n_bytes = _N_SLOTS * size
    return {
        "bytes": size,
        "submit_us": submit_s / _N_SLOTS * 1e6,
        "us": write_s / _N_SLOTS * 1e6,
        "gb_s": n_bytes / write_s / 1e9,
        "copy_gb_s": n_bytes / copy_s / 1e9,
        "share": copy_s / write_s,
    }


def _times(start: Callable[[], None], finish: Callable[[], None], rounds: int) -> tuple[float, float]:
    """Return the median seconds until work is submitted, and until it is done."""
    submitted, done = [], []
    for i in range(_WARM_UP + rounds):
        began = time.perf_counter()
        start()
        between = time.perf_counter()
        finish()
        if i >= _WARM_UP:
            submitted.append(between - began)
            done.append(time.perf_counter() - began)
    return statistics.median(submitted), statistics.median(done)
