"""A TCP medium: what its owner stores, refuses and ends, and how long a writer waits for an owner that stands still."""

import socket
import threading
from collections import deque
from collections.abc import Iterator

import pytest
from waiting import WATCHDOG_S, eventually

from softs_fast.market.mediums import TCPMedium, tcp, tcp_owner

SLOT_BYTES = 16
GOOD = b"a good sample..."
EMPTY = bytes(SLOT_BYTES)


@pytest.fixture
def owner() -> Iterator[TCPMedium]:
    with TCPMedium(None, SLOT_BYTES, 2, create=True) as medium:
        yield medium


def connect(medium: TCPMedium) -> socket.socket:
    host, _, port = (medium.address or "").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=WATCHDOG_S)


def answer_to(peer: socket.socket) -> bytes:
    """Return what the owner answers; nothing if it has ended the connection."""
    try:
        return peer.recv(1)
    except ConnectionError:
        return b""


def test_half_a_sample_is_not_stored(owner: TCPMedium) -> None:
    with connect(owner) as peer:
        peer.sendall(tcp_owner.HEADER.pack(0, SLOT_BYTES) + GOOD[:-1])
        peer.shutdown(socket.SHUT_WR)
        assert answer_to(peer) == b""
    assert owner.read(0) == EMPTY


@pytest.mark.parametrize(
    ("offset", "length"),
    [(0, 0), (0, 1), (1, SLOT_BYTES), (0, 2 * SLOT_BYTES), (2 * SLOT_BYTES, SLOT_BYTES), (0, 0xFFFF_FFFF)],
)
def test_what_is_no_slot_is_refused_before_its_bytes_are_read(
    owner: TCPMedium, offset: int, length: int
) -> None:
    with connect(owner) as peer:
        peer.sendall(tcp_owner.HEADER.pack(offset, length))
        assert [answer_to(peer), answer_to(peer)] == [b"\0", b""]
    assert [owner.read(0), owner.read(1)] == [EMPTY, EMPTY]


def test_a_writer_that_stands_still_within_a_sample_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_owner, "PATIENCE_S", 0.2)
    monkeypatch.setattr(tcp_owner, "_MAX_INCOMING_BYTES", SLOT_BYTES)
    with (
        TCPMedium(None, SLOT_BYTES, 2, create=True) as narrow,
        connect(narrow) as silent,
        TCPMedium.attach(narrow.address or "") as writer,
    ):
        silent.sendall(tcp_owner.HEADER.pack(0, SLOT_BYTES) + GOOD[:-1])
        eventually(lambda: not has_room(narrow), "half a sample")
        assert writer.write(SLOT_BYTES, GOOD)
        assert answer_to(silent) == b""
        assert [narrow.read(0), narrow.read(1)] == [EMPTY, GOOD]


def has_room(owner: TCPMedium) -> bool:
    assert owner._owner is not None
    if not owner._owner._incoming.acquire(blocking=False):
        return False
    owner._owner._incoming.release()
    return True


def test_more_writers_than_there_may_be(
    owner: TCPMedium, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tcp_owner, "_MAX_WRITERS", 1)
    with TCPMedium.attach(owner.address or "") as first:
        assert first.write(0, GOOD)
        with TCPMedium.attach(owner.address or "") as second:
            assert not second.write(SLOT_BYTES, GOOD)
        eventually(lambda: "there are 1 writers already" in caplog.text, "the warning")
        assert first.write(0, GOOD)
    # The place of one that has gone is free.
    eventually(lambda: writes(owner), "another writer")


def writes(owner: TCPMedium) -> bool:
    with TCPMedium.attach(owner.address or "") as writer:
        return writer.write(SLOT_BYTES, GOOD)


def test_an_owner_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tcp, "PATIENCE_S", 0.1)
    # The kernel completes the connection, and takes more than this sample.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        writer = TCPMedium.attach("{}:{}".format(*listener.getsockname()))
        assert not writer.write(0, GOOD)
        assert "the owner made no progress for" in caplog.text
        caplog.clear()
        # What the owner made of the first one is not known.
        assert not writer.write(0, GOOD)
        assert "it is closed" in caplog.text
        writer.close()


def test_an_owner_on_ipv6_ends_its_threads() -> None:
    with TCPMedium(None, SLOT_BYTES, 2, create=True, host="::1") as owner:
        assert (owner.address or "").startswith("[::1]:")
        with TCPMedium.attach(owner.address or "") as writer:
            assert writer.write(SLOT_BYTES, GOOD)
            assert owner.read(1) == GOOD
            assert threads() == ["softs-tcp-medium", "softs-tcp-writer"]
            owner.close()
            assert threads() == []
            assert not writer.write(0, GOOD)


def threads() -> list[str]:
    return sorted(one.name for one in threading.enumerate() if one.name.startswith("softs-tcp"))


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0), (1 << 20, 1 << 12)])
def test_slots_that_offsets_do_not_reach(sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="less than 4 GiB, got"):
        TCPMedium(None, *sizes, create=True)


def test_a_port_that_is_taken_and_one_at_which_no_owner_listens(owner: TCPMedium) -> None:
    address = owner.address or ""
    with pytest.raises(ConnectionError, match=f"cannot listen at '{address}'"):
        TCPMedium(address, SLOT_BYTES, 2, create=True)
    owner.close()
    with pytest.raises(ConnectionError, match=f"'{address}'"):
        TCPMedium.attach(address)


def test_a_write_that_was_given_up_sends_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slot may have another order by then."""
    monkeypatch.setattr(tcp, "PATIENCE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        with TCPMedium.attach(f"127.0.0.1:{server.getsockname()[1]}") as medium:
            slow, _ = server.accept()
            assert not medium.write(0, bytes(64 << 20))
        with slow, pytest.raises(ConnectionResetError):
            deque(iter(lambda: slow.recv(1 << 20), b""), maxlen=0)
