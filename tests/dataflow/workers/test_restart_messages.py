"""A worker without training state is lost at any message, and started again: training has the same bits."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from flow_threads import ThreadWorkers, in_threads
from flows import ROWS, called, losses, numbers
from restart_flow import Model, in_order, make_restarting

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.declaration import Declaration, restartable
from softs_fast.errors import ConfigError


def kill_at(workers: ThreadWorkers, worker: int, n: int, n_times: int = 1) -> None:
    """Have a worker end before its n-th message arrives, and before each n-th of its successors."""
    left = [n, n_times]

    def look(sender: int, message: Any) -> None:
        if sender != worker or not left[1]:
            return
        left[0] -= 1
        if left[0] < 0:
            left[:] = [n, left[1] - 1]
            workers.hub.kill(worker)

    workers.hub.on_message = look


@pytest.mark.parametrize(("worker", "n_times"), [(1, 1), (2, 2)])
def test_a_death_at_each_message_changes_no_bit(worker: int, n_times: int) -> None:
    with make_restarting() as flow:
        undisturbed = losses(flow, 3)
    for n in range(1, 100):
        flow, workers = in_threads(make_restarting)
        workers.left = 5
        with flow:
            kill_at(workers, worker, n, n_times)
            assert losses(flow, 3) == undisturbed
            # The last one may not be there again.
            assert flow.ask("stats")["restarts"] in (5 - workers.left, 4 - workers.left)
        if workers.left == 5:
            assert n > 3
            return
    pytest.fail("the worker died each time")


@pytest.mark.parametrize("n", range(1, 12, 2))
def test_a_flow_that_runs_ahead_keeps_order_and_age(n: int) -> None:
    flow, workers = in_threads(functools.partial(make_restarting, max_age=1))
    workers.left = 5
    with flow:
        kill_at(workers, 1 + n % 2, n, 2)
        steps = list(flow.steps(5))
        trained = [call.ids for step in steps for call in step.calls if call.function == "actor.train"]
        assert [list(ids) for ids in trained] == in_order(5)
        assert [step.n_rows for step in steps] == [ROWS] * 5
        assert max(step.age_max for step in steps) <= 1
        assert workers.left < 5


class Scorer(df.Role):
    """Drops rows the second time that it sees them."""

    seen: set[int] = set()  # noqa: RUF012 - of all objects of the role

    def score(self, rows: df.Rows) -> dict[str, Any]:
        rows.drop([i for i in range(rows.n_rows) if rows.ids[i] in self.seen], "again")
        self.seen.update(int(row) for row in rows.ids)
        return {"score": rows["x"].sum(dim=1)}


def test_what_training_has_used_is_not_made_again_and_others_go_without() -> None:
    scorer_class = type("Scorer", (Scorer,), {"seen": set()})

    def make() -> df.Flow:
        first = df.place(Model, name="first")
        second = df.place(Model, name="second", on=[1])
        scorer = df.place(scorer_class, on=[2], name="scorer")
        calls = [
            df.call(scorer.score, "x -> score", rows=4),
            df.call(first.read, "score", rows=4, interface=df.Interface.TRAIN_STEP),
            df.call(second.late, "x, score", rows=4, interface=df.Interface.TRAIN_STEP),
        ]
        return df.Flow(calls, source=numbers())

    flow, workers = in_threads(make)
    workers.left = 1
    with flow:
        # The second training function gets its rows when the first one has used them, and the scorer has gone.
        ids = flow.fetch(4)
        for function in ("scorer.score", "first.read"):
            called(flow, function, ids)
        workers.hub.kill(2)
        called(flow, df.offload(flow.declaration.roles[1]))  # so its end is known before the next call
        with pytest.raises(ConfigError, match=r"row 0 has no column 'score'; it has \['x'\]"):
            flow.values(ids, "score")
        # That no row is left of the step is found in a turn in which nothing else happens.
        while flow.ask("stats")["restarts"] < 1 or flow._session.runner.master.order.away:
            flow._session.runner.advance(automatic=False)
        (step,) = flow.steps(1)
        assert step.dropped == {}
        assert step.calls == ()
        stats = flow.ask("stats")
        assert (stats["made_again"], stats["left_out"]) == (0, 4)


def test_what_was_loaded_is_loaded_again(tmp_path: Any) -> None:
    def make() -> df.Flow:
        actor = df.place(Model, name="actor")
        ref = df.place(Model, on=[1], frozen=True, name="ref")
        calls = [
            df.call(ref.weigh, "x -> y", rows=4),
            df.call(actor.late, "y", rows=4, after=[df.save(tmp_path)]),
        ]
        return df.Flow(calls, source=numbers())

    flow, workers = in_threads(make)
    workers.left = 1
    actor, ref = (flow.declaration.roles[i] for i in (1, 0))
    with flow:
        before = [step["ref.weigh"]["sum"] for step in flow.steps(1)]
        (tmp_path / "ref").symlink_to(tmp_path / "actor")
        assert (actor.name, ref.name) == ("actor", "ref")
        flow.load(ref, tmp_path)
        loaded = [step["ref.weigh"]["sum"] for step in flow.steps(1)]
        workers.hub.kill(1)
        assert [step["ref.weigh"]["sum"] for step in flow.steps(1)] == loaded != before
        assert flow.ask("stats")["restarts"] == 1


def test_workers_with_training_state_are_none_that_can_be_started_again() -> None:
    def workers(*after: df.MFCDef | Any, layout: str = "dp1") -> frozenset[int]:
        actor = df.place(Model, name="actor")
        calls = [
            df.call(gen.generate, "x -> y", rows=4),
            df.call(average.score, "x, y -> score", rows=4),
            df.call(actor.train, "y, score", rows=4),
        ]
        gens = df.place(Model, layout, on=[1, 3] if layout == "dp2" else [1], follows=actor, name="gen")
        calls[0] = df.call(gens.generate, "x -> y", rows=4)
        calls[2] = df.call(
            actor.train, "y, score", rows=4, after=[df.publish(gens), *(one(actor) for one in after)]
        )
        return restartable(Declaration(tuple(calls)))

    gen = df.place(Model, on=[1], name="other")
    average = df.place(Model, on=[2], name="average")
    assert workers() == {1, 2}
    assert workers(lambda actor: df.param_realloc(actor, average, eta=0.5)) == {1}
    assert workers(lambda actor: df.param_realloc(average, actor)) == {1}
    assert workers(layout="dp2") == {2}
