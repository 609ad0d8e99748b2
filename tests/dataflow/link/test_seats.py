"""Which process is which worker: random histories of processes that join, leave and are given up."""

from __future__ import annotations

import random

import pytest

from softs_fast.dataflow.link.seats import MOST_WORKERS, Seated, Seats, new_seat, worker_of
from softs_fast.errors import ConfigError


def test_a_seat_is_below_2_to_the_32_and_says_which_worker_it_is_of() -> None:
    for worker in (0, 7, MOST_WORKERS - 1):
        seats = {new_seat(worker, random.randrange(1 << 64)) for _ in range(200)}
        assert len(seats) > 150
        assert all(0 <= seat < 1 << 32 and worker_of(seat) == worker for seat in seats)
    for worker in (-1, MOST_WORKERS):
        with pytest.raises(ConfigError, match=f"worker is {worker}; need 0 to 999999"):
            new_seat(worker, 0)


def test_a_number_without_a_role_is_refused() -> None:
    seats = Seats([2, 0])
    assert seats.join(Seated(1, 5, "a"), may_wait=True) == "worker 1 has no role in this flow; there are 0, 2"
    assert seats.seat(1) is None


def test_random_histories() -> None:
    for seed in range(500):
        run(random.Random(seed))


def run(rng: random.Random) -> None:
    """Each worker has one process at most; one that waits follows it, and no process is lost sight of."""
    seats = Seats(range(3))
    # By worker, the process that it is, and one that waits; processes that were given up are still connected.
    held: dict[int, Seated] = {}
    waiting: dict[int, Seated] = {}
    given_up: list[Seated] = []
    for number in range(60):
        worker = rng.randrange(3)
        match rng.randrange(4):
            case 0 | 1:
                one, may_wait = Seated(worker + MOST_WORKERS * number, number, "host"), rng.random() < 0.7
                why = seats.join(one, may_wait=may_wait)
                if worker not in held:
                    assert not why
                    held[worker] = one
                elif may_wait and worker not in waiting:
                    assert not why
                    waiting[worker] = one
                else:
                    other = waiting[worker] if may_wait else held[worker]
                    assert why.startswith(f"worker {worker} is joined already: process {other.pid} of host")
            case 2:
                here = [*held.values(), *waiting.values(), *given_up]
                if here:
                    one = rng.choice(here)
                    was_held = held.get(one.worker) == one
                    assert seats.leave(one.seat) == was_held
                    if was_held:
                        del held[one.worker]
                        follow(seats, one.worker, held, waiting)
                    elif waiting.get(one.worker) == one:
                        del waiting[one.worker]
                    else:
                        given_up.remove(one)
            case _:
                one_given_up = seats.give_up(worker)
                assert one_given_up == held.pop(worker, None)
                if one_given_up is not None:
                    given_up.append(one_given_up)
                follow(seats, worker, held, waiting)
        assert seats.held == held
        assert [seats.seat(i) for i in range(3)] == [held[i].seat if i in held else None for i in range(3)]
        assert all(seats.holds(one.seat) for one in held.values())
        assert not any(seats.holds(one.seat) for one in (*waiting.values(), *given_up))


def follow(seats: Seats, worker: int, held: dict[int, Seated], waiting: dict[int, Seated]) -> None:
    """The process that waits has the number now; a second call changes nothing."""
    expected = waiting.pop(worker, None) if worker not in held else None
    assert seats.follow(worker) == expected
    assert seats.follow(worker) is None
    if expected is not None:
        held[worker] = expected
