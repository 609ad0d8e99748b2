"""When a client warns of a server that it does not reach, and when it stops: in virtual time."""

from __future__ import annotations

import math

import pytest

from softs_fast.trust import Attempt, Outage

GO_ON = Attempt()
HOSTS = ("a:1", "b:2", "c:3")


def test_people_are_told_once_after_three_seconds() -> None:
    outage = Outage(HOSTS[:1], 10.0)
    assert outage.failed(12.9, "refused") == GO_ON
    assert outage.failed(13.0, "refused") == Attempt(is_warning=True)
    assert outage.failed(99.0, "no route") == GO_ON
    assert outage.cause == "no route"


def test_each_outage_is_told_of() -> None:
    outage = Outage(HOSTS[:1], 0.0)
    outage.failed(3.0, "refused")
    outage.connected()
    assert outage.cause == ""
    # It has begun with the end of the connection.
    assert outage.failed(50.0, "reset") == GO_ON
    assert outage.failed(53.0, "refused") == Attempt(is_warning=True)


def test_a_refusal_is_final_until_there_was_a_connection() -> None:
    outage = Outage(HOSTS, 0.0)
    assert outage.failed(0.0, "expired", is_refusal=True) == Attempt(is_last=True)
    outage.connected()
    assert outage.failed(1.0, "expired", is_refusal=True) == GO_ON
    assert outage.failed(4.0, "expired", is_refusal=True) == Attempt(is_warning=True)


@pytest.mark.parametrize("limit_s", [5.0, math.inf])
def test_an_outage_has_a_limit(limit_s: float) -> None:
    outage = Outage(HOSTS, 0.0, limit_s)
    outage.connected()
    assert not outage.failed(100.0, "reset").is_last
    assert not outage.failed(104.9, "refused").is_last
    assert outage.failed(105.0, "refused").is_last == (limit_s == 5.0)


def test_each_failure_moves_on_to_the_next_host_and_each_cause_is_told() -> None:
    outage = Outage(HOSTS, 0.0)
    asked = []
    for number in range(4):
        asked.append(outage.host)
        outage.failed(0.0, f"{outage.host} {number}")
    assert asked == [*HOSTS, HOSTS[0]]
    assert outage.cause == "a:1 3; b:2 1; c:3 2"
    # A server that is busy is there.
    outage.failed(0.0, "b:2 is busy", moves=False)
    assert (outage.host, outage.cause) == ("b:2", "a:1 3; b:2 is busy; c:3 2")
    outage.connected()
    outage.failed(9.0, "b:2 is cut off")
    assert (outage.host, outage.cause) == ("c:3", "b:2 is cut off")


def test_what_all_hosts_have_in_common_is_told_once() -> None:
    outage = Outage(HOSTS, 0.0)
    for _ in HOSTS:
        outage.failed(0.0, "the token file is gone")
    assert outage.cause == "the token file is gone"
