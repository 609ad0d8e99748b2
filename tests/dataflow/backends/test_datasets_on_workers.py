"""The values of a dataset are read by the workers that need them, each item once; the master has numbers of items."""

from __future__ import annotations

import dataset_flow
from dataset_flow import N_ITEMS
from flow_threads import in_threads

from softs_fast.dataflow.wire.messages import RunMain


def test_heads_read_items_without_overlap_and_the_master_holds_numbers() -> None:
    flow, workers = in_threads(dataset_flow.make)
    read: dict[int, list[int]] = {0: [], 1: []}
    with flow:
        firsts = [step["model.train"]["first"] for step in flow.steps()]
        for worker, message in workers.hub.sent:
            if isinstance(message, RunMain) and message.function == 0:
                read[worker] += message.ids
    with dataset_flow.make("dp1", 1) as alone:
        assert firsts == [step["model.train"]["first"] for step in alone.steps()]
    assert len(firsts) == N_ITEMS // 10
    assert sorted(read[0] + read[1]) == list(range(N_ITEMS))
    assert len(read[0]) == len(read[1]) == N_ITEMS // 2


def test_what_they_read_stays_with_them() -> None:
    """Each head trains on what it has loaded: its rows are in one segment, which is not the master's."""
    flow, workers = in_threads(dataset_flow.make)
    with flow:
        next(flow.steps(1))
        sent = [(worker, message) for worker, message in workers.hub.sent if isinstance(message, RunMain)]
        segments = {}
        for function in (0, 1):
            for worker, message in sent:
                if message.function == function and message.step == 0:
                    (column,) = message.columns
                    segments[function, worker] = {place.segment.nonce for place in column}
    masters = segments[0, 0] | segments[0, 1]
    assert len(masters) == len(segments[1, 0]) == len(segments[1, 1]) == 1
    assert len(masters | segments[1, 0] | segments[1, 1]) == 3
