"""Row servers and readers that end, stand still, send junk, or have another token: named answers, and nothing hangs."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import ranks
import torch
from flow_processes import stop
from token_files import credentials, token_file
from two_stores import CREDENTIALS, store_on
from waiting import WATCHDOG_S

from softs_fast import _core
from softs_fast.dataflow.link.stream import MasterStream, listen_at
from softs_fast.dataflow.store import DataManager, HostLinks, Place, segments
from softs_fast.errors import ConfigError, FlowError, HelloError, PeerLost
from softs_fast.trust import Der, TlsFiles


def holds_a_large_value(say: Callable[[Any], None], rank: int, size: int, shown: Der) -> None:
    with mock.patch.object(segments, "boot_id", return_value="far"):
        store = DataManager(4, max_bytes=1 << 27, links=HostLinks(shown))
    with store:
        say([place.as_wire() for place in store.put("x", [0, 1], [torch.ones(1 << 22), b"small"])])
        threading.Event().wait()


def holds_the_interpreter(say: Callable[[Any], None], rank: int, size: int, shown: Der) -> None:
    with mock.patch.object(segments, "boot_id", return_value="far"):
        store = DataManager(4, max_bytes=1 << 20, links=HostLinks(shown))
    say([place.as_wire() for place in store.put("x", [0], [torch.arange(1000)])])
    ctypes.PyDLL(None).sleep(600)  # with the GIL


def test_a_process_that_holds_the_interpreter_serves_its_rows() -> None:
    with ranks.start(holds_the_interpreter, 1, CREDENTIALS) as holders:
        [[wire]] = holders.results()
        with store_on("near", 1) as reader:
            [value] = reader.get([Place.from_wire(wire)])
            assert torch.equal(value, torch.arange(1000))  # type: ignore[arg-type]


def address(endpoint: str) -> tuple[str, int]:
    return "127.0.0.1", int(endpoint.rpartition(":")[2])


def test_a_holder_that_dies_while_it_is_read_is_named() -> None:
    with ranks.start(holds_a_large_value, 1, CREDENTIALS) as holders:
        [wire] = holders.results()
        large, small = [Place.from_wire(one) for one in wire]
        with store_on("near", 1, max_bytes=1 << 27) as reader:
            assert reader.get([small]) == [b"small"]
            stop(large.segment.pid)
            failed: list[BaseException] = []

            def read() -> None:
                try:
                    reader.fetch("x", [0], [large])
                except PeerLost as error:
                    failed.append(error)

            thread = threading.Thread(target=read)
            thread.start()
            os.kill(large.segment.pid, signal.SIGKILL)
            thread.join(WATCHDOG_S)
            assert not thread.is_alive()
            assert f"rows of worker 4 (process {large.segment.pid} at tcp://" in str(failed[0])
            assert reader.n_bytes == 0


def test_a_holder_that_stands_still_is_not_waited_for_for_ever() -> None:
    with ranks.start(holds_a_large_value, 1, CREDENTIALS) as holders:
        [wire] = holders.results()
        large = Place.from_wire(wire[0])
        endpoint = large.segment.endpoint.replace("*", "127.0.0.1")
        made = _core.RowReader(endpoint, CREDENTIALS, WATCHDOG_S)
        stop(large.segment.pid)
        values = struct.pack("<4Q", large.offset, large.n_bytes, large.serial, 0)
        with pytest.raises(PeerLost, match=r"no bytes of rows for 0\.2 s"):
            made.read(large.segment.nonce, values, bytearray(large.n_bytes), 0.2)
        with pytest.raises(PeerLost, match="an earlier read has failed"):
            made.read(large.segment.nonce, values, bytearray(large.n_bytes), 0.2)
        with pytest.raises(PeerLost, match=r"no answer within 0\.2 s"):
            _core.RowReader(endpoint, CREDENTIALS, 0.2)


def test_a_process_that_took_the_place_of_a_holder_is_no_holder() -> None:
    with store_on("a", 0) as holder, store_on("b", 1) as other, store_on("c", 2) as reader:
        [place] = holder.put("x", [1], [b"of a"])
        [wrong] = other.put("x", [1], [b"of b"])
        wire = place.as_wire()
        wire[1][-1] = wrong.segment.endpoint
        with pytest.raises(PeerLost, match="it has ended, and another process is there"):
            reader.get([Place.from_wire(wire)])


def test_connections_to_processes_that_were_replaced_go() -> None:
    def read_from_another() -> int:
        with store_on("far", 0) as holder:
            [value] = reader.get(holder.put("x", [1], [b"of another process"]))
            assert value == b"of another process"
            return len(os.listdir("/proc/self/fd"))

    with store_on("near", 1) as reader:
        first = read_from_another()
        assert [read_from_another() for _ in range(3)] == [first] * 3


def test_another_token_is_refused_on_both_sides() -> None:
    with store_on("a", 0) as holder, store_on("b", 1, shown=credentials("b")) as stranger:
        [place] = holder.put("x", [1], [b"secret"])
        with pytest.raises(
            FlowError, match="it does not have the token of this host; give both the same token file"
        ):
            stranger.get([place])
        assert holder.get([place]) == [b"secret"]


def test_a_reader_that_trusts_a_holder_and_has_another_token_gets_nothing() -> None:
    (key, chain, _), (_, _, roots) = credentials("b"), CREDENTIALS
    with store_on("a", 0) as holder, store_on("b", 1, shown=(key, chain, roots)) as stranger:
        [place] = holder.put("x", [1], [b"secret"])
        with pytest.raises(PeerLost, match=r"it does not accept the certificate of this host \(UnknownCA\)"):
            stranger.get([place])


def test_a_master_serves_no_rows() -> None:
    with (
        closing(MasterStream(listen_at("tcp://127.0.0.1:0", CREDENTIALS))) as master,
        pytest.raises(HelloError, match="it is another service; look at the host and the port"),
    ):
        _core.RowReader(master.endpoint, CREDENTIALS, WATCHDOG_S)


def test_junk_ends_its_own_connection_alone() -> None:
    with store_on("a", 0) as holder, store_on("b", 1) as reader:
        places = holder.put("x", range(3), [b"1", b"2", b"3"])
        here = address(places.segment.endpoint)
        for junk in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"\xff" * 100,
            bytes(1000),
            b"\x16\x03\x01\x40\x00" + bytes(1 << 14),
            struct.pack("<IB", 1 << 20, 5),
        ):
            with socket.create_connection(here, WATCHDOG_S) as peer:
                peer.sendall(junk)
                while peer.recv(1 << 16):
                    pass  # until it ends
            assert reader.get(places) == [b"1", b"2", b"3"]


def test_a_reader_that_stops_reading_is_ended_and_holds_up_no_other_one(tmp_path: Path) -> None:
    links = HostLinks(CREDENTIALS, lost_after_s=4.0)
    with mock.patch.object(segments, "boot_id", return_value="a"):
        store = DataManager(0, max_bytes=1 << 27, links=links)
    with store as holder, store_on("b", 1, max_bytes=1 << 27) as reader:
        places = holder.put("x", [0], [torch.ones(1 << 22)])
        made = SlowReader(address(places.segment.endpoint), token_file(tmp_path / "token", "a"))
        made.ask(places[0])
        assert int(reader.get(places)[0].sum()) == 1 << 22, "another one is served meanwhile"
        made.await_end()


class SlowReader:
    """A connection that asks for a value many times, and reads none of it: what the native reader never does."""

    def __init__(self, holder: tuple[str, int], token_file: Path) -> None:
        context = TlsFiles(token_file=token_file).ssl_client()
        context.set_alpn_protocols(["softs-rows/2"])
        there = socket.create_connection(holder, WATCHDOG_S)
        self._there = context.wrap_socket(there, server_hostname="softs-fast")

    def ask(self, place: Place) -> None:
        """Ask for a value as often as it may."""
        value = struct.pack("<3Q", place.offset, place.n_bytes, place.serial)
        frame = struct.pack("<IB", 16 + 64 * len(value), 5) + place.segment.nonce + 64 * value
        self._there.sendall(frame * 4)

    def await_end(self) -> None:
        """Wait, without reading, until the holder has ended the connection; sending tells."""
        give_up = threading.Event()
        for _ in range(int(WATCHDOG_S / 0.1)):
            try:
                self._there.sendall(b"\0")
            except OSError:
                break
            give_up.wait(0.1)
        else:
            raise AssertionError("the connection has not ended")
        self._there.close()


def test_what_is_out_of_range_is_refused() -> None:
    with store_on("a", 0) as holder:
        [place] = holder.put("x", [0], [b"12345678"])
        endpoint = place.segment.endpoint.replace("*", "127.0.0.1")
        reader = _core.RowReader(endpoint, CREDENTIALS, WATCHDOG_S)
        fields = struct.pack("<4Q", place.offset, place.n_bytes, place.serial, 1)
        with pytest.raises(ConfigError, match="a value does not fit into the memory"):
            reader.read(place.segment.nonce, fields, bytearray(8), 1.0)
        with pytest.raises(ConfigError, match="no whole number of fields"):
            reader.read(place.segment.nonce, fields[:-1], bytearray(8), 1.0)
        with pytest.raises(ConfigError, match="read-only"):
            reader.read(place.segment.nonce, fields, bytes(9), 1.0)
        memory = bytearray(9)
        assert reader.read(place.segment.nonce, fields, memory, WATCHDOG_S) is None
        assert memory == b"\x0012345678"
        outside = struct.pack("<4Q", 1 << 40, 8, place.serial, 0)
        with pytest.raises(PeerLost, match="is not in a segment of"):
            reader.read(place.segment.nonce, outside, memory, WATCHDOG_S)
    with pytest.raises(PeerLost, match="connection refused"):
        _core.RowReader(endpoint, CREDENTIALS, WATCHDOG_S)
    with pytest.raises(ConfigError, match="lost_after_s must be above 0"):
        HostLinks(CREDENTIALS, lost_after_s=0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.listen()

        def end() -> None:
            silent.accept()[0].close()

        ending = threading.Thread(target=end)
        ending.start()
        with pytest.raises(PeerLost, match="it ended the connection during the TLS handshake"):
            _core.RowReader(f"tcp://127.0.0.1:{silent.getsockname()[1]}", CREDENTIALS, WATCHDOG_S)
        ending.join()
