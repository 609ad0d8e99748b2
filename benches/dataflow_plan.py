"""What a plan of moves costs: `python -m benches.dataflow_plan [ROUNDS]`.

8,192 rows of different lengths in two columns, from 8 workers to 8 ranks of 4 workers, on nodes of 4. Beside it rows with
several holders, and other numbers of rows. Times are of the processor, medians of the rounds.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

import numpy as np

from softs_fast.dataflow.store import RedistributionPlan, Redistributor, RowsToMove

HOLDERS, RANKS, PEERS, PER_NODE = 8, 8, 4, 4


def rows_of(n_rows: int, group: int, n_sets: int, seed: int = 0) -> RowsToMove:
    """Return rows of 64 to 4,095 tokens; each is held by one of `n_sets` sets of one to three workers."""
    chance = np.random.default_rng(seed)
    tokens = chance.integers(64, 4096, n_rows)
    sets = {(i,): None for i in range(min(n_sets, HOLDERS))}
    while len(sets) < n_sets:
        sets[tuple(sorted(chance.permutation(HOLDERS)[: chance.integers(2, 4)].tolist()))] = None
    return RowsToMove(
        np.arange(n_rows),
        ("seq", "logp"),
        np.stack([tokens * 8, tokens * 4]),
        tuple(sets),
        chance.integers(0, n_sets, (2, n_rows)),
        tokens,
        group,
    )


def measure(rows: RowsToMove, rounds: int) -> tuple[float, RedistributionPlan]:
    """Return milliseconds of a plan, and the plan."""
    n_workers = HOLDERS + RANKS * PEERS
    plans = Redistributor({worker: worker // PER_NODE for worker in range(n_workers)})
    targets = [[HOLDERS + PEERS * rank + peer for peer in range(PEERS)] for rank in range(RANKS)]
    plan = plans.plan(rows, targets)
    times = []
    for _ in range(rounds):
        began = time.process_time()
        plans.plan(rows, targets)
        times.append((time.process_time() - began) * 1e3)
    return statistics.median(times), plan


def main() -> None:
    """Print a table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    print(f"medians of {rounds} plans; load {os.getloadavg()[0]:.1f}")
    print(f"{'rows':>6} {'group':>6} {'sets':>5} {'ms':>7}")
    for n_rows, group, n_sets in [(1024, 8, 8), (8192, 1, 8), (8192, 8, 8), (8192, 8, 40), (65536, 8, 8)]:
        ms, _ = measure(rows_of(n_rows, group, n_sets), rounds)
        print(f"{n_rows:>6} {group:>6} {n_sets:>5} {ms:>7.2f}")
    print(measure(rows_of(8192, 8, 8), 1)[1].explain())


if __name__ == "__main__":
    main()
