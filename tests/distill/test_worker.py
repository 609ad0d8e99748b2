"""Worker: the forms of its functions, and which orders it serves."""

import threading
from typing import Any

import numpy as np
import pytest
from samples import CONFIG, check, failure, next_model, stamped, take
from school import School
from waiting import eventually

import softs_fast
from softs_fast import ConfigError, GeneratorFailed, Worker
from softs_fast.distill.generator_adapters import CurrentModel, OrderRefused, by_product
from softs_fast.distill.model import Model


def test_functions_that_return_bytes(school: School) -> None:
    def generate(model_id: str, model_cfg: dict[str, Any] | None) -> bytes:
        assert model_cfg == {"fill": 3}
        return bytes([model_cfg["fill"]]) * CONFIG.nbytes()

    school.broker()
    school.worker(generate, slot_size=CONFIG.nbytes(), batch_config=None)
    client = school.student()
    client.set_model("x", {"fill": 3})
    assert take(client).data == b"\3" * CONFIG.nbytes()


@pytest.mark.parametrize("with_rank", [False, True])
def test_functions_that_make_batches(school: School, with_rank: bool) -> None:
    sizes: list[int] = []

    def batch(model_id: str, model_cfg: Any, n: int, sequences: tuple[int, ...], rank: int = 2) -> Any:
        sizes.append(n)
        rows = [stamped(model_id, model_cfg, sequence, rank) for sequence in sequences]
        return {name: np.stack([np.asarray(row[name]) for row in rows]) for name in rows[0]}

    def batch_without_rank(model_id: str, model_cfg: Any, n: int, sequences: tuple[int, ...]) -> Any:
        return batch(model_id, model_cfg, n, sequences)

    school.broker()
    school.worker(
        None, batch_generator_fn=batch if with_rank else batch_without_rank, max_batch=4, max_wait_ms=1.0
    )
    leader, client = school.student(0), school.student(2)
    client.start_sub_listener()
    client.wait_for_generation(leader.set_model("6"))
    for _ in range(20):
        assert next_model(client) == 6
    assert max(sizes) <= 4


def test_functions_that_fill(school: School) -> None:
    def fill(model_id: str, model_cfg: Any, out: dict[str, Any], sequence: int, rank: int) -> None:
        for name, value in stamped(model_id, model_cfg, sequence, rank).items():
            out[name][...] = value

    school.broker()
    school.worker(None, fill_fn=fill)
    client = school.student()
    client.set_model("8")
    assert next_model(client) == 8


def test_not_exactly_one_function() -> None:
    with pytest.raises(ConfigError, match="need exactly one of"):
        Worker(None, 8)
    with pytest.raises(ConfigError, match="need exactly one of"):
        Worker(stamped, 8, batch_generator_fn=stamped)
    with pytest.raises(ConfigError, match="slot_size"):
        Worker(stamped)
    with pytest.raises(ConfigError, match="worker_id"):
        Worker(stamped, 8, worker_id="a")  # type: ignore[arg-type]


def test_worker_id_names_it_in_errors(school: School, zeros: Any) -> None:
    def fail(model_id: str, model_cfg: Any) -> Any:
        raise ValueError("boom")

    school.broker()
    assert school.worker(fail, worker_id=4711).worker_id == 4711
    # Few slots: suppliers have room for the texts of few errors at a time.
    client = school.student(slot_count=2)
    client.set_model("1")
    assert ":4711" in failure(client)


def test_run_returns_when_the_leader_says_stop(school: School) -> None:
    broker = school.broker()
    worker = Worker(stamped, 0, school.backend, school.control_pub, batch_config=CONFIG)
    thread = threading.Thread(target=worker.run)
    thread.start()
    client = school.student()
    client.set_model("1")
    assert next_model(client) == 1
    client.stop_workers()
    thread.join()
    eventually(lambda: broker.stats.connected_suppliers == 0, "the worker has left")


def test_stop_while_an_order_waits_for_its_model() -> None:
    current = CurrentModel()
    failures: list[GeneratorFailed] = []

    def ask() -> None:
        try:
            current.task("gen/5/0")
        except GeneratorFailed as error:
            failures.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    current.close()
    thread.join()
    assert "generation 5 is not known" in str(failures[0])


def test_no_broker(school: School) -> None:
    worker = Worker(stamped, 8, school.backend, school.control_pub, send_timeout_ms=50)
    with pytest.raises(softs_fast.HelloError, match="50 ms"):
        worker.hello()
    with pytest.raises(softs_fast.HelloError):
        worker.start()
    school.broker()
    worker._supplier.send_timeout_ms = 30_000
    worker.start()
    worker.stop()


def test_a_stopped_worker_does_not_start_again(school: School) -> None:
    school.broker()
    worker = school.worker()
    worker.stop()
    for again in (worker.start, worker.run, worker.hello):
        with pytest.raises(softs_fast.HelloError, match="was stopped and cannot start again; make another"):
            again()


def test_which_orders_are_served() -> None:
    current = CurrentModel()
    made = by_product(current, lambda model_id, model_cfg: (model_id, model_cfg), 0)
    current.set(Model(3, "c", {"x": 1}))
    assert made("gen/3/0") == made("gen/3/0") == made("gen/3/9") == ("c", {"x": 1})
    with pytest.raises(OrderRefused, match="generation 2 is over: the model is 'c' now, generation 3"):
        made("gen/2/0")
    with pytest.raises(GeneratorFailed, match="names no generation"):
        made("teacher")
    current.set(Model(4, "d"))
    with pytest.raises(OrderRefused):
        made("gen/3/0")
    assert made("gen/4/0") == ("d", None)
    # A broker that has lost its memory begins anew, and is right.
    current.set(Model(1, "a"))
    assert made("gen/1/0") == ("a", None)


def test_an_order_that_is_quicker_than_its_model() -> None:
    current = CurrentModel()
    made = by_product(current, lambda model_id, model_cfg, sequence, rank: (model_id, sequence, rank), 0)
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(made("gen/2/5", 7)))
    thread.start()
    current.set(Model(1, "a"))
    current.set(Model(2, "b"))
    thread.join()
    assert got == [("b", 7, 5)]


@pytest.mark.parametrize(
    ("function", "n_before", "given", "expected"),
    [
        (lambda m, c: (m, c), 0, (), ("a", None)),
        (lambda m, c, sequence=None: (m, sequence), 0, (7,), ("a", 7)),
        (lambda m, c, s, rank=None: (m, s, rank), 0, (7,), ("a", 7, 3)),
        (lambda m, c, s, other=9: (m, s, other), 0, (7,), ("a", 7, 9)),
        (lambda m, c, model="mine": (m, model), 0, (), ("a", "mine")),
        (lambda m, c, n: (m, n), 1, (4,), ("a", 4)),
        (lambda m, c, n, s, r: (m, n, s, r), 1, (4, (1, 2)), ("a", 4, (1, 2), 3)),
    ],
)
def test_what_functions_are_given(
    function: Any, n_before: int, given: tuple[Any, ...], expected: Any
) -> None:
    from softs_fast.market.generators import takes_argument

    current = CurrentModel()
    current.set(Model(1, "a"))
    made = by_product(current, function, n_before)
    assert made("gen/1/3", *given) == expected
    assert takes_argument(made, 1 + n_before, "sequence") == (len(given) > n_before)


def test_a_generation_that_was_waited_for_in_vain_is_not_waited_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    current = CurrentModel()
    made = by_product(current, lambda model_id, model_cfg: model_id, 0)
    monkeypatch.setattr("softs_fast.distill.generator_adapters._ANNOUNCEMENT_TIMEOUT_S", 0.01)
    with pytest.raises(GeneratorFailed, match="generation 2 is not known"):
        made("gen/2/0")
    # Longer than this test may take.
    monkeypatch.setattr("softs_fast.distill.generator_adapters._ANNOUNCEMENT_TIMEOUT_S", 1000.0)
    for _ in range(3):
        with pytest.raises(GeneratorFailed, match="generation 2 is not known"):
            made("gen/2/1")
    current.set(Model(2, "b"))
    assert made("gen/2/1") == "b"


def test_samples_say_for_which_rank_they_are(school: School) -> None:
    leader, other = school.begun(0), school.student(1)
    other.start_sub_listener()
    other.wait_for_generation(leader.set_model("2"))
    assert check(take(other).tensors(), rank=1) == 2
    assert check(take(leader).tensors(), rank=0) == 2
