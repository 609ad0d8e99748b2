"""The control channel when a peer exits, reconnects, was never there, or is a fork."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from control_channel import CFG, PACKED, WATCHDOG_MS, Channel, hears, model
from waiting import eventually

from softs_fast import BrokerTimeout, ConfigError, EndpointInUse, ForkedError
from softs_fast._core import ControlServer, ControlStudent, ControlSubscriber


def test_a_second_live_leader_is_refused_and_takes_over_when_the_first_leaves(channel: Channel) -> None:
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


def test_all_peers_reconnect_after_a_restart(channel: Channel) -> None:
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
    # No call is made for it.
    hears(worker, "MODEL", 3, "m3", PACKED)
    assert model(socket) == {"generation": 3, "model_id": "m3", "model_cfg": CFG}
    eventually(lambda: channel.server.stats()["students"] == [0, 1], "the students are back")
    assert channel.server.stats()["model_id"] == "m3"
    assert leader.set_model("m4", PACKED, WATCHDOG_MS) == 4
    hears(worker, "MODEL", 4, "m4", PACKED)
    assert any("lost the connection" in text for _, text in leader.take_log())


def test_without_a_broker_calls_end_in_time_and_say_why(short_path: Path) -> None:
    student = ControlStudent(f"ipc://{short_path}/unserved", 0, 64)
    assert student.hello(50) is None
    cause = f"no broker at ipc://{short_path}/unserved"
    # Its thread connects.
    eventually(lambda: cause in str(student.connection_error), "the student has tried")
    with pytest.raises(BrokerTimeout, match=r"no answer to SET_MODEL within 0\.1 s: no broker at"):
        student.set_model("m", b"", 50)
    with pytest.raises(BrokerTimeout, match="no answer to STOP"):
        student.stop_workers(50)
    student.close()
    student.close()
    with pytest.raises(BrokerTimeout, match="this student is closed"):
        student.set_model("m", b"", WATCHDOG_MS)
    subscriber = ControlSubscriber(f"ipc://{short_path}/unserved")
    assert subscriber.next_event(50) is None
    assert "no broker at" in str(subscriber.connection_error)
    assert len([text for _, text in subscriber.take_log() if "no broker at" in text]) == 1
    assert not subscriber.is_closed
    subscriber.close()
    assert subscriber.is_closed
    assert subscriber.next_event(None) is None


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


def test_close_ends_the_waits(channel: Channel) -> None:
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
    student = ControlStudent(f"ipc://{short_path}/unserved", 0, 64)
    worker = ControlSubscriber(f"ipc://{short_path}/unserved")
    calls: dict[str, Callable[[], object]] = {
        "hello": lambda: student.hello(WATCHDOG_MS),
        "set_model": lambda: student.set_model("m", b"", WATCHDOG_MS),
        "next_event": lambda: worker.next_event(None),
    }
    timer = threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT))

    def interrupted() -> None:
        timer.start()
        calls[call]()

    # The signal may come before the call.
    with pytest.raises(KeyboardInterrupt):
        interrupted()
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
