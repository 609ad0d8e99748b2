"""A broker and teachers in processes of their own, and a student here."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from softs_fast.gpu import ranks
from softs_fast.loader import SoftDataLoader
from softs_fast.market import Broker, CudaIpcMedium, EndpointConfig, Medium, Supplier

from .expect import expect
from .maker import Maker
from .samples import CONFIGS

__all__ = ["Market", "Product", "market"]


@dataclass(frozen=True)
class Product:
    """What a teacher serves.

    Attributes:
        config: name of what a sample is made of.
        kind: way to make samples.
        where: the tensors are: device, host, array, mixed.
        wide: floats are cast on the way.
    """

    config: str
    kind: str
    where: str = "device"
    wide: bool = False

    @property
    def name(self) -> str:
        """The product id."""
        return "/".join([self.config, self.kind, self.where, *["wide"] * self.wide])


@dataclass
class Market:
    """The processes of a market; the broker is the first one."""

    endpoints: EndpointConfig
    medium: type[Medium]
    running: ranks.Ranks

    @contextlib.contextmanager
    def loader(self, product: Product, **arguments: Any) -> Iterator[SoftDataLoader]:
        """Yield a loader; closed in the end."""
        loader = SoftDataLoader(
            product.name,
            self.endpoints.frontend,
            CONFIGS[product.config],
            self.medium,
            ordered=True,
            **arguments,
        )
        try:
            yield loader
        finally:
            loader.soft_dataset.close()

    def kill_teacher(self, number: int) -> None:
        """End a teacher by SIGKILL; returns when it is gone."""
        process = self.running.processes[1 + number]
        os.kill(process.pid, signal.SIGKILL)
        process.join()


@contextlib.contextmanager
def market(*teachers: Sequence[Product], medium: type[Medium] = CudaIpcMedium) -> Iterator[Market]:
    """Yield a market with a teacher for each list of products, once all serve. Its processes are killed in the end.

    Args:
        teachers: Products that each teacher serves.
        medium: Class of the medium of teachers and students.

    Raises:
        CheckFailed: a process of it failed.
    """
    with tempfile.TemporaryDirectory(prefix="sf") as folder:
        endpoints = EndpointConfig(f"ipc://{folder}/f", f"ipc://{folder}/b")
        with ranks.start(_take_part, 1 + len(teachers), endpoints, medium, teachers) as running:
            for said in running.results():
                expect(said == "ready", f"a process of the market failed: {said}{getattr(said, 'trace', '')}")
            yield Market(endpoints, medium, running)


def _take_part(
    say: Callable[[Any], None],
    rank: int,
    size: int,
    endpoints: EndpointConfig,
    medium: type[Medium],
    teachers: Sequence[Sequence[Product]],
) -> None:
    with contextlib.ExitStack() as stack:
        if rank == 0:
            stack.enter_context(Broker(endpoints))
        else:
            for product in teachers[rank - 1]:
                stack.enter_context(_supplier(product, endpoints, medium))
        say("ready")
        # The process is killed in the end, whatever it does.
        signal.pause()


def _supplier(product: Product, endpoints: EndpointConfig, medium: type[Medium]) -> Supplier:
    maker = Maker(product.config, product.where, 0, product.wide)
    return Supplier(
        product_ids=[product.name],
        endpoint=endpoints.backend,
        medium_cls=medium,
        slot_size=maker.config.nbytes(),
        **maker.arguments(product.kind),
    )
