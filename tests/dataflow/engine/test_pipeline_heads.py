"""A dataset of a role with pipeline ranks, in processes: each dp rank reads a shard on its last pp rank, and no other does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flow_processes import in_forks
from pipeline_flow import GROUP, N_ITEMS, make_flow, read

import softs_fast.dataflow as df


def trained(flow: df.Flow) -> list[Any]:
    with flow:
        return [
            (step.number, one.ids, one.digest, one.numbers)
            for step in flow.steps()
            for one in step.calls
            if one.function == "trainer.train"
        ]


@pytest.mark.parametrize(
    ("layout", "n_workers", "heads"),
    [
        pytest.param("pp2 tp2", 4, ["1-0-0"], marks=pytest.mark.slow),
        ("dp2 pp2", 4, ["1-0-0", "1-1-0"]),
        # The outermost dimension is the first one; heads are not the last workers then.
        pytest.param("tp2 pp2 dp2", 8, ["1-0-0", "1-1-0"], marks=pytest.mark.slow),
        pytest.param("pp3 dp2", 6, ["2-0-0", "2-1-0"], marks=pytest.mark.slow),
    ],
)
def test_heads_alone_read_and_each_element_once(
    layout: str, n_workers: int, heads: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "processes"
    folder.mkdir()
    arguments = {"layout": layout, "n_workers": n_workers}
    flow, _ = in_forks("pipeline_flow", "make_flow", **arguments, folder=str(folder))
    found = trained(flow)
    by_place = read(folder)
    assert sorted(by_place) == heads
    assert all(len(processes) == 1 for processes in by_place.values())
    n_shards = len(heads)
    for place, [lines] in by_place.items():
        shard = int(place.split("-")[1])
        numbers = range(shard, N_ITEMS, n_shards)
        assert lines == [f"shard {shard} of {n_shards}", *(f"element {number}" for number in numbers)]
    # All rows are there, in the order and with the values of one process, of which the shards are the same.
    assert [ids for _, ids, _, _ in found] == [
        tuple(range(first, first + 4 * GROUP)) for first in range(0, N_ITEMS * GROUP, 4 * GROUP)
    ]
    (tmp_path / "one").mkdir()
    assert found == trained(make_flow(**arguments, folder=str(tmp_path / "one")))
