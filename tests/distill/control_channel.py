"""A control channel for tests, and what its peers hear."""

import contextlib
from pathlib import Path
from typing import Any

import msgpack
import zmq

from softs_fast._core import ControlServer, ControlStudent, ControlSubscriber

#: What must happen happens within this, or the test hangs; it is never what a test measures.
WATCHDOG_MS = 30_000
CFG = {"layer": 5, "names": ["a", "b"], "deep": {"x": None}}
PACKED = msgpack.packb(CFG)


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


def ask(dealer: zmq.Socket[bytes], command: bytes, **payload: Any) -> dict[str, Any]:
    """Ask and wait for the answer."""
    dealer.send_multipart([command, msgpack.packb(payload)])
    (answer,) = dealer.recv_multipart()
    return dict(msgpack.unpackb(answer))


def model(socket: zmq.Socket[bytes]) -> dict[str, Any]:
    """Wait for the next model that is published."""
    topic, payload = socket.recv_multipart()
    assert topic == b"MODEL"
    return dict(msgpack.unpackb(payload))


def hears(subscriber: ControlSubscriber, *news: object) -> None:
    """Wait for news, which must be these."""
    assert subscriber.next_event(WATCHDOG_MS) == news
