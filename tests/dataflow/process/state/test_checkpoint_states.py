"""What a role gets from its checkpoint is what it had, to the bit and type: optimizers of torch, and kinds of modules."""

from __future__ import annotations

import collections
import inspect
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import softs_fast.dataflow as df
from softs_fast.dataflow.process.state import checkpoints
from softs_fast.errors import ConfigError, DamagedError, FlowError

OPTIMIZERS = sorted(
    (one for _, one in inspect.getmembers(torch.optim, inspect.isclass) if one is not torch.optim.Optimizer),
    key=lambda one: one.__name__,
)


def check_same(found: Any, expected: Any, where: str = "") -> None:
    assert type(found) is type(expected), where
    if isinstance(found, torch.Tensor):
        assert (found.dtype, found.shape, found.device) == (
            expected.dtype,
            expected.shape,
            expected.device,
        ), where
        if found.layout is not torch.strided:
            found, expected = found.coalesce().values(), expected.coalesce().values()
        if found.is_quantized:
            found, expected = found.int_repr(), expected.int_repr()
        bits = [one.contiguous().reshape(-1).view(torch.uint8) for one in (found, expected)]
        assert torch.equal(*bits), where
    elif isinstance(found, dict):
        assert list(found) == list(expected), where
        for key in found:
            check_same(found[key], expected[key], f"{where}.{key}")
    elif isinstance(found, (list, tuple, collections.deque)):
        assert len(found) == len(expected), where
        assert getattr(found, "maxlen", None) == getattr(expected, "maxlen", None)
        for number, pair in enumerate(zip(found, expected, strict=True)):
            check_same(*pair, f"{where}[{number}]")
    elif isinstance(found, io.BytesIO):
        assert found.getvalue() == expected.getvalue(), where
    else:
        assert found == expected, where


class Trained(df.Role):
    """A role with an optimizer, which has updated some of its parameters, and not others."""

    def __init__(self, kind: type[torch.optim.Optimizer], dtype: torch.dtype) -> None:
        torch.manual_seed(7)
        is_matrix = kind.__name__ == "Muon"
        self.net = nn.Linear(3, 2, bias=not is_matrix).to(dtype)
        self.unused = nn.Linear(2, 2, bias=not is_matrix).to(dtype)
        self.optimizer = kind([*self.net.parameters(), *self.unused.parameters()], lr=0.1)  # type: ignore[call-arg]

    def step(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.net(torch.ones(1, 3, dtype=self.net.weight.dtype)).pow(2).sum()
        loss.backward()
        if isinstance(self.optimizer, torch.optim.SparseAdam):
            for one in self.net.parameters():
                one.grad = one.grad.to_sparse() if one.grad is not None else None
        return loss


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda one: one.__name__)
def test_an_optimizer_goes_on_to_the_bit(
    tmp_path: Path, kind: type[torch.optim.Optimizer], dtype: torch.dtype
) -> None:
    # Newton-Schulz of Muon, and SparseAdam's sums, have no bfloat16 on every CPU.
    role = Trained(kind, dtype)
    checkpoints.save("actor", role, tmp_path, 1)  # before the first step
    assert not role.optimizer.state or kind in (torch.optim.Adagrad, torch.optim.LBFGS)
    for _ in range(3):
        role.optimizer.step(role.step)  # type: ignore[arg-type]
    group = role.optimizer.param_groups[0]
    group["lr"] = np.float64(0.25)
    checkpoints.save("actor", role, tmp_path, 2)
    other = Trained(kind, dtype)
    assert checkpoints.load("actor", other, tmp_path) == 2
    check_same(other.optimizer.state_dict(), role.optimizer.state_dict())
    check_same(other.net.state_dict(), role.net.state_dict())
    for one in (role, other):
        one.optimizer.step(one.step)  # type: ignore[arg-type]
    check_same(other.net.state_dict(), role.net.state_dict())


class Odd(torch.optim.SGD):
    """An optimizer with state of other types."""

    def keep(self, value: Any) -> None:
        self.state[self.param_groups[0]["params"][0]]["odd"] = value


class OddRole(df.Role):
    def __init__(self) -> None:
        self.net = nn.Linear(1, 1)
        self.optimizer = Odd(self.net.parameters(), lr=0.1)


@pytest.mark.parametrize(
    "value",
    [
        collections.deque([1.0, torch.ones(2, dtype=torch.bfloat16)], maxlen=3),
        np.float32(0.1),
        (1, "text", None, True),
        {"a": [np.int64(3), 2**70]},
        torch.tensor(3, dtype=torch.int16),
        torch.ones(1, 1, dtype=torch.bfloat16),
        torch.ones((), dtype=torch.float64),
        np.arange(3, dtype=np.uint8).tolist(),
    ],
    ids=str,
)
def test_state_of_any_plain_type_comes_back_as_it_was(tmp_path: Path, value: Any) -> None:
    role, other = OddRole(), OddRole()
    role.optimizer.keep(value)
    checkpoints.save("actor", role, tmp_path, 1)
    checkpoints.load("actor", other, tmp_path)
    check_same(other.optimizer.state_dict(), role.optimizer.state_dict())


def test_state_that_cannot_be_read_again_is_refused_by_name(tmp_path: Path) -> None:
    role = OddRole()
    role.optimizer.keep({"schedule": check_same})
    complaint = r"optimizers of role 'actor' cannot be saved: \.optimizer\.values\.net\.weight\.odd"
    with pytest.raises(FlowError, match=complaint):
        checkpoints.save("actor", role, tmp_path, 1)
    assert not list(tmp_path.glob("actor/step-*"))


def test_a_tensor_of_no_module_is_refused_by_its_optimizer(tmp_path: Path) -> None:
    role = OddRole()
    role.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
    with pytest.raises(
        ConfigError, match=r"actor.optimizer updates a tensor of shape \(3,\) that is in no module"
    ):
        checkpoints.save("actor", role, tmp_path, 1)


def test_state_goes_by_the_names_of_parameters_and_not_by_their_order(tmp_path: Path) -> None:
    role, other = Trained(torch.optim.Adam, torch.float32), Trained(torch.optim.Adam, torch.float32)
    role.optimizer.step(role.step)  # type: ignore[arg-type]
    checkpoints.save("actor", role, tmp_path, 1)
    parameters = [*other.net.parameters()]
    other.optimizer = torch.optim.Adam([*parameters[::-1], *other.unused.parameters()], lr=0.5)
    checkpoints.load("actor", other, tmp_path)
    assert other.optimizer.param_groups[0]["lr"] == 0.1
    for one, mine in zip(role.net.parameters(), parameters, strict=True):
        check_same(other.optimizer.state[mine], role.optimizer.state[one])


class FullyShardedDataParallel(nn.Sequential):
    """Has the name of torch's, which needs other processes."""


def test_what_has_no_parameters_of_its_own_is_refused(tmp_path: Path) -> None:
    role = OddRole()
    role.net = nn.Sequential(FullyShardedDataParallel())
    with pytest.raises(FlowError, match=r"actor\.net is of FullyShardedDataParallel.* use fully_shard"):
        checkpoints.save("actor", role, tmp_path, 1)


def test_what_a_module_got_after_setup_is_not_left_out_without_a_word(tmp_path: Path) -> None:
    role = OddRole()
    role.net.register_buffer("scale", torch.ones(1))
    checkpoints.save("actor", role, tmp_path, 1)
    with pytest.raises(FlowError, match=r"has net\.scale, which actor lacks after setup; make it in setup"):
        checkpoints.load("actor", OddRole(), tmp_path)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


class Buffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("complex", torch.polar(torch.rand(4), torch.rand(4)))
        self.register_buffer("empty", torch.rand(0, 3))
        self.register_buffer("infinite", torch.tensor([float("-inf"), float("nan"), -0.0]))
        self.register_buffer("number", torch.tensor(7))
        self.codes = nn.Parameter(torch.randint(0, 255, (8,), dtype=torch.uint8), requires_grad=False)
        self.scaled = nn.Parameter(torch.randn(8).to(torch.float8_e4m3fn), requires_grad=False)


class Extra(nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 2)
        self.extra = io.BytesIO(torch.rand(2).numpy().tobytes())

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


class Adapter(nn.Module):
    """A frozen layer with a trained one of low rank beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(3, 3).requires_grad_(False)
        self.lora_A, self.lora_B = nn.Linear(3, 1, bias=False), nn.Linear(1, 3, bias=False)


MODULES = {
    "tied": Tied,
    "buffers": Buffers,
    "extra": Extra,
    "adapter": Adapter,
    "quantized": lambda: torch.ao.nn.quantized.Linear(3, 2),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)),
    "batch norm": lambda: nn.BatchNorm1d(3),
}


class Several(df.Role):
    """Modules and optimizers in containers."""

    def __init__(self, kind: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.nets = [MODULES[kind](), {"a.b": MODULES[kind]()}]
        parameters = [one for module in self.modules().values() for one in module.parameters()]
        self.optimizers_by_name = {
            "first": torch.optim.Adam(
                [one for one in parameters if one.requires_grad] or [torch.nn.Parameter()]
            )
        }


@pytest.mark.filterwarnings("ignore:.*(quantize|TypedStorage).*:UserWarning")
@pytest.mark.parametrize("kind", MODULES)
def test_modules_of_any_kind_in_containers_come_back_as_they_were(tmp_path: Path, kind: str) -> None:
    role, other = Several(kind, 1), Several(kind, 2)
    assert list(role.modules()) == ["nets[0]", "nets[1]['a.b']"]
    optimizer = role.optimizers()["optimizers_by_name['first']"]
    trained = [one for one in optimizer.param_groups[0]["params"] if one.numel()]
    if not trained:
        role.optimizers_by_name = other.optimizers_by_name = {}
    for one in trained:
        one.grad = torch.ones_like(one)
    optimizer.step()
    checkpoints.save("actor", role, tmp_path, 1)
    checkpoints.load("actor", other, tmp_path)
    for name, module in role.modules().items():
        check_same(other.modules()[name].state_dict(), module.state_dict(), name)
    for name, one in role.optimizers().items():
        check_same(other.optimizers()[name].state_dict(), one.state_dict(), name)


def test_a_checkpoint_with_one_flipped_bit_is_refused_by_the_name_of_the_file(tmp_path: Path) -> None:
    role = OddRole()
    checkpoints.save("actor", role, tmp_path, 1)
    for path in [one for one in (tmp_path / "actor" / "step-1").iterdir() if one.name != "manifest"]:
        before = path.read_bytes()
        path.write_bytes(before[:-9] + bytes([before[-9] ^ 1]) + before[-8:])
        with pytest.raises(DamagedError, match=rf"step-1 is damaged: '{path.name}' was altered"):
            checkpoints.load("actor", role, tmp_path)
        path.write_bytes(before)
    assert checkpoints.load("actor", role, tmp_path) == 1
