"""How long an iterator waits, in virtual time: one `request_timeout` for every cause, and a report every 10 s."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from softs_fast import NoSupplier, SampleTimeout
from softs_fast.loader import wait_policy
from softs_fast.loader.wait_policy import WaitPolicy
from softs_fast.market.fleet_report import FleetReport, WorkerReport

#: Why nothing comes, as `is_starved`.
CAUSES = pytest.mark.parametrize("is_starved", [False, True], ids=["no sample", "slots are held"])


class Ended(Exception):
    """The time is over."""


class Clock:
    """Time that passes only where a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(wait_policy, "time", clock)
    return clock


def policy(
    request_timeout: float | None, max_failures: int | None = None, fleet: FleetReport | None = None
) -> WaitPolicy:
    client: Any = SimpleNamespace(
        fleet=fleet,
        slot_count=8,
        n_blocks_held=2,
        has_delivered=True,
        n_failures=lambda product: 1000 + int(100 * wait_policy.time.monotonic()),
        diagnose=lambda product, waited_s: NoSupplier(f"{product} {waited_s:.0f}"),
    )
    return WaitPolicy(client, 0.0, request_timeout, max_failures)


def wait(policy: WaitPolicy, clock: Clock, seconds: float, is_starved: bool) -> float:
    """Ask for a sample in vain, again and again; when it gave up, or the end of that time."""
    policy.restart()
    cause, text = (SampleTimeout, "2 batches with tensors that are") if is_starved else (NoSupplier, "^p ")

    def ask() -> None:
        while clock.now < seconds:
            clock.now += policy.wait_ms / 1000
            policy.check("p", is_starved)
        raise Ended

    with pytest.raises((cause, Ended), match=f"{text}|^$"):
        ask()
    return min(clock.now, seconds)


@CAUSES
@pytest.mark.parametrize("request_timeout", [0.0, 0.5, 5.0, 30.0])
def test_each_wait_takes_as_long_as_it_may(clock: Clock, request_timeout: float, is_starved: bool) -> None:
    gave_up = wait(policy(request_timeout), clock, 1000, is_starved)
    assert request_timeout <= gave_up <= request_timeout + 0.2


@CAUSES
def test_without_a_timeout_it_waits_on(clock: Clock, is_starved: bool) -> None:
    assert wait(policy(None), clock, 1000, is_starved) == 1000


def test_held_slots_are_no_failures(clock: Clock) -> None:
    assert wait(policy(None, max_failures=3), clock, 1000, True) == 1000
    clock.now = 0.0
    assert wait(policy(None, max_failures=3), clock, 1000, False) < 2


@pytest.mark.parametrize("request_timeout", [None, 60.0])
def test_orders_that_fail_before_a_first_sample_end_a_wait_within_a_second(
    clock: Clock, request_timeout: float | None
) -> None:
    waits = policy(request_timeout)
    waits._client.has_delivered = False
    assert wait(waits, clock, 100, True) >= 60, "held slots are no failures"
    clock.now = 0.0
    assert wait(waits, clock, 100, False) < 1
    waits.note_samples()
    clock.now = 0.0
    assert wait(waits, clock, 100, False) >= 60


def test_a_first_sample_that_is_made_after_failures_is_waited_for(clock: Clock) -> None:
    """The first calls of a supplier have failed, or another one, which the broker asks no more."""
    waits = policy(60.0)
    waits._client.has_delivered = False
    waits._client.n_failures = lambda product: min(int(clock.now / 0.01), 20)  # type: ignore[method-assign]
    assert wait(waits, clock, 100, False) >= 60
    for call_s in (0.01, 0.3, 2.0):
        clock.now = 0.0
        waits._client.n_failures = lambda product, s=call_s: int(clock.now / (5 * s))  # type: ignore[misc]
        assert wait(waits, clock, 100, False) < max(1, 6 * call_s), (
            "each order is tried five times, and fails"
        )


@CAUSES
def test_a_long_wait_reports_its_cause_every_ten_seconds(
    clock: Clock, is_starved: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="softs_fast")
    waits = policy(None)
    wait(waits, clock, 9, is_starved)
    assert caplog.records == []
    clock.now = 0.0
    wait(waits, clock, 45, is_starved)
    assert len(caplog.records) == 4
    for record, seconds in zip(caplog.records, (10, 20, 30, 40), strict=True):
        assert record.levelno == logging.WARNING
        assert record.name == "softs_fast.loader.wait_policy"
        text = f"within {seconds}." if is_starved else f"p {seconds}"
        assert text in record.getMessage()


def fleet_of(*states: str) -> FleetReport:
    return FleetReport(tuple(WorkerReport(f"worker {i}", state) for i, state in enumerate(states)))


@pytest.mark.parametrize("state", ["ending", "pausing", "starting"])
def test_a_restart_under_way_is_no_timeout(clock: Clock, state: str) -> None:
    waits = policy(1.0, fleet=fleet_of("serving", state))
    for has_delivered in (False, True):
        clock.now, waits._client.has_delivered = 0.0, has_delivered
        assert wait(waits, clock, 100, False) == 100
    waits._client.fleet = fleet_of("serving", "serving")  # type: ignore[misc]
    clock.now = 100.0

    def ask() -> None:
        while True:
            clock.now += waits.wait_ms / 1000
            waits.check("p")

    with pytest.raises(NoSupplier):
        ask()
    assert 100.5 <= clock.now <= 101.2, "the time-out begins when it has started"


def test_held_slots_are_no_matter_of_restarts(clock: Clock) -> None:
    assert wait(policy(1.0, fleet=fleet_of("pausing")), clock, 100, True) < 2


@pytest.mark.parametrize(
    ("states", "is_over"), [(("ended", "given up"), True), (("ended", "serving"), False)]
)
def test_a_wait_without_a_timeout_ends_with_the_last_worker_of_a_fleet(
    clock: Clock, states: tuple[str, ...], is_over: bool
) -> None:
    gave_up = wait(policy(None, fleet=fleet_of(*states)), clock, 100, False)
    assert gave_up <= 1 if is_over else gave_up == 100
