"""The screen of ``softs-fast top``: state in, text out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snapshots import client, counters, maker, segment, snapshot, supplier

from softs_fast.cli.screen import outage, screen
from softs_fast.cli.table import cut, plain, rows_of, si
from softs_fast.monitoring import rates_between
from softs_fast.monitoring.snapshot import LaneView

SECOND = 10**9


def market(n: int = 1) -> tuple[list[str], dict[str, list[str]]]:
    """The screen of a market with n clients, and its rows by their first and second cell."""
    lanes = (LaneView(0, 1, 3, 500),)

    def at(at_s: float, scale: int) -> list[object]:
        seen = segment(
            counters(samples=scale * 5000, waited_ns=scale * SECOND // 4, held=2, finished=6, retries=3),
            maker(samples=scale * 5000, busy_ns=scale * SECOND // 2, sleeps=7, failed=1, given_back=4),
            lanes=lanes,
        )
        return [at_s, *(client(seen, i + 1) for i in range(n))]

    before = snapshot(*at(0.0, 0))  # type: ignore[arg-type]
    after = snapshot(*at(1.0, 1), suppliers=(supplier(2), supplier(0, "softs", 2)), completed=12)  # type: ignore[arg-type]
    lines = screen(after, rates_between(before, after), "12:00:00")
    cells = [line.split() for line in lines if line]
    return lines, {f"{row[0]} {row[1]}": row for row in cells}


def test_what_a_screen_says() -> None:
    lines, rows = market()
    assert lines[0] == "softs-fast top  ipc://x  12:00:00"
    assert lines[1] == "1 client, 2 suppliers, 1 lane; 2 slots held, 3 retried, 0 failed, 0 lost"
    assert lines[2].startswith("samples  5.00k/s to clients on this machine, 12/s through the broker")
    assert rows["1 sl_1"][2:] == ["p1", "5.00k", "25%", "12%", "38%", "0", "6", "2", "3", "0", "0"]
    assert rows["1 host:77"][2:] == ["p.*", "5.00k", "50%", "1", "2", "0.5s", "0", "1", "4"]
    assert rows["2 softs"][3:] == ["-", "-", "1", "0", "-", "-", "-", "-"]
    assert rows["0 1"][2:] == ["p1", "0", "2"]


def test_suppliers_without_a_broker_are_shown() -> None:
    def at(at_s: float) -> object:
        return snapshot(at_s, client(segment(counters(), maker(pid=4242, samples=int(at_s)))))

    lines = screen(at(1.0), rates_between(at(0.0), at(1.0)), "")  # type: ignore[arg-type]
    assert any("process 4242" in line for line in lines)


@given(width=st.integers(1, 200), height=st.integers(1, 60), n=st.integers(0, 40))
def test_a_screen_fits_any_terminal(width: int, height: int, n: int) -> None:
    seen = segment(counters(), maker(), lanes=(LaneView(0, 1, 1, 1),))
    after = snapshot(
        1.0,
        *(client(seen, i, "名前" * 20) for i in range(n)),
        suppliers=tuple(supplier(peer_id=i) for i in range(n)),
    )
    lines = screen(after, rates_between(None, after), "12:00:00", width, height)
    assert len(lines) <= height
    assert all(columns(line) <= width for line in lines)
    assert outage("ipc://x", "why", width, height)


def test_a_short_terminal_shows_a_part_of_every_table() -> None:
    seen = segment(counters(), lanes=(LaneView(0, 1, 1, 1),))
    after = snapshot(
        1.0,
        *(client(seen, i) for i in range(50)),
        suppliers=tuple(supplier(peer_id=i) for i in range(50)),
    )
    lines = screen(after, rates_between(None, after), "", 300, 24)
    assert [head for head in ("CLIENT", "SUPPLIER", "LANE") if any(line.startswith(head) for line in lines)]
    assert sum("more" in line for line in lines) == 3
    assert len(screen(after, rates_between(None, after), "")) > 150


def columns(text: str) -> int:
    """Columns of a text of ASCII, ellipses and Chinese characters."""
    return sum(2 if c in "名前" else 1 for c in text)


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("abc", 0, ""), ("名前名", 4, "名…"), ("é" * 9, 3, "éé…")],
)
def test_cut(text: str, width: int, expected: str) -> None:
    assert cut(text, width) == expected


def test_plain() -> None:
    assert plain("a b é 名") == "a b é 名"
    assert plain("\x1b[31m\r\u202e\x9b\ud800") == "\\x1b[31m\\r\\u202e\\x9b\\ud800"


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, "0"),
        (7.12, "7.12"),
        (870, "870"),
        (999.9, "1.00k"),
        (52_000, "52.0k"),
        (99_960, "100k"),
        (1.2e6, "1.20M"),
        (2**64, "18446744T"),
    ],
)
def test_si(number: float, expected: str) -> None:
    assert si(number) == expected


def test_tables_are_aligned() -> None:
    rows = [["a", "名", "1"], ["bbb", "x", "100"]]
    assert rows_of("A BB N", rows, n_left=2) == ["A    BB    N", "a    名    1", "bbb  x   100"]
    assert rows_of("A BB N", rows * 9, 2, limit=3)[-1] == "… 17 more"
    assert rows_of("A BB N", rows, 2, limit=3)[-1].startswith("bbb")
