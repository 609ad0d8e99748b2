"""A broker with a control channel, and what gathers around it."""

import contextlib
from pathlib import Path
from typing import Any

import samples

from softs_fast import BatchConfig, Broker, StudentClient, Worker


class School:
    """A broker, its workers and students in this process; everything is closed at the end of the test, last one first."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.frontend, self.backend, self.control, self.control_pub = samples.endpoints(folder)
        self.stack = stack

    def broker(self) -> Broker:
        return self.stack.enter_context(Broker(self.frontend, self.backend, self.control, self.control_pub))

    def worker(self, generator_fn: Any = samples.stamped, **arguments: Any) -> Worker:
        arguments = {"batch_config": samples.CONFIG} | arguments
        worker = Worker(
            generator_fn, arguments.pop("slot_size", 0), self.backend, self.control_pub, **arguments
        )
        return self.stack.enter_context(worker)

    def student(
        self, rank: int = 0, slot_count: int = 8, config: BatchConfig = samples.CONFIG, **arguments: Any
    ) -> StudentClient:
        return self.stack.enter_context(
            StudentClient(
                rank, slot_count, config, self.frontend, self.control, self.control_pub, **arguments
            )
        )

    def begun(self, *of_student: Any, **more: Any) -> StudentClient:
        """Start a broker and a worker, and return a student."""
        self.broker()
        self.worker()
        return self.student(*of_student, **more)
