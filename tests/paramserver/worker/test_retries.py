"""Pauses, URLs and the end of retries, in a time that only the tests move; sizes of parts and waits."""

from __future__ import annotations

import random

import pytest

from softs_fast.errors import PeerLost
from softs_fast.paramserver.worker.retries import Retries, Trouble
from softs_fast.paramserver.worker.sizes import PartSizes, PollWait


def test_pauses_grow_with_full_jitter_up_to_twenty_seconds() -> None:
    retries, now = Retries(1e9), 0.0
    longest = []
    while now < 1000.0:
        pause_s, _ = retries.failed(now, Trouble.CUT, 0.999999)
        # No worker is late by much more than the server was away.
        assert pause_s <= max(0.4, now / 8)
        longest.append(round(pause_s, 3))
        now += pause_s
    assert longest[:4] == [0.2, 0.4, 0.4, 0.4]
    assert longest == sorted(longest)
    assert longest[-30:] == [20.0] * 30
    assert len(longest) < 90, "a server that is gone for good is not asked all the time"
    # A process that has slept for long begins with short pauses as well.
    slow = Retries(1e9)
    slow.failed(0.0, Trouble.CUT, 0.5)
    assert [slow.failed(1e6, Trouble.CUT, 0.999999) for _ in range(3)] == [
        (0.999999 * most, False) for most in (0.4, 0.8, 1.6)
    ]
    # A server that was away for all waits at once is not met by all workers at once.
    assert retries.failed(now, Trouble.CUT, 0.0) == (0.0, False)
    retries.answered()
    assert retries.failed(now, Trouble.CUT, 0.5) == (0.1, False)


def test_a_longer_pause_is_granted_up_to_a_minute() -> None:
    retries = Retries(1e9)
    assert retries.failed(0.0, Trouble.BUSY, 0.5, asked_s=30.0) == (30.0, False)
    assert retries.failed(0.0, Trouble.BUSY, 0.5, asked_s=3600.0) == (60.0, False)


def test_the_rejoin_timeout_counts_from_the_last_answer() -> None:
    retries = Retries(100.0)
    assert not retries.failed(0.0, Trouble.CUT, 0.5)[1]
    assert not retries.failed(99.0, Trouble.CUT, 0.5)[1]
    retries.answered()
    assert not retries.failed(150.0, Trouble.CUT, 0.5)[1]
    with pytest.raises(PeerLost) as lost:
        retries.failed(250.0, Trouble.CUT, 0.5, cause="https://a:1: refused")
    assert str(lost.value) == (
        "no answer of the server for 100 s, 2 attempts; the last: https://a:1: refused; "
        "look whether the server runs and the URL is still its own, or give more --rejoin-timeout"
    )


def test_a_minute_of_foreign_pages_asks_for_the_url() -> None:
    retries = Retries(1e9)
    for trouble in (Trouble.FOREIGN, Trouble.NO_NAME, Trouble.CERTIFICATE):
        retries.answered()
        assert not retries.failed(0.0, trouble, 0.5)[1]
        assert not retries.failed(59.0, trouble, 0.5)[1]
        assert retries.failed(61.0, trouble, 0.5)[1]
        # Not with each attempt from here on.
        assert not retries.failed(62.0, trouble, 0.5)[1]
        assert retries.failed(122.0, trouble, 0.5)[1]
    # A connection that is cut is the right server, perhaps.
    assert not retries.failed(190.0, Trouble.CUT, 0.5)[1]
    assert not retries.failed(191.0, Trouble.FOREIGN, 0.5)[1]


def test_parts_take_two_seconds() -> None:
    sizes = PartSizes(1 << 20)
    for _ in range(10):
        sizes.passed(sizes.bytes, sizes.bytes / 2e6)
    assert sizes.bytes == 4_000_000
    for _ in range(10):
        sizes.passed(sizes.bytes, sizes.bytes / 1e9)
    assert sizes.bytes == 16 << 20
    for _ in range(10):
        sizes.passed(sizes.bytes, sizes.bytes / 1e3)
    assert sizes.bytes == 256 << 10
    # A short last part tells nothing of the rate.
    sizes.passed(10, 1.0)
    assert sizes.bytes == 256 << 10


def test_a_part_that_was_refused_is_halved_for_good() -> None:
    sizes = PartSizes(4 << 20)
    assert sizes.refused(4 << 20)
    assert sizes.bytes == 2 << 20
    sizes.passed(2 << 20, 0.001)
    assert sizes.bytes == 2 << 20
    n = 0
    while sizes.refused(sizes.bytes):
        n += 1
    assert sizes.bytes == 4 << 10
    assert n == 9
    sizes = PartSizes(4 << 20)
    sizes.limit(1 << 20)
    assert sizes.bytes == 1 << 20
    sizes.cut()
    assert sizes.bytes == 512 << 10


def test_parts_stay_within_their_limits() -> None:
    for seed in range(100):
        generator = random.Random(seed)
        most = generator.choice([256 << 10, 1 << 20, 16 << 20])
        sizes = PartSizes(generator.choice([1, 1 << 20, 1 << 30]), most)
        for _ in range(50):
            assert 4096 <= sizes.bytes <= most
            match generator.randrange(4):
                case 0:
                    sizes.refused(sizes.bytes)
                case 1:
                    sizes.cut()
                case 2:
                    sizes.limit(generator.choice([1 << 20, 1 << 30]))
                case _:
                    sizes.passed(generator.randint(1, sizes.bytes), generator.random())


def test_a_wait_that_is_cut_is_halved_and_grows_again() -> None:
    poll = PollWait(25.0)
    poll.cut(1.0)
    assert poll.seconds == 25.0
    poll.cut(24.0)
    assert poll.seconds == 12.5
    for _ in range(10):
        poll.cut(poll.seconds)
    assert poll.seconds == 1.0
    for _ in range(20):
        poll.ended()
    assert poll.seconds == 2.0
    for _ in range(200):
        poll.ended()
    assert poll.seconds == 25.0
