"""`data_transfer` between hosts: what is brought goes once, and what reads it later finds it there."""

from __future__ import annotations

from pathlib import Path

import pytest
from flows import ROWS, called, calls_of, summary
from host_workers import on_hosts, told
from transfer_flow import make_transfers


def test_transfers_have_the_bits_of_one_process_and_the_least_bytes(tmp_path: Path) -> None:
    n_steps, expected = 3, summary(make_transfers(), 3)
    with on_hosts(tmp_path, "transfer_flow:make_transfers", ("", "far", "third")) as (flow, _):
        steps = list(flow.steps(n_steps))
        # x to the maker, seq to the critic, value and logp to the actor: each once, by a hook or by what reads it.
        assert told(flow) == sum(4 + 4 * (row_id % 3 + 1) + 4 + 4 for row_id in range(n_steps * ROWS))
        runner = flow._session.runner
        # The last step may end before a transfer that no call has waited for.
        while runner._moves._parts:
            runner.advance(automatic=False)
        assert not runner._moves._following
    assert calls_of(steps) == expected


@pytest.mark.parametrize(
    "hosts",
    [
        ("", "far", "third"),
        # Four processes, and process groups between them: each rank of the role gets its slice.
        pytest.param(("", "far", "third", "fourth"), marks=pytest.mark.slow),
    ],
)
def test_a_transfer_after_a_call_brings_what_is_read_later(tmp_path: Path, hosts: tuple[str, ...]) -> None:
    arguments = {"layout": f"dp{len(hosts) - 2}"}
    with on_hosts(tmp_path, "transfer_flow:make_transfers", hosts, arguments) as (flow, _):
        ids = flow.fetch(4)
        called(flow, "maker.make", ids)
        before = told(flow)
        while flow._session.runner.master.calls:
            flow._session.runner.advance(automatic=False)
        # The workers of the role have fetched the column, in a call of its own, by the slices of the call that reads it.
        n_bytes = sum(4 * (row_id % 3 + 1) for row_id in ids)
        assert told(flow) == before + n_bytes
        assert called(flow, "critic.value", ids).ids == ids
        assert told(flow) == before + n_bytes
