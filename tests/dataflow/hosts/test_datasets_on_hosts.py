"""Heads on other hosts than those that use the rows: the same bits, and the master has no value."""

from __future__ import annotations

from pathlib import Path

import pytest
from host_workers import HostWorkers
from shard_flow import GROUP, make, summary


@pytest.mark.parametrize("kind", ["sequence", "iterable"])
def test_the_same_as_in_one_process(tmp_path: Path, kind: str) -> None:
    with make(kind=kind) as alone:
        expected = summary(alone)
    with HostWorkers(tmp_path, "shard_flow:make", {"loader": 2, "kind": kind}) as workers:
        for worker, name in ((0, "far"), (1, ""), (2, "third")):
            workers.start(worker, name)
        with workers.flow() as flow:
            assert flow.ask("spec")["train"]["elements"] == (24 if kind == "sequence" else None)
            found = summary(flow, 2)
            assert flow._backend._store.n_bytes == 0  # type: ignore[attr-defined]
            assert found + summary(flow) == expected
            ids = flow.fetch(GROUP)
            assert ids == ()
