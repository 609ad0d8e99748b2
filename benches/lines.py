"""Samples across lines with a delay, losses and a rate: a link beside one connection of TCP, and beside ZeroMQ.

`python -m benches.lines` prints the table of docs/hosts.md. Hosts are network namespaces; a process moves the packets between
them. Every way is measured for each line in turn, from the first sample on, without the first ten round trips.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import signal
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import zmq
from zmq.auth import load_certificate

import softs_fast as sf
from benches.fleet_hosts import await_file, on_host
from benches.machine import REPOSITORY, describe_commit, describe_machine
from softs_fast.trust import TlsFiles, write_token

if TYPE_CHECKING:
    from emulator import Shape
    from networks import Host, Network

#: Round trip, seconds, and the share of packets that are lost.
LINES = [(0.001, 0.0), (0.01, 0.0), (0.1, 0.0), (0.01, 0.001), (0.1, 0.001)]
SIZES = [64, 48 << 10]
PORT = 4700
BATCH_SIZE = 32
#: Bytes of samples that a loader may have on order.
WINDOW_BYTES, MOST_SLOTS = 32 << 20, 8192
#: Round trips before anything is counted, and seconds.
WARM_UP_TRIPS, WARM_UP_S = 10, 0.5


def config_of(size: int) -> sf.BatchConfig:
    """Return the config of samples with so many bytes."""
    return sf.BatchConfig([sf.TensorSpec("x", (size,), "uint8")])


def teach(folder: Path, size: int, address: str) -> None:
    """Be the broker, the link and the supplier of a host."""
    connections = int((folder / "connections").read_text()) or None
    endpoints = sf.EndpointConfig(f"ipc://{folder}/tf", f"ipc://{folder}/tb")
    whole = np.ones((512, size), np.uint8)
    with (
        sf.Broker(endpoints),
        sf.Supplier(
            batch_generator_fn=lambda product, n: {"x": whole[:n]},
            product_ids=["p"],
            endpoint=endpoints.backend,
            batch_config=config_of(size),
            max_batch=512,
        ),
        sf.HostLink(
            endpoints,
            listen=f"{address}:{PORT}",
            credentials=TlsFiles(token_file=folder / "token"),
            connections=connections,
        ) as link,
    ):
        (folder / "ready").touch()
        link.wait()


def study(folder: Path, size: int, address: str) -> Iterator[int]:
    """Be the broker, the link and the loader of the other host; bytes of each batch."""
    endpoints = sf.EndpointConfig(f"ipc://{folder}/sf", f"ipc://{folder}/sb")
    n_slots = min(WINDOW_BYTES // size, MOST_SLOTS)
    with (
        sf.Broker(endpoints),
        sf.HostLink(
            endpoints, connect=[f"{address}:{PORT}"], credentials=TlsFiles(token_file=folder / "token")
        ),
        sf.SoftDataLoader(
            "p", endpoints.frontend, config_of(size), num_slots=n_slots, batch_size=BATCH_SIZE, ordered=True
        ) as loader,
    ):
        for batch in loader:
            yield batch["x"].numel()


def teach_by_medium(folder: Path, size: int, address: str) -> None:
    """Be the broker and the supplier of a host, without a link."""
    endpoints = sf.EndpointConfig(f"tcp://{address}:{PORT}", f"tcp://{address}:{PORT + 1}")
    medium = functools.partial(sf.TCPMedium, allow_remote=True)
    whole = np.ones((512, size), np.uint8)
    with (
        sf.Broker(endpoints, allow_remote=True),
        sf.Supplier(
            batch_generator_fn=lambda product, n: {"x": whole[:n]},
            product_ids=["p"],
            endpoint=endpoints.backend,
            medium_cls=medium,
            batch_config=config_of(size),
            max_batch=512,
        ),
    ):
        (folder / "ready").touch()
        signal.pause()


def study_by_medium(folder: Path, size: int, address: str) -> Iterator[int]:
    """Be the loader of the other host; bytes of each batch."""
    with socket.create_connection((address, PORT)) as peer:
        medium = functools.partial(sf.TCPMedium, host=peer.getsockname()[0], allow_remote=True)
    with sf.SoftDataLoader(
        "p", f"tcp://{address}:{PORT}", config_of(size), num_slots=64, batch_size=1, medium_cls=medium
    ) as loader:
        for batch in loader:
            yield batch["x"].numel()


def send_raw(folder: Path, size: int, address: str, port: int = PORT) -> None:
    """Write to one connection."""
    with socket.create_server((address, port)) as server:
        (folder / "ready").touch()
        peer, _ = server.accept()
        with peer, contextlib.suppress(ConnectionError):
            while True:
                peer.sendall(bytes(256 << 10))


def receive_raw(folder: Path, size: int, address: str, port: int = PORT) -> Iterator[int]:
    """Read from it."""
    space = bytearray(256 << 10)
    with socket.create_connection((address, port)) as peer:
        while n := peer.recv_into(space):
            yield n


def push(folder: Path, size: int, address: str, is_encrypted: bool = False) -> None:
    """Send messages by ZeroMQ."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as sender:
        if is_encrypted:
            sender.curve_publickey, sender.curve_secretkey = load_certificate(folder / "server.key_secret")
            sender.curve_server = True
        sender.bind(f"tcp://{address}:{PORT}")
        (folder / "ready").touch()
        while True:
            sender.send(bytes(size))


def pull(folder: Path, size: int, address: str, is_encrypted: bool = False) -> Iterator[int]:
    """Receive them."""
    with zmq.Context() as context, context.socket(zmq.PULL) as receiver:
        if is_encrypted:
            receiver.curve_serverkey, _ = load_certificate(folder / "server.key")
            receiver.curve_publickey, receiver.curve_secretkey = zmq.curve_keypair()
        receiver.connect(f"tcp://{address}:{PORT}")
        while True:
            yield len(receiver.recv())


def push_encrypted(folder: Path, size: int, address: str) -> None:
    """As `push`, by CURVE."""
    push(folder, size, address, is_encrypted=True)


def pull_encrypted(folder: Path, size: int, address: str) -> Iterator[int]:
    """As `pull`, by CURVE."""
    return pull(folder, size, address, is_encrypted=True)


#: The end that sends, and the one that receives.
WAYS: dict[str, tuple[Callable[[Path, int, str], None], Callable[[Path, int, str], Iterator[int]]]] = {
    "TCP alone": (send_raw, receive_raw),
    "softs-fast, TLS": (teach, study),
    "TCP medium": (teach_by_medium, study_by_medium),
    "ZeroMQ": (push, pull),
    "ZeroMQ, CURVE": (push_encrypted, pull_encrypted),
}


def count(receive: Callable[[Path, int, str], Iterator[int]], folder: Path, size: int, address: str) -> None:
    """Write how many samples of a second arrive."""
    round_trip_s, seconds = map(float, (folder / "times").read_text().split())
    arrivals = receive(folder, size, address)
    next(arrivals)
    from_s = time.monotonic() + max(WARM_UP_TRIPS * round_trip_s, WARM_UP_S)
    for _ in itertools.takewhile(lambda _: time.monotonic() < from_s, arrivals):
        pass
    n, begun = 0, time.monotonic()
    while (now := time.monotonic()) < begun + seconds:
        n += next(arrivals)
    (folder / "new").write_text(str(n / size / (now - begun)))
    (folder / "new").rename(folder / "rate")


def copy(folder: Path, size: int, address: str) -> None:
    """Read from one connection without end, at another port."""
    for _ in receive_raw(folder, size, address, PORT + 2):
        pass


def serve_copy(folder: Path, size: int, address: str) -> None:
    """Write to it."""
    send_raw(folder, size, address, PORT + 2)


def measure(way: str, size: int, shape: Shape, options: argparse.Namespace) -> float:
    """Return how many samples of a second one way moves across a line between two hosts."""
    from networks import Network

    send, receive = WAYS[way]
    with TemporaryDirectory(prefix="ln") as name, Network() as network:
        folder = Path(name)
        write_token(folder / "token")
        zmq.auth.create_certificates(folder, "server")
        (folder / "times").write_text(f"{2 * shape.delay_s} {options.seconds}")
        (folder / "connections").write_text(str(options.connections))
        there, here = both(network, options.congestion)
        line = network.line(there, here, shape)
        if options.beside:
            on_host(there, serve_copy, folder, size, line.address(there))
            await_file(folder / "ready")
            (folder / "ready").unlink()
            on_host(here, copy, folder, size, line.address(there))
        on_host(there, send, folder, size, line.address(there))
        await_file(folder / "ready")
        on_host(here, count, receive, folder, size, line.address(there))
        await_file(folder / "rate", 120)
        return float((folder / "rate").read_text())


def both(network: Network, congestion: str | None) -> list[Host]:
    """Return two hosts with this congestion control of TCP, or with that of the machine."""
    hosts = [network.host(switched=False) for _ in range(2)]
    for host in hosts if congestion else ():
        host.run("sh", "-c", f"echo {congestion} > /proc/sys/net/ipv4/tcp_congestion_control")
    return hosts


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="that are counted, of each way")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabits", type=float, default=400.0, help="rate of the line, Mb/s")
    parser.add_argument("--congestion", help="that hosts have of their own; a link chooses bbr where it may")
    parser.add_argument("--connections", type=int, default=0, help="of a link; 0: as many as it chooses")
    parser.add_argument(
        "--beside", action="store_true", help="one more connection of TCP that takes what it can"
    )
    parser.add_argument("--ways", nargs="*", default=[*WAYS])
    options = parser.parse_args()
    sys.path.insert(0, str(REPOSITORY / "tests" / "peers"))
    from emulator import Shape

    print(describe_commit()["hash"][:9], describe_machine())
    print(
        f"{options.megabits:g} Mb/s, congestion control {options.congestion or 'of the machine'}; "
        f"samples of a second, medians of {options.rounds}"
    )
    print(f"| round trip, loss, bytes | {' | '.join(options.ways)} |\n|{'---|' * (1 + len(options.ways))}")
    for (round_trip_s, loss), size in itertools.product(LINES, SIZES):
        rates: dict[str, list[float]] = {way: [] for way in options.ways}
        for number in range(options.rounds):
            shape = Shape(round_trip_s / 2, loss, options.megabits * 1e6, queue_bytes=4 << 20, seed=number)
            for way in options.ways:
                rates[way].append(measure(way, size, shape, options))
        cells = [f"{statistics.median(found):,.0f}" for found in rates.values()]
        print(f"| {1e3 * round_trip_s:g} ms, {100 * loss:g} %, {size} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
