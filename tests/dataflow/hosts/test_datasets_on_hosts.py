"""Heads on other hosts than those that use the rows: the same bits, and the master has no value."""

from __future__ import annotations

from pathlib import Path

import pytest
from host_workers import on_hosts
from shard_flow import GROUP, make, summary


@pytest.mark.parametrize("kind", ["sequence", "iterable"])
def test_the_same_as_in_one_process(tmp_path: Path, kind: str) -> None:
    with make(kind=kind) as alone:
        expected = summary(alone)
    arguments = {"loader": 2, "kind": kind}
    with on_hosts(tmp_path, "shard_flow:make", ("far", "", "third"), arguments) as (flow, _):
        assert flow.ask("spec")["train"]["elements"] == (24 if kind == "sequence" else None)
        found = summary(flow, 2)
        assert flow._backend._store.n_bytes == 0  # type: ignore[attr-defined]
        assert found + summary(flow) == expected
        assert flow.fetch(GROUP) == ()
