"""`offload` with tensors that believe themselves on a device: all leave it after the call, and are back before the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.hooks import Evaluate, Hook, Save
from softs_fast.dataflow.process import objects

DEVICE = torch.device("cuda", 0)
CPU = torch.device("cpu")
LISTED = objects._all_tensors


class Data:
    """The data of a tensor on a device that this machine need not have.

    Args:
        tensor: Tensor with the bits.
        device: Device on which the bits are said to be.
    """

    def __init__(self, tensor: Tensor, device: torch.device) -> None:
        self.tensor, self.device = tensor, device

    def to(self, device: torch.device | str) -> Data:
        """Return a copy on another device."""
        return Data(self.tensor.clone(), torch.device(device))


class Device:
    """Says of each tensor of a process on which device it is; new ones are on `DEVICE`."""

    def __init__(self) -> None:
        #: By tensor, which stays alive with its number.
        self.found: dict[int, tuple[Tensor, torch.device]] = {}

    def where(self, tensor: Tensor) -> torch.device:
        return self.found.setdefault(id(tensor), (tensor, DEVICE))[1]

    def tensors(self, role: df.Role) -> Iterator[Any]:
        """Yield what stands for the tensors that the package lists, and only those."""
        for tensor in LISTED(role):
            yield Tracked(self, tensor)


class Tracked:
    """Stands for a tensor."""

    def __init__(self, device: Device, tensor: Tensor) -> None:
        self._device, self._tensor = device, tensor

    @property
    def device(self) -> torch.device:
        return self._device.where(self._tensor)

    @property
    def data(self) -> Data:
        return Data(self._tensor.data, self.device)

    @data.setter
    def data(self, data: Data) -> None:
        self._tensor.data = data.tensor
        self._device.found[id(self._tensor)] = (self._tensor, data.device)


class Model(df.Role):
    """Has parameters, a buffer, gradients and a state of an optimizer, and notes where they are."""

    device: Device
    log: list[tuple[str, str, set[str]]]

    def setup(self, mesh: df.Mesh) -> None:
        torch.manual_seed(1)
        self.name = mesh.name
        self.net = nn.BatchNorm1d(2)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.1)

    def note(self, what: str) -> None:
        # Counted here by hand: what the package lists is to be tested, too.
        tensors = [*self.net.parameters(), *self.net.buffers()]
        tensors += [one.grad for one in self.net.parameters() if one.grad is not None]
        for state in self.optimizer.state.values():
            tensors += [one for one in state.values() if isinstance(one, Tensor)]
        if what == "hook" and self.name == "actor":
            assert len(tensors) == 2 + 3 + 2 + 2 * 3
        self.log.append((self.name, what, {self.device.where(one).type for one in tensors}))

    def generate(self, rows: df.Rows) -> dict[str, Any]:
        self.note("generate")
        return {"y": self.net(rows["x"]).detach()}

    def train(self, rows: df.Rows) -> dict[str, Any]:
        self.note("train")
        loss = (self.net(rows["x"]) - rows["y"] - 1).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss}

    def evaluate(self) -> dict[str, float]:
        self.note("evaluate")
        return {"sum": sum(one.sum().item() for one in self.net.parameters())}

    def model_config(self) -> None:
        self.note("model_config")


def numbers() -> Iterator[dict[str, Any]]:
    random = torch.Generator().manual_seed(3)
    while True:
        yield {"x": torch.rand(2, generator=random)}


def make_flow(device: Device, *, offloads: bool = True, publishes_last: bool = False) -> df.Flow:
    """A flow of which both roles are moved to the memory of the host between their calls."""
    model = type("Model", (Model,), {"device": device, "log": []})
    actor = df.place(model, name="actor")
    gen = df.place(model, on=[1], follows=actor, name="gen")
    # A hook of the user's that gets the other role sees how the hook before it has left this one.
    other = df.place(Look, frozen=True, name="look")
    look = df.hook(lambda one: model.log.append(("look", "between", where(flow, actor))), on=[other])
    after = [*([df.offload(actor)] if offloads else []), look]
    after.insert(len(after) if publishes_last else 0, df.publish(gen))
    calls = [
        df.call(gen.generate, "x -> y", rows=4, after=[df.offload(gen)] if offloads else []),
        df.call(other.look, "y -> z", rows=4),
        df.call(actor.train, "x, y, z", rows=4, after=after),
    ]
    flow = df.Flow(calls, source=numbers(), digests=True)
    return flow


class Look(df.Role):
    """Has no tensors."""

    def look(self, rows: df.Rows) -> dict[str, Any]:
        return {"z": rows["y"] * 2}


def where(flow: df.Flow, role: df.Placement) -> set[str]:
    """Where the tensors of a role are, without a use of the role."""
    own: Any = flow._backend._objects  # type: ignore[attr-defined]
    return {one.device.type for one in objects._all_tensors(own._objects[role.name])}


def losses(flow: df.Flow, n_steps: int = 3) -> list[Any]:
    with flow:
        return [
            (step["actor.train"]["loss"], [one.digest for one in step.calls]) for step in flow.steps(n_steps)
        ]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    found = Device()
    monkeypatch.setattr(objects, "_all_tensors", found.tensors)
    return found


def log_of(flow: df.Flow) -> list[tuple[str, str, set[str]]]:
    found: list[tuple[str, str, set[str]]] = flow.declaration.roles[0].role.log  # type: ignore[attr-defined]
    return found


def test_all_tensors_leave_after_the_call_and_are_back_before_the_next_one(device: Device) -> None:
    flow = make_flow(device)
    found = losses(flow)
    log = log_of(flow)
    between = [places for _, what, places in log if what == "between"]
    assert between == [{"cpu"}] * 3
    assert [(name, what) for name, what, _ in log if what in ("generate", "train")] == [
        ("gen", "generate"),
        ("actor", "train"),
    ] * 3
    assert all(places == {DEVICE.type} for _, what, places in log if what in ("generate", "train"))
    # What was moved twice has the bits of what stayed.
    assert found == losses(make_flow(Device(), offloads=False))


def test_each_use_of_a_role_has_its_tensors_back(device: Device, tmp_path: Path) -> None:
    flow = make_flow(device)
    with flow:
        next(flow.steps())
        actor, gen, _ = sorted(flow.declaration.roles, key=lambda one: one.name)
        # Gradients and the states of the optimizer are there by now, and leave as well.
        assert len(list(LISTED(flow._backend._objects._objects["actor"]))) == 2 + 3 + 2 + 2 * 3  # type: ignore[attr-defined]
        assert where(flow, actor) == {"cpu"}

        def run(hook: Hook) -> None:
            call = flow.post(hook)
            flow.flush(call)
            call.result()

        uses: list[Callable[[], object]] = [
            lambda: flow.role(actor),
            lambda: flow.ask("model_config", role=actor),
            lambda: run(Evaluate((actor,))),
            lambda: run(Save((actor,), folder=tmp_path)),
            lambda: flow.load(actor, tmp_path),
            lambda: run(df.param_realloc(actor, gen, eta=0.5)),
            lambda: run(df.param_realloc(gen, actor, eta=0.5)),
        ]
        for number, use in enumerate(uses):
            use()
            assert where(flow, actor) == {DEVICE.type}, number
            # A second offload of what is on the host already does not lose where it belongs.
            for _ in range(2):
                run(df.offload(actor))
                assert where(flow, actor) == {"cpu"}, number


def test_an_offload_before_another_hook_of_the_call(device: Device) -> None:
    flow = make_flow(device, publishes_last=True)
    found = losses(flow)
    assert [places for _, what, places in log_of(flow) if what == "between"] == [{"cpu"}] * 3
    assert found == losses(make_flow(Device(), offloads=False))
