"""An order waits for values of another node, and the worker that has made them dies: its rows are made again."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from flow_threads import ThreadWorkers
from flows import Light, counted
from waiting import eventually

import softs_fast.dataflow as df
from softs_fast.dataflow.workers.processes import ProcessBackend

ROWS = 4


class Reader(Light):
    """Says what it has read, and may do something before."""

    before: Callable[[], None] = staticmethod(lambda: None)

    def read(self, rows: df.Rows) -> dict[str, float]:
        self.before()
        return super().read(rows)


class TwoNodes:
    """The master has the generator on its node, and both readers on another one; their stores are all on this host."""

    def links(self) -> Any:
        return None

    def nodes(self) -> dict[int, str]:
        return {0: "near", 1: "far", 2: "far"}

    def free_bytes(self) -> int:
        return 1 << 30


def make(first: type[Reader], *, brings: bool) -> df.Flow:
    # It has no state of training, so it is started again.
    generator = df.place(Light, frozen=True, name="generator")
    readers = [
        df.place(kind, on=[worker], frozen=True, name=f"reader{worker}")
        for worker, kind in ((1, first), (2, Reader))
    ]
    before = [df.data_transfer()] if brings else []
    inference = df.Interface.INFERENCE
    calls = [df.call(generator.double, "x -> y", rows=ROWS, interface=inference)]
    calls += [df.call(one.read, "y", rows=ROWS, before=before, interface=inference) for one in readers]
    return df.Flow(calls, source=counted())


def sums(brings: bool, kill_in: int | None) -> tuple[list[tuple[float, float]], int]:
    """Run three steps; returns what was read in each, and how often a worker was started again.

    Args:
        brings: whether rows are brought before a call.
        kill_in: call of the first reader in which the generator dies, from 0; None: in none.
    """
    n_calls = itertools.count()

    def kill() -> None:
        """The order of the second reader waits for what this one gets: the generator dies before that has ended."""
        if next(n_calls) == kill_in:
            orders = flow._backend._sends._steps  # type: ignore[attr-defined]
            eventually(lambda: orders.get(2), "the order of the second reader")
            workers.hub.kill(0)

    first = type("First", (Reader,), {"before": staticmethod(kill)})
    flow = make(first, brings=brings)
    declaration = flow.declaration
    workers = ThreadWorkers(
        lambda: make(first, brings=brings).declaration, declaration.lines(), declaration.workers
    )
    workers.left = 1
    flow._use(ProcessBackend(declaration, workers, TwoNodes()))
    with flow:
        found = [(step["reader1.read"]["sum"], step["reader2.read"]["sum"]) for step in flow.steps(3)]
        return found, flow.ask("stats")["restarts"]


def test_an_order_that_waits_runs_again_if_its_values_are_lost() -> None:
    undisturbed, n_restarts = sums(False, None)
    assert (undisturbed, n_restarts) == ([(12.0, 12.0), (44.0, 44.0), (76.0, 76.0)], 0)
    assert sums(False, 1) == (undisturbed, 1)


def test_a_transfer_that_waits_is_no_error_if_its_values_are_lost() -> None:
    undisturbed, _ = sums(True, None)
    assert sums(True, 1) == (undisturbed, 1)
