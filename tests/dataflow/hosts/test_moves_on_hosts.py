"""`data_transfer` between hosts: what is brought goes once, and what reads it later finds it there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from host_workers import HostWorkers
from transfer_flow import ROWS, make_transfers

import softs_fast.dataflow as df
from softs_fast.dataflow.workers.host_meeting import HostMeeting


@pytest.fixture(scope="module", autouse=True)
def pipe_of_libuv() -> None:
    """The first store of a process makes a pipe for signals, which libuv keeps as long as the process."""
    HostMeeting("127.0.0.1").close()


def summary_of(steps: list[df.FlowStep]) -> list[Any]:
    return [
        (step.number, sorted((one.function, one.ids, one.digest, one.numbers) for one in step.calls))
        for step in steps
    ]


def told(flow: df.Flow) -> int:
    """Return the bytes that were to go between hosts so far."""
    return int(flow._backend._sends.n_bytes)  # type: ignore[attr-defined]


def started(workers: HostWorkers) -> df.Flow:
    for worker, name in ((0, ""), (1, "far"), (2, "third")):
        workers.start(worker, name)
    return workers.flow()


def test_transfers_have_the_bits_of_one_process_and_the_least_bytes(tmp_path: Path) -> None:
    n_steps = 3
    with make_transfers() as one:
        expected = summary_of(list(one.steps(n_steps)))
    with HostWorkers(tmp_path, "transfer_flow:make_transfers") as workers, started(workers) as flow:
        steps = list(flow.steps(n_steps))
        # x to the maker, seq to the critic, value and logp to the actor: each once, by a hook or by what reads it.
        rows = range(n_steps * ROWS)
        assert told(flow) == sum(4 + 4 * (row_id % 3 + 1) + 4 + 4 for row_id in rows)
        assert not flow._session.runner._moves._parts
        assert not flow._session.runner._moves._following
    assert summary_of(steps) == expected


def test_a_transfer_after_a_call_brings_what_is_read_later(tmp_path: Path) -> None:
    with HostWorkers(tmp_path, "transfer_flow:make_transfers") as workers, started(workers) as flow:
        ids = flow.fetch(4)
        made = flow.post("maker.make", ids)
        flow.flush(made)
        made.result()
        before = told(flow)
        while flow._session.runner.master.calls:
            flow._session.runner.advance(automatic=False)
        # The workers of the role have fetched the column, in a call of its own.
        n_bytes = sum(4 * (row_id % 3 + 1) for row_id in ids)
        assert told(flow) == before + n_bytes
        read = flow.post("critic.value", ids)
        flow.flush(read)
        assert read.result().ids == ids
        assert told(flow) == before + n_bytes


@pytest.mark.slow  # four processes, and process groups between them
def test_each_rank_of_a_role_on_several_hosts_gets_its_slice(tmp_path: Path) -> None:
    with HostWorkers(tmp_path, "transfer_flow:make_transfers", {"layout": "dp2"}) as workers:
        for worker, name in ((0, ""), (1, "far"), (2, "third"), (3, "fourth")):
            workers.start(worker, name)
        with workers.flow() as flow:
            ids = flow.fetch(4)
            made = flow.post("maker.make", ids)
            flow.flush(made)
            made.result()
            while flow._session.runner.master.calls:
                flow._session.runner.advance(automatic=False)
            # The hook after the call has brought seq to both hosts, by the slices of the call that reads it.
            before = told(flow)
            read = flow.post("critic.value", ids)
            flow.flush(read)
            assert read.result().ids == ids
            assert told(flow) == before
