"""Modules, optimizers and schedules of a role are found in lists, tuples and dicts, or are refused."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.attributes import attributes_of
from softs_fast.dataflow.declare.hooks import LoadState, SaveState
from softs_fast.dataflow.process.objects import Objects
from softs_fast.dataflow.process.state.hidden_weights import check_weights
from softs_fast.dataflow.process.state.role_state import load_state, save_state
from softs_fast.errors import FlowError


class Policy:
    """An object with weights that is no module."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


@dataclass(slots=True)
class Slots:
    net: nn.Module


class Model(df.Role):
    def train(self, rows: df.Rows) -> None: ...


def role(**attributes: Any) -> Model:
    one = Model()
    vars(one).update(attributes)
    return one


def test_elements_of_containers_are_attributes_each_with_its_own_name() -> None:
    ring: list[Any] = [1]
    ring += [ring, {1: (2.5, object), "1": deque([len])}]
    assert [name for name, _ in attributes_of(Policy(ring=ring, flag=True))] == [
        "ring[2][1][1]",
        "ring[2]['1'][0]",
        "flag",
    ]


def test_containers_may_grow_while_they_are_looked_at() -> None:
    full: dict[str, Any] = {"queue": deque([len]), "names": {"a": len}}
    owner = Policy(**full)
    for name, _ in attributes_of(owner):
        full["queue"].append(len)
        full["names"][name] = len
        vars(owner)[name] = None


def test_modules_and_optimizers_in_containers_are_found_once() -> None:
    net, other = nn.Linear(1, 1), nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters())
    one = role(net=net, nets=[net, {"b": other}], both=(optimizer, [optimizer]))
    assert one.modules() == {"net": net, "nets[1]['b']": other}
    assert one.optimizers() == {"both[0]": optimizer}


def test_weights_inside_other_objects_are_refused_by_their_path() -> None:
    net = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters())
    for attributes, complaint in (
        (
            {"agents": [Policy(net=net)]},
            r"role 'a' has the module Linear in agents\[0\]\.net, where it would be neither",
        ),
        ({"nets": {net}}, r"the module Linear in nets's elements, where"),
        ({"agent": Slots(net)}, r"the module Linear in agent\.net, where"),
        ({"net": net, "agent": Policy(o={"x": optimizer})}, r"the optimizer SGD in agent\.o\['x'\]"),
        (
            {"schedule": torch.optim.lr_scheduler.StepLR(optimizer, 1), "net": net},
            r"SGD in schedule\.optimizer",
        ),
    ):
        with pytest.raises(FlowError, match=complaint):
            check_weights("a", role(**attributes))


def test_what_is_found_elsewhere_or_has_no_weights_may_be_anywhere() -> None:
    net = nn.Sequential(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(net.parameters())
    policy = Policy(net=net[0], loss=nn.MSELoss(), back=None, kind=nn.Linear)
    policy.back = policy
    check_weights(
        "a",
        role(
            net=net,
            optimizer=optimizer,
            policy=policy,
            schedule=torch.optim.lr_scheduler.StepLR(optimizer, 1),
        ),
    )


class Chooses(Model):
    def modules(self) -> dict[str, Any]:
        return {}


class Hides(Model):
    def setup(self, mesh: df.Mesh) -> None:
        self.judge = Policy(net=nn.Linear(1, 1))


class HidesAndChooses(Hides, Chooses): ...


def test_a_role_that_is_frozen_or_says_what_it_has_may_hide_weights() -> None:
    with pytest.raises(FlowError, match=r"role 'hides' has the module Linear in judge\.net"):
        Objects([df.place(Hides)]).setup()
    Objects([df.place(Hides, frozen=True), df.place(HidesAndChooses)]).setup()


def test_schedules_and_generators_in_containers_go_on(tmp_path: Path) -> None:
    def made() -> Model:
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        schedules = [torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])]
        return role(schedules=schedules, draws={"x": random.Random(3)})

    one, placed = made(), df.place(Model)
    one.schedules[0].optimizer.step()  # type: ignore[attr-defined]
    one.schedules[0].step()  # type: ignore[attr-defined]
    one.draws["x"].random()  # type: ignore[attr-defined]
    save_state(SaveState((placed,), 1, tmp_path / "s"), lambda _: one, has_process=False)
    other = made()
    load_state(LoadState((placed,), 1, tmp_path / "s"), lambda _: other, has_process=False)
    assert other.schedules[0].last_epoch == 1  # type: ignore[attr-defined]
    assert other.draws["x"].random() == one.draws["x"].random()  # type: ignore[attr-defined]


class Schedule:
    """A schedule that keeps a function in its state."""

    def state_dict(self) -> dict[str, Any]:
        return {"step": 3, "rate": test_weights_inside_other_objects_are_refused_by_their_path}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def test_a_schedule_that_keeps_a_function_is_refused_by_name(tmp_path: Path) -> None:
    one = role(schedules=[Schedule()])
    complaint = r"state of roles model cannot be saved: \.roles\.model\.others\.schedules\[0\]\.rate must be of tensors"
    with pytest.raises(FlowError, match=complaint):
        save_state(SaveState((df.place(Model),), 1, tmp_path / "s"), lambda _: one, has_process=False)
