"""Stores of few bytes on several hosts: a call that would bring more than fits waits, and does not fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bounded_flow
import pytest
from bounded_flow import ROWS, SCORE_BYTES, STEP_BYTES, Y_BYTES
from host_workers import HostWorkers

import softs_fast.dataflow as df


def run(flow: df.Flow) -> tuple[list[Any], dict[int, int]]:
    """Return the calls, sorted, and the most bytes that the master reckons for each store."""
    most: dict[int, int] = {}
    with flow:
        stores = flow._runner.stores
        put = stores.ledger.put if stores is not None else None

        def noting(worker: int, *arguments: Any) -> None:
            assert stores is not None
            assert put is not None
            put(worker, *arguments)
            most[worker] = max(most.get(worker, 0), stores.ledger.n_bytes[worker])

        if stores is not None:
            stores.ledger.put = noting  # type: ignore[method-assign]
        calls = sorted(
            (one.function, one.ids, one.digest, one.numbers) for step in flow.steps() for one in step.calls
        )
        if stores is not None:
            assert not any(stores.ledger.n_bytes.values())
    return calls, most


@pytest.mark.parametrize("store_bytes", [2 * STEP_BYTES])
def test_a_reader_on_another_host_waits_for_room(tmp_path: Path, store_bytes: int) -> None:
    expected, _ = run(bounded_flow.make_spread(store_bytes=None))
    arguments = {"store_bytes": store_bytes, "slow_s": 0.2}
    with HostWorkers(tmp_path, "bounded_flow:make_spread", arguments) as workers:
        for worker, name in ((0, "far"), (1, "far"), (2, "third"), (3, "far")):
            workers.start(worker, name)
        found, most = run(workers.flow())
    assert found == expected
    assert len({ids for name, ids, *_ in found if name == "learner.learn"}) == 6
    # The reader has copies of both columns of a step.
    assert most[2] == 2 * ROWS * (Y_BYTES - SCORE_BYTES)
    assert max(most.values()) <= store_bytes
