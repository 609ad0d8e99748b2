"""Memory by address: pieces of a value, and tensors where they lie."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from softs_fast.dataflow.store import DataManager
from softs_fast.dataflow.store.memory import copy_memory, tensor_at
from softs_fast.errors import FlowError


@pytest.fixture
def stores() -> Iterator[tuple[DataManager, DataManager]]:
    with DataManager(0, max_bytes=1 << 20) as one, DataManager(1, max_bytes=1 << 20) as other:
        yield one, other


def integers(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


def test_pieces_are_copied_and_empty_ones_have_any_address() -> None:
    given = [torch.arange(5.0), torch.empty(0), torch.arange(7)]
    made = [torch.zeros_like(one) for one in given]
    addresses = [integers(*(one.data_ptr() for one in some)) for some in (made, given)]
    copy_memory(*addresses, integers(*(one.nbytes for one in given)))
    assert all(map(torch.equal, made, given))
    copy_memory(*(integers() for _ in range(3)))


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
def test_a_tensor_is_where_its_bytes_are(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    given = torch.ones(shape, dtype=dtype)
    seen = tensor_at(given.data_ptr(), dtype, shape)
    assert torch.equal(seen, given)
    given.zero_()
    assert torch.equal(seen, given)


def test_a_value_in_pieces_is_read_where_it_is(stores: tuple[DataManager, DataManager]) -> None:
    one, other = stores
    given = [torch.arange(5, dtype=torch.uint8), torch.arange(9, dtype=torch.uint8)]
    pointers, sizes = integers(*(t.data_ptr() for t in given)), integers(5, 9)
    place = one.put_memory("w", 3, pointers, integers(64, 0), sizes, n_bytes=70)
    assert (place.kind, place.n_bytes, place.worker) == ("bytes", 70, 0)
    for store in stores:
        with store.mapped(place) as address:
            assert torch.equal(tensor_at(address + 64, torch.uint8, (5,)), given[0])
            assert torch.equal(tensor_at(address, torch.uint8, (9,)), given[1])
    (value,) = other.get([place])
    assert isinstance(value, bytes)
    assert (value[:9], value[64:69]) == (bytes(range(9)), bytes(range(5)))
    # Another value of the row takes its place.
    newer = one.put_memory("w", 3, pointers, integers(0, 64), sizes, n_bytes=128)
    with pytest.raises(FlowError, match="are gone"), other.mapped(place):
        pass
    assert one.n_bytes == 192
    one.free([3])
    assert one.n_bytes == 0
    with pytest.raises(FlowError, match="are gone"), other.mapped(newer):
        pass


def test_a_value_that_does_not_fit_changes_nothing(stores: tuple[DataManager, DataManager]) -> None:
    one, _ = stores
    with pytest.raises(
        FlowError, match=r"column 'w' of 1 rows needs \d+ bytes in the store of worker 0, \d+ of"
    ):
        one.put_memory("w", 3, integers(), integers(), integers(), n_bytes=1 << 21)
    assert one.n_bytes == 0
    empty = one.put_memory("w", 3, integers(), integers(), integers(), n_bytes=0)
    with one.mapped(empty):
        pass
