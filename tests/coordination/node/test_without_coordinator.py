"""Workers of a coordinator that is gone: they end, and leave, within stated times."""

from __future__ import annotations

import queue

import pytest
import torch

pytest.importorskip("grpc", reason="needs the extra grpc")
from own_coordinators import OwnCoordinators
from waiting import WATCHDOG_S

from softs_fast.coordination.node import Membership, TrainingState, WorkerNode
from softs_fast.coordination.node.link import Patience
from softs_fast.errors import ConfigError, PeerLost


def test_a_worker_that_leaves_waits_ten_seconds_and_one_without_a_coordinator() -> None:
    patience = Patience(100.0)
    assert patience.lasts(105.0, True)
    assert patience.lasts(105.1, False)
    assert patience.lasts(106.0, False)
    assert not patience.lasts(106.1, False)
    # A connection that was made again counts as before.
    assert patience.lasts(106.2, True)
    assert patience.lasts(106.3, False)
    assert not Patience(0.0).lasts(10.0, True)


def test_a_member_without_a_coordinator_ends_after_a_limit(own: OwnCoordinators) -> None:
    address, told = own.serve(), queue.SimpleQueue[str]()
    with Membership(address, job="j", worker_id="w0", on_end=told.put, orphan_s=0.2) as member:
        member.next_epoch(WATCHDOG_S)
        own.stop(address)
        assert "without a coordinator" in told.get(timeout=WATCHDOG_S)
        assert member.is_over
        assert member.fence is not None
        with pytest.raises(PeerLost, match=r"0.2 s without a coordinator.*give more orphan_s="):
            member.next_epoch(WATCHDOG_S)


def test_a_training_without_a_coordinator_ends_after_a_limit(own: OwnCoordinators) -> None:
    address, model = own.serve(), torch.nn.Linear(2, 1)
    state = TrainingState(model, torch.optim.SGD(model.parameters(), 0.1))

    def train(node: WorkerNode) -> None:
        while True:
            with node.step():
                model(torch.ones(2)).backward()
            if node.committed == 1:
                own.stop(address)

    with WorkerNode(address, state, job="j", worker_id="w0", orphan_s=0.2) as node:
        with pytest.raises(PeerLost, match="without a coordinator"):
            train(node)
        assert node.committed > 0


def test_a_limit_is_above_zero() -> None:
    with pytest.raises(ConfigError, match="orphan_s of a worker must be seconds above 0, got 0"):
        Membership("127.0.0.1:1", orphan_s=0.0)
    model = torch.nn.Linear(2, 1)
    state = TrainingState(model, torch.optim.SGD(model.parameters(), 0.1))
    for join_s in (0.0, float("nan")):
        with pytest.raises(ConfigError, match=f"join_s of a worker must be seconds above 0, got {join_s}"):
            WorkerNode("127.0.0.1:1", state, join_s=join_s)
