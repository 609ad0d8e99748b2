"""What an optimizer keeps is copied for a checkpoint beside the next step, and is whole before anything changes it."""

from __future__ import annotations

import copy
import functools
import threading
import time
from concurrent.futures import Executor, Future
from typing import Any

import pytest
import torch
from fork_check import check_fork
from waiting import WATCHDOG_S

from softs_fast.coordination.node import TrainingState
from softs_fast.job.whole_state import WholeState


class Held(Executor):
    """Runs what it is given when it is told to."""

    def submit(self, work: Any, /, *args: Any, **options: Any) -> Future[Any]:
        self._future: Future[Any] = Future()
        self._work = functools.partial(work, *args, **options)
        return self._future

    def run(self) -> None:
        self._future.set_result(self._work())


class InPlace(torch.optim.Adam):
    """Loads a state into the tensors that it has."""

    def load_state_dict(self, state_dict: Any) -> None:
        for own, loaded in zip(self.state.values(), state_dict["state"].values(), strict=True):
            for name, one in own.items():
                one.copy_(loaded[name])


@pytest.mark.parametrize("change", ["step", "function", "load"])
def test_what_an_optimizer_keeps_may_be_copied_until_it_is_changed(change: str) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = InPlace(model.parameters())

    def without_a_step() -> None:
        for moments in optimizer.state.values():
            moments["exp_avg"].zero_()

    state = TrainingState(model, optimizer, apply=without_a_step if change == "function" else None)

    def backward() -> None:
        model(torch.ones(1, 3)).sum().backward()

    backward()
    optimizer.step()
    expected = {place: one.clone() for place, one in state.tensors().items()}
    other = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    for moments in other["optimizer"]["state"].values():
        moments["exp_avg"].zero_()
    held = Held()
    with WholeState(state).opened():
        _, copies = state.snapshot({}, held)
        # The weights are in the snapshot already.
        model.weight.data.zero_()
        backward()
        check_fork(then=optimizer.step)
        assert copy.deepcopy(state).tensors().keys() == expected.keys()
        changes = threading.Thread(
            target={"step": optimizer.step, "load": lambda: state.load(other)}.get(change, state.apply)
        )
        changes.start()
        time.sleep(0.05)
        held.run()
        changes.join(WATCHDOG_S)
        assert not changes.is_alive()
        state.copied()
    assert copies.keys() == expected.keys()
    for place, one in expected.items():
        assert torch.equal(copies[place], one), place
    assert not torch.equal(optimizer.state[model.weight]["exp_avg"], copies["optimizer.state.0.exp_avg"])
