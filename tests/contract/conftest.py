"""One suite, two packages: every test here runs against softs 0.1.2 and against softs_fast.

Where both differ on purpose, a test states it with `expect(softs=..., softs_fast=...)`, and docs/compat.md has
a row for it.
"""

import contextlib
import importlib
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
from waiting import eventually, free_ports

# softs leaves sockets to the garbage collector, which may come by in any later test.
LEAKY = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


# softs 0.1.2 stays what it is: `make test-all` runs the suite on it.
@pytest.fixture(params=[pytest.param("softs", marks=[LEAKY, pytest.mark.full]), "softs_fast"])
def package(request: pytest.FixtureRequest) -> str:
    """The name of the package under test."""
    return str(request.param)


@pytest.fixture
def lib(package: str) -> ModuleType:
    """The package under test."""
    return importlib.import_module(package)


@pytest.fixture
def sub(package: str) -> Callable[[str], ModuleType]:
    """Import a submodule of the package under test, such as `market.protocol`."""
    return lambda name: importlib.import_module(f"{package}.{name}")


@pytest.fixture
def expect(package: str) -> Callable[..., Any]:
    """Pick the expectation for the package under test; both are named, for they differ on purpose."""

    def pick(*, softs: Any, softs_fast: Any) -> Any:
        return softs if package == "softs" else softs_fast

    return pick


class Market:
    """A broker and its peers in this process; everything is closed at the end of the test, last one first."""

    def __init__(self, lib: ModuleType, frontend: str, backend: str, stack: contextlib.ExitStack) -> None:
        self.lib = lib
        self.endpoints = lib.EndpointConfig(frontend=frontend, backend=backend)
        self._stack = stack

    def broker(self, **arguments: Any) -> Any:
        return self._stack.enter_context(self.lib.Broker(self.endpoints, **arguments))

    def supplier(
        self,
        generator_fn: Callable[[str], bytes],
        product_ids: list[str],
        slot_size: int = 8,
        medium: Any = None,
    ) -> Any:
        supplier = self.lib.Supplier(
            generator_fn, product_ids, self.endpoints.backend, medium or self.lib.ShmMedium, slot_size
        )
        self._stack.callback(supplier.stop)
        supplier.start()
        return supplier

    def client(
        self, num_slots: int = 4, slot_size: int = 8, medium: Any = None, hello: bool = True, **arguments: Any
    ) -> Any:
        client = self.lib.Client(
            self.endpoints.frontend, medium or self.lib.ShmMedium, slot_size, num_slots, **arguments
        )
        self._stack.enter_context(client)
        if hello:
            client.hello()
        return client


@pytest.fixture
def market(lib: ModuleType, frontend: str, backend: str) -> Iterator[Market]:
    """A market on Unix sockets; nothing is started yet."""
    with contextlib.ExitStack() as stack:
        yield Market(lib, frontend, backend, stack)


@pytest.fixture
def tcp_market(lib: ModuleType) -> Iterator[Market]:
    """A market on TCP over loopback; nothing is started yet."""
    with contextlib.ExitStack() as stack:
        yield Market(lib, *(f"tcp://127.0.0.1:{port}" for port in free_ports(2)), stack)


class Gate:
    """A generator that answers with the product id, padded to 8 bytes, and only while the gate is open."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.calls: list[str] = []

    def __call__(self, product_id: str) -> bytes:
        self.calls.append(product_id)
        assert self.opened.wait(30), "the test never opened the gate"
        return product_id.encode().ljust(8, b".")


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A closed gate; the end of the test opens it."""
    gate = Gate()
    yield gate
    gate.opened.set()


@pytest.fixture
def take() -> Callable[[Any], int]:
    """Wait for the next finished slot of a client."""

    def wait(client: Any) -> int:
        slots: list[int] = []

        def arrived() -> bool:
            client.poll_completions(50)
            slot = client.get_completed()
            slots.extend(() if slot is None else (slot,))
            return bool(slots)

        eventually(arrived, "a finished slot")
        return slots[0]

    return wait
