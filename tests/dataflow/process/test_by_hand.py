"""A worker that a launcher has started: at which host it finds its master, and where it serves its rows."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from token_files import credentials

from softs_fast.dataflow.link.stream import MasterStream, listen_at
from softs_fast.dataflow.process.by_hand import _connected, _serves_at
from softs_fast.errors import HelloError
from softs_fast.trust import Address, Der, Place

SHOWN = credentials("a")


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


@contextmanager
def master(shown: Der) -> Iterator[str]:
    """Listen as a master; yields its address."""
    with closing(MasterStream(listen_at("tcp://127.0.0.1:0", shown))) as stream:
        yield stream.endpoint.removeprefix("tcp://")


def test_a_host_that_says_nothing_does_not_keep_a_worker_from_the_next_one() -> None:
    # The kernel accepts for it, as for a process that was stopped.
    with socket.create_server(("127.0.0.1", 0)) as silent, master(SHOWN) as alive:
        place = Place((f"127.0.0.1:{silent.getsockname()[1]}", alive))
        there, connection = _connected(place, SHOWN, 0, 300.0)
        connection.close(0.0)
    assert there.target() == alive


def test_a_host_that_refuses_a_worker_is_the_last_one() -> None:
    refused = "it does not have the token of this host"
    with (
        master(credentials("b")) as first,
        master(SHOWN) as second,
        pytest.raises(HelloError, match=f"{first}: {refused}"),
    ):
        _connected(Place((first, second)), SHOWN, 0, 300.0)
