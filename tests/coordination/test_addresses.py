"""Addresses, pings, and the metrics of a coordinator."""

from __future__ import annotations

import pytest

from softs_fast.coordination.addresses import parse_address
from softs_fast.coordination.job.events import Completed
from softs_fast.coordination.job.status import FenceCount, SeatStatus, Status
from softs_fast.coordination.metrics import render_metrics
from softs_fast.coordination.pings import Pings
from softs_fast.errors import ConfigError


@pytest.mark.parametrize(
    "text", ["host", ":1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "a.invalid:1"]
)
def test_addresses_that_cannot_be(text: str) -> None:
    with pytest.raises(ConfigError, match="address of coordinator"):
        parse_address(text)


@pytest.mark.parametrize(
    ("text", "is_loopback", "target"),
    [
        ("127.0.0.1:5", True, "127.0.0.1:5"),
        ("[::1]:5", True, "[::1]:5"),
        ("localhost:5", True, "localhost:5"),
        ("0.0.0.0:5", False, "0.0.0.0:5"),
        ("192.0.2.7:5", False, "192.0.2.7:5"),
    ],
)
def test_which_addresses_others_reach(text: str, is_loopback: bool, target: str) -> None:
    address = parse_address(text)
    assert (address.is_loopback, address.target()) == (is_loopback, target)
    assert address.target(9) == target.rpartition(":")[0] + ":9"


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
