"""Wrong generators, addresses, endpoints, users and bytes: an error that says what is wrong, and all other peers go on."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import stamp
import zmq
from market import Market, take
from segments import made_by
from waiting import eventually

import softs_fast
from softs_fast.market.protocol import ClientCmd, SupplierCmd, decode_payload, encode_payload


def failure_text(client: softs_fast.Client, product: str) -> str:
    """The text of the error after waiting for a sample in vain."""
    eventually(
        lambda: (
            client.request_sample(product, timeout_ms=50) is None
            and isinstance(client.diagnose(product, 0.1), softs_fast.GeneratorFailed)
        ),
        "the failure is known",
    )
    return str(client.diagnose(product, 0.1))


@contextlib.contextmanager
def peer(endpoint: str) -> Iterator[zmq.Socket[bytes]]:
    """A real ZeroMQ DEALER."""
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.linger = 0
    dealer.rcvtimeo = 40_000
    dealer.connect(endpoint)
    try:
        yield dealer
    finally:
        dealer.close()
        context.term()


# -- generators ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behaviour", "amount", "words"),
    [
        ("raise", 0, ["ValueError: boom in p-bad", "Traceback", "generate"]),
        ("wrong_size", 127, ["returned 127 bytes", "slot_size=128"]),
        ("wrong_size", 129, ["returned 129 bytes", "slot_size=128"]),
        ("wrong_size", 0, ["returned 0 bytes"]),
        ("wrong_type", 0, ["returned list", "need bytes"]),
    ],
)
def test_what_a_generator_does_wrong_reaches_the_client(
    market: Market, behaviour: str, amount: int, words: list[str]
) -> None:
    market.broker()
    market.supplier(patterns=["p-bad"], behaviour=behaviour, amount=amount)
    market.supplier(patterns=["p1"])
    with market.open_client() as client:
        text = failure_text(client, "p-bad")
        for word in [*words, "p-bad", "attempt 5 of 5"]:
            assert word in text
        take(client, stamp.Checker(), 20)
        assert client.get_stats()["connected_suppliers"] == 2, "a bad generator does not end its supplier"


def test_an_order_that_fails_at_one_supplier_is_made_by_another(market: Market) -> None:
    market.broker()
    market.supplier(behaviour="raise")
    market.supplier()
    with market.open_client() as client:
        checker = stamp.Checker()
        take(client, checker, 50)


def test_suppliers_that_cannot_serve_a_client_are_not_asked(
    market: Market, caplog: pytest.LogCaptureFixture
) -> None:
    endpoints = softs_fast.EndpointConfig(frontend=market.frontend, backend=market.backend)
    with softs_fast.Broker(endpoints):
        for options in 3 * [{"slot_size": 2 * market.slot_size}, {"medium": "file"}, {"medium": "tcp"}]:
            market.supplier(**options)
        market.supplier()
        with market.open_client(n_slots=8) as client:
            take(client, stamp.Checker(), 500)
        market.end()
    assert "goes back to its queue" not in caplog.text


def test_a_generator_that_ends_its_thread_gives_its_order_back(market: Market) -> None:
    market.broker()
    market.supplier(behaviour="exit")
    with market.open_client() as client:
        assert client.request_slot("p1") is not None
        eventually(lambda: client.get_stats()["connected_suppliers"] == 0, "the supplier has left")
        market.supplier()
        take(client, stamp.Checker(), 5)


def test_slot_sizes_that_differ_are_named(market: Market) -> None:
    market.broker()
    market.supplier(slot_size=256)
    with market.open_client() as client:
        assert client.request_sample("p1", timeout_ms=200) is None
        error = client.diagnose("p1", 0.2)
        assert isinstance(error, softs_fast.NoSupplier)
        assert "slot_size differs: this supplier has 256, the client 128" in str(error)


# -- addresses -----------------------------------------------------------------------------------------------


@pytest.fixture
def order(market: Market) -> Iterator[Callable[..., str]]:
    """Places an order by hand, as a softs client would; how it ended: FULFILLED or FAILED."""
    market.broker()
    with peer(market.frontend) as dealer:

        def place(address: str, offset: int = 0) -> str:
            fields = {"order_id": "o", "product_id": "p1", "address": address, "offset": offset}
            dealer.send_multipart([ClientCmd.ORDER, encode_payload(fields)])
            assert decode_payload(dealer.recv())["ok"]
            command, _ = dealer.recv_multipart()
            return command.decode()

        yield place


@pytest.mark.parametrize("medium", ["shm", "file", "tcp"])
def test_an_order_cannot_make_a_supplier_write_where_it_should_not(
    market: Market, order: Callable[..., str], medium: str, tmp_path: Path
) -> None:
    market.medium = medium
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious" * 100)
    link = market.folder / "link"
    link.symlink_to(victim)
    market.supplier(settings={"file_dirs": [str(market.folder)]} if medium == "file" else {})
    addresses = {
        "shm": ["no_such_segment", "../../etc/passwd", "/dev/shm/x", "", "a" * 300, "x\0y", str(victim)],
        "file": [
            str(victim),
            str(link),
            f"{market.folder}/../{victim}",
            "/dev/null",
            "/nowhere/x",
            "",
            "x\0y",
        ],
        "tcp": ["127.0.0.1:1", "192.0.2.1:80", "example.invalid:80", "nonsense", "127.0.0.1:99999", ""],
    }[medium]
    for address in addresses:
        assert order(address) == "FAILED", address
    assert victim.read_bytes() == b"precious" * 100


@pytest.mark.parametrize("offset", [128 * 4 - 1, 2**63])
def test_an_offset_outside_the_medium_is_refused(
    market: Market, order: Callable[..., str], offset: int
) -> None:
    market.supplier()
    medium = softs_fast.ShmMedium(None, slot_size=128, num_slots=4, create=True)
    try:
        assert order(medium.address, offset) == "FAILED"
        assert order(medium.address, 128) == "FULFILLED"
        assert medium.read(0) == bytes(128)
    finally:
        medium.close()
        medium.unlink()


# -- endpoints -----------------------------------------------------------------------------------------------


def test_an_endpoint_of_a_live_broker_is_refused_and_stays_alive(market: Market) -> None:
    first = market.broker()
    endpoints = softs_fast.EndpointConfig(market.frontend, market.backend)
    with pytest.raises(softs_fast.EndpointInUse, match=f"process {first.pid}"):
        softs_fast.Broker(endpoints).start()
    market.supplier()
    with market.open_client() as client:
        take(client, stamp.Checker(), 5)


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "nonsense",
        "ipc://",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:70000",
        "udp://127.0.0.1:1",
        "ipc:///" + "x" * 200,
    ],
)
def test_a_malformed_endpoint_is_named(market: Market, endpoint: str) -> None:
    with pytest.raises(softs_fast.ConfigError):
        softs_fast.Broker(softs_fast.EndpointConfig(endpoint, market.backend)).start()
    with pytest.raises(softs_fast.ConfigError):
        softs_fast.Client(endpoint, softs_fast.ShmMedium, 8, 1)
    assert made_by({os.getpid()}) == [], "the medium goes with the client that was never made"


@pytest.mark.parametrize("endpoint", ["tcp://0.0.0.0:0", "tcp://*:*", "tcp://[::]:0"])
def test_tcp_beyond_loopback_needs_a_word(market: Market, endpoint: str) -> None:
    endpoints = softs_fast.EndpointConfig(endpoint, market.backend)
    with pytest.raises(softs_fast.ConfigError, match="allow_remote=True"):
        softs_fast.Broker(endpoints).start()
    with softs_fast.Broker(endpoints, allow_remote=True) as broker:
        assert broker.bound_endpoints.frontend.startswith("tcp://")


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_wildcard_ports_and_ipv6(host: str) -> None:
    endpoints = softs_fast.EndpointConfig(f"tcp://{host}:*", f"tcp://{host}:0")
    with softs_fast.Broker(endpoints) as broker:
        bound = broker.bound_endpoints
        supplier = softs_fast.Supplier(lambda p: b"12345678", ["p"], bound.backend, softs_fast.ShmMedium, 8)
        with supplier, softs_fast.Client(bound.frontend, softs_fast.ShmMedium, 8, 2) as client:
            slot = client.request_sample("p", 20_000)
            assert slot is not None
            assert client.medium.read(slot) == b"12345678"


# -- users ---------------------------------------------------------------------------------------------------

AS_ANOTHER_USER = """
import os, socket, sys
os.setgid(65534); os.setuid(65534)
peer = socket.socket()
peer.connect(("127.0.0.1", int(sys.argv[1])))
peer.settimeout(30)
greeting = bytes([0xFF, 0, 0, 0, 0, 0, 0, 0, 0, 0x7F, 3, 1]) + b"NULL".ljust(20, b"\\0") + bytes(32)
try:
    peer.sendall(greeting)
    print("closed" if peer.recv(64) == b"" else "served")
except ConnectionError:
    print("closed")
"""


def as_another_user(port: str) -> str:
    """What becomes of a connection to a port."""
    script = subprocess.run(
        [sys.executable, "-c", AS_ANOTHER_USER, port], capture_output=True, text=True, timeout=60, cwd="/"
    )
    assert script.stdout, script.stderr
    return script.stdout.strip()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_peers_of_another_user_are_refused_on_loopback_too() -> None:
    """By brokers, too: rust/net/tests/foreign_user.rs."""
    with softs_fast.TCPMedium(None, 64, 1, create=True) as medium:
        assert as_another_user((medium.address or "").rpartition(":")[2]) == "closed"


# -- bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patterns", "words"),
    [
        ([], "at least one"),
        (["("], "Invalid product_id pattern"),
    ],
)
def test_a_bad_pattern_is_refused_with_the_reason(market: Market, patterns: list[str], words: str) -> None:
    market.broker()
    supplier = softs_fast.Supplier(lambda p: b"", patterns, market.backend, softs_fast.ShmMedium, 8)
    try:
        with pytest.raises(softs_fast.HelloError, match="HELLO failed") as caught:
            supplier.start()
        assert words.lower() in str(caught.value).lower()
    finally:
        supplier.stop()


def test_a_pattern_that_explodes_elsewhere_costs_nothing_here(market: Market) -> None:
    market.broker()
    market.supplier(patterns=["(a+)+$", "p1"])
    with market.open_client() as client:
        # Python's re would need 2^40 steps for this one.
        assert client.request_sample("a" * 40 + "!", timeout_ms=100) is None
        take(client, stamp.Checker(), 5)


def test_a_hundred_thousand_products_leave_no_trace(market: Market) -> None:
    broker = market.broker()
    market.supplier(patterns=["q.*", "p1"])

    def resident_kib() -> int:
        status = Path(f"/proc/{broker.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])

    with peer(market.backend) as supplier, peer(market.frontend) as client:
        supplier.send_multipart([SupplierCmd.HELLO, encode_payload({"product_ids": ["q.*"]})])
        assert decode_payload(supplier.recv())["ok"]
        fields = {"address": "x", "offset": 0}
        grown = []
        n = 0
        for _ in range(2):
            before = resident_kib()
            for _ in range(50):
                # Cancelled at once: each batch is a thousand products that come once.
                for i in range(n, n + 1000):
                    request = {"order_id": str(i), "product_id": f"r{i}", **fields}
                    client.send_multipart([ClientCmd.ORDER, encode_payload(request)])
                client.send_multipart([ClientCmd.DISCARD, encode_payload({})])
                for _ in range(1000):
                    assert decode_payload(client.recv())["ok"]
                assert decode_payload(client.recv())["cancelled"] == 1000
                n += 1000
            grown.append(resident_kib() - before)
        # A product that is kept takes more than a hundred bytes.
        assert grown[1] < 4096, f"the second half of {n} products grew the broker by {grown[1]} KiB"


def test_a_full_shared_memory_is_an_error_and_no_crash(market: Market) -> None:
    free = os.statvfs("/dev/shm")
    n_bytes = free.f_bavail * free.f_frsize * 2
    with pytest.raises(softs_fast.SegmentError, match=r"need .* bytes"):
        softs_fast.Client(market.frontend, softs_fast.ShmMedium, n_bytes // 4, 4)


def test_a_flood_of_orders_is_bounded(market: Market) -> None:
    market.broker(settings={"max_queue_per_product": 10**9})
    with peer(market.frontend) as client:
        started = time.monotonic()
        refused = 0
        for i in range(65_536 + 10):
            fields = {"order_id": str(i), "product_id": "p", "address": "x", "offset": i * 8}
            client.send_multipart([ClientCmd.ORDER, encode_payload(fields)])
            if i % 500 == 499 or i == 65_545:
                n = 500 if i % 500 == 499 else 65_546 % 500
                answers = [decode_payload(client.recv()) for _ in range(n)]
                refused += sum(not answer["ok"] for answer in answers)
        assert refused == 10, f"after {time.monotonic() - started:.1f} s"
