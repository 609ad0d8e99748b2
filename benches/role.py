"""One process of a fleet: `python -m benches.role JSON`.

The process imports its package, waits for a line, sets itself up and prints one JSON line when it is ready.
Then it runs its workload for each line that it reads and prints the outcome as one line. It ends at
end-of-file, so it never outlives the process that started it, however that one ends.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, TextIO

from benches import workloads
from benches.scenarios import PRODUCT_QUEUE, Size

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
            "witness": witness,
            "holder": lambda spec, stack: holder(spec, stack, answers),
        }
        importlib.import_module(spec["package"])
        if not sys.stdin.readline():
            return
        measure = roles[spec["role"]](spec, stack)
        _answer(answers, {"ready": True})
        for line in sys.stdin:
            if measure is not None:
                _answer(answers, measure(json.loads(line)["seconds"]))


def broker(spec: dict[str, Any], stack: ExitStack) -> None:
    """Serve orders until the end."""
    package = importlib.import_module(spec["package"])
    endpoints = package.EndpointConfig(frontend=spec["frontend"], backend=spec["backend"])
    stack.enter_context(package.Broker(endpoints, max_queue_per_product=PRODUCT_QUEUE))


def supplier(spec: dict[str, Any], stack: ExitStack) -> None:
    """Serve ready bytes until the end."""
    package = importlib.import_module(spec["package"])
    data = payload(package, _size(spec))
    stack.enter_context(
        package.Supplier(lambda _: data, [workloads.PRODUCT], spec["backend"], package.ShmMedium, len(data))
    )


def holder(spec: dict[str, Any], stack: ExitStack, answers: TextIO) -> None:
    """A supplier that takes an order, says so, and never ends it."""
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
    """A client that only says hello."""
    package = importlib.import_module(spec["package"])
    connected = package.Client(spec["frontend"], package.ShmMedium, _size(spec).nbytes, 1)
    stack.callback(connected.close)
    connected.hello()


def client(spec: dict[str, Any], stack: ExitStack) -> Measure:
    """Connect, check a sample, warm up, and return what a measurement runs."""
    package = importlib.import_module(spec["package"])
    size = _size(spec)
    if spec["workload"] == "loader":
        return _loader(package, size, spec)
    n_slots = spec["n_slots"]
    expected = payload(package, size)

    def connect() -> workloads.SampleClient:
        connected = package.Client(spec["frontend"], package.ShmMedium, size.nbytes, n_slots)
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


def payload(package: Any, size: Size) -> bytes:
    """One encoded sample of a size."""
    import torch

    x = torch.arange(size.nbytes // 4 - 2, dtype=torch.float32).reshape(size.x_shape)
    data: bytes = batch_config(package, size).encode(x=x, y=torch.tensor([7]))
    return data


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
    package: Any, frontend: str, size: Size, n_slots: int, batch_size: int
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
        )
    )
    first, expected = next(batches), payload(package, size)
    for number in range(batch_size):
        check(config.encode(x=first["x"][number], y=first["y"][number]), expected)
    return batches  # type: ignore[no-any-return]


def _loader(package: Any, size: Size, spec: dict[str, Any]) -> Measure:
    batch_size = spec["batch_size"]
    batches = open_loader(package, spec["frontend"], size, spec["n_slots"], batch_size)
    workloads.loader(batches, batch_size, spec["warm_up_s"])
    return lambda seconds: workloads.loader(batches, batch_size, seconds)


def _size(spec: dict[str, Any]) -> Size:
    return Size(spec["size"]["label"], tuple(spec["size"]["x_shape"]))


def _answer(answers: TextIO, outcome: dict[str, Any]) -> None:
    answers.write(json.dumps(outcome) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
