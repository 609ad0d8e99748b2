"""The source of a copy beside steps, with followers that receive as fast as a test lets them."""

from __future__ import annotations

import threading
from typing import Any

import torch
from waiting import WATCHDOG_S

from softs_fast.coordination.node import TrainingState
from softs_fast.coordination.node.serving import Serving
from softs_fast.coordination.node.state_tree import encode_tree
from softs_fast.errors import PeerLost


class Followers:
    """A channel to followers, and its engine."""

    source = rank = 0

    def __init__(self, *, receive: bool) -> None:
        self.sent: list[torch.Tensor] = []
        self.is_closed = False
        self._may_go_on = threading.Event()
        self._is_over = False
        if receive:
            self._may_go_on.set()

    def open(self) -> Followers:
        return self

    def broadcast_tensor(self, tensor: torch.Tensor, root: int) -> None:
        assert self._may_go_on.wait(WATCHDOG_S)
        if self._is_over:
            raise PeerLost("the channel has ended")
        self.sent.append(tensor.clone())

    def barrier(self) -> None:
        pass

    def end(self, reason: str) -> None:
        self._is_over = True
        self._may_go_on.set()

    def close(self) -> None:
        self.is_closed = True


def begin(followers: Any, failed: list[str]) -> tuple[Serving, TrainingState]:
    """Return a source that has begun no step."""
    model = torch.nn.Linear(2, 1)
    state = TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return Serving(followers, state, failed.append), state


def wait(serving: Serving, phase: str) -> None:
    with serving._changed:
        assert serving._changed.wait_for(lambda: serving._phase == phase, WATCHDOG_S)


def test_steps_of_a_small_model_that_wait_are_bounded_and_the_end_frees_them() -> None:
    failed: list[str] = []
    followers = Followers(receive=False)
    serving, state = begin(followers, failed)
    serving.begin(0)
    wait(serving, "warm")
    serving.begin(0)
    n_steps = 0
    while not failed and n_steps < 10_000:
        n_steps += 1
        state.model(torch.ones(1, 2)).sum().backward()
        serving.apply(n_steps, is_last=False)
        state.apply()
    assert n_steps == 257
    assert "the followers are slower than the members" in failed[0]
    serving.close()
    assert followers.is_closed
    assert not serving._queue
    assert not serving._memory


def test_an_engine_is_made_once_a_step_begins_so_never_beside_that_of_the_epoch() -> None:
    failed: list[str] = []
    serving, _ = begin(Followers(receive=True), failed)
    assert serving._thread.ident is None
    serving.apply(1, is_last=True)
    serving.begin(1)
    assert serving._thread.ident is None, "no step follows in this epoch"
    serving.close()
    assert not failed


def test_followers_are_told_of_the_end_of_an_epoch_before_the_snapshot() -> None:
    failed: list[str] = []
    followers = Followers(receive=True)
    serving, _ = begin(followers, failed)
    serving.begin(0)
    wait(serving, "warm")
    serving.apply(1, is_last=True)
    serving._thread.join(WATCHDOG_S)
    assert not serving._thread.is_alive()
    assert bytes(followers.sent[-1].tolist()) == encode_tree(None)[0]
    assert len(followers.sent) == 2
    assert followers.is_closed
    assert not failed
