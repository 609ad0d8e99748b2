"""One process of a fleet: `python -m benches.role JSON`.

The process imports its package, waits for a line, prepares its role and prints one JSON line when it is ready.
Then it runs its workload for each line that it reads and prints the outcome as one line. It ends at
end-of-file, so it never outlives the process that started it, even if that one is killed.
"""

from __future__ import annotations

import importlib
import itertools
import json
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, TextIO

import numpy as np

from benches import proc, workloads
from benches.opponents import OPPONENTS, Room
from benches.scenarios import PRODUCT_QUEUE, Size

MODELS_PER_CLIENT = 1_000_000_000
MODELS_PER_MEASUREMENT = 1_000_000
# The label of a sample, unless its product has a number.
LABEL = 7
MOST_ROWS = 64

Measure = Callable[[float], dict[str, Any]]


def main() -> None:
    """Play the role that the first argument describes."""
    spec = json.loads(sys.argv[1])
    # Whatever the package prints goes to the log; the protocol keeps the real stdout for itself.
    with os.fdopen(os.dup(1), "w", buffering=1) as answers, ExitStack() as stack:
        os.dup2(2, 1)
        roles: dict[str, Callable[[dict[str, Any], ExitStack], Measure | None]] = {
            "broker": broker,
            "supplier": supplier,
            "client": client,
            "opponent": opponent,
            "witness": witness,
            "holder": lambda spec, stack: holder(spec, stack, answers),
        }
        importlib.import_module(spec["package"] or OPPONENTS[spec["opponent"]].module)
        imported_bytes = proc.resident(os.getpid()).own
        if not sys.stdin.readline():
            return
        measure = roles[spec["role"]](spec, stack)
        children = [child.pid for child in multiprocessing.active_children()]
        _answer(answers, {"ready": True, "children": children, "imported_bytes": imported_bytes})
        for line in sys.stdin:
            if measure is not None:
                _answer(answers, measure(json.loads(line)["seconds"]))


def broker(spec: dict[str, Any], stack: ExitStack) -> None:
    """Serve orders until the end."""
    package = importlib.import_module(spec["package"])
    endpoints = package.EndpointConfig(frontend=spec["frontend"], backend=spec["backend"])
    stack.enter_context(package.Broker(endpoints, max_queue_per_product=PRODUCT_QUEUE))


def supplier(spec: dict[str, Any], stack: ExitStack) -> None:
    """Serve a constant sample until the end; with `call_s`, one with the product's number, in calls of that duration."""
    package = importlib.import_module(spec["package"])
    size, call_s = _size(spec), spec.get("call_s", 0.0)
    data = payload(size)
    patterns = [workloads.PRODUCT, f"{workloads.PRODUCT}-.*"]

    def make_slowly(product_id: str) -> bytes:
        time.sleep(call_s)
        return payload(size, _label(product_id))

    generate: Callable[[str], bytes] | None = make_slowly if call_s else lambda _: data
    more: dict[str, Any] = {}
    if spec.get("batch_generator"):
        generate, more = None, _batch_generator(package, size, call_s)
    stack.enter_context(
        package.Supplier(generate, patterns, spec["backend"], package.ShmMedium, size.nbytes, **more)
    )


def _batch_generator(package: Any, size: Size, call_s: float) -> dict[str, Any]:
    # Tensors, as a model makes them: the rows of a call are different memory.
    import torch

    sample = np.frombuffer(payload(size)[:-8], np.float32).reshape(size.x_shape)
    xs = torch.from_numpy(np.stack([sample] * MOST_ROWS))

    def generate(product_id: str, n: int) -> dict[str, torch.Tensor]:
        if call_s:
            time.sleep(call_s)
        return {"x": xs[:n], "y": torch.full((n, 1), _label(product_id))}

    config = batch_config(package, size)
    return {"batch_generator_fn": generate, "batch_config": config, "max_batch": MOST_ROWS}


def _label(product_id: str) -> int:
    number = product_id.rpartition("-")[2]
    return int(number) if number.isdigit() else LABEL


def opponent(spec: dict[str, Any], stack: ExitStack) -> Measure:
    """Start other software's producers, and be its consumer."""
    size = _size(spec)
    room = Room(size, payload(size), spec["batch_size"], spec["folder"])
    return OPPONENTS[spec["opponent"]].measure(room, stack, spec["warm_up_s"])


def holder(spec: dict[str, Any], stack: ExitStack, answers: TextIO) -> None:
    """A supplier that takes an order, reports it, and never ends it."""
    package = importlib.import_module(spec["package"])

    def hold(_: str) -> bytes:
        _answer(answers, {"holding": True})
        threading.Event().wait()
        return b""

    slot_size = _size(spec).nbytes
    stack.enter_context(
        package.Supplier(hold, [workloads.PRODUCT], spec["backend"], package.ShmMedium, slot_size)
    )


def witness(spec: dict[str, Any], stack: ExitStack) -> None:
    """A client that only sends HELLO."""
    package = importlib.import_module(spec["package"])
    connected = package.Client(spec["frontend"], package.ShmMedium, _size(spec).nbytes, 1)
    stack.callback(connected.close)
    connected.hello()


def client(spec: dict[str, Any], stack: ExitStack) -> Measure:
    """Connect, check a sample, warm up, and return the function that a measurement runs."""
    package = importlib.import_module(spec["package"])
    size = _size(spec)
    match spec["workload"]:
        case "loader":
            return _loader(package, size, spec)
        case "training":
            from benches.training import open_training

            return open_training(_batches(package, size, spec))
        case "fresh":
            return _fresh(package, size, spec)
    n_slots = spec["n_slots"]
    more = {} if spec["prefetch"] is None else {"prefetch": spec["prefetch"]}
    expected = payload(size)

    def connect() -> workloads.SampleClient:
        connected = package.Client(spec["frontend"], package.ShmMedium, size.nbytes, n_slots, **more)
        stack.callback(connected.close)
        connected.hello()
        check(workloads.take_one(connected), expected)
        return connected  # type: ignore[no-any-return]

    connected = connect()
    workloads.one_by_one(connected, spec["warm_up_s"])
    match spec["workload"]:
        case "one_by_one":
            return lambda seconds: workloads.one_by_one(connected, seconds)
        case "pipelined":
            return lambda seconds: workloads.pipelined(connected, connect, n_slots, seconds)
        case "idle":
            return workloads.idle
        case other:
            raise ValueError(f"unknown workload {other!r}")


def batch_config(package: Any, size: Size) -> Any:
    """The `BatchConfig` of a size."""
    return package.make_xy_config(size.x_shape, "float32", (1,), "int64")


def payload(size: Size, label: int = LABEL) -> bytes:
    """Return one encoded sample of a size, without importing torch."""
    x = np.arange(size.nbytes // 4 - 2, dtype=np.float32)
    return x.tobytes() + np.int64(label).tobytes()


def check(data: bytes, expected: bytes) -> None:
    """Compare a received sample with the one that suppliers send.

    Raises:
        ValueError: the bytes differ.
    """
    if bytes(data) != expected:
        raise ValueError(
            f"received {len(data)} bytes that are not the sample that was sent ({len(expected)} bytes)"
        )


def open_loader(
    package: Any, frontend: str, size: Size, n_slots: int, batch_size: int, zero_copy: bool = False
) -> Iterator[dict[str, Any]]:
    """Iterate over a `SoftDataLoader`; its first batch is taken and compared with what suppliers send.

    Raises:
        ValueError: a sample differs.
    """
    config = batch_config(package, size)
    batches = iter(
        package.SoftDataLoader(
            model_id=workloads.PRODUCT,
            endpoint=frontend,
            batch_config=config,
            medium_cls=package.ShmMedium,
            num_slots=n_slots,
            batch_size=batch_size,
            num_workers=0,
            **({"zero_copy": True} if zero_copy else {}),
        )
    )
    first, expected = next(batches), payload(size)
    for number in range(batch_size):
        check(config.encode(x=first["x"][number], y=first["y"][number]), expected)
    return batches  # type: ignore[no-any-return]


def _loader(package: Any, size: Size, spec: dict[str, Any]) -> Measure:
    batches, batch_size = _batches(package, size, spec), spec["batch_size"]
    workloads.loader(batches, batch_size, spec["warm_up_s"])
    return lambda seconds: workloads.loader(batches, batch_size, seconds)


def _batches(package: Any, size: Size, spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    # A batch of views keeps its slots while the next ones are filled.
    n_slots = max(spec["n_slots"], 2 * spec["batch_size"]) if spec["zero_copy"] else spec["n_slots"]
    return open_loader(package, spec["frontend"], size, n_slots, spec["batch_size"], spec["zero_copy"])


def _fresh(package: Any, size: Size, spec: dict[str, Any]) -> Measure:
    # No client ever asks for a model that another one has asked for.
    models = itertools.count(spec["number"] * MODELS_PER_CLIENT, MODELS_PER_MEASUREMENT)

    def measure(seconds: float) -> dict[str, Any]:
        first = next(models)
        return workloads.fresh(lambda: _DatasetStream(package, size, spec, first), first, seconds)

    measure(spec["warm_up_s"])
    return measure


class _DatasetStream:
    """Samples from a `SoftIterableDataset`."""

    def __init__(self, package: Any, size: Size, spec: dict[str, Any], model: int) -> None:
        self._dataset = package.SoftIterableDataset(
            f"{workloads.PRODUCT}-{model}",
            spec["frontend"],
            batch_config(package, size),
            package.ShmMedium,
            num_slots=spec["n_slots"],
            request_timeout=workloads.STALL_MS / 1e3,
        )
        self._samples = iter(self._dataset)
        self.take()

    def set_model(self, model: int) -> None:
        self._dataset.set_model(f"{workloads.PRODUCT}-{model}")

    def take(self) -> int:
        return int(next(self._samples)["y"])


def _size(spec: dict[str, Any]) -> Size:
    return Size(spec["size"]["label"], tuple(spec["size"]["x_shape"]))


def _answer(answers: TextIO, outcome: dict[str, Any]) -> None:
    answers.write(json.dumps(outcome) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
