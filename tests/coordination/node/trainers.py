"""Workers that train a small model with WorkerNode, and report each step."""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import queue
import re
import select
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
from in_step import IN_STEP
from networks import Host, enter
from patience import pings
from waiting import WATCHDOG_S

from softs_fast.collectives.host import overlap
from softs_fast.coordination.credentials import ClientCredentials
from softs_fast.coordination.node import (
    TrainingState,
    WorkerNode,
    link_engine,
    memory_engine,
    sent_trees,
    serving,
)
from softs_fast.coordination.node.engines import EngineOf
from softs_fast.coordination.session import session
from softs_fast.errors import SoftsError

N_WEIGHTS = 8


class Training:
    """A model, its optimizer, and what it does in a step: the same on each worker."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(*(torch.nn.Linear(N_WEIGHTS, 1, bias=False) for _ in range(2)))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)

    def loss(self, step: int, difference: float = 0.0) -> torch.Tensor:
        """Return the loss of a step; its gradients depend on the step's number, and on what those of ranks differ by.

        They are such that the mean of up to four equal ones is exact, also if a third of each is rounded.

        Args:
            step: Number of the step.
            difference: Difference of this rank's gradients from the mean of all; a small multiple of a half.
        """
        rows = torch.arange(N_WEIGHTS, dtype=torch.float32)
        gradient = 3 * ((rows + step) % 8 - 3.5) / 8 + difference
        return torch.stack([one @ gradient for one in self.model.parameters()]).sum()

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
        training.loss(step).backward()  # type: ignore[no-untyped-call]
        training.optimizer.step()
        training.optimizer.zero_grad()
        found[step] = training.digest()
    return found


def engine_of(name: str | EngineOf, number: int) -> EngineOf | None:
    """Return the engine of a worker: connections, the default, nodes of two workers that share memory, or what is given."""
    if not isinstance(name, str):
        return name
    if name == "nodes":
        return functools.partial(memory_engine, host=str(number // 2))
    return {"link": link_engine, "memory": None}[name]


def interrupt_copy(n_tensors: int, number: signal.Signals) -> None:
    """Have this process get a signal when it has sent or received so many tensors of a state."""
    count, bytes_of = itertools.count(), sent_trees._bytes_of

    def counted(tensor: torch.Tensor) -> torch.Tensor:
        if next(count) == n_tensors:
            os.kill(os.getpid(), number)
        return bytes_of(tensor)

    sent_trees._bytes_of = counted


def replay_wrongly() -> None:
    """Have followers of this process apply a bit more than the members."""
    replay = TrainingState.replay

    def wrong(self: TrainingState, step: Any) -> None:
        replay(self, step)
        with torch.no_grad():
            next(self.model.parameters())[0, 0] += 1

    TrainingState.replay = wrong  # type: ignore[method-assign]


def train(say: Callable[[Any], None], rank: int, size: int, options: dict[str, Any]) -> None:
    """Train in this process, and report each step."""
    # A bucket for each parameter.
    overlap.FIRST_BYTES = overlap.BUCKET_BYTES = 1
    # A worker that copies nothing would have other weights.
    training = Training(options["model_seed"])
    if "in_copy" in options:
        interrupt_copy(*options["in_copy"])
    if "free_bytes" in options:
        serving._FREE_BYTES = options["free_bytes"]
    if options.get("replays_wrongly"):
        replay_wrongly()
    fails_at = {options.get("apply_fails_at")}

    def apply() -> None:
        training.optimizer.step()
        if node.committed in fails_at:
            fails_at.clear()
            raise FloatingPointError("half of a step")

    state = TrainingState(training.model, training.optimizer, apply=apply)
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
        engine=engine_of(options.get("engine", "memory"), options["seat"]),
        credentials=ClientCredentials(
            **{name: Path(path) for name, path in options.get("credentials", {}).items()}
        ),
        join_s=30.0,
        leave_on_sigterm=options.get("leaves_on_sigterm", True),
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
                    "followers": len(node._machine.table.followers) if node._machine.table else 0,
                }
            )
            while node.committed < options["n_steps"] and not node.is_leaving:
                try:
                    with node.step() as step:
                        # With 1, 2 or 4 ranks that differ, the mean is exact in any order.
                        differs = (node.rank - (node.size - 1) / 2) if options.get("ranks_differ") else 0.0
                        loss = training.loss(step.number, differs * (step.number % 5))
                        if options.get("in_backward") == step.number:
                            # Of the first parameter, so in the middle of the pass.
                            next(training.model.parameters()).register_hook(
                                lambda _: IN_STEP[options["calls"]](node, options)
                            )
                        # Gradients are reduced during the pass, or after it.
                        if step.number % 2:
                            step.backward(loss)
                        else:
                            loss.backward()  # type: ignore[no-untyped-call]
                        time.sleep(options.get("pause_s", 0.0))
                        if "check" in options and options.get("checks_at", step.number) == step.number:
                            IN_STEP[options["check"]](node, options)
                        if options.get("fails_at") == step.number:
                            raise ValueError("a defect of the training")
                except FloatingPointError:
                    # The user goes on; the weights are those of another worker then.
                    continue
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


def train_patiently(say: Callable[[Any], None], rank: int, size: int, options: dict[str, Any]) -> None:
    """Train where no link is cut."""
    session.Pings = pings  # type: ignore[assignment, misc]
    train(say, rank, size, options)


def train_on(
    say: Callable[[Any], None], rank: int, size: int, options: dict[str, Any], host_pid: int
) -> None:
    """Train on a host of a network."""
    enter(host_pid)
    train(say, rank, size, options)


class Trainer:
    """A process that trains, seen from a test.

    Args:
        address: Address of the coordinator.
        number: Number of the worker, and its seat.
        host: Host on which the process runs; None for this machine.
        options: Options of the trainer, see `train`.
    """

    def __init__(self, address: str, number: int, host: Host | None = None, **options: Any) -> None:
        self.steps: list[dict[str, Any]] = []
        self.options = {
            "address": address,
            "worker_id": f"w{number}",
            "seat": number,
            "model_seed": 0,
            **options,
        }
        self._has_host = host is not None
        if host is None:
            self._running = ranks.start(train_patiently, 1, self.options)
        else:
            self._running = ranks.start(train_on, 1, self.options, host.pid)
        self.process: Any = self._running.processes[0]
        # A pipe is soon full, and a worker that waits for room in it stops the others.
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def event(self, name: str) -> dict[str, Any]:
        """Return the next event of a name; steps before it are kept."""
        while True:
            event = self._next(f"event {name!r}")
            assert isinstance(event, dict), f"{event}; {self._told()}"
            if event["event"] == "step":
                self.steps.append(event)
            if event["event"] == name:
                return event
            assert event["event"] not in ("error", "end"), f"{event}; {self._told()}"

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

    def events(self, *, waits: bool) -> list[Any]:
        """Return the events that have come, or wait for one; the end of the worker is one of them.

        Raises:
            queue.Empty: none comes within the watchdog's time.
        """
        found = [self._events.get(timeout=WATCHDOG_S)] if waits else []
        while not self._events.empty():
            found.append(self._events.get())
        return found

    def next_step(self) -> dict[str, Any]:
        """Return the next step."""
        return self.event("step")

    def end(self) -> dict[str, Any]:
        """Return how it has ended."""
        return self.event("end")

    def over(self) -> dict[str, Any]:
        """Return how it has ended, or by which error."""
        while True:
            event = self._next("end")
            if event["event"] in ("error", "end"):
                assert isinstance(event, dict)
                return event

    def signal(self, number: int) -> None:
        """Send a signal."""
        os.kill(self._pid, number)

    def kill(self) -> None:
        """End it at once; a second call does nothing."""
        if self.process is not None:
            if self._has_host:
                with suppress(OSError, ValueError):  # it has ended
                    worker = os.pidfd_open(self._pid)
                    signal.pidfd_send_signal(worker, signal.SIGKILL)
                    select.select([worker], [], [], WATCHDOG_S)
                    os.close(worker)
            self.process.kill()
            self._reader.join()
            self._running.stop()
            self.process = None

    def _next(self, awaited: str) -> Any:
        try:
            return self._events.get(timeout=WATCHDOG_S)
        except queue.Empty:
            raise AssertionError(f"no {awaited} within {WATCHDOG_S} s; {self._told()}") from None

    def _told(self) -> str:
        return f"{self.options['worker_id']}, the last steps: {self.steps[-5:]}"

    @property
    def _pid(self) -> int:
        pid = int(self.process.pid)
        if not self._has_host:
            return pid
        # The worker has a process between it and this one, which has another number on the host.
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())

    def _read(self) -> None:
        pipe = self._running.pipes[0]
        try:
            while True:
                self._events.put(pipe.recv())
        except (EOFError, OSError):  # OSError: it was killed while it wrote
            self._events.put("it has ended")


#: Starts a worker of a coordinator, by its number, with options.
Start = Callable[..., Trainer]


def by_engine(*quick: str) -> pytest.MarkDecorator:
    """Run a test with each engine; `make test` has those that are named."""
    every = ("link", "memory", "nodes")
    slow = [pytest.param(one, marks=pytest.mark.slow) for one in every if one not in quick]
    return pytest.mark.parametrize("engine", [*quick, *slow], indirect=True)


def until_size(trainer: Trainer, size: int) -> dict[str, Any]:
    """Wait for a committed step among so many workers."""
    while True:
        step = trainer.next_step()
        if step["size"] == size and step["is_committed"]:
            return step


def check(trainers: list[Trainer], n_steps: int) -> None:
    """All have ended with the weights of a training without faults, and had them after each step."""
    expected = undisturbed(n_steps)
    for trainer in trainers:
        end = trainer.end()
        assert end["committed"] == n_steps
        assert end["digest"] == expected[n_steps]
    check_steps(trainers)


def check_steps(trainers: list[Trainer]) -> None:
    """All have committed each step once, in order, and had the weights of a training without faults after it."""
    expected = undisturbed(max(step["number"] for trainer in trainers for step in trainer.steps))
    for trainer in trainers:
        committed = [step for step in trainer.steps if step["is_committed"]]
        numbers = [step["number"] for step in committed]
        assert numbers == sorted(set(numbers)), "a step was applied twice"
        for step in committed:
            assert step["digest"] == expected[step["number"]]
