"""What the bookkeeping of rows costs: `python -m benches.dataflow_rows [ROUNDS]`.

Six functions of a PPO take rows, write their columns and are through with them, while 10^3 to 10^6 other rows are
resident. Beside it the same with a search of all rows at each call, which is what a buffer of slots does, as far as that
takes seconds. Times are of the processor, medians of the rounds.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable

from softs_fast.dataflow.declare.plan import FlowPlan, FunctionPlan, PartitionPlan
from softs_fast.dataflow.master.rows.table import RowTable

ROWS = 256
RESIDENT = [10**3, 10**4, 10**5, 10**6]
MOST_SEARCHED = 10**5
INPUTS = ("seq", "logp", "ref_logp", "reward", "value")
FUNCTIONS = (
    FunctionPlan("gen.generate", (0,), ("prompt",), ("seq", "logp"), 64, 64),
    FunctionPlan("reward.score", (0,), ("seq",), ("reward",), 16, 16),
    FunctionPlan("ref.logp", (0,), ("seq",), ("ref_logp",), 128, 128),
    FunctionPlan("critic.value", (0,), ("seq",), ("value",), 128, 128),
    FunctionPlan("critic.train", (0,), INPUTS, (), ROWS, ROWS, is_strict=True),
    FunctionPlan("actor.train", (0,), INPUTS, (), ROWS, ROWS, is_strict=True),
)


def plan_of(resident: int) -> FlowPlan:
    """Return a plan with slots for a step beside the resident rows."""
    partition = PartitionPlan("train", ROWS, resident + ROWS, 0)
    return FlowPlan(FUNCTIONS, {"train": partition}, {"train": ("prompt",)})


def indexed(resident: int, rounds: int) -> list[float]:
    """Return microseconds per row and function of the table of rows."""
    table = RowTable(plan_of(resident))
    for _ in range(resident):
        table.admit("train")

    def step() -> None:
        for _ in range(ROWS):
            table.admit("train")
        for function in FUNCTIONS:
            for _ in range(ROWS // function.groups):
                taken = table.take(function.name)
                table.wrote(taken.ids, function.outputs, n_bytes=4)
                table.done(function.name, taken)
        table.freed()

    return times(step, rounds)


def searched(resident: int, rounds: int) -> list[float]:
    """Return the same for dicts of rows, all of which are searched for each call."""
    rows: dict[int, tuple[set[str], set[str]]] = {i: ({"prompt"}, set()) for i in range(resident)}

    def step() -> None:
        first = max(rows, default=-1) + 1
        rows.update((first + i, ({"prompt"}, set())) for i in range(ROWS))
        for function in FUNCTIONS:
            need = set(function.inputs)
            for _ in range(ROWS // function.groups):
                ready = [i for i, (have, done) in rows.items() if need <= have and function.name not in done]
                for i in ready[: function.groups]:
                    have, done = rows[i]
                    have.update(function.outputs)
                    done.add(function.name)
                    if len(done) == len(FUNCTIONS):
                        del rows[i]

    return times(step, rounds)


def times(step: Callable[[], None], rounds: int) -> list[float]:
    """Return microseconds of the processor per row and function, for each round after two to warm up."""
    found = []
    gc.collect()
    gc.freeze()
    for turn in range(rounds + 2):
        began = time.process_time()
        step()
        seconds = time.process_time() - began
        if turn >= 2:
            found.append(seconds / (ROWS * len(FUNCTIONS)) * 1e6)
    gc.unfreeze()
    return found


def main() -> None:
    """Print a table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    print(f"{'resident rows':>14} {'table, us':>12} {'worst':>8} {'search, us':>12}")
    for resident in RESIDENT:
        ours = indexed(resident, rounds)
        theirs = f"{statistics.median(searched(resident, 3)):.0f}" if resident <= MOST_SEARCHED else "-"
        print(f"{resident:14,} {statistics.median(ours):12.2f} {max(ours):8.2f} {theirs:>12}")


if __name__ == "__main__":
    main()
