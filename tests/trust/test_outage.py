"""When a client warns of a server that it does not reach, and when it stops: in virtual time."""

from __future__ import annotations

import math

import pytest

from softs_fast.trust import Attempt, Outage

GO_ON = Attempt()


def test_people_are_told_once_after_three_seconds() -> None:
    outage = Outage(10.0)
    assert outage.failed(12.9, "refused") == GO_ON
    assert outage.failed(13.0, "refused") == Attempt(is_warning=True)
    assert outage.failed(99.0, "no route") == GO_ON
    assert outage.cause == "no route"


def test_each_outage_is_told_of() -> None:
    outage = Outage(0.0)
    outage.failed(3.0, "refused")
    outage.connected()
    assert outage.cause == ""
    # It has begun with the end of the connection.
    assert outage.failed(50.0, "reset") == GO_ON
    assert outage.failed(53.0, "refused") == Attempt(is_warning=True)


def test_a_refusal_is_final_until_there_was_a_connection() -> None:
    outage = Outage(0.0)
    assert outage.failed(0.0, "expired", is_refusal=True) == Attempt(is_last=True)
    outage.connected()
    assert outage.failed(1.0, "expired", is_refusal=True) == GO_ON
    assert outage.failed(4.0, "expired", is_refusal=True) == Attempt(is_warning=True)


@pytest.mark.parametrize("limit_s", [5.0, math.inf])
def test_an_outage_has_a_limit(limit_s: float) -> None:
    outage = Outage(0.0, limit_s)
    outage.connected()
    assert not outage.failed(100.0, "reset").is_last
    assert not outage.failed(104.9, "refused").is_last
    assert outage.failed(105.0, "refused").is_last == (limit_s == 5.0)
