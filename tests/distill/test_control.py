"""The control channel with real peers: sockets of pyzmq, students and subscribers of our own, processes that are killed."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq

from softs_fast import BrokerTimeout, ConfigError, EndpointInUse, ForkedError
from softs_fast._core import ControlServer, ControlStudent, ControlSubscriber

WATCHDOG_MS = 30_000
CFG = {"layer": 5, "names": ["a", "b"], "deep": {"x": None}}
PACKED = msgpack.packb(CFG)

Eventually = Callable[..., None]


class Channel:
    """A channel, the peers of a test, and their end."""

    def __init__(self, folder: Path) -> None:
        self.control, self.publication = f"ipc://{folder}/control", f"ipc://{folder}/control_pub"
        self.context = zmq.Context()
        self._closing = contextlib.ExitStack()
        self._closing.callback(self.context.term)
        self.start()

    def start(self) -> None:
        """Start a server, the first or the next one."""
        self.server = ControlServer(self.control, self.publication, 10.0, False)
        self._closing.callback(self.server.stop)

    def student(self, rank: int, slot_size: int = 64) -> ControlStudent:
        """A student that is being connected."""
        student = ControlStudent(self.control, rank, slot_size)
        self._closing.callback(student.close)
        return student

    def leader(self) -> ControlStudent:
        """A leader that has its seat."""
        leader = self.student(0)
        assert leader.hello(WATCHDOG_MS) is not None
        return leader

    def subscriber(self) -> ControlSubscriber:
        """A worker's end."""
        subscriber = ControlSubscriber(self.publication)
        self._closing.callback(subscriber.close)
        return subscriber

    def sub(self, prefix: bytes, kind: int = zmq.SUB, **options: int) -> zmq.Socket[bytes]:
        """A socket of pyzmq that subscribes to a prefix."""
        socket = self._socket(kind)
        for name, value in options.items():
            socket.setsockopt(getattr(zmq, name), value)
        socket.connect(self.publication)
        if kind == zmq.SUB:
            socket.setsockopt(zmq.SUBSCRIBE, prefix)
        else:
            socket.send(b"\x01" + prefix)
        return socket

    def dealer(self) -> zmq.Socket[bytes]:
        """A student made of pyzmq."""
        socket = self._socket(zmq.DEALER)
        socket.connect(self.control)
        return socket

    def close(self) -> None:
        """End everything; a server that has stopped still holds a descriptor."""
        self._closing.close()
        del self.server

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self.context.socket(kind)
        self._closing.callback(socket.close, linger=0)
        socket.setsockopt(zmq.RCVTIMEO, WATCHDOG_MS)
        return socket


@pytest.fixture
def channel(short_path: Path) -> Iterator[Channel]:
    channel = Channel(short_path)
    yield channel
    channel.close()


def ask(dealer: zmq.Socket[bytes], command: bytes, **payload: Any) -> dict[str, Any]:
    dealer.send_multipart([command, msgpack.packb(payload)])
    (answer,) = dealer.recv_multipart()
    return dict(msgpack.unpackb(answer))


def model(socket: zmq.Socket[bytes]) -> dict[str, Any]:
    topic, payload = socket.recv_multipart()
    assert topic == b"MODEL"
    return dict(msgpack.unpackb(payload))


def hears(subscriber: ControlSubscriber, *news: object) -> None:
    assert subscriber.next_event(WATCHDOG_MS) == news


@pytest.mark.parametrize(("prefix", "kind"), [(b"", zmq.SUB), (b"MODEL", zmq.SUB), (b"", zmq.XSUB)])
def test_sub_sockets_hear_of_each_model(
    channel: Channel, eventually: Eventually, prefix: bytes, kind: int
) -> None:
    leader, socket = channel.leader(), channel.sub(prefix, kind)
    eventually(lambda: channel.server.stats()["subscribers"] == 1, "the subscription")
    for generation in (1, 2, 3):
        assert leader.set_model(f"layer_{generation}", PACKED, WATCHDOG_MS) == generation
        assert model(socket) == {
            "generation": generation,
            "model_id": f"layer_{generation}",
            "model_cfg": CFG,
        }


def test_stop_goes_to_those_who_want_it(channel: Channel, eventually: Eventually) -> None:
    leader = channel.leader()
    everything, models, stops = channel.sub(b""), channel.sub(b"MODEL"), channel.sub(b"STOP")
    worker = channel.subscriber()
    assert worker.next_event(0) is None
    leader.set_model("a", PACKED, WATCHDOG_MS)
    assert model(everything)["model_id"] == model(models)["model_id"] == "a"
    hears(worker, "MODEL", 1, "a", PACKED)
    # Who subscribed to STOP alone has to be known by now to hear it: its connection is older than the answered subscription of this one.
    stops.setsockopt(zmq.SUBSCRIBE, b"MODEL")
    assert model(stops)["model_id"] == "a"
    leader.stop_workers(WATCHDOG_MS)
    assert everything.recv_multipart() == stops.recv_multipart() == [b"STOP", b"\x80"]
    hears(worker, "STOP")
    leader.set_model("b", PACKED, WATCHDOG_MS)
    assert model(models)["model_id"] == "b"


def test_who_comes_late_hears_the_model_of_now(channel: Channel) -> None:
    leader = channel.leader()
    leader.set_model("old", PACKED, WATCHDOG_MS)
    leader.set_model("new", PACKED, WATCHDOG_MS)
    for prefix in (b"", b"MODEL"):
        assert model(channel.sub(prefix)) == {"generation": 2, "model_id": "new", "model_cfg": CFG}
    hears(channel.subscriber(), "MODEL", 2, "new", PACKED)
    number, *newest = channel.student(7).hello(WATCHDOG_MS) or ()
    assert (number, newest) == (2, [2, "new", PACKED])


def test_an_unsubscribed_socket_hears_no_more(channel: Channel, eventually: Eventually) -> None:
    leader, socket = channel.leader(), channel.sub(b"MODEL")
    eventually(lambda: channel.server.stats()["subscribers"] == 1, "the subscription")
    socket.setsockopt(zmq.UNSUBSCRIBE, b"MODEL")
    eventually(lambda: channel.server.stats()["subscribers"] == 0, "the cancellation")
    leader.set_model("a", PACKED, WATCHDOG_MS)
    socket.setsockopt(zmq.SUBSCRIBE, b"M")
    assert model(socket)["generation"] == 1


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


def test_who_is_not_the_leader_may_not_switch(channel: Channel) -> None:
    stranger, follower = channel.dealer(), channel.dealer()
    assert ask(follower, b"HELLO", rank=1, slot_size=64)["ok"]
    for dealer, who in ((stranger, "has not said HELLO"), (follower, "this is rank 1")):
        for command, payload in ((b"SET_MODEL", {"model_id": "m"}), (b"STOP", {})):
            answer = ask(dealer, command, **payload)
            assert not answer["ok"]
            assert "only rank 0, the leader" in answer["error"]
            assert who in answer["error"]
    native = channel.student(2)
    with pytest.raises(ConfigError, match="only rank 0, the leader"):
        native.set_model("m", b"", WATCHDOG_MS)
    with pytest.raises(ConfigError, match="only rank 0, the leader"):
        native.stop_workers(WATCHDOG_MS)
    assert channel.server.stats()["generation"] == 0


def test_a_second_live_leader_is_refused_and_takes_over_when_the_first_leaves(
    channel: Channel, eventually: Eventually
) -> None:
    first, second = channel.leader(), channel.student(0)
    with pytest.raises(ConfigError, match="rank 0 is taken by a live student"):
        second.hello(WATCHDOG_MS)
    with pytest.raises(ConfigError, match="rank 0 is taken by a live student"):
        second.set_model("m", b"", WATCHDOG_MS)
    first.set_model("m", PACKED, WATCHDOG_MS)
    first.close()
    eventually(lambda: channel.server.stats()["students"] == [], "the leader's seat is free")
    assert second.hello(WATCHDOG_MS) == (2, 1, "m", PACKED)
    assert second.set_model("n", b"", WATCHDOG_MS) == 2


LEADER = """
import sys, time
from softs_fast._core import ControlStudent
leader = ControlStudent(sys.argv[1], 0, 64)
leader.hello(30_000)
print(leader.set_model("m", b"\\xc0", 30_000), flush=True)
time.sleep(1000)
"""


def test_the_seat_of_a_killed_leader_is_free_at_once(channel: Channel) -> None:
    with subprocess.Popen([sys.executable, "-c", LEADER, channel.control], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        second = channel.student(0)
        with pytest.raises(ConfigError, match="taken by a live student"):
            second.hello(WATCHDOG_MS)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    # No waiting for anything: the kernel has said that it is dead.
    assert second.hello(WATCHDOG_MS) == (2, 1, "m", b"\xc0")
    assert second.set_model("n", b"", WATCHDOG_MS) == 2


def test_everybody_comes_back_after_a_restart(channel: Channel, eventually: Eventually) -> None:
    leader, follower, worker, socket = (
        channel.leader(),
        channel.student(1),
        channel.subscriber(),
        channel.sub(b""),
    )
    assert follower.hello(WATCHDOG_MS) is not None
    for generation in range(1, 4):
        assert leader.set_model(f"m{generation}", PACKED, WATCHDOG_MS) == generation
        hears(worker, "MODEL", generation, f"m{generation}", PACKED)
        assert model(socket)["generation"] == generation
    channel.server.stop()
    assert channel.server.stats()["generation"] == 3
    channel.start()
    # Nobody does anything for it.
    hears(worker, "MODEL", 3, "m3", PACKED)
    assert model(socket) == {"generation": 3, "model_id": "m3", "model_cfg": CFG}
    eventually(lambda: channel.server.stats()["students"] == [0, 1], "the students are back")
    assert channel.server.stats()["model_id"] == "m3"
    assert leader.set_model("m4", PACKED, WATCHDOG_MS) == 4
    hears(worker, "MODEL", 4, "m4", PACKED)
    assert any("lost the connection" in text for _, text in leader.take_log())


def test_a_follower_alone_brings_the_model_back(channel: Channel) -> None:
    leader, follower = channel.leader(), channel.student(1)
    leader.set_model("m", PACKED, WATCHDOG_MS)
    follower.hello(WATCHDOG_MS)
    leader.set_model("n", PACKED, WATCHDOG_MS)
    follower.note_model(2, "n", PACKED)
    leader.close()
    channel.server.stop()
    channel.start()
    hears(channel.subscriber(), "MODEL", 2, "n", PACKED)
    assert channel.leader().hello(WATCHDOG_MS) == (2, 2, "n", PACKED)


def test_a_switch_waits_for_the_next_broker(channel: Channel) -> None:
    leader = channel.leader()
    assert leader.set_model("m", PACKED, WATCHDOG_MS) == 1
    channel.server.stop()
    results: list[int] = []
    switch = threading.Thread(target=lambda: results.append(leader.set_model("n", PACKED, WATCHDOG_MS)))
    switch.start()
    channel.start()
    switch.join()
    assert results == [2]
    hears(channel.subscriber(), "MODEL", 2, "n", PACKED)


def test_without_a_broker_calls_end_in_time_and_say_why(short_path: Path) -> None:
    student = ControlStudent(f"ipc://{short_path}/nobody", 0, 64)
    assert student.hello(50) is None
    assert f"no broker at ipc://{short_path}/nobody" in str(student.connection_error)
    with pytest.raises(BrokerTimeout, match=r"no answer to SET_MODEL within 0\.1 s: no broker at"):
        student.set_model("m", b"", 50)
    with pytest.raises(BrokerTimeout, match="no answer to STOP"):
        student.stop_workers(50)
    student.close()
    student.close()
    subscriber = ControlSubscriber(f"ipc://{short_path}/nobody")
    assert subscriber.next_event(50) is None
    assert "no broker at" in str(subscriber.connection_error)
    assert len([text for _, text in subscriber.take_log() if "no broker at" in text]) == 1
    assert not subscriber.is_closed
    subscriber.close()
    assert subscriber.is_closed
    assert subscriber.next_event(None) is None


def test_a_subscriber_that_stops_reading_holds_nobody_up_and_gets_the_newest(channel: Channel) -> None:
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


def test_news_that_nobody_takes_become_the_newest(channel: Channel) -> None:
    leader, worker = channel.leader(), channel.subscriber()
    leader.set_model("m", b"", WATCHDOG_MS)
    hears(worker, "MODEL", 1, "m", b"\xc0")
    for _ in range(20):
        leader.set_model("m", b"", WATCHDOG_MS)
    leader.stop_workers(WATCHDOG_MS)
    hears(worker, "MODEL", 21, "m", b"\xc0")
    hears(worker, "STOP")
    assert worker.next_event(0) is None


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


def test_workers_that_wait_are_seen_and_said_once(channel: Channel, eventually: Eventually) -> None:
    worker = channel.subscriber()
    assert worker.next_event(0) is None
    eventually(lambda: channel.server.stats()["subscribers"] == 1 or worker.next_event(1), "the worker")
    eventually(lambda: channel.server.stats()["waiting_s"] > 0, "it waits")
    warnings = []
    while not warnings:
        record = channel.server.next_log()
        assert record is not None
        warnings += [record] if record[0] >= 30 else []
    assert warnings == [(30, "1 workers wait for a model: the leader has not called set_model() yet")]
    assert channel.server.stats()["waiting_s"] >= 5
    channel.leader().set_model("m", b"", WATCHDOG_MS)
    assert channel.server.stats()["waiting_s"] == 0


@pytest.mark.parametrize(
    ("model_id", "model_cfg", "why"),
    [
        ("m", b"\xc1", "not msgpack"),
        ("m", b"\x81\xa1x", "cut off"),
        ("m", b"\x01\x02", "1 bytes after its end"),
        ("x" * 1025, b"", "model_id has 1025 bytes, at most 1024 allowed"),
        ("m", msgpack.packb(b"x" * (1 << 20)), "at most 1044480 allowed"),
    ],
)
def test_a_model_that_cannot_be_sent_is_refused_here(
    channel: Channel, model_id: str, model_cfg: bytes, why: str
) -> None:
    student = channel.student(0)
    with pytest.raises(ConfigError, match=why):
        student.set_model(model_id, model_cfg, WATCHDOG_MS)
    with pytest.raises(ConfigError, match=why):
        student.note_model(1, model_id, model_cfg)


def test_the_largest_model_goes_all_the_way(channel: Channel) -> None:
    largest = msgpack.packb(b"x" * (1_044_480 - 5))
    leader, socket, worker = channel.leader(), channel.sub(b""), channel.subscriber()
    assert worker.next_event(0) is None
    assert leader.set_model("x" * 1024, largest, WATCHDOG_MS) == 1
    hears(worker, "MODEL", 1, "x" * 1024, largest)
    assert len(model(socket)["model_cfg"]) == 1_044_475
    assert channel.student(1).hello(WATCHDOG_MS) == (2, 1, "x" * 1024, largest)


def test_endpoints_are_owned(channel: Channel, short_path: Path) -> None:
    with pytest.raises(EndpointInUse, match=f"in use by process {os.getpid()}"):
        ControlServer(channel.control, f"ipc://{short_path}/other", 10.0, False)
    with pytest.raises(EndpointInUse):
        ControlServer(f"ipc://{short_path}/other", channel.publication, 10.0, False)
    with pytest.raises(EndpointInUse):
        ControlServer(f"ipc://{short_path}/other", f"ipc://{short_path}/other", 10.0, False)
    assert not (short_path / "other").exists()
    with pytest.raises(ConfigError, match="allow_remote=True"):
        ControlServer("tcp://*:*", f"ipc://{short_path}/other", 10.0, False)
    with pytest.raises(ConfigError, match="must start with"):
        ControlServer("inproc://x", f"ipc://{short_path}/other", 10.0, False)
    channel.server.stop()
    assert not channel.server.is_running
    assert channel.server.next_log() is None or channel.server.next_log() is None
    assert list(short_path.iterdir()) == []
    # What a dead broker leaves is taken over.
    code = (
        f"import os, socket; s = socket.socket(socket.AF_UNIX); s.bind('{short_path}/control'); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    channel.start()
    assert channel.leader().hello(WATCHDOG_MS) is not None


def test_it_works_over_tcp() -> None:
    server = ControlServer("tcp://127.0.0.1:*", "tcp://127.0.0.1:*", 10.0, False)
    control, publication = server.endpoints
    leader, worker = ControlStudent(control, 0, 64), ControlSubscriber(publication)
    assert leader.set_model("m", PACKED, WATCHDOG_MS) == 1
    hears(worker, "MODEL", 1, "m", PACKED)
    for handle in (leader, worker):
        handle.close()
    server.stop()


def test_close_ends_who_waits(channel: Channel) -> None:
    worker, heard = channel.subscriber(), []
    waiter = threading.Thread(target=lambda: heard.append(worker.next_event(None)))
    waiter.start()
    assert channel.leader().hello(WATCHDOG_MS) is not None
    worker.close()
    waiter.join()
    assert heard == [None]
    assert worker.is_closed


@pytest.mark.parametrize("call", ["hello", "set_model", "next_event"])
def test_ctrl_c_ends_a_call_that_waits(short_path: Path, call: str) -> None:
    student = ControlStudent(f"ipc://{short_path}/nobody", 0, 64)
    worker = ControlSubscriber(f"ipc://{short_path}/nobody")
    calls: dict[str, Callable[[], object]] = {
        "hello": lambda: student.hello(WATCHDOG_MS),
        "set_model": lambda: student.set_model("m", b"", WATCHDOG_MS),
        "next_event": lambda: worker.next_event(None),
    }
    timer = threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        calls[call]()
    timer.join()
    student.close()
    worker.close()


FORK = """
import os, sys
from softs_fast import ForkedError
from softs_fast._core import ControlServer, ControlStudent, ControlSubscriber
server = ControlServer(*sys.argv[1:], 10.0, False)
student, worker = ControlStudent(sys.argv[1], 0, 64), ControlSubscriber(sys.argv[2])
assert student.set_model("m", b"", 30_000) == 1
assert worker.next_event(30_000) == ("MODEL", 1, "m", b"\\xc0")
pid = os.fork()
if pid == 0:
    refused = 0
    for call in (lambda: student.hello(1), lambda: student.set_model("n", b"", 1), lambda: worker.next_event(1)):
        try:
            call()
        except ForkedError:
            refused += 1
    student.close(), worker.close(), server.stop()
    del student, worker, server
    os._exit(refused)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
# Nothing of the child's end has reached this process.
assert student.set_model("n", b"", 30_000) == 2 and server.is_running
assert worker.next_event(30_000) == ("MODEL", 2, "n", b"\\xc0")
"""


def test_a_fork_owns_nothing(short_path: Path) -> None:
    assert issubclass(ForkedError, RuntimeError)
    endpoints = [f"ipc://{short_path}/control", f"ipc://{short_path}/control_pub"]
    ran = subprocess.run([sys.executable, "-c", FORK, *endpoints], check=True, stdout=subprocess.PIPE)
    assert ran.stdout == b"3\n"


def test_students_from_many_threads_share_a_handle(channel: Channel) -> None:
    leader = channel.leader()
    results: list[int] = []

    def switch() -> None:
        for _ in range(50):
            results.append(leader.set_model("m", b"", WATCHDOG_MS))

    threads = [threading.Thread(target=switch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == list(range(1, 201))
