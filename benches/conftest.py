"""Brokers and suppliers in processes of their own, the client in pytest's, for pytest-benchmark."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import torch

from benches import role, workloads
from benches.fleet import Fleet
from benches.scenarios import Scenario, Side, Size

PACKAGES = ("softs", "softs_fast")
Connect = Callable[[str, Size, int], Callable[[], workloads.SampleClient]]
Load = Callable[[str, Size, int, int], Iterator[dict[str, torch.Tensor]]]


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Torch computes with one thread, as in the processes that `python -m benches` starts."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Closes what a test opened."""
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def connect(stack: ExitStack) -> Connect:
    """Start a broker and a supplier of a package; return a function that makes and checks clients."""

    def start(package: str, size: Size, n_slots: int) -> Callable[[], workloads.SampleClient]:
        frontend = stack.enter_context(_fleet(package, size, n_slots)).frontend
        module = importlib.import_module(package)
        expected = role.payload(size)

        def make() -> workloads.SampleClient:
            client = stack.enter_context(module.Client(frontend, module.ShmMedium, size.nbytes, n_slots))
            client.hello()
            role.check(workloads.take_one(client), expected)
            return client  # type: ignore[no-any-return]

        return make

    return start


@pytest.fixture
def load(stack: ExitStack) -> Load:
    """Make the iterator of a package's `SoftDataLoader`."""

    def make(package: str, size: Size, n_slots: int, batch_size: int) -> Iterator[dict[str, torch.Tensor]]:
        frontend = stack.enter_context(_fleet(package, size, n_slots)).frontend
        return role.open_loader(importlib.import_module(package), frontend, size, n_slots, batch_size)

    return make


def _fleet(package: str, size: Size, n_slots: int) -> Fleet:
    return Fleet(Scenario("pytest", "one_by_one", size, n_slots), Side.pure(package), with_clients=False)
