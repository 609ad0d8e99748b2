"""What goes from a worker to its trainer comes out as it went in, small tensors without a descriptor."""

import pickle
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import pytest
import torch

from softs_fast.loader import packing
from softs_fast.loader.packing import INLINE_BYTES, Packed

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
]


class Pair(NamedTuple):
    """A structure that a user's collate_fn may return."""

    x: torch.Tensor
    y: Any


def sent(content: Any) -> Any:
    return pickle.loads(ForkingPickler.dumps(Packed(content)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 4), (4, 5, 6)], ids=str)
def test_small_tensors(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.randint(0, 2, shape).to(dtype)
    copy = sent(tensor)
    assert (copy.dtype, copy.shape) == (dtype, tensor.shape)
    assert copy.to(torch.complex64).equal(tensor.to(torch.complex64))
    assert not copy.is_shared()
    copy.zero_()


def test_views_arrive_as_what_they_show() -> None:
    table = torch.arange(60, dtype=torch.float32).reshape(6, 10)
    for view in (table[:, 3], table[::2], table.T, table[0, 0], table[3].expand(4, 10)):
        copy = sent(view)
        assert copy.equal(view)
        assert copy.is_contiguous()


def test_structures() -> None:
    tensor = torch.arange(3)
    content = {"pair": Pair(tensor, [tensor, None, "text"]), "n": 3}
    copy = sent(content)
    assert isinstance(copy["pair"], Pair)
    assert copy["pair"].x.tolist() == [0, 1, 2]
    assert copy["pair"].y[0] is copy["pair"].x
    assert (copy["pair"].y[1:], copy["n"]) == ([None, "text"], 3)


def test_large_tensors_are_in_shared_memory_before_a_queue_gets_them() -> None:
    tensor = torch.arange(INLINE_BYTES // 8 + 1)
    packed = Packed({"x": tensor, "y": tensor[:5]})
    assert tensor.is_shared()
    # Whoever takes it out needs no more of the tensor than its descriptor.
    expected = tensor.clone()
    del tensor
    copy = pickle.loads(ForkingPickler.dumps(packed))
    assert copy["x"].equal(expected)
    assert copy["y"].tolist() == [0, 1, 2, 3, 4]
    resource_sharer.stop()


def test_what_is_more_than_its_elements_goes_as_torch_has_it() -> None:
    tensors = {
        "with a gradient": torch.ones(3, requires_grad=True),
        "sparse": torch.eye(3).to_sparse(),
        "conjugated": torch.ones(3, dtype=torch.complex64).conj(),
        "negated": torch.ones(3, dtype=torch.complex64).conj().imag,
        "elsewhere": torch.ones(3, device="meta"),
        "large": torch.zeros(INLINE_BYTES // 4 + 1),
    }
    assert [name for name, tensor in tensors.items() if packing._is_plain(tensor)] == []
    assert packing._is_plain(torch.zeros(INLINE_BYTES // 4))
