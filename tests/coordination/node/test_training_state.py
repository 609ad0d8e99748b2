"""What a worker reduces, applies and hands over: the values of one process alone, to the bit, with every type and dtype."""

from __future__ import annotations

import collections
import copy
import io
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler

from softs_fast.coordination.node import TrainingState
from softs_fast.errors import ConfigError


class Wire:
    """Broadcasts of a source in one process: rank 0 puts them in, rank 1 takes them out."""

    size = 2

    def __init__(self) -> None:
        self.rank = 0
        self._sent: collections.deque[torch.Tensor] = collections.deque()

    def broadcast_tensor(self, tensor: torch.Tensor, root: int) -> None:
        if self.rank == root:
            self._sent.append(tensor.clone())
        else:
            tensor.copy_(self._sent.popleft())

    @property
    def is_empty(self) -> bool:
        return not self._sent


def hand_over(source: TrainingState, target: TrainingState) -> None:
    """Copy a state from one worker to another, by what a strategy broadcasts."""
    wire: Any = Wire()
    assert source.send(wire) == ""
    wire.rank = 1
    target.load(target.receive(wire, 0))
    assert wire.is_empty


def assert_same(one: Any, other: Any) -> None:
    """Assert that two states have the same values, types, dtypes and containers."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape, one.device) == (other.dtype, other.shape, other.device)
        assert torch.equal(one, other)
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other) or set(one) == set(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple | collections.deque):
        assert len(one) == len(other)
        assert getattr(one, "maxlen", None) == getattr(other, "maxlen", None)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        assert one == other


# --- Optimizers and schedulers ---


def cases() -> Iterator[Any]:
    """Every optimizer of torch with every flag that it takes on this device."""
    flags: dict[str, list[dict[str, Any]]] = {
        "ASGD": [{}],
        "Adadelta": [{}],
        "Adafactor": [{}],
        "Adagrad": [{}, {"initial_accumulator_value": 0.5}, {"fused": True}],
        "Adam": [{}, {"amsgrad": True}, {"fused": True}, {"lr": "tensor"}, {"decoupled_weight_decay": True}],
        "AdamW": [{}, {"amsgrad": True}, {"fused": True}, {"lr": "tensor"}],
        "Adamax": [{}],
        "LBFGS": [{"line_search_fn": "strong_wolfe"}, {}],
        "Muon": [{}],
        "NAdam": [{}, {"decoupled_weight_decay": True}],
        "RAdam": [{}],
        "RMSprop": [{}, {"centered": True, "momentum": 0.5}],
        "Rprop": [{}],
        "SGD": [{}, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.9, "fused": True}, {"lr": "tensor"}],
    }
    known = {
        name
        for name, one in vars(optim).items()
        if isinstance(one, type) and issubclass(one, optim.Optimizer)
    }
    # SparseAdam takes sparse gradients, which are refused by name.
    assert known - {"Optimizer", "SparseAdam"} <= set(flags), "torch has an optimizer that is not tried"
    for name in sorted(known & set(flags)):
        for one in flags[name]:
            every: list[dict[str, Any]] = [one]
            if not one.get("fused") and name not in ("LBFGS", "Muon"):
                every += [{**one, "foreach": True}, {**one, "maximize": True}]
            for flag in every:
                text = " ".join(f"{key}={value}" for key, value in flag.items())
                yield pytest.param(name, flag, id=f"{name} {text}".strip())


class Net(nn.Module):
    """Weights with a matrix only, which is what Muon takes, and a buffer that counts."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3).to(dtype))
        self.unused = nn.Parameter(torch.randn(2, 2).to(dtype))


def optimizer_of(name: str, flags: dict[str, Any], net: nn.Module) -> optim.Optimizer:
    arguments = {**flags, **({"lr": torch.tensor(0.02)} if flags.get("lr") == "tensor" else {"lr": 0.02})}
    if arguments.get("foreach") and isinstance(arguments["lr"], torch.Tensor):
        # torch takes both together only if the optimizer is capturable, which needs a device.
        arguments["lr"] = 0.02
    made: optim.Optimizer = getattr(optim, name)(net.parameters(), **arguments)
    return made


def train(net: Net, optimizer: optim.Optimizer, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        net.weight.grad = torch.randn(4, 3, generator=generator).to(net.weight.dtype)

        def closure() -> torch.Tensor:
            return net.weight.detach().square().sum()

        optimizer.step(closure)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "flags"), list(cases()))
def test_every_optimizer_goes_on_as_its_source(name: str, flags: dict[str, Any], dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    source, target = Net(dtype), Net(dtype)
    ours, theirs = optimizer_of(name, flags, source), optimizer_of(name, flags, target)
    train(source, ours, range(3))
    hand_over(TrainingState(source, ours), TrainingState(target, theirs))
    assert_same(theirs.state_dict(), ours.state_dict())
    train(source, ours, range(3, 6))
    train(target, theirs, range(3, 6))
    assert torch.equal(source.weight, target.weight)
    assert_same(theirs.state_dict(), ours.state_dict())


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, 4),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3, 2),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 3, mode="exp_range", gamma=0.9),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: np.cos(step / 10)),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.1, 1.0, 5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 4, 4, 7]),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: np.float64(0.9)),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.3, total_steps=30),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 8, 2.0),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.StepLR(o, 2), lr_scheduler.MultiStepLR(o, [3])]
    ),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.MultiStepLR(o, [2])], [3]
    ),
    "SWALR": lambda o: optim.swa_utils.SWALR(o, 0.05, 3),
}


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)], ids=["float", "tensor"])
@pytest.mark.parametrize("name", [*SCHEDULERS])
def test_every_scheduler_goes_on_as_its_source(name: str, lr: Any) -> None:
    known = {
        one.__name__
        for one in vars(lr_scheduler).values()
        if isinstance(one, type) and issubclass(one, lr_scheduler.LRScheduler)
    }
    assert known - {"LRScheduler", "_LRScheduler"} <= set(SCHEDULERS), (
        "torch has a scheduler that is not tried"
    )

    def made() -> Any:
        net = Net(torch.float32)
        optimizer = optim.SGD(net.parameters(), lr=copy.copy(lr), momentum=0.9)
        return net, optimizer, SCHEDULERS[name](optimizer)

    def step(optimizer: Any, scheduler: Any) -> None:
        optimizer.step()
        scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))

    (net, ours, schedule), (other, theirs, copied) = made(), made()
    for _ in range(3):
        step(ours, schedule)
    hand_over(
        TrainingState(net, ours, {"schedule": schedule}), TrainingState(other, theirs, {"schedule": copied})
    )
    for _ in range(4):
        assert_same(copied.state_dict(), schedule.state_dict())
        assert_same(theirs.state_dict(), ours.state_dict())
        step(ours, schedule)
        step(theirs, copied)


Point = collections.namedtuple("Point", ["x", "y"])


class Odd(optim.SGD):
    """An optimizer of the user's own, with containers in its state."""

    def step(self, closure: Any = None) -> None:
        super().step()
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter] = {
                "window": collections.deque([torch.ones(2), 1.0], maxlen=3),
                "point": Point(torch.zeros(1, dtype=torch.float64), "text"),
                "table": collections.defaultdict(list, {"a": [(1, torch.ones(1, dtype=torch.int16))]}),
                "wide": torch.ones(2, dtype=torch.float64),
                "packed": torch.ones(2, dtype=torch.uint16),
            }


def test_containers_in_the_state_of_an_optimizer_stay_what_they_are() -> None:
    net, other = nn.Linear(2, 1).half(), nn.Linear(2, 1).half()
    ours, theirs = Odd(net.parameters()), Odd(other.parameters())
    ours.step()
    hand_over(TrainingState(net, ours), TrainingState(other, theirs))
    assert_same(theirs.state_dict(), ours.state_dict())


class Extra(nn.Linear):
    """A module with a state of its own kind, as quantised ones have it, and a version of its format."""

    _version = 3
    found: Any = None

    def get_extra_state(self) -> Any:
        return io.BytesIO(b"amax")

    def set_extra_state(self, state: Any) -> None:
        self.found = state.getvalue()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *rest: Any) -> None:
        self.version = local_metadata.get("version")
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)


def test_a_module_learns_the_version_of_its_format_and_its_extra_state() -> None:
    net, other = Extra(2, 1), Extra(2, 1)
    hand_over(
        TrainingState(net, optim.SGD(net.parameters())), TrainingState(other, optim.SGD(other.parameters()))
    )
    assert (other.found, other.version) == (b"amax", 3)


def test_weights_of_another_dtype_are_not_cast_in_silence() -> None:
    net, other = nn.Linear(2, 1), nn.Linear(2, 1).half()
    with pytest.raises(
        ConfigError, match=r'"model": "weight" is torch.float32 at the source and torch.float16 here'
    ):
        hand_over(
            TrainingState(net, optim.SGD(net.parameters())),
            TrainingState(other, optim.SGD(other.parameters())),
        )


class Sampler:
    """A part with a state of the user's own."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        if isinstance(self.state, Exception):
            raise self.state
        return {"order": self.state}

    def load_state_dict(self, state: Any) -> None:
        self.state = state["order"]


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (object(), r'state "sampler.order" is a object; possible are'),
        (torch.eye(2).to_sparse(), r'state "sampler.order" is of layout sparse_coo'),
        (ZeroDivisionError("a defect"), "ZeroDivisionError: a defect"),
    ],
)
def test_what_cannot_be_sent_ends_the_new_worker_and_not_the_source(state: Any, text: str) -> None:
    def made(state: Any) -> TrainingState:
        net = nn.Linear(2, 1)
        return TrainingState(net, optim.SGD(net.parameters()), {"sampler": Sampler(state)})

    source, wire = made(state), Wire()
    with pytest.raises((ConfigError, ZeroDivisionError)):
        source.check()
    said = source.send(wire)  # type: ignore[arg-type]
    wire.rank = 1
    with pytest.raises(ConfigError, match=f"rank 0 cannot send its state: .*{text}"):
        made(1).receive(wire, 0)  # type: ignore[arg-type]
    assert said
    assert wire.is_empty


# --- Steps ---


class Mean:
    """A strategy of two ranks of which the other one has called before; without another one, all have the same."""

    def __init__(self, other: Mapping[str, torch.Tensor] | None = None) -> None:
        self.other = other
        self.passed: dict[str, torch.Tensor] = {}

    def all_reduce_gradients(self, gradients: Mapping[str, torch.Tensor], op: str) -> None:
        assert op == "mean"
        self.passed = {name: tensor.clone() for name, tensor in gradients.items()}
        if self.other is not None:
            assert self.other.keys() == gradients.keys()
            for name, tensor in gradients.items():
                tensor.add_(self.other[name]).div_(2)


def two_heads() -> tuple[nn.Module, optim.Optimizer, TrainingState]:
    torch.manual_seed(0)
    net = nn.ModuleDict({"body": nn.Linear(2, 2), "used": nn.Linear(2, 1), "unused": nn.Linear(2, 1)})
    optimizer = optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.1)
    return net, optimizer, TrainingState(net, optimizer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_parameter_without_a_gradient_on_every_rank_is_left_alone(dtype: torch.dtype) -> None:
    net, optimizer, state = two_heads()
    net.to(dtype)
    alone, its_optimizer, _ = two_heads()
    alone.to(dtype)
    strategy: Any = Mean()
    for step in range(4):
        for one, its, is_reduced in ((net, optimizer, True), (alone, its_optimizer, False)):
            hidden = one["body"](torch.ones(3, 2, dtype=dtype))  # type: ignore[index]
            # A head that has momentum, and is used no more.
            (one["used"](hidden) + (one["unused"](hidden) if step < 2 else 0)).sum().backward()  # type: ignore[index]
            if is_reduced:
                state.reduce(strategy)
                state.apply()
            else:
                its.step()
                its.zero_grad()
    for ours, theirs in zip(net.parameters(), alone.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_gradient_that_only_other_ranks_have_counts_as_zero_here() -> None:
    net, _, state = two_heads()
    named = dict(net.named_parameters())
    for name, parameter in named.items():
        parameter.grad = torch.ones_like(parameter) if "unused" not in name else None
    here: Any = Mean()
    state.reduce(here)
    for name, parameter in named.items():
        # On the other rank two more have one, and the body has none.
        parameter.grad = torch.full_like(parameter, 3.0) if "body" not in name else None
    there: Any = Mean(here.passed)
    state.reduce(there)
    found = {name: None if one.grad is None else float(one.grad.mean()) for name, one in named.items()}
    assert found == {
        "body.weight": 0.5,
        "body.bias": 0.5,
        "used.weight": 2.0,
        "used.bias": 2.0,
        "unused.weight": 1.5,
        "unused.bias": 1.5,
    }


def test_nothing_is_reduced_of_a_model_that_is_frozen() -> None:
    net = nn.Linear(2, 1).requires_grad_(False)
    strategy: Any = Mean()
    TrainingState(net, optim.SGD(net.parameters())).reduce(strategy)
    assert strategy.passed == {}


class Fused(optim.SGD):
    """An optimizer of a library of which `zero_grad` has no arguments, such as Apex."""

    def zero_grad(self) -> None:  # type: ignore[override]
        super().zero_grad()


@pytest.mark.parametrize("fails", [False, True])
def test_gradients_of_all_optimizers_are_dropped_also_by_a_step_that_fails(fails: bool) -> None:
    net, critic = nn.Linear(2, 2), nn.Linear(2, 1)
    one, two = optim.SGD(net.parameters()), Fused(critic.parameters())
    both = nn.ModuleList([net, critic])

    def apply() -> None:
        one.step()
        two.step()
        if fails:
            raise ValueError("a defect")

    state = TrainingState(both, one, {"two": two}, apply)
    critic(net(torch.ones(1, 2))).sum().backward()
    if fails:
        with pytest.raises(ValueError, match="a defect"):
            state.apply()
    else:
        state.apply()
    assert all(parameter.grad is None for parameter in both.parameters())


def test_gradients_outside_of_the_model_are_refused() -> None:
    net, loss = nn.Linear(2, 2), nn.Linear(2, 1)
    optimizer = optim.SGD([*net.parameters(), *loss.parameters()])
    loss(net(torch.ones(1, 2))).sum().backward()
    strategy: Any = Mean()
    with pytest.raises(ConfigError, match=r'parameter 2 of a group of "optimizer", \[1, 2\], has a gradient'):
        TrainingState(net, optimizer).reduce(strategy)
