"""A worker that a launcher has started: where it serves its rows."""

from __future__ import annotations

import pytest

from softs_fast.dataflow.process.by_hand import _serves_at
from softs_fast.trust import Address


@pytest.mark.parametrize(
    ("reached", "own", "host", "serves"),
    [
        ("127.0.0.1:4711", "127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("[::1]:4711", "::1", "[::1]", "[::1]"),
        # Beside a master for other hosts: they come to this one by its name.
        ("127.0.0.1:4711", "127.0.0.1", "0.0.0.0", "0.0.0.0"),
        ("192.0.2.1:4711", "192.0.2.7", "0.0.0.0", "192.0.2.7"),
        ("[2001:db8::1]:4711", "2001:db8::7", "[::]", "[2001:db8::7]"),
    ],
)
def test_rows_are_served_where_the_master_is_reached(reached: str, own: str, host: str, serves: str) -> None:
    assert _serves_at(Address.parse(reached, "master"), own, host) == serves
