"""The control channel with real peers: sockets of pyzmq, students and subscribers of our own."""

import threading
from pathlib import Path

import msgpack
import pytest
import zmq
from control_channel import CFG, PACKED, WATCHDOG_MS, Channel, ask, hears, model
from side_by_side import in_threads
from waiting import eventually

from softs_fast._core import ControlServer, ControlStudent, ControlSubscriber


@pytest.mark.parametrize(("prefix", "kind"), [(b"", zmq.SUB), (b"MODEL", zmq.SUB), (b"", zmq.XSUB)])
def test_sub_sockets_hear_of_each_model(channel: Channel, prefix: bytes, kind: int) -> None:
    leader, socket = channel.leader(), channel.sub(prefix, kind)
    eventually(lambda: channel.server.stats()["subscribers"] == 1, "the subscription")
    for generation in (1, 2, 3):
        assert leader.set_model(f"layer_{generation}", PACKED, WATCHDOG_MS) == generation
        assert model(socket) == {
            "generation": generation,
            "model_id": f"layer_{generation}",
            "model_cfg": CFG,
        }


def test_stop_goes_to_its_subscribers(channel: Channel) -> None:
    leader = channel.leader()
    everything, models, stops = channel.sub(b""), channel.sub(b"MODEL"), channel.sub(b"STOP")
    worker = channel.subscriber()
    assert worker.next_event(0) is None
    leader.set_model("a", PACKED, WATCHDOG_MS)
    assert model(everything)["model_id"] == model(models)["model_id"] == "a"
    hears(worker, "MODEL", 1, "a", PACKED)
    # The subscriber to STOP alone is known by now: its connection is older than the answered subscription of this
    # one.
    stops.setsockopt(zmq.SUBSCRIBE, b"MODEL")
    assert model(stops)["model_id"] == "a"
    leader.stop_workers(WATCHDOG_MS)
    assert everything.recv_multipart() == stops.recv_multipart() == [b"STOP", b"\x80"]
    hears(worker, "STOP")
    leader.set_model("b", PACKED, WATCHDOG_MS)
    assert model(models)["model_id"] == "b"


def test_a_script_with_a_dealer_can_lead(channel: Channel) -> None:
    dealer, worker = channel.dealer(), channel.subscriber()
    assert ask(dealer, b"HELLO", rank=0, slot_size=128) == {
        "ok": True,
        "error": None,
        "peer_id": 1,
        "generation": 0,
        "model_id": "",
        "model_cfg": None,
    }
    assert ask(dealer, b"SET_MODEL", model_id="m", model_cfg=CFG) == {
        "ok": True,
        "error": None,
        "generation": 1,
    }
    hears(worker, "MODEL", 1, "m", PACKED)
    stats = ask(dealer, b"STATS")
    assert stats == {
        "ok": True,
        "error": None,
        "generation": 1,
        "model_id": "m",
        "leader": True,
        "slot_size": 128,
        "students": [0],
        "subscribers": 1,
        "waiting_s": 0.0,
    }
    assert ask(dealer, b"STOP") == {"ok": True, "error": None}
    hears(worker, "STOP")
    of_server = channel.server.stats()
    assert of_server == {**{k: v for k, v in stats.items() if k not in ("ok", "error")}, "model_cfg": PACKED}


def test_a_subscriber_that_stops_reading_delays_no_other_and_gets_the_newest(channel: Channel) -> None:
    leader, worker = channel.leader(), channel.subscriber()
    sleeper = channel.sub(b"", RCVHWM=1)
    leader.set_model("first", b"", WATCHDOG_MS)
    assert model(sleeper)["model_id"] == "first"
    hears(worker, "MODEL", 1, "first", b"\xc0")
    large = msgpack.packb(b"x" * 500_000)
    for generation in range(2, 42):
        assert leader.set_model("more", large, WATCHDOG_MS) == generation
        hears(worker, "MODEL", generation, "more", large)
    heard = [model(sleeper)["generation"]]
    while heard[-1] < 41:
        heard.append(model(sleeper)["generation"])
    assert heard == sorted(heard)
    assert len(heard) < 30, "it was sent what it had no room for"
    assert leader.set_model("after", b"", WATCHDOG_MS) == 42
    assert model(sleeper)["model_id"] == "after"


def test_a_publisher_of_pyzmq_is_understood(short_path: Path) -> None:
    endpoint = f"ipc://{short_path}/pub"
    with zmq.Context() as context, context.socket(zmq.XPUB) as publisher:
        publisher.bind(endpoint)
        subscriber = ControlSubscriber(endpoint)
        assert subscriber.next_event(0) is None
        heard: list[object] = []
        waiter = threading.Thread(target=lambda: heard.append(subscriber.next_event(WATCHDOG_MS)))
        waiter.start()
        assert publisher.recv() == b"\x01"
        publisher.send_multipart([b"WEATHER", b"\x80"])
        publisher.send_multipart(
            [b"MODEL", msgpack.packb({"generation": 9, "model_id": "z", "model_cfg": CFG, "more": 1})]
        )
        waiter.join()
        assert heard == [("MODEL", 9, "z", PACKED)]
        assert any("cannot be read" in text for _, text in subscriber.take_log())
        subscriber.close()


def test_the_largest_model_goes_all_the_way(channel: Channel) -> None:
    largest = msgpack.packb(b"x" * (1_044_480 - 5))
    leader, socket, worker = channel.leader(), channel.sub(b""), channel.subscriber()
    assert worker.next_event(0) is None
    assert leader.set_model("x" * 1024, largest, WATCHDOG_MS) == 1
    hears(worker, "MODEL", 1, "x" * 1024, largest)
    assert len(model(socket)["model_cfg"]) == 1_044_475
    assert channel.student(1).hello(WATCHDOG_MS) == (2, 1, "x" * 1024, largest)


def test_it_works_over_tcp() -> None:
    server = ControlServer("tcp://127.0.0.1:*", "tcp://127.0.0.1:*", 10.0, False)
    control, publication = server.endpoints
    leader, worker = ControlStudent(control, 0, 64), ControlSubscriber(publication)
    assert leader.set_model("m", PACKED, WATCHDOG_MS) == 1
    hears(worker, "MODEL", 1, "m", PACKED)
    for handle in (leader, worker):
        handle.close()
    server.stop()


def test_students_from_many_threads_share_a_handle(channel: Channel) -> None:
    leader = channel.leader()

    def switch(_: int) -> list[int]:
        return [leader.set_model("m", b"", WATCHDOG_MS) for _ in range(50)]

    assert sorted(number for numbers in in_threads(switch, range(4)) for number in numbers) == list(
        range(1, 201)
    )
