"""Whether expected times of steps choose better orders: `python -m benches.dataflow_order [--flows 200] [--steps 0]`.

Expected times are the constants (1 s for a main part, 0.1 s for a hook), medians of what was measured so far, the exact
times, or random ones. Printed is the time for all as a quotient with that of the constants: median, mean, 5 and 95 percent,
and in how many runs it is below 0.99 or above 1.01. Durations vary by 20 %, and are the same in each of the four.

* Random flows in virtual time: 3 to 7 functions of 0.05 to 2 s on 2 to 8 workers that roles share, `ahead=1`, training
  that publishes to a generator.
* Flushes in virtual time: 12 calls of such functions that are posted by hand and flushed together.
* With `--steps N`, a flow of N steps of functions that sleep, with a process for each worker: seconds of a step, in turns.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count, pairwise
from typing import Any
from unittest.mock import patch

import torch

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.plan import FlowPlan, FunctionPlan, PartitionPlan
from softs_fast.dataflow.engine.row_moves import steps_of
from softs_fast.dataflow.master.master import Master
from softs_fast.dataflow.master.order.executor import Executor
from softs_fast.dataflow.master.order.steps import Abort, CallState, Kind, Step
from softs_fast.dataflow.master.rows.table import Taken

N_STEPS, N_POSTED = 12, 12
MODES = ("constants", "measured", "exact", "random")
#: Seconds of a message between master and worker, and the share by which a duration varies.
MESSAGE_S, NOISE = 0.001, 0.2


class Random:
    """A random flow: its plan, and how long each function and hook takes."""

    def __init__(self, seed: int) -> None:
        choice = random.Random(seed)
        n_workers, n_middle = choice.randint(2, 8), choice.randint(1, 4)
        group_steps = choice.choice([4, 8])
        columns, functions = ["source"], []
        self.seconds: dict[str, float] = {}

        def workers() -> tuple[int, ...]:
            return tuple(sorted(choice.sample(range(n_workers), choice.randint(1, min(4, n_workers)))))

        def add(
            name: str, inputs: tuple[str, ...], outputs: tuple[str, ...], size: int, strict: bool
        ) -> None:
            functions.append(FunctionPlan(name, workers(), inputs, outputs, size, size, is_strict=strict))
            self.seconds[name] = 0.05 * 40 ** choice.random()

        add("generate", ("source",), ("c0",), choice.choice([1, 2, 4]), False)
        columns.append("c0")
        for i in range(1, n_middle + 1):
            inputs = tuple({"c0", choice.choice(columns[1:])})
            add(f"f{i}", inputs, (f"c{i}",), choice.choice([1, 2, group_steps]), False)
            columns.append(f"c{i}")
        for i in range(choice.randint(1, 2)):
            add(f"train{i}", tuple(columns[1:]), (), group_steps, True)
        partition = PartitionPlan("train", group_steps, 2 * group_steps, 1)
        self.plan = FlowPlan(tuple(functions), {"train": partition}, {"train": ("source",)})
        self.hook_s = 0.01 * 20 ** choice.random()
        self.first = functions[0]

    def steps(self, function: FunctionPlan, expected: Callable[[str], float]) -> tuple[Step, ...]:
        """Return the steps of a call."""
        own = frozenset(function.workers)
        main = Step(Kind.MAIN, own, function.name, expected(function.name))
        if not function.is_strict:
            return (main,)
        both = own | frozenset(self.first.workers)
        return (main, Step(Kind.POST, both, "publish", expected("publish")))


class World:
    """Runs a random flow in virtual time with one set of expected times."""

    def __init__(self, flow: Random, mode: str, seed: int) -> None:
        self.flow, self.mode = flow, mode
        self.random = random.Random(seed)
        self.measured: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=32))
        self.exact = {**flow.seconds, "publish": flow.hook_s}
        numbers = {worker for one in flow.plan.functions for worker in one.workers}
        self.master = Master(flow.plan, self.steps_of, sorted(numbers))
        self.workers = {number: Executor() for number in numbers}
        self.inside: dict[int, set[int]] = defaultdict(set)
        self.now_s, self.left = 0.0, N_STEPS * flow.plan.partitions["train"].groups_per_step
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = count()
        #: A call of one number takes the same time in each mode.
        self.calls: dict[str, Iterator[int]] = defaultdict(count)

    def expected(self, name: str) -> float:
        """Return the expected time of a function or hook."""
        constant = 0.1 if name == "publish" else 1.0
        if self.mode == "exact":
            return self.exact[name]
        if self.mode == "measured" and self.measured[name]:
            return statistics.median(self.measured[name])
        return self.random.uniform(0.01, 2.0) if self.mode == "random" else constant

    def steps_of(self, function: FunctionPlan, taken: Taken) -> tuple[Step, ...]:
        """Return the steps of a call."""
        return self.flow.steps(function, self.expected)

    def run(self) -> float:
        """Return when the last step was complete."""
        self.act()
        while self.events:
            self.now_s, _, event = heappop(self.events)
            event()
        assert self.master.rows.counts["train"].complete == N_STEPS
        return self.now_s

    def at(self, delay_s: float, event: Callable[[], None]) -> None:
        heappush(self.events, (self.now_s + delay_s, next(self.numbers), event))

    def act(self) -> None:
        """What a master does after each event."""
        rows, before = self.master.rows, -1
        while before != rows.counts["train"].complete:
            before = rows.counts["train"].complete
            while self.left and rows.room("train") > 0:
                self.master.admit("train")
                self.left -= 1
            if not self.left:
                self.master.end_source("train")
            for output in self.master.advance(self.now_s):
                assert not isinstance(output, CallState) or output.reason is None
                if not isinstance(output, CallState):
                    number, message = output
                    assert not isinstance(message, Abort)
                    self.at(MESSAGE_S, lambda number=number, order=message: self.hear(number, order))  # type: ignore[misc]

    def hear(self, number: int, order: Step) -> None:
        self.workers[number].receive(order)
        self.enter(number)

    def enter(self, number: int) -> None:
        order = self.workers[number].enter()
        if order is None:
            return
        inside = self.inside[order.ticket]
        inside.add(number)
        if inside == order.workers:
            name = str(order.work)
            varied = random.Random(f"{name} {next(self.calls[name])}")
            seconds = self.exact[name] * varied.uniform(1 - NOISE, 1 + NOISE)
            self.at(seconds, lambda: self.leave(order, name, seconds))

    def leave(self, order: Step, name: str, seconds: float) -> None:
        self.measured[name].append(seconds)
        for number in sorted(order.workers):
            self.workers[number].leave()
        self.at(MESSAGE_S, lambda: self.report(order))
        for number in sorted(order.workers):
            self.enter(number)

    def report(self, order: Step) -> None:
        if order.kind is Kind.MAIN:
            state = self.master.calls[order.call]
            assert state.function is not None
            assert state.taken is not None
            ids = state.taken.ids
            self.master.wrote(order.call, 1, ids, dict.fromkeys(state.function.outputs, ids), n_bytes=1)
        for number in sorted(order.workers):
            self.master.order.report(number, order.ticket)
        self.act()


def in_virtual_time(kind: type[World], what: str, n_flows: int) -> None:
    """Measure random flows, and print."""
    quotients: dict[str, list[float]] = {mode: [] for mode in MODES[1:]}
    for seed in range(n_flows):
        flow = Random(seed)
        seconds = {mode: kind(flow, mode, seed).run() for mode in MODES}
        for mode, found in quotients.items():
            found.append(seconds[mode] / seconds["constants"])
    show(what, quotients)


class Flushed(World):
    """Calls that are posted by hand and flushed together, several times."""

    def __init__(self, flow: Random, mode: str, seed: int) -> None:
        super().__init__(flow, mode, seed)
        choice = random.Random(seed)
        own = [choice.choices(flow.plan.functions, k=N_POSTED) for _ in range(N_STEPS)]
        self.flushes = iter(own)
        self.left = 0

    def act(self) -> None:
        """Flush the next calls when all have their answers."""
        super().act()
        calls = [] if self.master.calls else next(self.flushes, [])
        if calls:
            numbers = [
                self.master.post_steps(one.name, self.flow.steps(one, self.expected), self.now_s)
                for one in calls
            ]
            self.master.order.flush(numbers)
            super().act()

    def run(self) -> float:
        """Return when the last call was answered."""
        self.act()
        while self.events:
            self.now_s, _, event = heappop(self.events)
            event()
        assert not self.master.calls
        return self.now_s


def show(what: str, quotients: dict[str, list[float]]) -> None:
    """Print quotients of times with those of the constants."""
    print(f"{len(quotients[MODES[1]])} {what}, time / time with constants:")
    for mode, found in quotients.items():
        at, n = statistics.quantiles(found, n=20), len(found)
        better, worse = sum(one < 0.99 for one in found), sum(one > 1.01 for one in found)
        print(
            f"  {mode:9} median {statistics.median(found):.3f}, mean {statistics.mean(found):.3f}, 5 % {at[0]:.3f}, "
            f"95 % {at[-1]:.3f}; better in {better / n:.0%}, worse in {worse / n:.0%}",
            flush=True,
        )


SLEEPS = {"generate": 0.05, "logp": 0.3, "score": 0.1, "train": 0.4}


class Sleeps(Random):
    """The flow of `make_flow`, for virtual time."""

    def __init__(self) -> None:
        functions = (
            FunctionPlan("generate", (1, 2), ("x",), ("seq",), 8, 8),
            FunctionPlan("score", (2,), ("seq",), ("reward",), 8, 8),
            FunctionPlan("logp", (0, 1), ("seq",), ("logp",), 16, 16),
            FunctionPlan("train", (0,), ("seq", "logp", "reward"), (), 32, 32, is_strict=True),
        )
        partition = PartitionPlan("train", 32, 64, 1)
        self.plan = FlowPlan(functions, {"train": partition}, {"train": ("x",)})
        self.seconds, self.hook_s, self.first = dict(SLEEPS), 0.01, functions[0]


class Sleeper(df.Role):
    """Sleeps in place of computing."""

    def setup(self, mesh: df.Mesh) -> None:
        self.net = torch.nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def generate(self, rows: df.Rows) -> dict[str, Any]:
        time.sleep(SLEEPS["generate"])
        return {"seq": rows["x"] * 2}

    def logp(self, rows: df.Rows) -> dict[str, Any]:
        time.sleep(SLEEPS["logp"])
        return {"logp": rows["seq"]}

    def score(self, rows: df.Rows) -> dict[str, Any]:
        time.sleep(SLEEPS["score"])
        return {"reward": rows["seq"]}

    def train(self, rows: df.Rows) -> dict[str, float]:
        time.sleep(SLEEPS["train"])
        return {"n": float(rows.n_rows)}


def items() -> Iterator[dict[str, Any]]:
    """Yield elements without end."""
    while True:
        yield {"x": torch.ones(1)}


def make_flow() -> df.Flow:
    """Return a flow on three workers, two of which two roles share."""
    actor = df.place(Sleeper, name="actor")
    gen = df.place(Sleeper, "dp2", on=[1, 2], follows=actor, name="gen")
    ref = df.place(Sleeper, "dp2", on=[0, 1], name="ref", frozen=True)
    reward = df.place(Sleeper, on=[2], name="reward", frozen=True)
    calls = [
        df.call(gen.generate, "x -> seq", rows=8),
        df.call(ref.logp, "seq -> logp", rows=16),
        df.call(reward.score, "seq -> reward", rows=8),
        df.call(actor.train, "seq, logp, reward", rows=32, after=[df.publish(gen)]),
    ]
    return df.Flow(calls, source=items(), max_age=1)


def seconds_of_steps(*, is_exact: bool, n_steps: int) -> list[float]:
    """Return how long each step but the first two has taken, with constants or exact times."""

    def exact(*given: Any) -> tuple[Step, ...]:
        return tuple(
            replace(one, expected_s=SLEEPS.get(str(one.work).partition(".")[2], 0.01))
            for one in steps_of(*given)
        )

    with (
        patch("softs_fast.dataflow.engine.runner.steps_of", exact if is_exact else steps_of),
        df.Flow.in_processes("benches.dataflow_order:make_flow") as flow,
    ):
        ends = [time.monotonic() for _ in flow.steps(n_steps)]
    return [after - before for before, after in pairwise(ends[1:])]


def in_processes(n_steps: int) -> None:
    """Measure the flow of sleeps in turns, and print; first in virtual time."""
    for mode in MODES:
        print(f"sleeps in virtual time, {mode}: {World(Sleeps(), mode, 0).run() / N_STEPS:.3f} s a step")
    found: dict[bool, list[float]] = {False: [], True: []}
    for is_exact in (False, True, True, False):
        found[is_exact] += seconds_of_steps(is_exact=is_exact, n_steps=n_steps)
    for is_exact, seconds in found.items():
        print(f"sleeps, {'exact' if is_exact else 'constants'}: {statistics.median(seconds):.3f} s a step")


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--flows", type=int, default=200, help="in virtual time (%(default)s)")
    parser.add_argument("--steps", type=int, default=0, help="of the flow of sleeps, at least 4; 0: none")
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    in_virtual_time(World, f"random flows of {N_STEPS} steps", options.flows)
    in_virtual_time(Flushed, f"times {N_STEPS} flushes of {N_POSTED} calls", options.flows)
    if options.steps:
        in_processes(max(options.steps, 4))


if __name__ == "__main__":
    main()
