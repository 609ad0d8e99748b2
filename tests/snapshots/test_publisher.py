"""Publishing beside the training: by steps or on demand, never too often, and never half a step."""

import math
import os
import threading
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import torch
from copy_gate import Gate
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from waiting import eventually

from softs_fast.errors import ConfigError
from softs_fast.snapshots import Publisher, RemoteWindow, SnapshotLayout, Window, are_finite, average
from softs_fast.snapshots.pace import REST, Pace

events = st.lists(
    st.tuples(st.sampled_from(["offer", "asked", "end"]), st.floats(0.001, 10), st.integers(1, 3)),
    max_size=60,
)


@given(st.integers(0, 4), events)
def test_the_pace_keeps_its_rules(every: int, history: list[tuple[str, float, int]]) -> None:
    pace = Pace(every)
    now_s, step = 0.0, 0
    copy: tuple[int, float] | None = None  # step and beginning of the one that runs
    last: tuple[int, float, float] | None = None  # step, duration and end of the one before
    for kind, passed_s, steps in history:
        now_s += passed_s
        step += steps
        if kind == "end":
            if copy is not None:
                pace.end(now_s)
                last, copy = (copy[0], now_s - copy[1], now_s), None
            continue
        has_rested = last is None or now_s >= last[2] + REST * last[1]
        assert pace.is_possible(now_s) == (copy is None and has_rested)
        if pace.is_possible(now_s):
            is_first = last is None
            assert pace.is_due(step) == (is_first or (last is not None and 0 < every <= step - last[0]))
            if pace.is_due(step) or kind == "asked":
                pace.begin(step, now_s)
                copy = (step, now_s)


def test_a_copy_is_followed_by_a_rest_of_twice_its_time() -> None:
    pace = Pace(1)
    assert pace.is_possible(10.0)
    pace.begin(0, 10.0)
    assert not pace.is_possible(99.0)
    pace.end(11.0)
    assert [pace.is_possible(now_s) for now_s in (11.0, 12.9, 13.0)] == [False, False, True]


def test_a_pace_of_less_than_no_steps_is_refused() -> None:
    with pytest.raises(ConfigError, match="every -1 steps"):
        Pace(-1)


class Model(torch.nn.Module):
    """Parameters, of which two are tied, and a buffer that changes in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Linear(3, 3)
        self.b = torch.nn.Linear(3, 3)
        self.b.weight = self.a.weight
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return self.b(self.a(x))


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def optimizer(model: Model) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.5)


@pytest.fixture
def window(model: Model) -> Iterator[Window]:
    with Window(SnapshotLayout.of(model.state_dict())) as window:
        yield window


def publisher_of(window: Window, model: Model, optimizer: torch.optim.Optimizer, every: int = 0) -> Publisher:
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return Publisher(window, parameters, dict(model.named_buffers()), optimizer, every=every)


def published(window: Window, model: Model) -> tuple[int, dict[str, Tensor]]:
    """The step and the tensors that another process would read."""
    into = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    into["b.weight"] = into["a.weight"]
    with RemoteWindow.open(window.address) as remote:
        headers = average([remote], [1.0], into, window.layout)
    assert headers is not None
    return headers[0].step, into


def test_the_step_of_the_optimizer_waits_for_the_copy(
    window: Window, model: Model, optimizer: torch.optim.Optimizer
) -> None:
    gate = Gate(window)
    with publisher_of(window, model, optimizer) as publisher:
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        assert publisher.offer(step=7, metric=0.5, trained=7, config={"lr": 0.5})
        assert gate.reached.wait(30)
        model(torch.ones(2, 3)).sum().backward()  # forward and backward run beside it
        assert model.count == 1
        has_stepped = threading.Event()

        def step() -> None:
            optimizer.step()
            has_stepped.set()

        stepper = threading.Thread(target=step)
        stepper.start()
        assert not has_stepped.wait(0.2)
        assert torch.equal(model.a.weight, before["a.weight"])
        gate.open.set()
        assert has_stepped.wait(30)
        stepper.join()
        assert not torch.equal(model.a.weight, before["a.weight"])
        step_, tensors = published(window, model)
    assert step_ == 7
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == {
        name: tensor.tolist() for name, tensor in before.items()
    }


def test_it_publishes_the_first_version_and_then_every_so_many_steps(
    window: Window, model: Model, optimizer: torch.optim.Optimizer
) -> None:
    with publisher_of(window, model, optimizer, every=5) as publisher:

        def offer(step: int) -> bool:
            return publisher.offer(step=step, metric=None, trained=step)

        for step in range(12):
            if step % 5 == 0:  # after the rest that follows the copy before
                eventually(lambda step=step: offer(step), f"a version at step {step}")
                publisher.wait()
            assert not offer(step)
        assert published(window, model)[0] == 10


def test_it_publishes_on_demand(window: Window, model: Model, optimizer: torch.optim.Optimizer) -> None:
    with (
        Window(window.layout) as reader,
        RemoteWindow.open(reader.address) as of_reader,
        RemoteWindow.open(window.address) as of_window,
        publisher_of(window, model, optimizer) as publisher,
    ):

        def offer(step: int) -> bool:
            return publisher.offer(step=step, metric=None, trained=step, others=[of_reader])

        assert offer(0)
        publisher.wait()
        for step in range(1, 50):
            assert not offer(step)
        reader.ask(of_window)
        eventually(lambda: offer(50), "the answer to an ask")
        publisher.wait()
        assert of_window.header().step == 50
        for step in range(51, 99):
            assert not offer(step)


def test_no_copy_begins_while_one_runs(
    window: Window, model: Model, optimizer: torch.optim.Optimizer
) -> None:
    gate = Gate(window)
    with publisher_of(window, model, optimizer, every=1) as publisher:
        assert publisher.offer(step=0, metric=None, trained=0)
        assert gate.reached.wait(30)
        assert not publisher.offer(step=1, metric=None, trained=1)
        gate.open.set()
        publisher.wait()
    assert published(window, model)[0] == 0


def test_a_version_may_be_begun_without_a_reason(
    window: Window, model: Model, optimizer: torch.optim.Optimizer
) -> None:
    gate = Gate(window)
    with publisher_of(window, model, optimizer) as publisher:
        assert publisher.begin(step=0, metric=None, trained=0)
        assert gate.reached.wait(30)
        assert publisher.is_busy()
        assert not publisher.begin(step=1, metric=None, trained=1)
        gate.open.set()
        publisher.wait()
        assert not publisher.is_busy()
        eventually(lambda: publisher.begin(step=2, metric=None, trained=2), "a version after the rest")
        publisher.wait()
        assert publisher.inspected() == (0, True), "not asked for"
    assert published(window, model)[0] == 2


@pytest.mark.parametrize("metric", [0.5, None])
@pytest.mark.parametrize("value", [1.0, float("nan"), float("inf"), -float("inf")])
def test_a_version_that_is_not_finite_has_the_metric_nan(
    window: Window, model: Model, optimizer: torch.optim.Optimizer, value: float, metric: float | None
) -> None:
    parameters = dict(model.named_parameters(remove_duplicate=False))
    with Publisher(window, parameters, dict(model.named_buffers()), optimizer, inspect=True) as publisher:
        with torch.no_grad():
            model.b.bias[2] = value
        publisher.begin(step=0, metric=metric, trained=0)
        publisher.wait()
        assert publisher.inspected() == (1, math.isfinite(value))
    with RemoteWindow.open(window.address) as remote:
        said = remote.header().metric
    assert said == metric if math.isfinite(value) else math.isnan(said or 0.0)


def test_the_thread_that_inspects_starts_no_threads_of_torch() -> None:
    model = torch.nn.Linear(1000, 1000)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        torch.aminmax(model.weight.detach())  # the threads of the caller
        with (
            Window(SnapshotLayout.of(model.state_dict())) as window,
            Publisher(window, dict(model.named_parameters()), {}, optimizer, inspect=True) as publisher,
        ):
            threads = set(os.listdir("/proc/self/task"))
            publisher.offer(step=0, metric=None, trained=0)
            publisher.wait()
            assert publisher.inspected() == (1, True)
            assert len(set(os.listdir("/proc/self/task")) - threads) == 1
    finally:
        torch.set_num_threads(before)


def test_tensors_of_any_dtype_are_inspected() -> None:
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool):
        assert are_finite(
            [torch.ones(3, 2, dtype=dtype).t(), torch.ones(0, dtype=dtype), torch.ones((), dtype=dtype)]
        )
        for value in (math.nan, math.inf, -math.inf):
            if dtype.is_floating_point:
                weight = torch.nn.Parameter(torch.ones(3, 2, dtype=dtype))
                weight.data[1, 1] = value
                assert not are_finite([torch.ones(3), weight])


def test_tensors_are_looked_up_for_each_version(
    window: Window, model: Model, optimizer: torch.optim.Optimizer
) -> None:
    def buffers() -> dict[str, Tensor]:
        return {"count": model.count, "late": torch.zeros(1)}

    with Publisher(
        window, lambda: dict(model.named_parameters(remove_duplicate=False)), buffers, optimizer
    ) as publisher:
        offered = count()

        def offer() -> bool:
            return publisher.begin(step=next(offered), metric=None, trained=0)

        assert offer()
        publisher.wait()
        state = {name: torch.full_like(tensor, 7.0) for name, tensor in model.state_dict().items()}
        model.load_state_dict(state, assign=True)
        model.b.weight = model.a.weight
        eventually(offer, "a version after the rest")
        publisher.wait()
        assert all(tensor.eq(7).all() for tensor in published(window, model)[1].values())
        model.half()
        with pytest.raises(ConfigError, match=r'"a\.weight": float32.* in the snapshot, float16'):
            eventually(offer, "a version after the rest")


def test_buffers_may_have_any_values(window: Window, model: Model, optimizer: torch.optim.Optimizer) -> None:
    parameters = dict(model.named_parameters(remove_duplicate=False))
    with Publisher(window, parameters, dict(model.named_buffers()), optimizer, inspect=True) as publisher:
        model.count.fill_(-math.inf)
        publisher.begin(step=0, metric=0.5, trained=0)
        publisher.wait()
        assert publisher.inspected() == (1, True)


def test_a_copy_that_fails_is_raised_by_the_next_step(
    window: Window, model: Model, optimizer: torch.optim.Optimizer
) -> None:
    gate = Gate(window)
    with publisher_of(window, model, optimizer) as publisher:
        publisher.offer(step=0, metric=None, trained=0)
        assert gate.reached.wait(30)
        window.close()
        gate.open.set()
        with pytest.raises(ConfigError, match="the window is closed"):
            optimizer.step()
        optimizer.step()


def test_wrong_arguments_are_refused_at_once(
    window: Window, model: Model, optimizer: torch.optim.Optimizer
) -> None:
    with pytest.raises(ConfigError, match="do not fit the snapshot"):
        Publisher(window, dict(model.named_parameters(remove_duplicate=False)), {}, optimizer)
    publisher = publisher_of(window, model, optimizer)
    for config in ({"a": object()}, {"a": "x" * 5000}):
        with pytest.raises(ConfigError, match="config of a snapshot"):
            publisher.offer(step=0, metric=None, trained=0, config=config)
    assert publisher.offer(step=0, metric=None, trained=0)
    publisher.close()
    publisher.close()
    with pytest.raises(ConfigError, match="the publisher is closed"):
        publisher.offer(step=0, metric=None, trained=0)
    optimizer.step()


def test_the_thread_ends_with_the_publisher(
    window: Window, model: Model, optimizer: torch.optim.Optimizer
) -> None:
    def threads() -> list[Any]:
        return [thread for thread in threading.enumerate() if thread.name == "softs-publisher"]

    publisher = publisher_of(window, model, optimizer)
    assert threads() == [], "it starts with the first copy"
    publisher.offer(step=0, metric=None, trained=0)
    assert len(threads()) == 1
    del publisher  # without close
    assert threads() == []
