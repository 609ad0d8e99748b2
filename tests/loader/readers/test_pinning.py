"""Slots as pinned memory, with a CUDA runtime that records what it is asked."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from numbered_client import CONFIG, NumberedClient, numbers_of

from softs_fast import ShmMedium, SoftDataLoader
from softs_fast.loader import endless as iterable_dataset


class Cudart:
    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.calls: list[tuple[Any, ...]] = []

    def cudaHostRegister(self, address: int, n_bytes: int, flags: int) -> int:
        self.calls.append(("register", address, n_bytes, flags))
        return self.code

    def cudaHostUnregister(self, address: int) -> int:
        self.calls.append(("unregister", address))
        return 0


@pytest.fixture
def cudart(monkeypatch: pytest.MonkeyPatch) -> Cudart:
    """A CUDA runtime that is there."""
    fake = Cudart()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: fake)
    monkeypatch.setattr(iterable_dataset, "Client", NumberedClient)
    return fake


def new(**arguments: Any) -> SoftDataLoader:
    arguments = {"num_slots": 9, "batch_size": 4, "pin_memory": True, "zero_copy": True, **arguments}
    return SoftDataLoader("0", "ipc:///unused", CONFIG, ShmMedium, **arguments)


def test_slots_are_registered_once_and_unregistered_at_close(cudart: Cudart) -> None:
    loader = new()
    batches = iter(loader)
    batch = next(batches)
    first = batch["y"].data_ptr()
    assert cudart.calls == [("register", first, 8 * CONFIG.nbytes(), 0)]
    del batch
    assert numbers_of(next(batches)) == [4, 5, 6, 7]
    next(iter(loader))
    assert len(cudart.calls) == 1
    closed = []
    client: Any = loader.soft_dataset._open.client  # type: ignore[union-attr]
    close = client.close

    def record_close() -> None:
        closed.append(len(cudart.calls))
        close()

    client.close = record_close
    loader.soft_dataset.close()
    loader.soft_dataset.close()
    assert cudart.calls[1:] == [("unregister", first)]
    assert closed == [2], "the memory is there until then"


def test_the_first_slot_is_where_the_segment_begins(cudart: Cudart, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numbered_client.Block.first_slot", 4)
    loader = new()
    batch = next(iter(loader))
    assert cudart.calls[0][1] == batch["y"].data_ptr() - 4 * CONFIG.nbytes()
    del batch
    loader.soft_dataset.close()


def test_when_cuda_refuses_batches_are_pinned_copies(
    cudart: Cudart, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cudart.code = 1
    pinned = []

    def pin_memory(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor.shape)
        return tensor.clone()

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    loader = new()
    kept = [next(iter(loader)) for _ in range(5)]
    assert [numbers_of(batch)[0] for batch in kept] == [0, 4, 8, 12, 16]
    assert len(pinned) == 10
    assert "CUDA cannot register" in caplog.text
    loader.soft_dataset.close()
    assert all(call[0] == "register" for call in cudart.calls)


@pytest.mark.parametrize(
    ("arguments", "n_pinned"),
    [({"pin_memory": False}, 0), ({"zero_copy": False}, 2), ({"batch_size": None}, 2)],
)
def test_otherwise_pinning_is_left_to_torch(
    cudart: Cudart, arguments: dict[str, Any], n_pinned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = []

    def pin_memory(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor)
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    loader = new(**arguments)
    next(iter(loader))
    assert len(pinned) == n_pinned
    assert cudart.calls == []
    pinned.clear()
    loader.soft_dataset.close()


def test_without_cuda_it_is_as_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iterable_dataset, "Client", NumberedClient)
    monkeypatch.setattr(torch.cuda, "cudart", SimpleNamespace)
    loader = new()
    with pytest.warns(UserWarning, match="no CUDA device"):
        batches = iter(loader)
    assert numbers_of(next(batches)) == [0, 1, 2, 3]
    loader.soft_dataset.close()
