"""A worker that does not have the weights of a step never says that it has: it copies them, or ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lone_worker import Worker

from softs_fast.coordination.job import messages as m
from softs_fast.errors import ConfigError, PeerLost
from softs_fast.loader import ranks as loader_ranks

#: What a worker without valid weights says, so that no other one takes it for new.
LOST = m.WorkerState(boot=7)


def sent_to(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the worker copy a state of zeros."""
    zeros = {name: torch.zeros_like(one) for name, one in worker.model.state_dict().items()}
    states = {"model": zeros, "optimizer": worker.state.optimizer.state_dict()}
    monkeypatch.setattr(worker.state, "receive", lambda strategy, source, **_: states)


def test_a_step_that_cannot_be_applied_is_a_fault_and_the_weights_are_copied(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.fails_in = "apply"
    with pytest.raises(FloatingPointError, match="a defect"):
        worker.step()
    assert worker.said == LOST, "it is no survivor"
    assert worker.node.not_ready
    assert all(one.grad is None for one in worker.model.parameters())
    worker.fails_in = None
    sent_to(worker, monkeypatch)
    worker.open(2, 2, (1,), 1)
    assert worker.said == m.WorkerState(7, 2, 2)
    assert all(not one.any() for one in worker.model.parameters())
    assert worker.step()


def test_a_source_that_is_interrupted_before_it_applies_a_step_has_lost_the_weights(worker: Worker) -> None:
    """All others apply it."""

    def apply(step: int, *, is_last: bool) -> None:
        raise KeyboardInterrupt

    serving: Any = SimpleNamespace(begin=lambda committed: None, apply=apply, end=lambda reason: None)
    worker._link.serving = serving
    with pytest.raises(KeyboardInterrupt):
        worker.step()
    assert worker.said == LOST


def test_a_checkpoint_of_a_worker_that_has_raised_does_not_count(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """It is what many programs write when they have caught an error: without a word they would believe in it."""
    worker.fails_in = "apply"
    with pytest.raises(FloatingPointError):
        worker.step()
    with worker.node.checkpoint("/ckpt"):
        pass
    assert "checkpoint /ckpt of step 0 does not count: this worker is in no epoch" in caplog.text


def test_a_worker_that_leaves_after_its_own_error_says_that_it_has_no_engine(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its `close`, and the others, would wait for it."""
    worker.fails_in = "apply"
    with pytest.raises(FloatingPointError):
        worker.step()
    worker._listener.hello()
    said: list[Any] = []

    def send(message: Any) -> None:
        said.append(type(message))
        if isinstance(message, m.Ready):
            worker._listener.received(m.Refused("ended", "seat 0 has left the job"))

    monkeypatch.setattr(worker._link.session, "send", send)
    worker.node.close()
    assert said == [m.Leave, m.Ready]


def test_a_worker_that_was_told_to_leave_begins_no_step_after_its_epoch(worker: Worker) -> None:
    """It could not: `step` would raise that it leaves."""
    worker.node.leave("SIGTERM")
    assert not worker.node.is_leaving, "the others are to know"
    worker.fence(1)
    assert worker.node.is_leaving


def test_weights_that_were_lost_are_never_a_source(worker: Worker) -> None:
    worker.fails_in = "apply"
    with pytest.raises(FloatingPointError):
        worker.step()
    # No worker had any, and the coordinator begins anew with those of the lowest rank.
    with pytest.raises(ConfigError, match="no worker has valid weights from which this one could copy"):
        worker.open(2, 0, (0,), 0)
    assert worker.said == LOST


def test_a_step_in_doubt_that_cannot_be_applied_is_a_fault(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_lost(tensor: Any, op: Any) -> None:
        # The fence comes, so it does not wait for another table here.
        raise PeerLost("a rank is lost")

    monkeypatch.setattr(worker.engine, "all_reduce", is_lost)
    monkeypatch.setattr(worker.node, "_settle", lambda step: False)
    assert not worker.step()
    assert worker.said.in_doubt
    worker.fails_in = "apply"
    with pytest.raises(FloatingPointError):
        worker.open(2, 2, (0,), 0)
    assert worker.said == LOST


def test_weights_that_were_copied_count_from_then_on(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the epoch ends before its first step: they are not those of the step that the worker had."""
    worker.fence(1)
    sent_to(worker, monkeypatch)
    worker.engine.is_lost = True
    worker.open(2, 9, (1,), 1)
    assert worker.said == m.WorkerState(7, 2, 9)


def test_weights_from_an_engine_of_some_count_once_that_of_all_is_there(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the epoch ends before, those that have had them go on, and copy nothing from this worker."""
    worker.fence(1)
    sent_to(worker, monkeypatch)
    monkeypatch.setattr(worker.engine, "close", lambda: setattr(worker.engine, "is_lost", True))
    worker.open(2, 9, (1, 2), 1, size=3)
    assert worker.said == LOST


def test_weights_that_were_copied_in_part_do_not_count(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.fence(1)
    monkeypatch.setattr(worker.state, "receive", lambda strategy, source, **_: {"model": {}, "optimizer": {}})
    with pytest.raises(ConfigError, match='does not fit "model"'):
        worker.open(2, 9, (1,), 1)
    assert worker.said == LOST


@pytest.mark.parametrize("fails_in", ["load", "barrier", None])
def test_a_checkpoint_counts_when_all_have_loaded_it(worker: Worker, fails_in: str | None) -> None:
    """Each member verifies some of the files, so one alone does not know that it has whole ones."""
    worker.fence(1)
    worker.fails_in, worker.engine.is_lost = fails_in, fails_in == "barrier"
    if fails_in == "load":
        with pytest.raises(FloatingPointError):
            worker.open(2, 9, (), None)
    else:
        worker.open(2, 9, (), None)
    assert worker.said == (LOST if fails_in else m.WorkerState(7, 2, 9))


def test_loaders_take_the_samples_of_the_worker(worker: Worker) -> None:
    assert loader_ranks.ranks_of_process() == (0, 2)
    worker.fence(1)
    worker.engine.rank, worker.engine.size = 2, 3
    worker.open(2, 1, (0, 1), 0)
    assert loader_ranks.ranks_of_process() == (2, 3)
    worker.node.close()
    assert loader_ranks.ranks_of_process() == (0, 1)


def test_a_body_that_raises_leaves_no_gradients_for_the_next_one(worker: Worker) -> None:
    def body() -> None:
        with worker.node.step():
            worker.model(torch.ones(1, 2)).sum().backward()
            raise ValueError("a batch that does not fit")

    with pytest.raises(ValueError, match="a batch"):
        body()
    assert all(one.grad is None for one in worker.model.parameters())


def test_a_source_goes_on_if_another_worker_cannot_copy(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The state has become one that cannot be sent."""
    worker.fence(1)
    monkeypatch.setattr(worker.state, "send", lambda strategy, **_: "a deque")
    worker.open(2, 1, (0,), 0)
    assert worker.said == m.WorkerState(7, 2, 1)
    assert "a new worker cannot copy the state of this one: a deque" in caplog.text
    assert worker.step()


@pytest.mark.parametrize(
    ("survivors", "source", "beside", "copies"),
    [
        ((0, 1), 0, ["w0", "w2"], ["send"]),
        ((0, 1), 1, [], []),
        ((1, 2), 1, ["w0", "w1"], ["receive"]),
        ((1, 2), 2, ["w0", "w2"], ["receive"]),
        # All take part, so they need no engine of their own.
        ((1,), 1, [], ["receive"]),
        ((0, 1, 2), 0, [], []),
        ((), None, [], []),
    ],
)
def test_only_workers_that_lack_the_state_copy_it(
    worker: Worker,
    monkeypatch: pytest.MonkeyPatch,
    survivors: tuple[int, ...],
    source: int | None,
    beside: list[str],
    copies: list[str],
) -> None:
    """The others neither send nor receive any of it."""
    worker.fence(1)
    worker.made.clear()
    worker.engine.calls.clear()
    done: list[str] = []
    states = {"model": worker.model.state_dict(), "optimizer": worker.state.optimizer.state_dict()}

    def receive(strategy: Any, root: int, *, is_follower: bool) -> Any:
        assert not is_follower
        assert [f"w{rank}" for rank in range(3) if rank in (source, 0)][root] == f"w{source}" or not beside
        done.append("receive")
        return states

    def send(strategy: Any, *, to_followers: bool) -> str:
        assert not to_followers
        done.append("send")
        return ""

    monkeypatch.setattr(worker.state, "send", send)
    monkeypatch.setattr(worker.state, "receive", receive)
    worker.open(2, 1, survivors, source, size=3)
    every = ("", ["w0", "w1", "w2"])
    assert worker.made == ([("copy/", beside), every] if beside else [every])
    assert done == copies
    # No rank closes its engine before the others have all of the state.
    assert worker.engine.calls == (["barrier", "close", "barrier"] if beside else ["barrier"])
    assert worker.said == m.WorkerState(7, 2, 1)


def test_a_loss_in_the_engine_of_a_copy_names_the_rank_of_the_epoch(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.fence(1)
    worker.engine.is_lost, worker.engine.lost = True, [1]
    monkeypatch.setattr(worker.state, "send", lambda strategy, **_: "")
    worker.open(2, 1, (0, 1), 0, size=3)
    fault = worker._link.machine._fault
    assert fault is not None
    assert fault.accused_rank == 2, "rank 1 of the source and the new worker"


def test_a_state_that_fails_after_the_first_step_does_not_end_a_worker_that_is_well(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def state_dict() -> Any:
        raise AttributeError("a defect of the optimizer")

    worker = Worker(monkeypatch)
    monkeypatch.setattr(worker.state.optimizer, "state_dict", state_dict)
    worker.open(1, 0, (0, 1), 0)
    assert worker.step()
    assert "could not copy the state of this training: a defect of the optimizer" in caplog.text


# --- Gradients that the body reduces ---


def test_gradients_that_the_body_has_reduced_are_reduced_once(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    reduced: list[Any] = []
    monkeypatch.setattr(
        worker.engine, "all_reduce_gradients", lambda gradients, op: reduced.append(gradients)
    )
    with worker.node.step() as step:
        step.backward(worker.model(torch.ones(1, 2)).sum())
        assert len(reduced) == 1
    assert step.is_committed
    assert len(reduced) == 1


def test_a_collective_in_a_backward_pass_that_reduces_is_refused(worker: Worker) -> None:
    hidden = worker.model(torch.ones(1, 2))
    hidden.register_hook(lambda _: worker.node.strategy.barrier())  # type: ignore[union-attr]
    with (
        pytest.raises(ConfigError, match=r"is called during step.backward\(\)"),
        worker.node.step() as step,
    ):
        step.backward(hidden.sum())


def test_a_collective_while_a_step_is_applied_is_made(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker.state, "_apply", lambda: worker.node.strategy.barrier())  # type: ignore[union-attr]
    worker.engine.calls.clear()
    assert worker.step()
    assert "barrier" in worker.engine.calls
