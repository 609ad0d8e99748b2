"""Cost of the model layer over the market, and the time of a switch: ``python benches/distill_layer.py``.

Both sides of a comparison are served by the same process and measured in alternating rounds; medians of rounds. The
broker and each worker are processes of their own.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import softs_fast as sf

ROUNDS = 15


def config_of(n_bytes: int) -> sf.BatchConfig:
    """A sample of one tensor."""
    return sf.BatchConfig([sf.TensorSpec("x", (n_bytes,), "uint8")])


def serve(role: str, folder: str, n_bytes: int, sleep_s: float) -> None:
    """Run the broker or a worker until the standard input is closed."""
    frontend, backend, control, control_pub = (f"ipc://{folder}/{name}" for name in "fbcp")
    sample = bytes(n_bytes)

    def one(model_id: str, model_cfg: dict[str, Any] | None) -> bytes:
        time.sleep(sleep_s)
        return sample

    peer: Any
    if role == "broker":
        peer = sf.Broker(frontend, backend, control, control_pub)  # type: ignore[arg-type]
    elif sleep_s:
        peer = sf.Worker(one, n_bytes, backend, control_pub)
    else:
        peer = sf.Worker(None, n_bytes, backend, control_pub, batch_generator_fn=lambda m, c, n: [sample] * n)
    with peer:
        print("ready", flush=True)
        sys.stdin.read()


@contextlib.contextmanager
def peers(folder: str, roles: list[str], n_bytes: int, sleep_s: float = 0.0) -> Iterator[None]:
    """Processes with these roles, the first one started first."""
    running = []
    try:
        for role in roles:
            options = json.dumps([role, folder, n_bytes, sleep_s])
            process = subprocess.Popen(
                [sys.executable, __file__, options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            assert process.stdout is not None
            process.stdout.readline()
            running.append(process)
        yield
    finally:
        for process in reversed(running):
            process.communicate()


def compare(ours: Callable[[], None], theirs: Callable[[], None], n: int) -> dict[str, float]:
    """Microseconds per call of each, and what the first one adds."""
    us: dict[str, list[float]] = {"distill": [], "market": []}
    for _ in range(ROUNDS + 1):
        for name, call in (("distill", ours), ("market", theirs)):
            started = time.perf_counter()
            for _ in range(n):
                call()
            us[name].append((time.perf_counter() - started) / n * 1e6)
    medians = {name: statistics.median(values[1:]) for name, values in us.items()}
    added = statistics.median(a - b for a, b in zip(us["distill"][1:], us["market"][1:], strict=True))
    return {**medians, "added": added}


def samples(n_bytes: int) -> dict[str, float]:
    """One by one: StudentClient and market.Client."""
    with tempfile.TemporaryDirectory(prefix="sd") as folder, peers(folder, ["broker", "worker"], n_bytes):
        frontend, _, control, control_pub = (f"ipc://{folder}/{name}" for name in "fbcp")
        with (
            sf.StudentClient(0, 64, config_of(n_bytes), frontend, control, control_pub) as student,
            sf.Client(frontend, sf.ShmMedium, n_bytes, 64) as client,
        ):
            student.set_model("m")

            def ours() -> None:
                sample = student.request_sample(10_000)
                assert sample is not None
                _ = sample.data
                student.release_slot(sample.slot_id)

            def theirs() -> None:
                slot = client.request_sample("gen/1/0", 10_000)
                assert slot is not None
                client.medium.read(slot)
                client.release_slot(slot)

            return compare(ours, theirs, 20_000 if n_bytes < 1000 else 1000)


def batches(n_bytes: int) -> dict[str, float]:
    """Batches of 32: DistillDataLoader and SoftDataLoader."""
    from softs_fast.distill import DistillDataLoader, DistillIterableDataset

    with tempfile.TemporaryDirectory(prefix="sd") as folder, peers(folder, ["broker", "worker"], n_bytes):
        frontend, _, control, control_pub = (f"ipc://{folder}/{name}" for name in "fbcp")
        config = config_of(n_bytes)
        with sf.StudentClient(0, 1, config, frontend, control, control_pub) as student:
            student.set_model("m")
            data = DistillIterableDataset(0, student.generation_value, 128, config, frontend)
            ours = iter(DistillDataLoader(data, batch_size=32))
            loader = sf.SoftDataLoader("gen/1/0", frontend, config, sf.ShmMedium, 128, batch_size=32)
            theirs = iter(loader)
            result = compare(lambda: next(ours), lambda: next(theirs), 1000 if n_bytes < 1000 else 20)
            data.close()
            loader.soft_dataset.close()
            return result


def switches(by_dataset: bool, n_workers: int = 4, sleep_s: float = 0.001, n: int = 400) -> dict[str, float]:
    """Return milliseconds from set_model to the leader's, or its dataset's, first fresh sample; a follower trains."""
    roles = ["broker", *["worker"] * n_workers]
    with tempfile.TemporaryDirectory(prefix="sd") as folder, peers(folder, roles, 64, sleep_s):
        frontend, _, control, control_pub = (f"ipc://{folder}/{name}" for name in "fbcp")
        students = [
            sf.StudentClient(rank, 16, config_of(64), frontend, control, control_pub) for rank in range(2)
        ]
        leader, follower = students
        with leader, follower:
            follower.start_sub_listener()
            leader.set_model("0")
            done = threading.Event()

            def train() -> None:
                while not done.is_set():
                    sample = follower.request_sample(100)
                    if sample is not None:
                        follower.release_slot(sample.slot_id)

            data = sf.DistillIterableDataset(0, leader.generation_value, 16, config_of(64), frontend)
            stream = iter(data)

            def take() -> None:
                if by_dataset:
                    next(stream)
                    return
                sample = leader.request_sample(10_000)
                assert sample is not None
                leader.release_slot(sample.slot_id)

            thread = threading.Thread(target=train)
            thread.start()
            took: list[float] = []
            for i in range(n):
                for _ in range(8):
                    take()
                started = time.perf_counter()
                leader.set_model(str(i))
                take()
                took.append((time.perf_counter() - started) * 1e3)
            done.set()
            thread.join()
            data.close()
    took.sort()
    return {"p50": took[n // 2], "p99": took[n * 99 // 100], "max": took[-1]}


def main() -> None:
    """Measure all of it."""
    for n_bytes in (64, 600_000):
        print(f"request, read, release, {n_bytes} B, us:", samples(n_bytes), flush=True)
        print(f"batch of 32, {n_bytes} B, us:", batches(n_bytes), flush=True)
    for by_dataset in (False, True):
        consumer = "a dataset" if by_dataset else "a client"
        print(
            f"set_model to first fresh sample of {consumer}, 4 workers of 1 ms, 2 students, ms:",
            switches(by_dataset),
        )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(*json.loads(sys.argv[1]))
    else:
        main()
