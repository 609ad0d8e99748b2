"""A worker in one process, with an engine and a coordinator that are played by the test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from softs_fast.coordination.job import messages as m
from softs_fast.coordination.job.participant import Build
from softs_fast.coordination.node import TrainingState, WorkerNode, worker_link
from softs_fast.errors import PeerLost
from softs_fast.loader import ranks as loader_ranks


class Engine:
    """A strategy of two ranks in one process: what this one reduces is the mean, and it copies zeros."""

    def __init__(self, rank: int) -> None:
        self.rank, self.size = rank, 2
        self.is_lost = False
        self.lost: list[int] = []
        self.calls: list[str] = []

    def all_reduce(self, tensor: Any, op: Any) -> None:
        pass

    def all_reduce_gradients(self, gradients: Mapping[str, torch.Tensor], op: Any) -> None:
        pass

    def barrier(self) -> None:
        self.calls.append("barrier")
        if self.is_lost:
            raise PeerLost("a rank is lost")

    def close(self) -> None:
        self.calls.append("close")


class Store:
    """A store of an epoch."""

    def __init__(self, *arguments: Any, prefix: str) -> None:
        self.prefix = prefix

    def end(self, reason: str) -> bool:
        return True


class Worker:
    """A worker in one process, with a coordinator that is played by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(worker_link, "SessionStore", Store)
        monkeypatch.setattr(loader_ranks, "_of_worker", None)
        self.model = torch.nn.Linear(2, 1)
        self.engine = Engine(0)
        self.fails_in: str | None = None
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.state = TrainingState(self.model, optimizer, apply=self.apply)
        self.made: list[tuple[str, list[str]]] = []
        self.node = WorkerNode(
            "127.0.0.1:1", self.state, worker_id="w0", engine=self.make_engine, load=self.load
        )
        self._link = self.node._link
        self._listener = self._link.session._listener
        self._listener.hello()
        self._listener.received(m.Welcome(7, 0))
        self._listener.lost("there is no coordinator that could answer a fault", is_warning=False)

    def make_engine(self, table: m.Table, rank: int, store: Any) -> Any:
        assert table.members[rank].worker_id == "w0"
        self.made.append((store.prefix, [one.worker_id for one in table.members]))
        return self.engine

    def apply(self) -> None:
        self.state.optimizer.step()
        if self.fails_in == "apply":
            raise FloatingPointError("a defect")

    def load(self, path: str) -> None:
        if self.fails_in == "load":
            raise FloatingPointError("a defect")

    def open(
        self, epoch: int, step: int, survivors: tuple[int, ...], source: int | None, size: int = 2
    ) -> None:
        """Open an epoch, and prepare for it."""
        members = tuple(
            m.Member(rank, rank, f"w{rank}", self._link.machine._hello.incarnation, "")
            for rank in range(size)
        )
        if self._link.machine.phase == "ending":
            # Its program begins the next step.
            with self._link.changed:
                self._link.do(self._link.machine.ended())
        self._listener.received(m.Table(7, epoch, members, step, "back", survivors, source, "path"))
        build = self._link.next_build(0.0, 1.0)
        assert isinstance(build, Build)
        self.node._prepare(build)

    def fence(self, epoch: int) -> None:
        """Say that an epoch is over."""
        self._listener.received(m.Fence(7, epoch, "gone", 1, "seat 1 is gone"))

    def step(self) -> bool:
        """Make a step; return whether it was committed."""
        with self.node.step() as step:
            self.model(torch.ones(1, 2)).sum().backward()
        return step.is_committed

    @property
    def said(self) -> m.WorkerState:
        """What the worker says that it has."""
        return self._link.machine.state
