"""How long a worker of another host is awaited after it has left, in virtual time."""

from __future__ import annotations

from softs_fast.dataflow.workers.returns import Returns


def test_a_worker_is_awaited_until_the_time_is_over() -> None:
    returns = Returns(10.0, 5)
    assert returns.is_awaited(1, 0.0)
    returns.left(1, "it has left", 100.0)
    returns.left(1, "a process that had not begun", 108.0)
    assert returns.is_awaited(1, 109.9)
    assert returns.why(1, 109.9) == ""
    assert not returns.is_awaited(1, 110.0)
    assert (
        returns.why(1, 110.0)
        == "it has left; no other process has begun with its number within 10 s (rejoin_timeout_s)"
    )
    returns.refused(1, "another flow")
    assert returns.why(1, 110.0).endswith("; the last that tried could not begin: another flow")
    returns.joined(1, 111.0)
    assert returns.is_awaited(1, 500.0)
    assert returns.is_awaited(2, 500.0)


def test_failures_in_a_row_are_counted() -> None:
    returns = Returns(10.0, 2)
    for time_s in (0.0, 20.0):
        returns.left(1, "it has left", time_s)
        assert returns.is_awaited(1, time_s)
        returns.joined(1, time_s + 1)
    returns.left(1, "again", 80.9)
    assert returns.why(1, 80.9) == "again; that was failure 3 in a row, and max_restarts is 2"
    assert not returns.is_awaited(1, 80.9)


def test_a_failure_counts_no_more_after_a_minute() -> None:
    returns = Returns(10.0, 1)
    for time_s in (0.0, 70.0, 140.0):
        returns.left(1, "it has left", time_s)
        assert returns.is_awaited(1, time_s)
        returns.joined(1, time_s + 1)


def test_without_a_time_none_is_awaited_and_the_reason_is_that_of_its_end() -> None:
    returns = Returns(0.0, 5)
    returns.left(1, "it has left", 0.0)
    assert not returns.is_awaited(1, 0.0)
    assert returns.why(1, 0.0) == ""


def test_all_begin_anew() -> None:
    returns = Returns(10.0, 0)
    returns.left(1, "it has left", 0.0)
    assert not returns.is_awaited(1, 1.0)
    returns.clear()
    assert returns.is_awaited(1, 1.0)
