"""A broker on a host that is gone: no packet is answered, and the lanes go on as if nothing had happened."""

import contextlib
import os
import socket
import time
from pathlib import Path

import stamp
from market import Market, take
from waiting import eventually, free_ports

SYN_SENT = "02"


class Silence:
    """A port of which the kernel drops every SYN: the one connection that may wait to be accepted is ours."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", port))
        self._listener.listen(0)
        self._listener.setblocking(False)
        eventually(self._is_full, "the port answers no more")

    def _is_full(self) -> bool:
        self._waiting = socket.socket()
        self._waiting.settimeout(0.1)
        try:
            self._waiting.connect(("127.0.0.1", self.port))
        except TimeoutError:
            # A peer that reconnects was faster: it is sent away.
            self._waiting.close()
            with contextlib.suppress(BlockingIOError):
                self._listener.accept()[0].close()
            return False
        return True

    def attempts(self) -> set[str]:
        """The local ends of the connections to this port that the kernel has begun and that are not answered."""
        table = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
        rows = [line.split() for line in table]
        return {row[1] for row in rows if row[2].endswith(f":{self.port:04X}") and row[3] == SYN_SENT}

    def close(self) -> None:
        self._waiting.close()
        self._listener.close()


def test_samples_go_on_while_the_peers_wait_for_a_broker_that_does_not_answer(market: Market) -> None:
    ports = free_ports(2)
    market.frontend, market.backend = (f"tcp://127.0.0.1:{port}" for port in ports)
    broker = market.broker()
    market.supplier()
    checker = stamp.Checker()
    with market.open_client() as client:
        take(client, checker, 100)
        broker.kill()
        silences = [Silence(port) for port in ports]
        for silence, peer in zip(silences, ("client", "supplier"), strict=True):
            # An attempt is open before and after 50 samples, many times what is finished in advance: so
            # neither the client nor the supplier waits for its end.
            def goes_on(silence: Silence = silence) -> bool:
                before = silence.attempts()
                take(client, checker, 50)
                return bool(before & silence.attempts())

            eventually(goes_on, f"the {peer} makes samples while it connects")
        longest, end = 0.0, time.monotonic() + 2
        while (begin := time.monotonic()) < end:
            take(client, checker)
            longest = max(longest, time.monotonic() - begin)
        print(f"the longest pause in 2 s was {longest * 1e3:.1f} ms, on {os.cpu_count()} processors")
        for silence in silences:
            silence.close()
        market.broker()
        eventually(lambda: client.get_stats()["connected_suppliers"] == 1, "all are connected again")
        take(client, checker, 100)
