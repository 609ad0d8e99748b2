"""The number of the newest generation: threads that sleep until it changes are woken, in all processes."""

import multiprocessing
import threading
import time
from typing import Any

import pytest

from softs_fast import Client, ShmMedium
from softs_fast.distill.shared_generation import GenerationProduct, new_generation_value, set_generation

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_sleeper_in_another_process_wakes_up(method: str) -> None:
    value = new_generation_value()
    context: Any = multiprocessing.get_context(method)
    here, there = context.Pipe()
    process = context.Process(target=follow, args=(GenerationProduct(3, value), there), daemon=True)
    process.start()
    assert here.recv() == "gen/0/3"
    for generation in (1, 7, 1 << 40):
        time.sleep(0.05)
        set_generation(value, generation)
        assert here.poll(30)
        assert here.recv() == f"gen/{generation}/3"
    process.join()
    here.close()
    there.close()


def follow(model: GenerationProduct, pipe: Any) -> None:
    version = model.version()
    pipe.send(model.read())
    with Client("ipc:///tmp/unserved", ShmMedium, 64, 1) as client:
        for _ in range(3):
            while model.version() == version:
                model.sleep_while(version, model.read(), client.leave_after)
            version = model.version()
            pipe.send(model.read())


def test_a_number_of_the_user_cannot_wake() -> None:
    class Number:
        value = 5

    model = GenerationProduct(0, Number())
    assert (model.can_wake, model.version(), model.read()) == (False, 5, "gen/5/0")
    assert not GenerationProduct(0, multiprocessing.Value("q", 2)).can_wake


def test_a_generation_that_is_the_same_again_is_another_version() -> None:
    value = new_generation_value()
    model = GenerationProduct(0, value)
    versions = set()
    for generation in (1, 2, 1, 0):
        set_generation(value, generation)
        assert model.read() == f"gen/{generation}/0"
        versions.add(model.version())
    assert model.can_wake
    assert len(versions) == 4


def test_threads_never_see_a_product_of_two_generations() -> None:
    value = new_generation_value()
    model, over, wrong = GenerationProduct(0, value), threading.Event(), []

    def look() -> None:
        while not over.is_set():
            before = value.value
            product = model.read()
            after = value.value
            if not before <= int(product.split("/")[1]) <= after:
                wrong.append(product)

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for generation in range(20_000):
        set_generation(value, generation)
    over.set()
    for thread in threads:
        thread.join()
    assert wrong == []
