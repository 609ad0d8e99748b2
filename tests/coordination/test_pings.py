"""Pings and metrics of a coordinator, and credentials that belong together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from softs_fast.coordination.credentials import ClientCredentials, ServerCredentials
from softs_fast.coordination.job.events import Completed
from softs_fast.coordination.job.status import FenceCount, SeatStatus, Status
from softs_fast.coordination.metrics import render_metrics
from softs_fast.coordination.pings import Pings
from softs_fast.errors import ConfigError
from softs_fast.trust import Address


def test_files_that_belong_together() -> None:
    for make in (
        lambda: ServerCredentials(ca=Path("x")),
        lambda: ClientCredentials(cert=Path("x"), key=Path("y")),
    ):
        with pytest.raises(ConfigError, match="give --tls-c"):
            make()


def test_a_server_asks_whether_others_reach_it() -> None:
    there = Address.parse("192.0.2.1:1", "coordinator")
    with pytest.raises(ConfigError, match="without TLS"):
        ServerCredentials().check(there)
    ServerCredentials(token_file=Path("t")).check(there)
    files = ServerCredentials(Path("c"), Path("k"))
    with pytest.raises(ConfigError, match="without a proof of identity"):
        files.check(there)
    replace(files, ca=Path("x")).check(there)


@pytest.mark.parametrize("seconds", [0.0, float("nan"), float("inf"), 4000.0])
def test_pings_out_of_range(seconds: float) -> None:
    with pytest.raises(ConfigError, match=r"need 0.01 to 3600 s"):
        Pings(seconds)


def test_metrics_are_those_of_the_status() -> None:
    seats = (SeatStatus(0, "a", "", "", 7), SeatStatus(1, "b", "", "", 5), SeatStatus(None, "c", "", "", 0))
    fences = (FenceCount("gone", 3), FenceCount("fault", 1))
    status = Status("job", "open", "", 2.5, 1, 4, 2, seats, 2, (), fences, 0.25, Completed(3, 40, "/p"))
    values = dict(
        line.rsplit(" ", 1) for line in render_metrics(status).splitlines() if not line.startswith("#")
    )
    name = "softs_fast_coordinator"
    assert values == {
        "softs_fast_up": "1",
        f"{name}_epoch": "4",
        f"{name}_open": "1",
        f"{name}_phase_seconds": "2.5",
        f"{name}_members": "2",
        f"{name}_seats": "2",
        f"{name}_spares": "1",
        f"{name}_step": "7",
        f"{name}_step_spread": "2",
        f'{name}_fences_total{{cause="gone"}}': "3",
        f'{name}_fences_total{{cause="fault"}}': "1",
        f"{name}_table_seconds": "0.25",
        f"{name}_checkpoint_step": "40",
    }
    assert "softs_fast_up 0\n" in render_metrics(None)
