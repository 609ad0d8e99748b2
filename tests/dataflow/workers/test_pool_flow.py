"""Pools in flows: the bits are those of one replica, whatever dies, and a replica that joins again has the newest weights."""

from __future__ import annotations

import functools
import logging
import re
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from flow_processes import in_forks
from flow_threads import in_threads, when
from flows import Linear, losses, numbers, post

import softs_fast.dataflow as df
from softs_fast.dataflow.link.messages import Result
from softs_fast.errors import FlowError

POOL = (1, 2, 3)


class Policy(Linear):
    """Notes which replica has made a row."""

    def generate(self, rows: df.Rows) -> dict[str, Any]:
        if _worker() == 2:
            self.may_die("main")
        return {**super().generate(rows), "maker": torch.full((rows.n_rows,), _worker())}

    def train(self, rows: df.Rows) -> dict[str, Any]:
        made = {f"by {maker}": rows["maker"].eq(maker).sum() for maker in POOL}
        return {**super().train(rows), **made}


def _worker() -> int:
    """Return the number of the worker that this thread is; 0 in a flow in one process."""
    name = threading.current_thread().name
    return int(name.removeprefix("softs-flow-")) if name.startswith("softs-flow-") else 0


def make_pooled(
    marks: str = "", n_replicas: int = 3, journal: str = "", n_rows: int | None = None, max_failed: int = 0
) -> df.Flow:
    """Return a flow of which a pool of replicas generates.

    Args:
        marks: Path of a file for the note that the replica on worker 2 has ended its own process; empty: it does not.
        n_replicas: Number of replicas of the pool.
        journal: Folder of the journal, which saves each step.
        n_rows: Number of rows of the source; None: it has no end.
        max_failed: `max_failed` of the flow.
    """
    policy = type("Policy", (Policy,), {"marks": Path(marks), "place": "main" if marks else ""})
    actor = df.place(policy, name="actor")
    gen = df.place(policy, pool=POOL[:n_replicas], follows=actor, name="gen")
    calls = [
        df.call(gen.generate, "x -> y, maker", rows=2),
        df.call(actor.train, "x, y, maker", rows=16, after=[df.publish(gen)]),
    ]
    kept = df.Journal(journal, save_every=1) if journal else None
    source = numbers(n_rows and n_rows // 2)
    return df.Flow(calls, source=source, group=2, journal=kept, max_failed=max_failed)


@pytest.fixture(scope="module")
def of_one() -> list[Any]:
    with make_pooled(n_replicas=1) as flow:
        return losses(flow, 100)


def assert_joins(flow: df.Flow, worker: int, wanted: list[Any]) -> None:
    """Run a flow until a replica that was away has made rows in three steps, with the weights that it should have."""
    n_made = 0
    for step, one in zip(flow.steps(), wanted, strict=False):
        assert (step.number, step.n_rows, step["actor.train"]["loss"]) == one
        n_made += bool(step["actor.train"][f"by {worker}"])
        if n_made == 3:
            return
    raise AssertionError(f"worker {worker} has made rows in {n_made} of {len(wanted)} steps")


def makes_rows(of: int) -> Any:
    """Return a test of messages: a replica has made rows."""
    return lambda worker, message: worker == of and isinstance(message, Result) and bool(message.columns)


def test_the_bits_are_those_of_one_replica(of_one: list[Any]) -> None:
    with make_pooled() as flow:
        assert losses(flow, 4) == of_one[:4]
    flow, _ = in_threads(make_pooled)
    with flow:
        found = []
        for step in flow.steps(4):
            found.append((step.number, step.n_rows, step["actor.train"]["loss"]))
            assert all(step["actor.train"][f"by {worker}"] for worker in POOL)
    assert found == of_one[:4]


@pytest.mark.parametrize("n_restarts", [0, 1])
def test_the_calls_of_a_replica_that_dies_are_made_by_others(
    of_one: list[Any], caplog: pytest.LogCaptureFixture, n_restarts: int
) -> None:
    flow, workers = in_threads(make_pooled)
    workers.left = n_restarts
    with caplog.at_level(logging.WARNING), flow:
        killed = when(workers.hub, makes_rows(2), lambda: workers.hub.kill(2))
        assert losses(flow, 2) == of_one[:2]
        assert killed.is_set()
        if n_restarts:
            assert_joins(flow, 2, of_one[2:])
        else:
            assert losses(flow, 3) == of_one[2:5]
        assert flow.ask("stats")["restarts"] == n_restarts
        assert flow.ask("model_config", role=flow.declaration.calls[0].model_name) == {"name": "gen"}
    (lost,) = [one.getMessage() for one in caplog.records if "is lost" in one.getMessage()]
    assert re.search(r"main of gen\.generate \(call \d+\), was open there", lost)
    assert lost.endswith("it is started again" if n_restarts else "others go on without it")


def test_the_last_replica_that_leaves_ends_the_flow(of_one: list[Any]) -> None:
    flow, workers = in_threads(make_pooled)
    with flow:
        for worker in (1, 3):
            workers.hub.kill(worker)
        assert losses(flow, 2) == of_one[:2]
        workers.hub.kill(2)
        with pytest.raises(FlowError, match="worker 2 is lost"):
            losses(flow, 1)


def test_a_replica_that_was_given_up_may_join_later(of_one: list[Any]) -> None:
    flow, workers = in_threads(make_pooled)
    with flow:
        workers.hub.kill(1)
        assert losses(flow, 1) == of_one[:1]
        workers.left = 1
        assert workers.restarts(1)
        assert_joins(flow, 1, of_one[1:])


def test_the_end_does_not_wait_for_a_replica_that_is_started_again(of_one: list[Any]) -> None:
    flow, workers = in_threads(functools.partial(make_pooled, n_rows=20))
    workers.restarts = lambda worker: True  # type: ignore[method-assign]
    with flow:
        workers.hub.kill(1)
        assert [n_rows for _, n_rows, _ in losses(flow, None)] == [16, 4]


@pytest.mark.parametrize("max_failed", [0, 1])
def test_a_row_that_ends_replicas_fails_before_it_has_ended_all(max_failed: int) -> None:
    flow, workers = in_threads(functools.partial(make_pooled, n_rows=32, max_failed=max_failed))
    workers.left = 10
    n_killed = 0

    def kill(worker: int, message: Any) -> None:
        nonlocal n_killed
        if isinstance(message, Result) and message.columns and 5 in message.ids:
            n_killed += 1
            workers.hub.kill(worker)

    workers.hub.on_message = kill
    with flow:
        if max_failed:
            assert [n_rows for _, n_rows, _ in losses(flow, None)] == [16, 14]
        else:
            with pytest.raises(
                FlowError, match=r"1 groups have failed .* main of gen\.generate .* was open there"
            ):
                losses(flow, None)
    assert n_killed == 3


def test_what_is_posted_by_hand_does_not_wait_for_a_replica_that_has_left() -> None:
    flow, workers = in_threads(make_pooled)
    gen = flow.declaration.calls[0].model_name
    assert gen is not None
    with flow:
        workers.hub.kill(1)
        losses(flow, 1)
        for call in [post(flow, df.publish(gen)), post(flow, df.offload(gen))]:
            call.result(timeout_s=30.0)


def test_a_flow_goes_on_from_a_save_that_was_made_while_a_replica_was_away(
    tmp_path: Path, of_one: list[Any]
) -> None:
    def make() -> df.Flow:
        return make_pooled(journal=str(tmp_path / "journal"))

    flow, workers = in_threads(make)
    with flow:
        assert losses(flow, 1) == of_one[:1]
        workers.hub.kill(2)
        assert losses(flow, 3) == of_one[1:4]
    flow, _ = in_threads(make)
    with flow:
        assert losses(flow, 6) == of_one[4:6]


def test_the_program_of_the_page_runs(tmp_path: Path) -> None:
    text = Path("docs/dataflow_failures.md").read_text().partition("## Pools")[2]
    found: dict[str, Any] = {"__name__": "pool"}
    exec(text.partition("```python\n")[2].partition("```")[0], found)
    with found["make_flow"]() as flow:
        assert [step.n_rows for step in flow.steps()] == [32, 32]


def test_sigkill_of_a_replica_within_a_call(tmp_path: Path, of_one: list[Any]) -> None:
    flow, _ = in_forks("test_pool_flow", "make_pooled", max_restarts=1, marks=str(tmp_path / "marks"))
    with flow:
        assert losses(flow, 1) == of_one[:1]
        while flow.ask("stats")["restarts"] == 0:
            losses(flow, 1)
    assert (tmp_path / "marks").read_text() == "main\n"
