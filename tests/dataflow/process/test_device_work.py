"""A step ends when the work that it has submitted to devices is done: a device of which all work is late."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from flow_threads import in_threads
from torch import nn

import softs_fast.dataflow as df
from softs_fast.dataflow.process.devices import device_work, wait_for_devices
from softs_fast.dataflow.store import DataManager
from softs_fast.errors import FlowError


class LateDevice:
    """A module like `torch.cuda`. Work is queued by `submit`, and done by `synchronize`."""

    def __init__(self, n_devices: int = 1) -> None:
        self.log: list[str] = []
        self.queues: list[list[Callable[[], None]]] = [[] for _ in range(n_devices)]
        self.in_use = True
        self.used = {0}

    def submit(self, work: Callable[[], None], device: int = 0) -> None:
        self.queues[device].append(work)

    def is_initialized(self) -> bool:
        return self.in_use

    def device_count(self) -> int:
        return len(self.queues)

    def current_device(self) -> int:
        return 0

    def memory_reserved(self, device: int) -> int:
        return 1024 if device in self.used else 0

    def synchronize(self, device: int) -> None:
        assert self.in_use, "it would be initialized"
        self.log.append(f"synchronize {device}")
        queue, self.queues[device] = self.queues[device], []
        for work in queue:
            work()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> LateDevice:
    """In the place of one that an extension has registered."""
    made = LateDevice()
    monkeypatch.setattr(torch, "npu", made, raising=False)
    return made


class Late(df.Role):
    """Submits to the device, and does not wait for it."""

    device: LateDevice

    def setup(self, mesh: df.Mesh) -> None:
        self.net = nn.Linear(1, 1, bias=False)
        self.device.submit(self.begin)

    def generate(self, rows: df.Rows) -> dict[str, Any]:
        values = torch.zeros(rows.n_rows)
        self.device.log.append("generate")
        inputs = rows["x"]

        def compute() -> None:
            values.copy_(inputs + 1)

        self.device.submit(compute)
        return {"y": values}

    def train(self, rows: df.Rows) -> None:
        self.device.log.append(f"train {rows['y'].tolist()}")
        self.device.submit(self.add)

    def fail_late(self, rows: df.Rows) -> None:
        self.device.submit(self.device_fails)

    def fail(self, rows: df.Rows) -> None:
        self.device.submit(self.device_fails)
        raise KeyError("the function")

    def begin(self) -> None:
        self.device.log.append("begun")
        nn.init.zeros_(self.net.weight)

    def add(self) -> None:
        self.device.log.append("added")
        with torch.no_grad():
            self.net.weight.add_(1.0)

    @staticmethod
    def device_fails() -> None:
        raise RuntimeError("device-side assert")


def numbers() -> Iterator[dict[str, Any]]:
    first = 0.0
    while True:
        yield {"x": torch.tensor(first)}
        first += 1


def make_flow(device: LateDevice, *hooks: Callable[[Any], None], what: str = "train") -> df.Flow:
    """Return a flow of which both roles use the device; the hooks come after each training call."""
    late = type("Late", (Late,), {"device": device})
    actor = df.place(late, name="actor")
    gen = df.place(late, on=[1], follows=actor, name="gen")
    calls = [
        df.call(gen.generate, "x -> y", rows=2),
        df.call(
            getattr(actor, what),
            "y",
            rows=2,
            interface=df.Interface.TRAIN_STEP,
            after=[*(df.hook(one, on=[actor]) for one in hooks), df.publish(gen)],
        ),
    ]
    return df.Flow(calls, source=numbers())


def opened(kind: str, make: Callable[[], df.Flow]) -> df.Flow:
    return make() if kind == "one process" else in_threads(make)[0]


@pytest.mark.parametrize("kind", ["one process", "several"])
def test_values_and_weights_are_final_when_a_step_has_ended(
    kind: str, device: LateDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = DataManager.put

    def noted(self: DataManager, column: str, ids: Sequence[int], values: Any) -> Any:
        device.log.append(f"put {column}")
        return put(self, column, ids, values)

    monkeypatch.setattr(DataManager, "put", noted)
    weights: list[float] = []
    with opened(
        kind, lambda: make_flow(device, lambda actor: weights.append(actor.net.weight.item()))
    ) as flow:
        list(flow.steps(2))
    assert weights == [1.0, 2.0], "the training part had ended before the hook after it"
    assert [one for one in device.log if one.startswith("train")] == ["train [1.0, 2.0]", "train [3.0, 4.0]"]
    first = device.log.index("generate")
    between = device.log[first : device.log.index("put y")] if kind == "several" else device.log[first:]
    assert between[:3] == ["generate", "synchronize 0", "synchronize 0"], (
        "the function, then copies of its outputs"
    )
    assert device.log.index("begun") < first, "weights of setup could be shown before any step"
    assert not any(device.queues)


@pytest.mark.parametrize("kind", ["one process", "several"])
def test_a_hook_has_ended_when_its_work_is_done(kind: str, device: LateDevice) -> None:
    seen: list[float] = []

    def add(actor: Any) -> None:
        device.submit(actor.add)

    def look(actor: Any) -> None:
        seen.append(actor.net.weight.item())

    with opened(kind, lambda: make_flow(device, add, look)) as flow:
        list(flow.steps(1))
    assert seen == [2.0]


@pytest.mark.parametrize("kind", ["one process", "several"])
def test_work_that_fails_late_fails_its_own_call(kind: str, device: LateDevice) -> None:
    hooked: list[Any] = []
    with (
        opened(kind, lambda: make_flow(device, hooked.append, what="fail_late")) as flow,
        pytest.raises(FlowError, match=r"actor.fail_late failed .*RuntimeError: device-side assert"),
    ):
        list(flow.steps(1))
    assert not hooked


@pytest.mark.parametrize("kind", ["one process", "several"])
def test_a_function_that_raises_is_waited_for_and_says_what_the_device_said(
    kind: str, device: LateDevice
) -> None:
    with (
        opened(kind, lambda: make_flow(device, what="fail")) as flow,
        pytest.raises(FlowError, match=r"KeyError: 'the function'(.|\n)*failed, too: device-side assert"),
    ):
        list(flow.steps(1))
    assert not any(device.queues)


def test_devices_that_are_not_used_are_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    several = LateDevice(4)
    monkeypatch.setattr(torch, "npu", several, raising=False)
    several.used = {1, 3}
    wait_for_devices()
    assert several.log == ["synchronize 1", "synchronize 3"]
    several.in_use = False
    with device_work():
        pass
    assert several.log == ["synchronize 1", "synchronize 3"]
    assert not torch.cuda.is_initialized()


def test_an_allocator_without_numbers_leaves_the_current_device(
    device: LateDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(device: int) -> int:
        raise RuntimeError("this allocator has no statistics")

    monkeypatch.setattr(device, "memory_reserved", refuse)
    wait_for_devices()
    monkeypatch.delattr(LateDevice, "memory_reserved")
    monkeypatch.delattr(device, "memory_reserved")
    wait_for_devices()
    assert device.log == ["synchronize 0"] * 2


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mtia"])
def test_modules_of_torch_have_what_is_asked_of_them(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = getattr(torch, kind)
    for name in ("device_count", "current_device"):
        assert callable(getattr(module, name))
    called: list[int] = []
    monkeypatch.setattr(module, "is_initialized", lambda: True)
    monkeypatch.setattr(module, "device_count", lambda: 2)
    monkeypatch.setattr(module, "current_device", lambda: 1)
    monkeypatch.setattr(module, "memory_reserved", lambda device: device, raising=False)
    monkeypatch.setattr(module, "synchronize", called.append)
    wait_for_devices()
    assert called == [1]
