"""Tensors of different lengths in one batch: padded, nested, split, moved."""

import pickle
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from softs_fast import ConfigError
from softs_fast.tensors import RaggedTensor

DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool]


def ragged_of(
    lengths: list[int], dtype: torch.dtype = torch.int64, rest: tuple[int, ...] = ()
) -> RaggedTensor:
    generator = torch.Generator().manual_seed(len(lengths))
    samples = [torch.randint(0, 2, (n, *rest), generator=generator).to(dtype) for n in lengths]
    return RaggedTensor.from_samples(samples)


def same(a: RaggedTensor, b: RaggedTensor) -> bool:
    return torch.equal(a.lengths, b.lengths) and torch.equal(
        a.values.view(torch.uint8), b.values.view(torch.uint8)
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rest", [(), (3,), (2, 2)])
def test_padded_and_its_inverse(dtype: torch.dtype, rest: tuple[int, ...]) -> None:
    ragged = ragged_of([3, 0, 5, 1], dtype, rest)
    padded = ragged.padded(1)
    assert (padded.shape, padded.dtype) == ((4, 5, *rest), dtype)
    for row, sample in zip(padded.float(), ragged.unbind(), strict=True):
        assert torch.equal(row[: len(sample)], sample.float())
        assert (row[len(sample) :] == 1).all()
    assert same(RaggedTensor.from_padded(padded, ragged.lengths), ragged)


@pytest.mark.parametrize("lengths", [[0], [0, 0], [4], [4, 0, 4]])
def test_lengths_at_the_ends(lengths: list[int]) -> None:
    ragged = ragged_of(lengths)
    assert ragged.padded().shape == (len(lengths), max(lengths))
    assert [len(sample) for sample in ragged.unbind()] == lengths
    assert [len(sample) for sample in ragged.nested().unbind()] == lengths


def test_nested_is_on_the_same_memory() -> None:
    ragged = ragged_of([3, 0, 5], torch.float32, (2,))
    nested = ragged.nested()
    assert nested.layout is torch.jagged
    assert nested.values().data_ptr() == ragged.values.data_ptr()
    for a, b in zip(nested.unbind(), ragged.unbind(), strict=True):
        assert torch.equal(a, b)
    ragged.values.requires_grad_()
    ragged.nested().sum().backward()
    assert ragged.values.grad is not None


def test_it_is_a_tuple_that_others_know() -> None:
    ragged = ragged_of([2, 1])
    values, lengths = ragged
    assert (values.shape, lengths.tolist()) == ((3,), [2, 1])
    twin = pickle.loads(pickle.dumps(ragged))
    assert isinstance(twin, RaggedTensor)
    assert same(twin, ragged)
    moved = ragged.to("meta", non_blocking=True)
    assert isinstance(moved, RaggedTensor)
    assert {tensor.device.type for tensor in moved} == {"meta"}


def test_it_passes_through_the_processes_of_torch() -> None:
    batches = [{"ids": ragged_of([2, 3])}, {"ids": ragged_of([0, 1, 4])}]
    loader: Any = DataLoader(batches, batch_size=None, num_workers=1, multiprocessing_context="fork")  # type: ignore[arg-type]
    for got, sent in zip(loader, batches, strict=True):
        assert isinstance(got["ids"], RaggedTensor)
        assert same(got["ids"], sent["ids"])


def test_it_is_pinned_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[torch.Size] = []

    def note(self: torch.Tensor, device: object = None) -> torch.Tensor:
        pinned.append(self.shape)
        return self.clone()

    monkeypatch.setattr(torch.Tensor, "pin_memory", note)
    ragged = ragged_of([2, 3])
    copy = ragged.pin_memory()
    assert isinstance(copy, RaggedTensor)
    assert same(copy, ragged)
    assert pinned == [(5,), (2,)]


def test_what_does_not_fit_is_refused() -> None:
    for samples in (
        [],
        [torch.zeros(())],
        [torch.zeros(2), torch.zeros(2, 1)],
        [torch.zeros(1, 2), torch.zeros(1, 3)],
    ):
        with pytest.raises(
            ConfigError, match="need tensors of one dtype that differ in their first dimension"
        ):
            RaggedTensor.from_samples(samples)
    with pytest.raises(ConfigError, match="need tensors of one dtype"):
        RaggedTensor.from_samples([torch.zeros(2), torch.zeros(2, dtype=torch.int64)])
    with pytest.raises(ConfigError, match=r"lengths \[3\] do not fit a tensor \[2, 4\]"):
        RaggedTensor.from_padded(torch.zeros(2, 4), torch.tensor([1, 2, 3]))
    for lengths in ([5, 1], [-1, 1]):
        with pytest.raises(ConfigError, match="lengths must be from 0 to 4"):
            RaggedTensor.from_padded(torch.zeros(2, 4), torch.tensor(lengths))
