"""Options of a medium, a `functools.partial` of its class, reach the medium of every loader, client and supplier."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from softs_fast import (
    BatchConfig,
    Broker,
    Client,
    ConfigError,
    DistillDataLoader,
    DistillIterableDataset,
    EndpointConfig,
    SoftDataLoader,
    SoftIterableDataset,
    StudentClient,
    Supplier,
    TCPMedium,
    TensorSpec,
)
from softs_fast.fleet import PrivateBroker

CONFIG = BatchConfig([TensorSpec("x", (2,), "float32")])
#: Of loopback, and not the default.
HOST = "127.0.0.3"


class Noted(TCPMedium):
    """Notes in a file what the medium of a client was made with, in whichever process."""

    def __init__(self, *args: Any, note_in: str, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.is_owner:
            assert self.address is not None
            used = f"{self.address.partition(':')[0]} {options['allow_remote']}\n"
            with Path(note_in).open("a") as notes:
                notes.write(used)


@pytest.fixture
def supplied(frontend: str, backend: str) -> Iterator[str]:
    with (
        Broker(EndpointConfig(frontend, backend)) as broker,
        Supplier(
            lambda product: bytes(CONFIG.nbytes()),
            [".*"],
            backend,
            functools.partial(TCPMedium, allow_remote=True),
            CONFIG.nbytes(),
        ),
    ):
        yield broker.bound_endpoints.frontend


def first_of(loader: Any) -> None:
    """Take one batch or sample, and end what was started for it."""
    batches = iter(loader)
    next(batches)
    del batches
    for closable in (loader, getattr(loader, "dataset", None)):
        if hasattr(closable, "close"):
            closable.close()


def as_it_is(samples: list[dict[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
    return samples


def soft_dataset(frontend: str, medium_cls: Any) -> SoftIterableDataset:
    return SoftIterableDataset("p", frontend, CONFIG, medium_cls, request_timeout=60.0)


def with_client(frontend: str, medium_cls: Any) -> None:
    with Client(frontend, medium_cls, CONFIG.nbytes(), 4) as client:
        while client.request_sample("p") is None:
            pass


def with_student(frontend: str, medium_cls: Any) -> None:
    broker = SimpleNamespace(
        endpoints=SimpleNamespace(frontend=frontend, control="ipc:///unused", control_pub="ipc:///unused")
    )
    for student in (
        StudentClient(0, 4, CONFIG, frontend, "ipc:///unused", "ipc:///unused", medium_cls=medium_cls),
        PrivateBroker.student(broker, 4, CONFIG, medium_cls=medium_cls),  # type: ignore[arg-type]
    ):
        student.close()


def with_fleet(frontend: str, medium_cls: Any) -> None:
    broker = SimpleNamespace(endpoints=SimpleNamespace(frontend=frontend))
    first_of(PrivateBroker.loader(broker, "p", CONFIG, medium_cls=medium_cls, batch_size=2))  # type: ignore[arg-type]


def distill_dataset(frontend: str, medium_cls: Any) -> DistillIterableDataset:
    return DistillIterableDataset(0, SimpleNamespace(value=1), 4, CONFIG, frontend, medium_cls=medium_cls)


LOADERS: dict[str, Callable[[str, Any], None]] = {
    "client": with_client,
    "students": with_student,
    "fleet.loader": with_fleet,
    "dataset": lambda frontend, made: first_of(soft_dataset(frontend, made)),
    "DataLoader": lambda frontend, made: first_of(DataLoader(soft_dataset(frontend, made), batch_size=2)),
    "DataLoader with a worker": lambda frontend, made: first_of(
        DataLoader(soft_dataset(frontend, made), batch_size=2, num_workers=1, multiprocessing_context="fork")
    ),
    "SoftDataLoader": lambda frontend, made: first_of(
        SoftDataLoader("p", frontend, CONFIG, made, batch_size=2)
    ),
    "SoftDataLoader with native threads": lambda frontend, made: first_of(
        SoftDataLoader("p", frontend, CONFIG, made, batch_size=2, num_workers=2)
    ),
    "SoftDataLoader with a worker": lambda frontend, made: first_of(
        SoftDataLoader(
            "p",
            frontend,
            CONFIG,
            made,
            batch_size=2,
            num_workers=1,
            collate_fn=as_it_is,
            multiprocessing_context="fork",
        )
    ),
    "DistillIterableDataset": lambda frontend, made: first_of(distill_dataset(frontend, made)),
    "DistillDataLoader": lambda frontend, made: first_of(
        DistillDataLoader(distill_dataset(frontend, made), batch_size=2)
    ),
}


@pytest.mark.parametrize("name", LOADERS)
def test_options_reach_the_medium(name: str, supplied: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    made = functools.partial(Noted, host=HOST, allow_remote=True, note_in=str(notes))
    LOADERS[name](supplied, made)
    assert set(notes.read_text().splitlines()) == {f"{HOST} True"}


def test_a_supplier_takes_classes_of_mediums_and_partials_of_them_alone() -> None:
    with pytest.raises(ConfigError, match=r"functools\.partial of one, got <function"):
        Supplier(lambda product: b"", ["p"], "ipc:///unused", lambda **_: None, 8)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_address_that_no_supplier_can_connect_to_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match=r"must be one of this host, got .*; pass host="):
        TCPMedium(None, 8, 1, create=True, host=host, allow_remote=True)
