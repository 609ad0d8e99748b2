"""Tensors on a device go through pinned memory, in the order of streams; on stand-ins for streams and events."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from waiting import eventually

from softs_fast.snapshots import Publisher, RemoteWindow, SnapshotLayout, Window, publisher
from softs_fast.snapshots.staging import Staging, by_device

DEVICE = torch.device("cuda", 0)


class Device:
    """Notes what is submitted to which stream; copies are done at once, but their event completes on demand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.is_lost = False
        self.done, self.is_waited_for = threading.Event(), threading.Event()
        self.current = "training"
        empty, copy = torch.empty, Tensor.copy_
        device = self

        class Stream:
            def __init__(self, name: str) -> None:
                self.name = name

            def wait_stream(self, other: "Stream") -> None:
                device.log.append(f"{self.name} waits for {other.name}")

            def wait_event(self, event: object) -> None:
                device.log.append(f"{self.name} waits for the event")

        class Event:
            def record(self, stream: Stream) -> None:
                device.log.append(f"event in {stream.name}")

            def synchronize(self) -> None:
                device.is_waited_for.set()
                assert device.done.wait(30)
                if device.is_lost:
                    raise RuntimeError("the device is lost")

        @contextlib.contextmanager
        def stream(given: Stream) -> Iterator[None]:
            device.current, before = given.name, device.current
            yield
            device.current = before

        def noted_copy(self: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
            if non_blocking:
                device.log.append(f"copy {list(source.shape)} in {device.current}")
            return copy(self, source)

        def pinned_empty(*args: Any, pin_memory: bool = False, **options: Any) -> Tensor:
            if pin_memory:
                device.log.append("pinned")
            made: Tensor = empty(*args, **options)
            return made

        monkeypatch.setattr(torch, "empty", pinned_empty)
        monkeypatch.setattr(Tensor, "copy_", noted_copy)
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("side"))
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "stream", stream)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream("training"))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


ORDER = ["copy [1] in training", "side waits for training", "copy [2] in side", "event in side"]


def test_buffers_are_copied_in_the_stream_of_the_training_and_parameters_beside_it(device: Device) -> None:
    parameters, buffers = {"w": torch.ones(2)}, {"b": torch.ones(1)}
    staging = Staging(DEVICE)
    staging.submit(parameters, buffers)
    assert device.log == ["pinned", "pinned", *ORDER]
    device.log.clear()
    staging.submit(parameters, buffers)
    assert device.log == ORDER
    staging.hold()
    assert device.log[len(ORDER) :] == ["training waits for the event"]
    device.done.set()
    assert {name: tensor.tolist() for name, tensor in staging.finish().items()} == {"b": [1], "w": [1, 1]}


def test_tensors_of_the_host_are_not_staged() -> None:
    tensors = {"w": torch.ones(2)}
    assert by_device(tensors) == {None: tensors}
    assert by_device({}) == {}


def test_a_version_appears_when_the_device_has_copied_it_and_the_step_blocks_only_the_stream(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "by_device", lambda tensors: {DEVICE: dict(tensors)} if tensors else {})
    parameter = torch.nn.Parameter(torch.ones(2))
    buffer = torch.full((1,), -torch.inf)
    tensors = {"w": parameter.detach(), "b": buffer}
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    parameter.grad = torch.ones(2)
    with (
        Window(SnapshotLayout.of(tensors)) as window,
        RemoteWindow.open(window.address) as remote,
        Publisher(window, {"w": parameter}, {"b": buffer}, optimizer, inspect=True) as publisher_,
    ):
        device.log.clear()
        optimizer.step()
        assert device.log == [], "no copy runs"
        assert publisher_.offer(step=3, metric=None, trained=3)
        assert device.log == ["pinned", "pinned", *ORDER]
        del device.log[:2]
        optimizer.step()
        assert device.log[len(ORDER) :] == ["training waits for the event"]
        assert device.is_waited_for.wait(30)
        assert remote.header().version == 0
        assert not publisher_.offer(step=4, metric=None, trained=4), "the pinned memory is in use"
        device.done.set()
        publisher_.wait()
        assert remote.header().step == 3
        assert publisher_.inspected() == (1, True), "a buffer may have any values"


def test_a_copy_that_fails_is_raised_by_the_next_offer(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "by_device", lambda tensors: {DEVICE: dict(tensors)} if tensors else {})
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    with Window(SnapshotLayout.of({"w": parameter})) as window:
        publisher_ = Publisher(window, {"w": parameter}, {}, optimizer)
        publisher_.offer(step=0, metric=None, trained=0)
        device.is_lost = True
        device.done.set()
        failed: list[str] = []

        def has_failed() -> bool:
            try:
                publisher_.offer(step=1, metric=None, trained=1)
            except RuntimeError as error:
                failed.append(str(error))
            return bool(failed)

        eventually(has_failed, "the error of the copy")
        assert failed == ["the device is lost"]
        publisher_.close()
