"""What a worker says goes in its order; of steps that follow each other quickly, the last one."""

from __future__ import annotations

import threading
import time

from softs_fast.coordination.session.outbox import STEP_S, Outbox


def test_of_steps_that_follow_each_other_quickly_the_last_one_goes_and_comes_before_later_messages() -> None:
    outbox = Outbox()
    taken = iter(outbox)
    outbox.put(b"hello")
    outbox.put_step(b"step 1")
    assert [next(taken), next(taken)] == [b"hello", b"step 1"]
    outbox.put_step(b"step 2")
    outbox.put_step(b"step 3")
    outbox.put(b"fault")
    assert [next(taken), next(taken)] == [b"step 3", b"fault"]
    outbox.put_step(b"step 4")
    outbox.put(None)
    assert list(taken) == [b"step 4"]


def test_steps_go_with_pauses_and_none_waits_for_another_message() -> None:
    outbox = Outbox()
    times = []
    taken = iter(outbox)
    for step in (b"1", b"2", b"3"):
        outbox.put_step(step)
        assert next(taken) == step
        times.append(time.monotonic())
    # The first one does not wait, so it may be taken late.
    assert times[2] - times[1] > STEP_S / 2


def test_a_thread_that_waits_is_woken_by_a_message_and_by_a_step() -> None:
    outbox = Outbox()
    taken: list[bytes] = []
    arrived = threading.Semaphore(0)

    def take() -> None:
        for message in outbox:
            taken.append(message)
            arrived.release()

    thread = threading.Thread(target=take)
    thread.start()
    for put, message in ((outbox.put, b"hello"), (outbox.put_step, b"step"), (outbox.put, b"fault")):
        put(message)
        assert arrived.acquire(timeout=20)
    time.sleep(2 * STEP_S)
    outbox.put_step(b"later")
    assert arrived.acquire(timeout=20)
    outbox.put(None)
    thread.join()
    assert taken == [b"hello", b"step", b"fault", b"later"]
