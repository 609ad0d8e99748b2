"""Batches in pinned memory, with an allocator that stands in for the one of CUDA and records what it is asked."""

from typing import Any

import pytest
import torch
from numbered_client import CONFIG, NumberedClient, numbers_of

from softs_fast import ShmMedium, SoftDataLoader
from softs_fast.loader import endless as iterable_dataset


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """What was allocated as pinned memory, on a machine that seems to have CUDA."""
    tensors: list[torch.Tensor] = []
    empty = torch.empty

    def record_empty(*shape: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        tensor = empty(*shape, **options)
        if pin_memory:
            tensors.append(tensor)
        return tensor

    def record_copy(tensor: torch.Tensor) -> torch.Tensor:
        tensors.append(tensor.clone())
        return tensors[-1]

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "empty", record_empty)
    monkeypatch.setattr(torch.Tensor, "pin_memory", record_copy)
    monkeypatch.setattr(iterable_dataset, "Client", NumberedClient)
    return tensors


def new(**arguments: Any) -> SoftDataLoader:
    arguments = {"num_slots": 9, "batch_size": 4, "pin_memory": True, **arguments}
    return SoftDataLoader("0", "ipc:///unused", CONFIG, ShmMedium, **arguments)


def test_batches_are_gathered_into_memory_that_is_pinned(allocated: list[torch.Tensor]) -> None:
    loader = new()
    batches = iter(loader)
    kept = [next(batches) for _ in range(5)]
    assert [numbers_of(batch)[0] for batch in kept] == [0, 4, 8, 12, 16]
    handed_out = [batch[name].untyped_storage().data_ptr() for batch in kept for name in ("y", "x")]
    # Torch knows a copy to a device by the storage that it allocated.
    assert handed_out == [tensor.untyped_storage().data_ptr() for tensor in allocated[: len(handed_out)]]


def test_memory_of_torch_is_not_kept_for_later_batches(allocated: list[torch.Tensor]) -> None:
    loader = new()
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    assert len(allocated) >= 10, "a device may still read a batch that is gone"


def test_with_zero_copy_the_slots_are_free_once_the_copies_are_made(allocated: list[torch.Tensor]) -> None:
    loader = new(zero_copy=True)
    batches = iter(loader)
    kept = [next(batches) for _ in range(5)]
    assert [numbers_of(batch)[0] for batch in kept] == [0, 4, 8, 12, 16], "there are slots for two"
    assert len(allocated) == 10
    client: Any = loader.soft_dataset._open.client  # type: ignore[union-attr]
    assert client.n_blocks_held == 0


@pytest.mark.parametrize(("arguments", "n_pinned"), [({"pin_memory": False}, 0), ({"batch_size": None}, 2)])
def test_single_samples_are_pinned_as_torch_does_it(
    allocated: list[torch.Tensor], arguments: dict[str, Any], n_pinned: int
) -> None:
    loader = new(**arguments)
    next(iter(loader))
    assert len(allocated) == n_pinned


def test_without_cuda_it_is_as_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iterable_dataset, "Client", NumberedClient)
    loader = new(zero_copy=True)
    with pytest.warns(UserWarning, match="no CUDA device"):
        batches = iter(loader)
    assert numbers_of(next(batches)) == [0, 1, 2, 3]
