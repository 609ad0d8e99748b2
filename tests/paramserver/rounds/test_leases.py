"""Leases of samples, with and without a run."""

from __future__ import annotations

import random

from driven_run import is_refused, joined

from softs_fast.paramserver.rounds import events
from softs_fast.paramserver.rounds.events import Version
from softs_fast.paramserver.rounds.leases import MAX_RANGES, LeaseRecord, Leases, Range
from softs_fast.paramserver.wire.answers import Code


def test_positions_are_handed_out_in_order() -> None:
    leases = Leases(10)
    assert leases.take("a", 4, 1) == (Range(0, 0, 4),)
    assert leases.take("b", 4, 1) == (Range(0, 4, 8),)
    assert leases.take("a", 4, 1) == (Range(0, 0, 4),), "it holds them already"
    leases.count("a", 1, 1)
    assert leases.take("a", 4, 2) == (Range(0, 8, 10),)
    for _ in range(2):
        leases.commit(1)
        assert leases.record() == LeaseRecord(0, (Range(0, 4, 10),))


def test_what_is_taken_back_comes_first_and_is_joined() -> None:
    leases = Leases(12)
    for worker in "abc":
        leases.take(worker, 3, 1)
    leases.release("a")
    leases.release("b")
    assert leases.take("d", 9, 1) == (Range(0, 0, 6), Range(0, 9, 12))


def test_an_epoch_begins_while_samples_of_the_last_are_held() -> None:
    leases = Leases(4, epochs=2)
    leases.take("a", 3, 1)
    assert leases.take("b", 3, 1) == (Range(0, 3, 4),)
    leases.count("b", 1, 1)
    assert leases.take("b", 3, 2) == (Range(1, 0, 3),)
    leases.release("a")
    leases.count("b", 2, 2)
    assert leases.take("b", 9, 3) == (Range(0, 0, 3),), "a lease is of one epoch"
    leases.count("b", 3, 3)
    assert leases.take("b", 9, 4) == (Range(1, 3, 4),)
    leases.count("b", 4, 4)
    assert leases.take("b", 9, 5) == ()


def test_a_record_has_what_no_step_has_used() -> None:
    leases = Leases(10)
    for worker, content in (("a", 1), ("b", 2)):
        leases.take(worker, 3, 1)
        leases.count(worker, content, 1)
    leases.take("c", 2, 1)
    leases.commit(1)
    assert leases.record() == LeaseRecord(0, (Range(0, 3, 10),))
    again = Leases(10, record=leases.record())
    assert again.take("x", 99, 1) == (Range(0, 3, 10),)


def test_a_lease_has_few_pieces() -> None:
    leases = Leases(1000)
    for number in range(1000):
        leases.take(f"w{number}", 1, 1)
    for number in range(0, 1000, 2):
        leases.release(f"w{number}")
    assert len(leases.take("x", 1000, 1)) == MAX_RANGES


def test_each_position_is_done_once() -> None:
    for seed in range(50):
        pick = random.Random(seed)
        leases = Leases(50, epochs=3)
        done: list[tuple[int, int]] = []
        held: dict[str, tuple[Range, ...]] = {}
        counted: dict[int, tuple[Range, ...]] = {}
        for number in range(3000):
            worker = f"w{pick.randrange(6)}"
            match pick.randrange(5):
                case 0 | 1:
                    taken = leases.take(worker, pick.randint(1, 9), 1)
                    assert taken == held.get(worker, taken)
                    if taken:
                        held[worker] = taken
                case 2:
                    leases.release(worker)
                    held.pop(worker, None)
                case 3:
                    leases.count(worker, number, 1)
                    if worker in held:
                        counted[number] = held.pop(worker)
                case _ if counted:
                    content = pick.choice(list(counted))
                    ranges = counted.pop(content)
                    if pick.random() < 0.3:
                        leases.drop(content)
                        continue
                    leases.commit(content)
                    done += [
                        (one.epoch, position) for one in ranges for position in range(one.start, one.stop)
                    ]
        assert len(done) == len(set(done))
        epoch, ranges = leases.record()
        left = [(one.epoch, position) for one in ranges for position in range(one.start, one.stop)]
        assert len(left) == len(set(left))
        assert not set(left) & set(done)
        assert len(left) + len(done) == 50 * (epoch + 1)


# --- In a run ---


def test_samples_of_a_dead_worker_are_handed_out_again() -> None:
    run = joined("a", "b", quorum=1, dataset_size=10)
    assert run.tell(events.Take("b", 4, 1)) == events.Granted((Range(0, 0, 4),))
    run.wait(21.0, "a")
    assert run.tell(events.Take("a", 4, 1)) == events.Granted((Range(0, 0, 4),))
    answer = run.push("b", Version(1, 0), data=1)
    assert isinstance(answer, events.Stale)
    assert "samples were taken back" in answer.message
    assert (answer.timeline, answer.version) == (1, 0)


def test_a_stale_push_gives_its_samples_back() -> None:
    run = joined("a", "b", quorum=1, round_samples=1, dataset_size=10)
    run.tell(events.Take("a", 4, 1))
    run.tell(events.Take("b", 4, 1))
    run.push("a", data=1)
    run.tell(events.Applied())
    assert isinstance(run.push("b", Version(1, 0), data=1), events.Stale)
    assert is_refused(run.tell(events.Take("b", 4, 1)), Code.SPENT)
    assert run.tell(events.Take("b", 4, 2)) == events.Granted((Range(0, 4, 8),))
    assert is_refused(run.tell(events.Take("b", 4, 1)), Code.SPENT), "an old request that arrives late"
    assert run.tell(events.Take("b", 4, 2)) == events.Granted((Range(0, 4, 8),))


def test_the_last_samples_need_no_quorum() -> None:
    """A worker without samples is not waited for, and the run ends with the last epoch."""
    run = joined("a", "b", quorum=2, dataset_size=6, epochs=1)
    for worker in "ab":
        assert isinstance(run.tell(events.Take(worker, 2, 1)), events.Granted)
        run.push(worker, data=1)
    run.tell(events.Applied())
    assert isinstance(run.tell(events.Take("a", 2, 2)), events.Granted)
    assert run.tell(events.Take("b", 2, 2)) == events.Granted(())
    run.push("a", data=2)
    assert [one.push.worker_id for one in run.one(events.Apply).shares] == ["a"]
    run.tell(events.Applied())
    assert run.one(events.Ended) == events.Ended("all epochs are done", False)


def test_samples_that_are_given_back_wake_a_resting_worker() -> None:
    run = joined("a", "b", quorum=1, dataset_size=4, epochs=1)
    run.tell(events.Take("a", 4, 1))
    assert run.tell(events.Take("b", 4, 1)) == events.Granted(())
    assert [one.state for one in run.run.status(0.0).members] == ["active", "paused"]
    run.tell(events.Leave("a"))
    assert isinstance(run.tell(events.Take("b", 4, 1)), events.Granted)
    assert [one.state for one in run.run.status(0.0).members] == ["active"]
