"""A supplier that the broker alone has lost: what it writes by TCP comes late."""

import contextlib
import select
import socket
import threading
from pathlib import Path

import pytest
from market import Market
from waiting import WATCHDOG_S, eventually, free_ports

import softs_fast


class Partition:
    """Passes bytes on between a peer and the broker, until it drops the broker's half: the peer sees no end."""

    def __init__(self, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._port = port
        self._sockets: list[socket.socket] = []
        self._thread = threading.Thread(target=self._pass_on)
        self._thread.start()

    def _pass_on(self) -> None:
        peer, _ = self._listener.accept()
        broker = socket.create_connection(("127.0.0.1", self._port))
        self._sockets = [peer, broker]
        other = {peer: broker, broker: peer}
        while True:
            for source in select.select(self._sockets, [], [])[0]:
                with contextlib.suppress(OSError):
                    if data := source.recv(1 << 16):
                        other[source].sendall(data)
                        continue
                return

    def begin(self) -> None:
        """Lose the connection, for the broker."""
        self._sockets[1].shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def end(self) -> None:
        """Close what is left."""
        for open_socket in [*self._sockets, self._listener]:
            open_socket.close()


def test_what_a_supplier_writes_after_its_order_was_given_away_is_not_stored(
    short_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    market = Market(short_path, medium="tcp")
    [port] = free_ports()
    market.backend = f"tcp://127.0.0.1:{port}"
    market.broker()
    partition = Partition(port)
    called, go_on = threading.Event(), threading.Event()

    def generate(product_id: str) -> bytes:
        called.set()
        assert go_on.wait(WATCHDOG_S)
        return b"late" * (market.slot_size // 4)

    late = softs_fast.Supplier(
        generate, ["p.*"], partition.endpoint, softs_fast.TCPMedium, market.slot_size, name="late"
    )
    try:
        late.start()
        with softs_fast.Client(market.frontend, softs_fast.TCPMedium, market.slot_size, 1) as client:
            assert client.request_slot("p1") is not None
            assert called.wait(WATCHDOG_S)
            partition.begin()
            eventually(lambda: client.get_stats()["connected_suppliers"] == 0, "the broker has lost it")
            market.supplier()
            slot = client.request_sample("p1", timeout_ms=20_000)
            assert slot is not None
            held = client.medium.read(slot)
            go_on.set()

            def has_written() -> bool:
                return client.medium.read(slot) != held or "failed: refused" in caplog.text

            eventually(has_written, "the late sample is sent")
            assert client.medium.read(slot) == held, "the user's slot was overwritten"
            client.release_slot(slot)
            assert client.request_sample("p1", timeout_ms=20_000) == slot
    finally:
        go_on.set()
        late.stop()
        partition.end()
        market.end()
