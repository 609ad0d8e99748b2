"""A job of real processes: a broker, suppliers, a coordinator and ranks, which tests kill; and an oracle that recounts.

A sample holds its number, so what a rank reports to have trained comes from the samples themselves.
"""

from __future__ import annotations

import functools
import hashlib
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ranks
import torch
from coordinator_process import Coordinator
from waiting import WATCHDOG_S, eventually

import softs_fast as sf
from softs_fast import _core
from softs_fast.job.ledger import share

# Eleven micro-batches: two ranks have unequal shares.
GLOBAL, MICRO, WIDTH = 22, 2, 6
#: Products by the steps after which they begin; samples of the second one have numbers above those of the first.
SWITCHES = {6: "2", 13: "1", 21: "2"}
SECOND = 10**6
#: Steps from one checkpoint to the next.
EVERY = 4
CONFIG = sf.BatchConfig([sf.TensorSpec("x", (WIDTH,), "float32"), sf.TensorSpec("number", (), "int64")])


def sample(number: int) -> torch.Tensor:
    """Return the values of a sample, float32 [WIDTH]."""
    return torch.rand(WIDTH, generator=torch.Generator().manual_seed(number))


def serve(say: Callable[[Any], None], _rank: int, _size: int, backend: str) -> None:
    """Make samples that depend on their numbers alone, until the process is killed."""
    torch.set_num_threads(1)

    def generate(product_id: str, n: int, sequences: tuple[int, ...]) -> dict[str, torch.Tensor]:
        numbers = [number + SECOND * (product_id == "2") for number in sequences]
        return {"x": torch.stack([sample(number) for number in numbers]), "number": torch.tensor(numbers)}

    with sf.Supplier(
        batch_generator_fn=generate, product_ids=["1", "2"], endpoint=backend, batch_config=CONFIG
    ):
        say("serves")
        threading.Event().wait()


def mediate(say: Callable[[Any], None], _rank: int, _size: int, frontend: str, backend: str) -> None:
    """Run a broker until the process is killed."""
    with sf.Broker(sf.EndpointConfig(frontend=frontend, backend=backend)):
        say("serves")
        threading.Event().wait()


@contextmanager
def supplier(backend: str, make: Callable[[int], torch.Tensor] = sample) -> Iterator[None]:
    """A supplier in this process, of samples that a function makes of their numbers."""

    def generate(product_id: str, sequence: int) -> dict[str, torch.Tensor]:
        return {"x": make(sequence), "number": torch.tensor(sequence)}

    with sf.Supplier(generator_fn=generate, product_ids=["1"], endpoint=backend, batch_config=CONFIG):
        yield


class Student:
    """A model with dropout, and its optimizer."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        layers = (torch.nn.Linear(WIDTH, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        self.model = torch.nn.Sequential(*layers)
        #: Of all micro-batches of the last step of `replayed`.
        self.mean_loss = 0.0
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-2)

    def loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the mean loss of a batch."""
        return (self.model(batch["x"])[:, 0] - batch["x"].sum(1)).pow(2).mean()

    def digest(self) -> str:
        """Return a hash of the weights."""
        found = hashlib.sha256()
        for parameter in self.model.parameters():
            found.update(parameter.detach().numpy().tobytes())
        return found.hexdigest()[:16]

    def weights(self) -> list[float]:
        """Return the weights as numbers."""
        return torch.cat([one.detach().reshape(-1) for one in self.model.parameters()]).tolist()


def live_data(frontend: str) -> sf.LiveData:
    """The samples of the job."""
    return sf.LiveData(
        "1", CONFIG, global_batch_size=GLOBAL, micro_batch_size=MICRO, endpoint=frontend, switches=SWITCHES
    )


def numbers(step: int) -> range:
    """Return the numbers of the samples of a step, from 0."""
    ledger = live_data("ipc:///none").ledger
    first = ledger.numbers(step).start + SECOND * (ledger.product_of(step) == "2")
    return range(first, first + GLOBAL)


def train(say: Callable[[Any], None], _rank: int, _size: int, options: dict[str, Any]) -> None:
    """Train as a rank of a job, or alone, and report each step."""
    torch.set_num_threads(1)
    student = Student(options["seed"])
    state = sf.TrainingState(student.model, student.optimizer)
    address, folder = options["coordinator"], options.get("checkpoints")
    with sf.Job(
        "digits",
        live_data(options["frontend"]),
        state,
        coordinator=address,
        seed=5,
        checkpoints=sf.Checkpoints(folder, every=EVERY, keep=2) if folder else None,
    ) as job:
        for step in job.steps(options["n_steps"]):
            taken: list[int] = []
            with step:
                rank, size = job.rank, job.size
                may_go_on = functools.partial(_may_go_on, options.get("gate"), step.number, job)
                eventually(may_go_on, "the step is allowed", within_s=600.0)
                for batch in step.batches():
                    taken += batch["number"].tolist()
                    step.backward(student.loss(batch))
            say(
                {
                    "step": step.number,
                    "place": (rank, size),
                    "taken": taken,
                    "is_committed": step.is_committed,
                    "digest": student.digest() if step.is_committed else "",
                }
            )
        say({"end": job.committed, "weights": student.weights(), "loss": step.loss})


def _may_go_on(gate: Path | None, step: int, job: sf.Job) -> bool:
    return gate is None or step <= int(gate.read_text()) or bool(job._begun.worker.not_ready)


class Rank:
    """A process that trains, seen from a test."""

    def __init__(self, function: Callable[..., None] = train, **options: Any) -> None:
        self._running = ranks.start(function, 1, options)
        #: Steps that were committed, and those that were not; the last report.
        self.committed: dict[int, dict[str, Any]] = {}
        self.dropped: list[dict[str, Any]] = []
        self.end: dict[str, Any] | None = None
        self.error = ""
        self.was_killed = False
        self._said: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # A pipe is soon full, and a rank that waits for room in it stops the others.
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def read(self) -> None:
        """Take what was reported."""
        while not self._said.empty():
            said = self._said.get()
            if isinstance(said, ranks.Raised):
                self.error = said.trace
            elif said is None:
                continue
            elif "end" in said:
                self.end = said
            elif said["is_committed"]:
                assert said["step"] not in self.committed, f"step {said['step']} is committed twice"
                self.committed[said["step"]] = said
            else:
                self.dropped.append(said)

    def until(self, step: int) -> None:
        """Wait until it has committed a step."""

        def has_it() -> bool:
            self.read()
            assert not self.error, self.error
            return max(self.committed, default=0) >= step

        eventually(has_it, f"step {step}; it has {max(self.committed, default=0)}")

    def drops(self) -> dict[str, Any]:
        """Wait until it has ended a step that was not committed; that one."""

        def has_dropped() -> list[dict[str, Any]]:
            self.read()
            assert not self.error, self.error
            return self.dropped

        return eventually(has_dropped, "a step that is dropped")[-1]

    def ended(self) -> dict[str, Any]:
        """Wait for its last report."""

        def has_ended() -> bool:
            self.read()
            assert not self.error, self.error
            return self.end is not None

        eventually(has_ended, "the end")
        assert self.end is not None
        return self.end

    def kill(self) -> None:
        """End it at once; what it has said is kept. A second call does nothing."""
        if self.was_killed:
            return
        self.was_killed = True
        self._running.processes[0].kill()
        self._reader.join(WATCHDOG_S)
        self.read()
        self._running.stop()

    def _read(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self._said.put(self._running.pipes[0].recv())


class LiveJob:
    """Suppliers, a coordinator, and ranks.

    Args:
        frontend: Endpoint of the broker for ranks.
        backend: Endpoint of the broker for suppliers.
        gate: File with the number of steps that ranks may make.
        coordinator: Coordinator.
        n_steps: Steps to commit.
    """

    def __init__(
        self, frontend: str, backend: str, gate: Path, coordinator: Coordinator, n_steps: int
    ) -> None:
        self.coordinator, self.n_steps = coordinator, n_steps
        self._gate = gate
        self.ranks: list[Rank] = []
        self._frontend, self._backend = frontend, backend
        self._suppliers: list[ranks.Ranks] = []
        #: Folder of the checkpoints that ranks write.
        self.checkpoints: Path | None = None

    def allow(self, n_steps: int) -> None:
        """Let ranks make so many steps; in the next one they wait, until that is allowed or its epoch is over."""
        new = self._gate.with_suffix(".new")
        new.write_text(str(n_steps))
        new.rename(self._gate)

    def start(self, function: Callable[..., None] = train, *, is_alone: bool = False) -> Rank:
        """Start a rank. Any of the first ones may come first, and have the weights that count; joiners have others."""
        is_joiner = any(one.committed for one in self.ranks)
        self.ranks.append(
            Rank(
                function,
                frontend=self._frontend,
                coordinator=None if is_alone else self.coordinator.address,
                seed=len(self.ranks) if is_joiner else 0,
                n_steps=self.n_steps,
                gate=self._gate,
                checkpoints=self.checkpoints,
            )
        )
        return self.ranks[-1]

    def kill_all(self, sealed: int) -> None:
        """Kill all ranks: steps after the newest checkpoint are of no weights any more."""
        for one in self.ranks:
            one.kill()
            one.committed = {step: said for step, said in one.committed.items() if step <= sealed}

    def start_supplier(self) -> None:
        """Start a supplier, and wait until it serves."""
        self._suppliers.append(ranks.start(serve, 1, self._backend))
        assert self._suppliers[-1].receive(0) == "serves"

    def pids(self) -> list[int]:
        """Return the processes of ranks and suppliers that run."""
        running = [one._running for one in self.ranks if not one.was_killed] + self._suppliers
        return [one.processes[0].pid for one in running]

    def kill_supplier(self) -> None:
        """Kill the supplier that was started first."""
        self._suppliers.pop(0).stop()

    def end(self) -> None:
        """Kill all ranks and suppliers."""
        for one in self.ranks:
            one.kill()
        while self._suppliers:
            self.kill_supplier()
        # No peer is left that would do it.
        _core.sweep()

    def with_step(self, step: int, alive: list[Rank]) -> list[Rank]:
        """Wait until ranks have committed a step; these, of those that are given."""

        def found() -> list[Rank]:
            for one in alive:
                one.read()
                assert not one.error, one.error
            return [one for one in alive if step in one.committed]

        return eventually(found, f"step {step}")

    def sizes(self) -> list[int]:
        """Return the number of ranks in each step."""
        return [self._of(step)[0]["place"][1] for step in range(1, self.n_steps + 1)]

    def _of(self, step: int) -> list[dict[str, Any]]:
        return [one.committed[step] for one in self.ranks if step in one.committed]

    def recount(self) -> list[int]:
        """J2, J3, J5 from the reports alone: all numbers once, in order, and one history of weights; the sizes by step.

        A rank that was killed may have applied a step that it has not reported: its share is known by the ranks that have.
        """
        n_micro = GLOBAL // MICRO
        for step in range(1, self.n_steps + 1):
            reports = self._of(step)
            assert reports, f"step {step} is missing"
            assert len({one["digest"] for one in reports}) == 1, f"step {step} has two kinds of weights"
            [size] = {one["place"][1] for one in reports}
            places = {one["place"][0]: one["taken"] for one in reports}
            own_numbers = list(numbers(step - 1))
            for rank, taken in places.items():
                own = share(n_micro, rank, size)
                assert taken == own_numbers[own.start * MICRO : own.stop * MICRO]
            unreported = set(range(size)) - places.keys()
            n_killed = sum(one.was_killed for one in self.ranks)
            assert len(unreported) <= n_killed, f"step {step} of {size} ranks is reported by {sorted(places)}"
        return self.sizes()


def has(size: int) -> Callable[[Any], bool]:
    """Return whether an epoch of so many ranks is open, as a function of the status of a job."""
    return lambda status: bool(status.phase == "open" and status.size == size)


def replayed(sizes: list[int]) -> Student:
    """Train with a sequence of sizes in this process, as a job does that nothing disturbs."""
    from softs_fast.job.position import Position

    seeds = Position(live_data("ipc:///none").ledger, 5)
    student = Student(0)
    parameters = list(student.model.parameters())
    n_micro = GLOBAL // MICRO
    for step, size in enumerate(sizes):
        sums = [torch.zeros_like(one) for one in parameters]
        student.mean_loss = 0.0
        for rank in range(size):
            student.optimizer.zero_grad()
            for index in share(n_micro, rank, size):
                torch.manual_seed(seeds.seed_of(step, index))
                x = torch.stack(
                    [sample(number) for number in numbers(step)[index * MICRO : (index + 1) * MICRO]]
                )
                loss = student.loss({"x": x})
                student.mean_loss += float(loss.detach()) / n_micro
                (loss * (size / n_micro)).backward()
            for total, parameter in zip(sums, parameters, strict=True):
                if parameter.grad is not None:
                    total += parameter.grad
        for total, parameter in zip(sums, parameters, strict=True):
            parameter.grad = total * (1.0 / size)
        student.optimizer.step()
    return student
