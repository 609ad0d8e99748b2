"""Workers of an ordered loader do not run ahead of a slow one without end."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import softs_fast
from softs_fast import Broker, EndpointConfig, ShmMedium, SoftDataLoader, Supplier
from softs_fast.loader.backlog import MAX_WAITING, Backlog
from softs_fast.loader.turns import FreshBatches, Tagged, Turns

CONFIG = softs_fast.make_xy_config((8,), "float32", (), "int64")
N_ROWS, N_SLOTS = 4, 8

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def test_the_trainer_says_how_many_wait() -> None:
    class Noted(Backlog):
        def __init__(self) -> None:
            super().__init__(2)
            self.said: list[list[int]] = []

        def set(self, counts: object) -> None:
            self.said.append(list(counts))  # type: ignore[call-overload]

    backlog, turns = Noted(), (1, 3, 5, 0, 2, 4)
    tagged = (Tagged("p", turn, turn) for turn in turns)
    fresh = FreshBatches(tagged, lambda: "p", 2, ordered=True, returns=True, backlog=backlog)
    assert [next(fresh) for _ in range(6)] == [0, 1, 2, 3, 4, 5]
    assert backlog.said[:4] == [[0, 0], [0, 1], [0, 2], [0, 3]]
    assert [max(count[worker] for count in backlog.said) for worker in range(2)] == [0, 3]
    del fresh
    assert backlog.said[-1] == [0, 0], "nobody waits for one who is gone"


def test_a_worker_begins_no_batch_that_would_wait(eventually: Callable[..., None]) -> None:
    backlog, made = Backlog(2), []
    backlog.set([0, MAX_WAITING])

    class Stream:
        product = "p"

    turns = Turns(iter(range(100)), Stream, 2, 1, 2, backlog)  # type: ignore[arg-type]

    def work() -> None:
        made.extend(next(turns) for _ in range(2))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    assert made == []
    backlog.set([5, MAX_WAITING - 1])
    thread.join()
    assert [item.turn for item in made] == [1, 1]


@pytest.fixture
def called(frontend: str, backend: str) -> Iterator[list[int]]:
    """The numbers of the samples that a supplier was called for."""
    called: list[int] = []

    def generate(product_id: str, sequence: int) -> bytes:
        called.append(sequence)
        return CONFIG.encode(x=torch.zeros(8), y=torch.tensor(sequence))

    with (
        Broker(EndpointConfig(frontend, backend)),
        Supplier(generate, ["p"], backend, ShmMedium, CONFIG.nbytes()),
    ):
        yield called


def test_a_worker_that_has_stopped_is_waited_for(
    called: list[int], frontend: str, eventually: Callable[..., None]
) -> None:
    loader = SoftDataLoader(
        "p",
        frontend,
        CONFIG,
        ShmMedium,
        N_SLOTS,
        batch_size=N_ROWS,
        ordered=True,
        num_workers=2,
        multiprocessing_context="fork",
    )
    seen: list[int] = []
    batches = iter(loader)

    def train(batches: Iterator[Any]) -> None:
        seen.extend(int(next(batches)["y"][0]) for _ in range(40))

    seen.append(int(next(batches)["y"][0]))
    stopped = batches._batches._workers[0].pid
    os.kill(stopped, signal.SIGSTOP)
    trainer = threading.Thread(target=train, args=(batches,))
    trainer.start()

    def all_rest() -> bool:
        before = len(called), len(seen)
        trainer.join(0.5)
        return before == (len(called), len(seen))

    eventually(all_rest, "all rest")
    n_others = sum(number // N_ROWS % 2 for number in called)
    # Batches that were seen, or wait in the trainer, and those that torch has asked for; and what is on order.
    n_batches = len(seen) // 2 + MAX_WAITING + 2
    assert n_others <= n_batches * N_ROWS + N_SLOTS
    os.kill(stopped, signal.SIGCONT)
    trainer.join()
    assert seen == list(range(0, 41 * N_ROWS, N_ROWS))
    # The thread has let it go.
    del batches
