"""One part of a training in a process of its own: ``python part.py ROLE '{"option": value}'``.

Tells what it does as role.py does, one JSON object per line; ends when its standard input does.
"""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import samples

from softs_fast import Broker, DistillIterableDataset, StudentClient, Worker


def say(**event: Any) -> None:
    """Tell the test something."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def run_broker(endpoints: tuple[str, str, str, str], options: dict[str, Any]) -> None:
    with Broker(*endpoints):
        say(event="ready", pid=os.getpid())
        sys.stdin.read()


def run_worker(endpoints: tuple[str, str, str, str], options: dict[str, Any]) -> None:
    with Worker(samples.stamped, 0, endpoints[1], endpoints[3], batch_config=samples.CONFIG):
        say(event="ready", pid=os.getpid())
        sys.stdin.read()


def run_student(endpoints: tuple[str, str, str, str], options: dict[str, Any]) -> None:
    """Trains for ever: the leader switches every few samples, the others follow; all take samples and check them."""
    rank = options["rank"]
    frontend, _, control, control_pub = endpoints
    with StudentClient(
        rank, 4, samples.CONFIG, frontend, control, control_pub, send_timeout_ms=30_000
    ) as client:
        say(event="ready", pid=os.getpid(), generation=client.hello()["generation"])
        client.start_sub_listener()
        data = DistillIterableDataset(rank, client.generation_value, 4, samples.CONFIG, frontend)
        ended = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
        count = 0
        stream = None
        while not ended.is_set():
            if rank == 0:
                # The model is called as its generation will be, so that who looks at a sample knows both.
                generation = client.generation + 1
                if client.set_model(str(generation)) != generation:
                    say(event="problem", problem="a generation was left out")
            elif client.generation == 0:
                client.wait_for_generation(1)
            stream = iter(data) if stream is None else stream
            for _ in range(5):
                before = client.generation
                sample = client.request_sample(timeout_ms=200)
                if sample is not None:
                    model = samples.check(sample.tensors(), rank)
                    if not before <= model == sample.generation:
                        say(event="problem", problem=f"stale: {model} of {sample.generation} after {before}")
                    client.release_slot(sample.slot_id)
                before = client.generation
                model = samples.check(next(stream), rank)
                if model < before:
                    say(event="problem", problem=f"stale in the dataset: {model} after {before}")
                count += 1
            say(event="round", count=count, generation=client.generation)
        data.close()


RUN = {"broker": run_broker, "worker": run_worker, "student": run_student}

if __name__ == "__main__":
    role, options_text = sys.argv[1:]
    options = json.loads(options_text)
    RUN[role](samples.endpoints(Path(options["folder"])), options)
