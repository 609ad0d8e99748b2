"""The emulator of a line, in virtual time."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import pytest
from emulator import Emulator, OneWay, Shape
from hypothesis import given
from hypothesis import strategies as st


def one_way(**shape: Any) -> OneWay:
    return OneWay(Shape(**shape), "seed")


def counts(way: OneWay) -> tuple[int, int, int, int]:
    return way.sent, way.lost, way.dropped, way.arrived


def test_a_packet_arrives_after_the_delay_and_not_before() -> None:
    way = one_way(delay_s=0.25)
    way.send(1.0, b"a")
    way.send(1.125, b"b")
    assert [*way.arrivals(1.24)] == []
    assert way.next_at() == 1.25
    assert [*way.arrivals(1.25)] == [b"a"]
    assert [*way.arrivals(9.0)] == [b"b"]
    assert way.next_at() is None


def test_packets_wait_for_the_line_and_those_beyond_the_queue_are_dropped() -> None:
    # A byte takes a second.
    way = one_way(bits_per_s=8.0, delay_s=0.5, queue_bytes=5)
    for _ in range(3):
        way.send(0.0, b"12")
    assert counts(way) == (3, 0, 0, 0)
    # Six bytes are there.
    way.send(0.0, b"34")
    assert counts(way) == (4, 0, 1, 0)
    assert [len([*way.arrivals(at)]) for at in (2.4, 2.5, 4.4, 4.5, 6.5)] == [0, 1, 0, 1, 1]
    # The line is idle again.
    way.send(7.0, b"5")
    assert way.next_at() == 8.5


def test_losses_follow_from_the_seed() -> None:
    def losses(seed: int) -> list[set[int]]:
        both = Emulator(Shape(loss=0.25, seed=seed))
        for way, number in itertools.product((0, 1), range(1000)):
            both.send(way, 0.0, struct.pack(">H", number))
        arrived = [{struct.unpack(">H", packet)[0] for packet in way.arrivals(0.0)} for way in both.ways]
        return [{*range(1000)} - one for one in arrived]

    assert losses(1) == losses(1) != losses(2)
    # One way is not as the other one.
    first, second = losses(1)
    assert first != second
    assert all(200 < len(one) < 300 for one in (first, second))


def test_a_cut_loses_what_is_on_its_way_and_what_is_sent() -> None:
    way = one_way(delay_s=1.0, bits_per_s=8.0)
    way.send(0.0, b"123456")
    way.cut()
    way.send(0.5, b"b")
    way.heal(0.75)
    way.send(0.75, b"c")
    # It did not wait for those that were lost.
    assert way.next_at() == 2.75
    assert [*way.arrivals(2.75)] == [b"c"]
    assert counts(way) == (3, 2, 0, 1)


def test_a_line_that_is_frozen_keeps_what_is_sent() -> None:
    way = one_way(delay_s=1.0)
    way.send(0.0, b"a")
    way.freeze(0.5)
    way.freeze(2.0)
    way.send(3.0, b"b")
    assert ([*way.arrivals(9.0)], way.next_at()) == ([], None)
    way.heal(10.0)
    # A half and a whole second were left.
    assert way.next_at() == 10.5
    assert [*way.arrivals(10.5)] == [b"a"]
    assert way.next_at() == 11.0


def packet(version: int, protocol: int, ports: tuple[int, int], flags: int, back: bool = False) -> bytes:
    """Return the headers of a packet between two hosts."""
    hosts = (b"\1" * 4, b"\2" * 4) if version == 4 else (b"\1" * 16, b"\2" * 16)
    source, target = reversed(hosts) if back else hosts
    source_port, target_port = reversed(ports) if back else ports
    if version == 4:
        head = struct.pack(">B8xB2x4s4s", 0x45, protocol, source, target)
    else:
        head = struct.pack(">B5xBx16s16s", 0x60, protocol, source, target)
    return head + struct.pack(">HH9xB6x", source_port, target_port, flags)


@pytest.mark.parametrize("version", [4, 6])
def test_old_connections_are_dropped_both_ways_and_new_ones_pass(version: int) -> None:
    tcp, udp, syn, ack = 6, 17, 0x02, 0x10
    both = Emulator(Shape())

    def passes(way: int, *headers: int) -> bool:
        both.send(way, 0.0, packet(version, headers[0], (1, headers[1]), headers[2], back=way == 1))
        return [*both.ways[way].arrivals(0.0)] != []

    assert passes(0, tcp, 7, ack)
    both.command(0.0, "drop_connections", [])
    assert not passes(0, tcp, 7, ack)
    assert not passes(1, tcp, 7, ack)
    assert not passes(1, tcp, 8, syn | ack)
    assert passes(0, tcp, 8, syn)
    assert passes(1, tcp, 8, syn | ack)
    assert passes(0, tcp, 8, ack)
    assert not passes(0, tcp, 7, ack)
    assert passes(0, udp, 7, 0)
    both.command(0.0, "heal", [0, 1])
    assert not passes(0, tcp, 7, ack)
    assert [counts(way) for way in both.ways] == [(7, 3, 0, 4), (3, 2, 0, 1)]


MOVES = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 2000)),
    st.sampled_from([("cut", 0), ("freeze", 0), ("heal", 0), ("look", 0)]),
)


@given(
    st.lists(st.tuples(st.integers(0, 50), MOVES)), st.sampled_from([None, 8e4]), st.sampled_from([0.0, 0.3])
)
def test_packets_arrive_once_in_order_and_are_all_counted(
    moves: list[tuple[int, tuple[str, int]]], rate: float | None, loss: float
) -> None:
    way = one_way(delay_s=0.0625, bits_per_s=rate, loss=loss, queue_bytes=4000)
    sent_at: list[float] = []
    arrived: list[int] = []

    def look() -> None:
        for data in way.arrivals(now):
            number = struct.unpack_from(">I", data)[0]
            assert now >= sent_at[number] + 0.0625 - 1e-9
            arrived.append(number)

    now = 0.0
    for pause_ms, (name, n_bytes) in moves:
        now += pause_ms / 1000
        look()
        if name == "send":
            way.send(now, struct.pack(">I", len(sent_at)) + bytes(n_bytes))
            sent_at.append(now)
        elif name == "cut":
            way.cut()
        elif name != "look":
            getattr(way, name)(now)
        assert way.sent == len(sent_at) >= way.lost + way.dropped + way.arrived
    way.heal(now)
    now += 3600
    look()
    assert way.sent == way.lost + way.dropped + len(arrived)
    assert arrived == sorted(set(arrived))
