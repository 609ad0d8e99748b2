"""Flows of which the workers are on several hosts: the same bits, and each host gets each value once."""

from __future__ import annotations

from pathlib import Path

from host_workers import HostWorkers
from small_flow import make_flow, summary


def test_the_same_numbers_and_digests_as_in_one_process(tmp_path: Path) -> None:
    expected = summary(make_flow(), 4)
    with HostWorkers(tmp_path, "small_flow:make_flow") as workers:
        flow = workers.flow()
        for worker, name in ((0, ""), (1, "far"), (2, "far")):
            workers.start(worker, name)
        assert summary(flow, 4) == expected
