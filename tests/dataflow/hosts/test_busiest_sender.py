"""What holders on several hosts have sent in a move, counted by themselves: the busiest one at most the bound and one row."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from balanced_flow import ROWS, n_floats
from host_workers import HostWorkers

import softs_fast.dataflow as df
from softs_fast.dataflow.backends.host_meeting import HostMeeting

MAKER, COPY = 0, 1
#: Bytes that a sender writes beside values: for each value, and for each reader.
HEADERS = 64


@pytest.fixture(scope="module", autouse=True)
def pipe_of_libuv() -> None:
    """The first store of a process makes a pipe for signals, which libuv keeps as long as the process."""
    HostMeeting("127.0.0.1").close()


def run(flow: df.Flow, name: str, ids: Iterable[int]) -> df.CallResult:
    call = flow.post(name, ids)
    flow.flush(call)
    return call.result(timeout_s=45)


def bytes_of(ids: Iterable[int]) -> int:
    return sum(4 * n_floats(row_id) for row_id in ids)


def sent(flow: df.Flow, row_id: int) -> dict[int, int]:
    """Return what each holder has sent so far; each row can be counted with once."""
    return {
        worker: int(run(flow, f"{name}.count", [row_id]).numbers["sent"])
        for worker, name in ((MAKER, "maker"), (COPY, "second"))
    }


def check_move(flow: df.Flow, ids: tuple[int, ...], kept: tuple[int, ...], rows: Iterable[int]) -> None:
    """Move rows to the reader that the maker has, of which the second has some.

    Args:
        flow: that is open.
        ids: of the rows.
        kept: those that the second has, too.
        rows: two others, to count with.
    """
    (reader,) = [role for role in flow.declaration.roles if role.name == "reader"]
    n_readers = len(reader.on)
    run(flow, "maker.make", ids)
    run(flow, "second.look", kept)
    move = flow.move(ids, "y", to=reader)
    total, largest = bytes_of(ids), max(bytes_of([row_id]) for row_id in ids)
    # Each holder alone, and both together, have at least this to send.
    bound = max(total / 2, total - bytes_of(kept))
    assert (move.plan.n_bytes, move.plan.bound) == (total, bound)
    first, last = rows
    before = sent(flow, first)
    flow.flush(move)
    move.result(timeout_s=45)
    after = sent(flow, last)
    served = {worker: after[worker] - before[worker] for worker in before}
    headers = HEADERS * (len(ids) + n_readers)
    assert total <= sum(served.values()) <= total + 2 * headers
    for worker, n_bytes in served.items():
        assert n_bytes <= bound + largest + headers
        if n_readers == 1:
            # Senders are chosen when they are asked for, by the rule of the plan.
            planned = sum(one.n_bytes for one in move.plan.of(worker).sends)
            assert planned <= n_bytes <= planned + headers
    # The values are there.
    assert run(flow, "reader.look", ids).numbers["sum"] * n_readers == sum(ids)
    assert sent_elsewhere(flow, ids, reader) == 0


def sent_elsewhere(flow: df.Flow, ids: tuple[int, ...], reader: df.Placement) -> int:
    return flow.move(ids, "y", to=reader).plan.n_bytes


def test_the_busiest_of_two_senders_sends_at_most_the_bound_and_one_row(tmp_path: Path) -> None:
    with HostWorkers(tmp_path, "balanced_flow:make_flow") as workers:
        for worker, name in enumerate(("", "far", "third")):
            workers.start(worker, name)
        with workers.flow() as flow:
            ids = flow.fetch(ROWS)
            # Both have all; then the maker alone has three quarters.
            check_move(flow, ids[:12], ids[:12], ids[28:30])
            check_move(flow, ids[12:28], ids[12:16], ids[30:32])


@pytest.mark.slow  # four processes, and process groups between them
def test_senders_of_two_readers_are_balanced_together(tmp_path: Path) -> None:
    with HostWorkers(tmp_path, "balanced_flow:make_flow", {"layout": "dp2"}) as workers:
        for worker, name in enumerate(("", "far", "third", "fourth")):
            workers.start(worker, name)
        with workers.flow() as flow:
            ids = flow.fetch(ROWS)
            check_move(flow, ids[:12], ids[:12], ids[28:30])
            check_move(flow, ids[12:28], ids[12:18], ids[30:32])
