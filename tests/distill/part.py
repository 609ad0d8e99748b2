"""One part of a training in a process of its own: a fork of zygote.py that calls `run`.

Reports what it does as role.py does, one JSON object per line; ends when its standard input does.
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
    """Trains for ever: the leader switches every few samples, the others follow; all take samples and check them.

    Models are called 1, 2, 3 ...; a broker that is killed while it switches may leave a generation out.
    """
    rank = options["rank"]
    frontend, _, control, control_pub = endpoints
    with StudentClient(
        rank, 4, samples.CONFIG, frontend, control, control_pub, send_timeout_ms=30_000
    ) as client:
        client.hello()
        say(event="ready", pid=os.getpid(), generation=client.generation)
        client.start_sub_listener()
        data = DistillIterableDataset(rank, client.generation_value, 4, samples.CONFIG, frontend)
        stream = iter(data)
        ended = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
        if rank != 0:
            client.wait_for_generation(1)
        while not ended.is_set():
            if rank == 0:
                before = client.generation
                client.set_model(str(int(client.model_id or 0) + 1))
                if client.generation <= before:
                    say(event="problem", problem=f"generation {client.generation} after {before}")
            for _ in range(5):
                wanted, generation = int(client.model_id or 0), client.generation
                sample = client.request_sample(timeout_ms=200)
                if sample is not None:
                    model = samples.check(sample.tensors(), rank)
                    client.release_slot(sample.slot_id)
                    # A broker that was started anew may tell others than the leader of an older model first.
                    least = wanted if rank == 0 else min(wanted, int(client.model_id or 0))
                    if model < least or (rank == 0 and model != wanted):
                        now = f"generation {sample.generation}, {generation} before, {client.generation} now"
                        say(
                            event="problem", problem=f"rank {rank}: model {model}, wanted was {wanted}; {now}"
                        )
                wanted = int(client.model_id or 0)
                model = samples.check(next(stream), rank)
                least = wanted if rank == 0 else min(wanted, int(client.model_id or 0))
                if model < least or (rank == 0 and model != wanted):
                    say(event="problem", problem=f"model {model} in the dataset, wanted was {wanted}")
            say(event="round", generation=client.generation)
        data.close()


RUN = {"broker": run_broker, "worker": run_worker, "student": run_student}


def run(role: str, options: dict[str, Any]) -> None:
    """Do what a role does."""
    RUN[role](samples.endpoints(Path(options["folder"])), options)
