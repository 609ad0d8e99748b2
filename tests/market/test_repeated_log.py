"""Records that repeat, in virtual time."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from softs_fast.repeated_log import RepeatedLog

logger = logging.getLogger("softs_fast.test_repeated_log")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def texts(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO)
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_failure_that_repeats_is_logged_once_and_then_counted(
    clock: Clock, texts: Callable[[], list[str]]
) -> None:
    log = RepeatedLog(logger, clock)
    for step in range(25_000):
        clock.now = step / 1000
        log.log(logging.ERROR, "key", "it failed\nTraceback")
    assert texts() == [
        "it failed\nTraceback",
        "it failed (10000 more in the last 10.0 s)",
        "it failed (10000 more in the last 10.0 s)",
    ]
    log.flush()
    assert texts()[3:] == ["it failed (4999 more in the last 5.0 s)"]
    log.log(logging.ERROR, "key", "it failed\nTraceback")
    assert texts()[4:] == ["it failed\nTraceback"]


def test_failures_that_differ_in_numbers_are_one_and_other_records_pass(
    clock: Clock, texts: Callable[[], list[str]]
) -> None:
    log = RepeatedLog(logger, clock)
    for number in range(5):
        log.relay(logging.WARNING, f"order {number} failed\n{number}")
        log.relay(logging.INFO, f"order {number} failed")
        log.relay(logging.WARNING, f"supplier {number} left")
        log.relay(logging.WARNING, f"no session with a:{number}")
        log.relay(logging.WARNING, f"bad request of {number}")
    assert len(texts()) == 13
    clock.now = 0.256
    log.flush()
    assert sorted(texts()[13:]) == [
        "bad request of 0 (4 more in the last 0.3 s)",
        "no session with a:0 (4 more in the last 0.3 s)",
        "order 0 failed (4 more in the last 0.3 s)",
    ]


def test_what_is_kept_is_bounded(clock: Clock, texts: Callable[[], list[str]]) -> None:
    log = RepeatedLog(logger, clock)
    for number in range(1000):
        log.log(logging.ERROR, number, "x")
        log.log(logging.ERROR, number, "x")
    assert len(log._known) == 64
    log.flush()
    assert len(texts()) == 2000, "no count is lost"
