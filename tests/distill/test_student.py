"""StudentClient: seats, models, samples, and what it says when something is wrong."""

import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from samples import CONFIG, check, failure, next_model, take
from school import School
from waiting import eventually

import softs_fast
from softs_fast import ConfigError, StudentClient, TensorSpec
from softs_fast.distill.model import Model


def test_from_hello_to_a_sample(school: School) -> None:
    broker = school.broker()
    worker = school.worker()
    client = school.student()
    answer = client.hello()
    assert answer["ok"] is True
    assert answer["generation"] == client.generation == 0
    assert client.model_id is None
    assert client.set_model("7", {"depth": 3, "names": ["a"]}) == 1
    assert (client.generation, client.generation_value.value, client.model_id) == (1, 1, "7")
    assert client.model_cfg == {"depth": 3, "names": ["a"]}
    sample = take(client)
    assert sample.generation == 1
    assert check(sample.tensors()) == 7
    assert CONFIG.decode(sample.data)["model"] == 7
    assert sample.data == client.read_slot(sample.slot_id)
    client.release_slot(sample.slot_id)
    with pytest.raises(ConfigError, match="not"):
        client.release_slot(sample.slot_id)
    assert (worker.generation, worker.model_id, worker.model_cfg) == (1, "7", client.model_cfg)
    stats = broker.stats
    assert (stats.generation, stats.model_id, stats.students) == (1, "7", [0])
    assert broker.get_stats().generation == 1


def test_each_switch_counts_and_nothing_old_comes(school: School) -> None:
    """The first one says hello by itself."""
    client = school.begun()
    for model in range(1, 50):
        assert client.set_model(str(model)) == model
        for _ in range(model % 4):
            assert next_model(client) == model
    assert client.model_cfg is None


def test_slots_that_are_held_over_a_switch_stay_what_they_are(school: School) -> None:
    client = school.begun(slot_count=2)
    client.set_model("1")
    held = take(client)
    client.set_model("2")
    for _ in range(10):
        assert next_model(client) == 2
    assert check(held.tensors()) == 1
    client.release_slot(held.slot_id)
    both = [take(client), take(client)]
    assert [check(sample.tensors()) for sample in both] == [2, 2]
    assert client.request_sample(timeout_ms=1) is None
    assert "all 2 slots are held" in str(client.diagnose())


def test_followers_switch_with_the_leader(school: School) -> None:
    leader, follower = school.begun(0), school.student(1)
    leader.set_model("5")
    assert follower.hello()["model_id"] == "5"
    assert next_model(follower) == 5
    follower.start_sub_listener()
    follower.start_sub_listener()
    for model in range(6, 20):
        generation = leader.set_model(str(model))
        follower.wait_for_generation(generation)
        assert next_model(follower) == next_model(leader) == model
        assert follower.model_id == str(model)


def test_a_follower_waits_for_the_first_model(school: School) -> None:
    leader, follower = school.begun(0), school.student(3)
    follower.start_sub_listener()
    follower.hello()
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.append(next_model(follower)))
    thread.start()
    leader.set_model("4")
    thread.join()
    assert got == [4]


def test_a_switch_ends_waits_for_the_old_model(school: School, choosy: Any) -> None:
    school.broker()
    school.worker(choosy)
    leader, follower = school.student(0), school.student(1)
    follower.start_sub_listener()
    follower.wait_for_generation(leader.set_model("bad"))
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(follower.request_sample(timeout_ms=30_000)))
    thread.start()
    leader.set_model("good")
    thread.join()
    assert got[0].generation == 2


def test_before_a_model_there_is_no_sample(school: School) -> None:
    client = school.begun()
    client.hello()
    assert client.request_sample(timeout_ms=0) is None
    assert client.request_sample(timeout_ms=20) is None
    problem = client.diagnose(0.02)
    assert isinstance(problem, softs_fast.NoModel)
    assert "set_model()" in str(problem)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_has_one_student(school: School, rank: int) -> None:
    school.broker()
    first, second = school.student(rank), school.student(rank)
    first.hello()
    first.hello()
    with pytest.raises(ConfigError, match=f"rank {rank} "):
        second.hello()
    first.close()

    def is_free() -> bool:
        try:
            second.hello()
        except ConfigError:
            return False
        return True

    eventually(is_free, "the seat of the one that left is free")


def test_a_new_leader_goes_on_where_the_old_one_was(school: School) -> None:
    broker = school.broker()
    school.worker()
    first = school.student()
    first.set_model("1")
    first.set_model("2")
    first.close()
    eventually(lambda: broker.stats.students == [], "the leader has left")
    second = school.student()
    assert second.hello()["generation"] == 2
    assert next_model(second) == 2
    assert second.set_model("3") == 3
    assert next_model(second) == 3


def test_stop_ends_workers(school: School) -> None:
    school.broker()
    workers = [school.worker(), school.worker()]
    client = school.student()
    client.set_model("1")
    next_model(client)
    client.stop_workers()
    for worker in workers:
        worker._supplier.wait()


@pytest.mark.parametrize("rank", [-1, 1.0, True, "0", 1 << 16, None])
def test_ranks_that_are_none(rank: Any) -> None:
    with pytest.raises(ConfigError, match="student_rank"):
        StudentClient(rank, 8, CONFIG, "ipc:///unused", "ipc:///unused", "ipc:///unused")


def test_arguments_that_make_no_client(school: School) -> None:
    with pytest.raises(ConfigError, match="num_slots"):
        school.student(slot_count=0)
    client = StudentClient(0, 4, CONFIG, school.frontend, "gopher://x", school.control_pub)
    school.stack.callback(client.close)
    school.broker()
    with pytest.raises(ConfigError, match="gopher"):
        client.hello()
    with pytest.raises(ConfigError, match="dtype"):
        TensorSpec("x", (1,), "float7")


@pytest.mark.parametrize(
    ("model_id", "text"),
    [("", "1 to 256 bytes"), ("x" * 257, "257"), ("a\nb", "control"), (7, "got int"), ("\ud800", "UTF-8")],
)
def test_model_ids_that_cannot_be_set(school: School, model_id: Any, text: str) -> None:
    school.broker()
    client = school.student()
    with pytest.raises(ConfigError, match=text):
        client.set_model(model_id)
    assert client.generation == 0


@pytest.mark.parametrize("model_cfg", [{"x": object()}, {"x": 1 << 70}, [1], "text", {"x": b"x" * (1 << 20)}])
def test_configurations_that_cannot_be_sent(school: School, model_cfg: Any) -> None:
    school.broker()
    client = school.student()
    with pytest.raises(ConfigError, match="model_cfg"):
        client.set_model("1", model_cfg)
    assert client.generation == 0


def test_no_broker(school: School) -> None:
    client = school.student(send_timeout_ms=50)
    with pytest.raises(softs_fast.HelloError, match="50 ms"):
        client.hello()
    with pytest.raises(softs_fast.HelloError):
        client.set_model("1")


def test_another_slot_size_than_the_students(school: School) -> None:
    school.broker()
    school.worker(lambda model_id, model_cfg: bytes(8), batch_config=None, slot_size=8)
    client = school.student()
    client.set_model("1")
    assert client.request_sample(timeout_ms=100) is None
    eventually(lambda: "slot_size differs" in str(client.diagnose()), "the cause is known")
    assert "none of the 1 suppliers that make it can serve this client" in str(client.diagnose())


def test_a_generator_that_raises_on_one_model(school: School, choosy: Any) -> None:
    school.broker()
    school.worker(choosy)
    # Few slots: suppliers have room for the texts of few errors at a time.
    client = school.student(slot_count=2)
    client.set_model("bad")
    assert "boom of model bad" in failure(client)
    client.set_model("good")
    client.release_slot(take(client).slot_id)


def test_a_closed_client_leaves_nothing(school: School) -> None:
    school.broker()
    client = school.student()
    client.start_sub_listener()
    client.hello()
    segment = Path("/dev/shm", str(client.medium.address))
    assert segment.exists()
    client.close()
    client.close()
    assert not segment.exists()


def test_an_ordered_client_has_a_stream_per_model(school: School) -> None:
    school.broker()
    for _ in range(3):
        school.worker()
    client = school.student(ordered=True)
    for model in ("1", "2"):
        client.set_model(model)
        for sequence in range(50):
            sample = take(client)
            tensors = sample.tensors()
            assert (check(tensors), int(tensors["sequence"])) == (int(model), sequence)
            client.release_slot(sample.slot_id)


def test_configs_of_other_kinds_of_mappings(school: School) -> None:
    import omegaconf

    school.broker()
    client = school.student()
    client.set_model("1", omegaconf.OmegaConf.create({"depth": 2, "layers": [1, {"width": 3}]}))
    assert client.model_cfg == {"depth": 2, "layers": [1, {"width": 3}]}


def test_waiting_for_a_generation_that_does_not_come(school: School) -> None:
    school.broker()
    client = school.student(1)
    with pytest.raises(softs_fast.BrokerTimeout, match="start_sub_listener"):
        client.wait_for_generation(3, timeout_s=0.01)


def test_workers_and_followers_say_that_they_wait(
    school: School,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("softs_fast.distill.model_listener._WARN_AFTER_MS", 50)
    caplog.set_level(logging.WARNING, "softs_fast.distill")
    broker = school.broker()
    school.worker(worker_id=77)
    eventually(lambda: "worker 77 waits for a model" in caplog.text, "it says so")
    eventually(lambda: broker.stats.waiting_workers == 1, "the broker has its subscription")
    school.student().set_model("1")
    assert broker.stats.waiting_workers == 0


def test_a_switch_in_the_middle_of_a_request(school: School) -> None:
    client = school.begun()
    client.set_model("1")
    next_model(client)
    request = client._request

    def switched(product_id: str, timeout_ms: int) -> int | None:
        slot_id = request(product_id, timeout_ms)
        client._request = request
        client.set_model("2")
        return slot_id

    client._request = switched
    sample = take(client)
    assert (sample.generation, check(sample.tensors())) == (2, 2)


def test_what_was_ordered_of_the_model_before_is_taken_back(school: School) -> None:
    broker = school.broker()
    client = school.student()
    client.set_model("1")

    def arrived() -> bool:
        # A client has no thread: its orders go while it is asked for samples.
        return client.request_sample(timeout_ms=1) is None and broker.stats.pending_orders == 8

    eventually(arrived, "the orders have arrived")
    client.set_model("2")

    def n_queued(generation: int) -> int:
        stats = client._client._core.stats(f"gen/{generation}/0", 1000)
        assert stats is not None
        n: int = stats["diagnosis"]["queued"]
        return n

    assert n_queued(1) == 0, "they are gone"
    eventually(lambda: n_queued(2) == 8, "those of the new model have arrived")


def test_news_that_come_again_with_a_connection(school: School) -> None:
    client = school.student(1)
    client._follow(Model(5, "e"))
    wanted = client._wanted
    client._follow(Model(5, "e"))
    assert client._wanted is wanted


def test_a_broker_that_begins_anew_is_followed(school: School) -> None:
    client = school.student(1)
    client._adopt(Model(7, "g"))  # said hello()
    client._follow(Model(6, "f"))  # announced before
    assert client.generation == 7
    client._follow(Model(7, "g"))
    client._follow(Model(1, "a"))
    assert (client.generation, client.model_id, client.generation_value.value) == (1, "a", 1)


def test_a_leader_does_not_go_back_to_what_a_new_broker_was_told_first(school: School) -> None:
    school.broker()
    leader = school.student(0)
    older, newest = leader.set_model("a"), leader.set_model("b")
    for generation, name in ((newest, "b"), (older, "a")):
        leader._follow(Model(generation, name))
    assert (leader.generation, leader.model_id) == (newest, "b")


def test_followers_come_along_when_broker_and_leader_are_new(school: School) -> None:
    broker = school.broker()
    school.worker()
    leader, follower = school.student(0), school.student(1, slot_count=2)
    follower.start_sub_listener()
    for model in ("1", "2", "3"):
        leader.set_model(model)
    follower.wait_for_generation(3)
    leader.close()
    broker.stop()
    # This follower has no seat, so the new broker hears nothing of what was.
    broker.start()
    leader = school.student(0)
    assert leader.set_model("9") == 1
    eventually(lambda: follower.model_id == "9", "it follows")
    assert next_model(follower) == next_model(leader) == 9
