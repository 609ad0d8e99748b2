"""The file gives states of optimizers and schedules as they were, or they are refused by name."""

from __future__ import annotations

import io
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from raw_client import job_of
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler
from waiting import WATCHDOG_S

from softs_fast.errors import ConfigError
from softs_fast.paramserver.rounds.events import Push, Share, Version
from softs_fast.paramserver.server.training.plain import decode_state, encode_state, first_difference
from softs_fast.paramserver.server.training.trainer import Trainer
from softs_fast.paramserver.wire.tensors import Contents

Make = Callable[[Iterable[nn.Parameter]], optim.Optimizer]

#: All optimizers of torch that take dense gradients and no closure.
OPTIMIZERS: dict[str, Make] = {
    name: (lambda parameters, kind=kind: kind(parameters, lr=0.01))  # type: ignore[misc]
    for name, kind in vars(optim).items()
    if isinstance(kind, type) and issubclass(kind, optim.Optimizer)
    if name not in ("Optimizer", "SparseAdam", "LBFGS")
} | {
    "SGD with momentum": lambda parameters: optim.SGD(parameters, lr=0.01, momentum=0.9),
    "Adam, a tensor as rate": lambda parameters: optim.Adam(parameters, lr=torch.tensor(0.01)),
    "SGD, a rate of numpy": lambda parameters: optim.SGD(parameters, lr=np.float64(0.1)),
}

SCHEDULES: dict[str, Callable[[optim.Optimizer], Any]] = {
    "MultiStepLR": lambda one: lr_scheduler.MultiStepLR(one, [1, 3], 0.1),
    "a warm-up": lambda one: lr_scheduler.SequentialLR(
        one, [lr_scheduler.LinearLR(one, 0.1), lr_scheduler.MultiStepLR(one, [2], 0.1)], [2]
    ),
    "OneCycleLR": lambda one: lr_scheduler.OneCycleLR(one, 0.1, total_steps=9),
    "CyclicLR": lambda one: lr_scheduler.CyclicLR(one, 0.01, 0.1),
    "LambdaLR": lambda one: lr_scheduler.LambdaLR(one, lambda step: np.float64(0.9) ** step),
    "ChainedScheduler": lambda one: lr_scheduler.ChainedScheduler([lr_scheduler.ExponentialLR(one, 0.9)]),
    "CosineAnnealingWarmRestarts": lambda one: lr_scheduler.CosineAnnealingWarmRestarts(one, 2),
}


class Held(lr_scheduler.LRScheduler):
    """A schedule that keeps its function, as many do."""

    def __init__(self, optimizer: optim.Optimizer) -> None:
        self.fn = lambda step: 0.9**step
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        return [rate * self.fn(self.last_epoch) for rate in self.base_lrs]


class Late(optim.SGD):
    """Has a state that no file can hold, from its second step on."""

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        one = self.param_groups[0]["params"][0]
        self.state[one]["hook" if "n" in self.state[one] else "n"] = Held if "n" in self.state[one] else 1


def step(trainer: Trainer, value: float = 1.0) -> tuple[str | None, Contents]:
    contents = Contents(torch.full((trainer.manifest.n_parameters,), value))
    share = Share(0, Push("w", Version(1, 0), 1, 0.5, 0), 1.0)
    return trainer.step([(share, contents)], 1.0, 1.0, 0.0, trainer.contents())


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    read: dict[str, Any] = torch.load(file, weights_only=True)
    return read


def of_dtype(dtype: torch.dtype) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        torch.manual_seed(1)
        # Without a bias: Muon takes matrices alone.
        return nn.Linear(4, 3, bias=False, dtype=dtype)

    return make


def assert_goes_on(job: Any) -> None:
    """A trainer that is made of the state of another one has that state, and takes the same step."""
    first = Trainer(job)
    for _ in range(3):
        assert step(first)[0] is None
    again = Trainer(job, through_a_file(first.state()))
    again.prepare()
    assert first_difference(list(first.state().values()), list(again.state().values()), "state") is None
    (_, one), (_, other) = step(first), step(again)
    assert torch.equal(one.parameters, other.parameters)
    assert first_difference(list(first.state().values()), list(again.state().values()), "state") is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_goes_on_with_its_bits(name: str, dtype: torch.dtype) -> None:
    assert_goes_on(job_of(of_dtype(dtype), optimizer=OPTIMIZERS[name]))


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_goes_on_with_its_bits(name: str) -> None:
    make = OPTIMIZERS["SGD with momentum"]
    assert_goes_on(job_of(of_dtype(torch.float32), optimizer=make, schedule=SCHEDULES[name]))


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"schedule": Held}, "schedule.fn is of type builtins.function"),
        ({"schedule": lr_scheduler.ReduceLROnPlateau}, "step.. of a ReduceLROnPlateau needs arguments"),
        ({"optimizer": optim.LBFGS}, "step.. of a LBFGS needs arguments"),
    ],
)
def test_what_cannot_go_on_is_refused_before_the_first_step(more: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Trainer(job_of(**more))


def test_what_appears_later_is_refused_then(serve, enter, tmp_path: Path) -> None:
    server = serve(
        job_of(optimizer=lambda parameters: Late(parameters, lr=0.1)), options={"linger_s": WATCHDOG_S}
    )
    client = enter(server)
    client.push(client.frame())
    assert client.pull("1.0", 20.0).status == 200
    client.push(client.frame(version=(1, 1)))
    assert client.pull("1.1", 20.0).status == 410
    assert "optimizer.state.0.hook is of type builtins.type" in server.status().waiting_for


def tensors() -> list[Tensor]:
    dtypes = [
        torch.bool,
        torch.uint8,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float64,
        torch.complex64,
    ]
    plain = [torch.ones(2, 3).to(one) for one in (*dtypes, torch.float8_e4m3fn, torch.uint16)]
    strange = [
        torch.arange(6.0).reshape(2, 3).t(),
        torch.arange(9)[3:5],
        torch.ones(3, dtype=torch.cfloat).conj(),
    ]
    return [*plain, *strange, torch.zeros(0, 4), torch.tensor(torch.nan), torch.ones(1).expand(3)]


@pytest.mark.parametrize(
    "value",
    [
        *tensors(),
        deque([1, 2.5, torch.ones(2)], maxlen=7),
        deque(),
        defaultdict(list, {1: [2]}),
        OrderedDict({"b": 1, "a": (2, [3])}),
        Counter({3: 2}),
        {("a", 1): {None: b"x"}},
        {1, 2},
        frozenset({"a"}),
        (torch.float16, torch.device("cpu"), torch.Size([1, 2])),
        [True, 1, 1.0, 1j, "text", 1 << 80, float("inf"), float("nan")],
        np.float64(0.1),
        np.float32(0.1),
        np.int64(3),
        np.bool_(True),
        np.arange(6).reshape(2, 3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    found = decode_state(through_a_file({"x": encode_state({"v": value}, "s")})["x"])["v"]
    assert type(found) is type(value)
    assert first_difference(encode_state(value, "s"), encode_state(found, "s"), "s") is None
    if isinstance(value, deque):
        assert found.maxlen == value.maxlen
    if isinstance(value, (np.ndarray, np.generic, Tensor)):
        assert found.dtype == value.dtype
    if isinstance(value, OrderedDict):
        assert list(found) == list(value)


Pair = namedtuple("Pair", "a b")
LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Pair(1, 2), r"s\.v is of type .*Pair"),
        (lambda: 1, r"s\.v is of type builtins\.function"),
        (defaultdict(lambda: 1), r"s\.v is of type collections\.defaultdict"),
        (np.array([object()]), r"s\.v is of type numpy\.ndarray"),
        (torch.ones(2, device="meta"), r's\.v" is on the meta device'),
        (torch.eye(2).to_sparse(), r's\.v" is of layout sparse_coo'),
        (LOOP, "contains itself"),
    ],
)
def test_a_value_that_cannot_come_back_is_refused_by_name(value: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        encode_state({"v": value}, "s")


def test_orders_that_differ_between_processes_are_no_difference() -> None:
    """Sets of texts have another order in each process, and newer versions of torch add keys to groups."""
    dicts = ("dict", [["a", 1], ["b", ("set", ["x", "y"])]]), ("dict", [["b", ("set", ["y", "x"])], ["a", 1]])
    assert first_difference(*dicts, "s") is None
    assert first_difference(dicts[0], ("dict", [*dicts[1][1], ["new", False]]), "s") is None
    assert first_difference(dicts[0], ("dict", [["a", 1]]), "s") == "s has 1 entries, expected 2"
    ordered = encode_state(OrderedDict(a=1, b=2), "s"), encode_state(OrderedDict(b=2, a=1), "s")
    assert first_difference(*ordered, "s") is not None


def test_a_difference_is_named() -> None:
    one, other = ({"a": {"b": [torch.zeros(2), value]}} for value in (1.0, 2.0))
    assert (
        first_difference(encode_state(one, "s"), encode_state(other, "s"), "s")
        == "s.a.b.1 is 2.0, expected 1.0"
    )
    assert first_difference((1,), [1], "s") == "s is of type list, expected tuple"
    assert first_difference(torch.zeros(1), torch.zeros(1).half(), "s") is not None
