"""What each kind of tensor of torch is to native code: its local memory, or an error with its name."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from softs_fast.errors import ConfigError
from softs_fast.tensors.local import is_plain, local_tensor, mark_written, shard_of

FLOATS = (torch.float32, torch.float16)


class Wrapper(torch.Tensor):
    """A tensor around another one, without memory."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Wrapper":
        wrapper: Wrapper = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        wrapper.inner = inner
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return Wrapper(args[0].inner)  # of detach, the only one called here


class Named(torch.Tensor):
    """A subclass with memory and nothing of its own."""


@pytest.fixture
def two_ranks() -> Iterator[dist.DeviceMesh]:
    """A mesh of two ranks of which this process is the second; nothing is sent."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


def _fake() -> torch.Tensor:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        return torch.zeros(3)


def _freed(begin: int = 0) -> torch.Tensor:
    tensor = torch.zeros(3)[begin:]
    tensor.untyped_storage().resize_(0)
    return tensor


def _inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.zeros(3)


TAKEN: dict[str, tuple[Callable[[], torch.Tensor], bool]] = {
    "contiguous": (lambda: torch.zeros(2, 3), True),
    "parameter": (lambda: nn.Parameter(torch.zeros(3)), True),
    "buffer": (lambda: nn.Buffer(torch.zeros(3)), True),
    "not a leaf": (lambda: nn.Parameter(torch.zeros(3)) * 2, True),
    "subclass with memory": (lambda: torch.zeros(3).as_subclass(Named), True),
    "in inference mode": (_inference, True),
    "a number": (lambda: torch.tensor(1.0), True),
    "zero-length": (lambda: torch.zeros(0, 3), True),
    "zero-length, expanded": (lambda: torch.zeros(1).expand(0, 1), True),
    "view with an offset": (lambda: torch.zeros(9)[4:], True),
    "transposed": (lambda: torch.zeros(2, 3).t(), False),
    "with gaps": (lambda: torch.zeros(2, 6)[:, ::2], False),
    "channels last": (lambda: torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last), False),
    "negative view": (
        lambda: torch.zeros(3, dtype=torch.complex64).conj().imag.as_strided((2,), (1,)),
        False,
    ),
    "conjugate view": (lambda: torch.zeros(3, dtype=torch.complex64).conj(), False),
    "float8": (lambda: torch.zeros(3).to(torch.float8_e4m3fn), True),
}

REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "None": (lambda: None, "of type NoneType"),
    "meta": (lambda: torch.zeros(3, device="meta"), "meta device"),
    "fake": (_fake, "a FakeTensor"),
    "wrapper": (lambda: Wrapper(torch.zeros(3)), "a Wrapper"),
    "parameter that is a wrapper": (lambda: nn.Parameter(Wrapper(torch.zeros(3))), "a Wrapper"),
    "coo": (lambda: torch.zeros(3).to_sparse(), "layout sparse_coo"),
    "csr": (lambda: torch.zeros(3, 3).to_sparse_csr(), "layout sparse_csr"),
    "mkldnn": (lambda: torch.zeros(3).to_mkldnn(), "layout _mkldnn"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.zeros(3), 1.0, 0, torch.qint8), "quantized .qint8"),
    "nested": (lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), "a nested tensor"),
    "jagged": (
        lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged),
        "a nested tensor",
    ),
    "lazy": (lambda: nn.LazyLinear(3).weight, "not initialized"),
    "lazy buffer": (lambda: nn.LazyBatchNorm1d().running_mean, "not initialized"),
    "freed": (_freed, "storage has been freed"),
    "view of freed": (lambda: _freed(1), "storage has been freed"),
    "expanded": (lambda: torch.zeros(1).expand(3), "share memory"),
    "overlapping": (lambda: torch.zeros(4).unfold(0, 2, 1), "share memory"),
    "of another dtype": (lambda: torch.zeros(3, dtype=torch.complex64), "complex64"),
}


@pytest.mark.parametrize("kind", TAKEN)
def test_tensors_with_memory_are_taken_as_they_are(kind: str) -> None:
    make, plain = TAKEN[kind]
    tensor = make()
    assert local_tensor("w", tensor) is tensor
    assert is_plain(tensor) == plain
    assert shard_of(tensor) == ""


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta:UserWarning")
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("kind", REFUSED)
def test_other_tensors_are_refused_by_name(kind: str) -> None:
    make, text = REFUSED[kind]
    with pytest.raises(
        ConfigError, match=f'parameter "w" is .*{text}.*; expected a dense tensor with memory: .+'
    ):
        local_tensor("w", make(), kind="parameter", dtypes=FLOATS)  # type: ignore[arg-type]


def test_tensors_that_are_only_read_may_overlap() -> None:
    expanded = torch.zeros(1).expand(3)
    assert local_tensor("w", expanded, written=False) is expanded


def test_a_distributed_tensor_gives_its_shard_and_says_which(two_ranks: dist.DeviceMesh) -> None:
    whole = torch.arange(15.0).reshape(5, 3)
    tensor = DTensor.from_local(whole[3:], two_ranks, [Shard(0)], shape=whole.shape, stride=whole.stride())
    parameter = nn.Parameter(tensor)
    shard = local_tensor("w", parameter, dtypes=FLOATS)
    assert type(shard) is torch.Tensor
    assert shard.data_ptr() == whole[3:].data_ptr()
    assert shard_of(parameter) == "shard S(0) 1/2 of [5, 3]"
    assert shard_of(DTensor.from_local(whole, two_ranks, [Replicate()])) == ""


def test_partial_sums_and_shards_of_other_kinds_are_refused(two_ranks: dist.DeviceMesh) -> None:
    partial = DTensor.from_local(torch.zeros(3), two_ranks, [Partial()])
    with pytest.raises(ConfigError, match='gradient "w" is a DTensor of partial sums'):
        local_tensor("w", partial, kind="gradient")
    double = DTensor.from_local(torch.zeros(3, dtype=torch.float64), two_ranks, [Shard(0)])
    with pytest.raises(ConfigError, match='gradient "w" is float64'):
        local_tensor("w", double, kind="gradient", dtypes=FLOATS)


def test_parameters_of_fully_shard_are_their_shards(two_ranks: dist.DeviceMesh) -> None:
    model = fully_shard(nn.Linear(4, 1), mesh=two_ranks)
    weight, bias = (local_tensor(name, parameter) for name, parameter in model.named_parameters())
    assert (tuple(weight.shape), tuple(bias.shape)) == ((0, 4), (0,))
    assert shard_of(model.weight) == "shard S(0) 1/2 of [1, 4]"


def test_autograd_refuses_values_that_native_code_has_replaced() -> None:
    weight = nn.Parameter(torch.ones(3))
    loss = (weight * weight).sum()
    weight.detach().numpy()[:] = 100.0  # as native code would
    mark_written([weight.detach(), _inference()])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_autograd_refuses_values_of_a_shard_that_native_code_has_replaced(two_ranks: dist.DeviceMesh) -> None:
    weight = nn.Parameter(DTensor.from_local(torch.ones(3), two_ranks, [Shard(0)]))
    loss = (weight * weight).sum()
    local_tensor("w", weight).numpy()[:] = 100.0
    mark_written([weight])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.to_local().backward()
