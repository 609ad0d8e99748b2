"""Workers that train a small model with WorkerNode, and report each step."""

from __future__ import annotations

import functools
import hashlib
import os
import queue
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ranks
import torch

from softs_fast.coordination.node import TrainingState, WorkerNode, gloo_engine, memory_engine
from softs_fast.coordination.node.engines import EngineOf
from softs_fast.errors import SoftsError

#: Powers of two, so that the mean of any two or four equal gradients is exact.
N_WEIGHTS = 8


#: What must happen happens within this, or the test hangs; it is never what a test measures.
WATCHDOG_S = 40.0


class Training:
    """A model, its optimizer, and what it does in a step: the same on each worker."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Linear(N_WEIGHTS, 1, bias=False)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)

    def backward(self, step: int) -> None:
        """Make the gradients of a step, which depend on its number alone."""
        rows = torch.arange(N_WEIGHTS, dtype=torch.float32)
        gradient = ((rows + step) % 8 - 3.5) / 8
        for parameter in self.model.parameters():
            parameter.grad = gradient.view_as(parameter).clone()

    def digest(self) -> str:
        """Return a hash of weights and optimizer state."""
        found = hashlib.sha256()
        for parameter in self.model.parameters():
            found.update(parameter.detach().numpy().tobytes())
            state = self.optimizer.state[parameter]
            for name in sorted(state):
                found.update(torch.as_tensor(state[name]).numpy().tobytes())
        return found.hexdigest()[:16]


def undisturbed(n_steps: int, seed: int = 0) -> dict[int, str]:
    """Return the digest after each step of a training without any faults."""
    training = Training(seed)
    found = {}
    for step in range(1, n_steps + 1):
        training.backward(step)
        training.optimizer.step()
        found[step] = training.digest()
    return found


def engine_of(name: str | EngineOf, number: int) -> EngineOf:
    """Return the engine of a worker: gloo, memory of one host, nodes of two workers that share memory, or what is given."""
    if not isinstance(name, str):
        return name
    if name == "nodes":
        return functools.partial(memory_engine, host=str(number // 2))
    return {"gloo": gloo_engine, "memory": memory_engine}[name]


def train(say: Callable[[Any], None], rank: int, size: int, options: dict[str, Any]) -> None:
    """Train in this process, and report each step."""
    # A worker that copies nothing would have other weights.
    training = Training(options["model_seed"])
    state = TrainingState(training.model, training.optimizer)
    folder = options.get("folder", "")

    def load(path: str) -> None:
        saved = torch.load(path, weights_only=True)
        training.model.load_state_dict(saved["model"])
        training.optimizer.load_state_dict(saved["optimizer"])

    def save() -> None:
        path = f"{folder}/{node.epoch}-{node.committed}"
        with node.checkpoint(path):
            if node.rank == 0:
                saved = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
                torch.save(saved, path)
            if options.get("ends_in_checkpoint") == node.committed:
                raise ValueError("a defect of the storage")

    node = WorkerNode(
        options["address"],
        state,
        worker_id=options["worker_id"],
        seat=options["seat"],
        load=load,
        engine=engine_of(options.get("engine", "gloo"), options["seat"]),
        join_s=30.0,
        leave_on_sigterm=True,
    )
    say({"event": "started"})
    try:
        with node:
            say(
                {
                    "event": "joined",
                    "epoch": node.epoch,
                    "rank": node.rank,
                    "size": node.size,
                    "committed": node.committed,
                }
            )
            while node.committed < options["n_steps"] and not node.is_leaving:
                with node.step() as step:
                    training.backward(step.number)
                    time.sleep(options.get("pause_s", 0.0))
                    if options.get("fails_at") == step.number:
                        raise ValueError("a defect of the training")
                if folder and step.is_committed and node.committed % 10 == 0:
                    save()
                say(
                    {
                        "event": "step",
                        "at": time.monotonic(),
                        "number": step.number,
                        "is_committed": step.is_committed,
                        "epoch": step.epoch,
                        "size": node.size,
                        "digest": training.digest() if step.is_committed else "",
                    }
                )
    except (SoftsError, ValueError) as error:
        say({"event": "error", "text": f"{type(error).__name__}: {error}"})
    say({"event": "end", "committed": node.committed, "digest": training.digest() if node.committed else ""})


class Trainer:
    """A process that trains, seen from a test."""

    def __init__(self, address: str, number: int, **options: Any) -> None:
        self.steps: list[dict[str, Any]] = []
        defaults = {"address": address, "worker_id": f"w{number}", "seat": number, "model_seed": 0}
        self._running = ranks.start(train, 1, {**defaults, **options})
        self.process: Any = self._running.processes[0]
        # A pipe is soon full, and a worker that waits for room in it stops the others.
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def event(self, name: str) -> dict[str, Any]:
        """Return the next event of a name; steps before it are kept."""
        while True:
            event = self._events.get(timeout=WATCHDOG_S)
            assert isinstance(event, dict), event
            if event["event"] == "step":
                self.steps.append(event)
            if event["event"] == name:
                return event
            assert event["event"] not in ("error", "end"), event

    def started(self) -> None:
        """Wait until it handles signals."""
        self.event("started")
        while self.process.is_alive():
            caught = int(
                re.findall(r"SigCgt:\s*(\w+)", Path(f"/proc/{self.process.pid}/status").read_text())[0], 16
            )
            if caught & 1 << (signal.SIGTERM - 1):
                return
            time.sleep(0.01)

    def next_step(self) -> dict[str, Any]:
        """Return the next step."""
        return self.event("step")

    def end(self) -> dict[str, Any]:
        """Return how it has ended."""
        return self.event("end")

    def signal(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """End it at once; a second call does nothing."""
        if self.process is not None:
            self.process.kill()
            self._reader.join()
            self._running.stop()
            self.process = None

    def _read(self) -> None:
        pipe = self._running.pipes[0]
        try:
            while True:
                self._events.put(pipe.recv())
        except EOFError:
            self._events.put("it has ended")
