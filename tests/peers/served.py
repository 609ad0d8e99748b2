"""A broker with a supplier, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from softs_fast import Broker, EndpointConfig, Supplier


@contextmanager
def served(
    frontend: str, backend: str, generate: Any, products: list[str], *medium_and_size: Any, **options: Any
) -> Iterator[None]:
    """Serve products of one generator, as a `Supplier` is told to."""
    with (
        Broker(EndpointConfig(frontend, backend)),
        Supplier(generate, products, backend, *medium_and_size, **options),
    ):
        yield
