"""Broker, suppliers and clients in one process: what an order does."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
from waiting import eventually

Expect = Callable[..., Any]
Take = Callable[[Any], int]


def padded(product_id: str) -> bytes:
    return product_id.encode().ljust(8, b".")


@pytest.fixture(params=["ShmMedium", "FilesystemMedium", "TCPMedium"])
def medium(request: pytest.FixtureRequest, lib: ModuleType) -> Any:
    return getattr(lib, request.param)


@pytest.fixture
def address(medium: Any, short_path: Path) -> str | None:
    return str(short_path / "slots") if medium.__name__ == "FilesystemMedium" else None


def test_one_by_one(market: Any, medium: Any, address: str | None, take: Take) -> None:
    market.broker()
    market.supplier(padded, ["p.*"], medium=medium)
    client = market.client(2, medium=medium, address=address)
    for i in range(10):
        order_id = client.request_slot(f"p{i}")
        assert isinstance(order_id, str)
        slot = take(client)
        assert slot in (0, 1)
        assert bytes(client.medium.read(slot)) == padded(f"p{i}")
        client.release_slot(slot)
    assert client.get_completed() is None


def test_pipelined(market: Any, medium: Any, address: str | None, gate: Any, take: Take) -> None:
    market.broker()
    for _ in range(2):
        market.supplier(gate, ["p.*"], medium=medium)
    client = market.client(4, medium=medium, address=address)
    assert len({client.request_slot(f"p{i}") for i in range(4)}) == 4
    assert client.request_slot("p4") is None
    gate.opened.set()
    slots = [take(client) for _ in range(4)]
    assert sorted(slots) == [0, 1, 2, 3]
    assert {bytes(client.medium.read(slot)) for slot in slots} == {padded(f"p{i}") for i in range(4)}


def test_request_sample(market: Any, medium: Any, address: str | None) -> None:
    market.broker()
    market.supplier(padded, ["p"], medium=medium)
    client = market.client(3, medium=medium, address=address)
    for _ in range(20):
        slot = client.request_sample("p", timeout_ms=10_000)
        assert slot is not None
        assert bytes(client.medium.read(slot)) == padded("p")
        client.release_slot(slot)


def test_tcp_endpoints(tcp_market: Any) -> None:
    tcp_market.broker()
    tcp_market.supplier(padded, ["p"])
    client = tcp_market.client()
    slot = client.request_sample("p", timeout_ms=10_000)
    assert bytes(client.medium.read(slot)) == padded("p")


def test_request_sample_prefetches(market: Any, gate: Any, expect: Expect) -> None:
    market.broker()
    market.supplier(gate, ["p"])
    client = market.client(4)
    gate.opened.set()
    assert client.request_sample("p", timeout_ms=10_000) is not None
    eventually(lambda: len(gate.calls) == expect(softs=1, softs_fast=4), "the number of orders")


def test_request_sample_returns_slots_of_its_product(market: Any, expect: Expect) -> None:
    market.broker()
    market.supplier(padded, ["a", "b"])
    client = market.client(2)
    client.request_slot("a")
    eventually(
        lambda: client.poll_completions(50) or client.get_stats()["total_completed"] == 1, "a's sample"
    )
    client.poll_completions(0)
    slot = client.request_sample("b", timeout_ms=10_000)
    assert bytes(client.medium.read(slot)) == padded(expect(softs="a", softs_fast="b"))


def test_request_sample_times_out(market: Any) -> None:
    market.broker()
    client = market.client()
    assert client.request_sample("unserved", timeout_ms=20) is None
    assert client.get_completed() is None


def test_hello(market: Any) -> None:
    market.broker()
    first, second = market.client(hello=False), market.client(hello=False)
    replies = [first.hello(), second.hello()]
    assert all(reply["ok"] for reply in replies)
    assert replies[0]["peer_id"] != replies[1]["peer_id"]


def test_hello_without_a_broker(market: Any) -> None:
    client = market.client(hello=False, send_timeout_ms=100)
    with pytest.raises(RuntimeError, match="HELLO failed"):
        client.hello()


def test_cancel(market: Any, gate: Any, take: Take) -> None:
    market.broker()
    client = market.client(1)
    order_id = client.request_slot("p")
    assert client.request_slot("p") is None
    eventually(lambda: client.get_stats()["pending_orders"] == 1, "a queued order")
    assert client.cancel(order_id) is True
    assert client.cancel(order_id) is False
    assert client.cancel("unknown") is False
    assert client.get_stats()["pending_orders"] == 0

    market.supplier(gate, ["p"])
    order_id = client.request_slot("p")
    eventually(lambda: gate.calls, "the order at the supplier")
    assert client.cancel(order_id) is False
    gate.opened.set()
    assert take(client) == 0


def test_discard_of_queued_orders(market: Any) -> None:
    market.broker()
    client = market.client(3)
    for _ in range(3):
        assert client.request_slot("p") is not None
    eventually(lambda: client.get_stats()["pending_orders"] == 3, "three queued orders")
    assert client.discard() == 3
    assert client.get_stats()["pending_orders"] == 0
    for _ in range(3):
        assert client.request_slot("p") is not None


def test_discard_of_dispatched_orders(market: Any, gate: Any, take: Take) -> None:
    market.broker()
    market.supplier(gate, ["old", "new"])
    client = market.client(1)
    client.request_slot("old")
    eventually(lambda: gate.calls, "the order at the supplier")
    assert client.discard() == 0
    assert client.request_slot("new") is None, "the slot may still be written"
    gate.opened.set()

    def slot_came_back() -> bool:
        client.poll_completions(20)
        return client.request_slot("new") is not None

    eventually(slot_came_back, "the slot of the discarded order")
    assert bytes(client.medium.read(take(client))) == padded("new")


def test_discard_drops_finished_slots(market: Any, take: Take) -> None:
    market.broker()
    market.supplier(padded, ["old", "new"])
    client = market.client(2)
    client.request_slot("old")
    eventually(lambda: client.poll_completions(50) == 1, "the sample")
    client.discard()
    assert client.get_completed() is None
    client.request_slot("new")
    assert bytes(client.medium.read(take(client))) == padded("new")


def test_stats(market: Any, take: Take) -> None:
    broker = market.broker()
    market.supplier(padded, ["a", "b.*"])
    client = market.client()
    client.request_slot("a")
    take(client)
    eventually(lambda: broker.get_stats().available_suppliers == 1, "an idle supplier")
    stats = broker.get_stats()
    assert isinstance(stats, market.lib.BrokerStats)
    assert (stats.connected_clients, stats.connected_suppliers, stats.total_completed) == (1, 1, 1)
    assert stats.pending_orders == 0
    assert sorted(stats.product_ids) == ["a", "b.*"]
    told = client.get_stats()
    assert told["ok"] is True
    known = [field.name for field in dataclasses.fields(stats) if not field.kw_only]
    assert [told[name] for name in known] == [getattr(stats, name) for name in known]


def test_queue_full(market: Any, expect: Expect) -> None:
    market.broker(max_queue_per_product=2)
    client = market.client(4)
    assert client.request_slot("p") is not None
    assert client.request_slot("p") is not None
    assert (client.request_slot("p") is None) is expect(softs=True, softs_fast=False)
    assert client.request_slot("another") is not None
    # softs refuses the third order of p; the broker of softs-fast queues all orders of its own clients.
    n_queued = expect(softs=3, softs_fast=4)
    eventually(
        lambda: client.get_stats()["pending_orders"] == n_queued, "the orders of p and the one of another"
    )


def test_an_order_beyond_the_queue_is_served_later(market: Any, package: str, take: Take) -> None:
    if package == "softs":
        return  # it refuses such orders, see test_queue_full
    market.broker(max_queue_per_product=1)
    client = market.client(4)
    for _ in range(4):
        assert client.request_slot("p") is not None
    market.supplier(padded, ["p"])
    assert sorted(take(client) for _ in range(4)) == [0, 1, 2, 3]


@pytest.mark.parametrize("patterns", [[], ["("], ["ok", "[a-"]])
def test_patterns_that_cannot_be_read(market: Any, patterns: list[str]) -> None:
    market.broker()
    with pytest.raises(RuntimeError, match="HELLO failed"):
        market.supplier(padded, patterns)


@pytest.mark.parametrize("pattern", [r"(?!a).*", r"(a)\1"])
def test_patterns_without_linear_time(market: Any, expect: Expect, pattern: str) -> None:
    market.broker()
    refusal = expect(softs=None, softs_fast=RuntimeError)
    with contextlib.nullcontext() if refusal is None else pytest.raises(refusal, match="HELLO failed"):
        market.supplier(padded, [pattern])


@pytest.mark.parametrize(
    ("pattern", "product_id", "served"),
    [
        ("ab", "ab", True),
        ("ab", "abc", False),
        ("ab", "xab", False),
        ("a|bc", "bc", True),
        ("a|bc", "ac", False),
        (r"layer_\d+", "layer_12", True),
        (r"layer_\d+", "layer_x", False),
        (r"é.?", "éa", True),
        ("a.b", "a\nb", False),
    ],
)
def test_patterns_match_the_whole_product_id(
    market: Any, gate: Any, pattern: str, product_id: str, served: bool
) -> None:
    market.broker()
    market.supplier(gate, [pattern, "probe"])
    client = market.client(2)
    client.request_slot(product_id)
    gate.opened.set()
    # Orders are handed out oldest first, so when the probe is served the other would have been.
    client.request_slot("probe")
    eventually(lambda: "probe" in gate.calls, "the probe")
    assert (product_id in gate.calls) is served


def test_a_pattern_also_matches_itself(market: Any, gate: Any, expect: Expect) -> None:
    product_id = "inputs[a.0]|outputs[b]"
    market.broker()
    market.supplier(gate, [product_id, "probe"])
    client = market.client(2)
    client.request_slot(product_id)
    client.request_slot("probe")
    gate.opened.set()
    eventually(lambda: "probe" in gate.calls, "the probe")
    assert (product_id in gate.calls) is expect(softs=False, softs_fast=True)


def test_goodbye(market: Any) -> None:
    broker = market.broker()
    supplier = market.lib.Supplier(padded, ["p"], market.endpoints.backend, market.lib.ShmMedium, 8)
    supplier.start()
    eventually(lambda: broker.get_stats().available_suppliers == 1, "a ready supplier")
    supplier.stop()
    eventually(lambda: broker.get_stats().connected_suppliers == 0, "the farewell")
    assert broker.get_stats().available_suppliers == 0
    assert broker.get_stats().product_ids == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_failing_generator_gives_the_slot_back(market: Any) -> None:
    calls = []

    def fail(product_id: str) -> bytes:
        calls.append(product_id)
        raise ValueError("no teacher today")

    broker = market.broker(max_order_attempts=2)
    market.supplier(fail, ["p"])
    client = market.client(1)
    client.request_slot("p")

    def slot_is_free() -> bool:
        client.poll_completions(20)
        assert client.get_completed() is None
        return client.request_slot("q") is not None

    eventually(slot_is_free, "the slot of the failed order")
    assert calls == ["p", "p"]
    assert broker.get_stats().total_completed == 0


@pytest.mark.parametrize("length", [7, 9])
def test_a_sample_of_another_size(market: Any, gate: Any, expect: Expect, length: int) -> None:
    broker = market.broker(max_order_attempts=1)
    market.supplier(lambda product_id: b"x" * length, ["p"])
    client = market.client(2)
    client.request_slot("p")
    outcome: list[str] = []

    def ended() -> bool:
        client.poll_completions(20)
        if client.get_completed() is not None:
            outcome.append("accepted")
        elif broker.get_stats().pending_orders == 0 and broker.get_stats().available_suppliers == 1:
            outcome.append("refused")
        return bool(outcome)

    eventually(ended, "the end of the order")
    client.poll_completions(20)
    if client.get_completed() is not None:
        outcome[:] = ["accepted"]
    assert outcome == [expect(softs="accepted", softs_fast="refused")]


def test_many_clients_and_suppliers(market: Any) -> None:
    market.broker()
    for _ in range(3):
        market.supplier(padded, ["p.*"])
    wrong: list[bytes] = []

    def train(name: str, client: Any) -> None:
        for _ in range(25):
            slot = client.request_sample(name, timeout_ms=20_000)
            if slot is None or bytes(client.medium.read(slot)) != padded(name):
                wrong.append(b"" if slot is None else bytes(client.medium.read(slot)))
                return
            client.release_slot(slot)

    students = [threading.Thread(target=train, args=(f"p{i}", market.client(3))) for i in range(3)]
    for student in students:
        student.start()
    for student in students:
        student.join()
    assert wrong == []


def test_an_endpoint_that_is_served(market: Any, expect: Expect) -> None:
    market.broker()
    second = market.lib.Broker(market.endpoints)
    refusal = expect(softs=None, softs_fast=OSError)
    if refusal is not None:
        with pytest.raises(refusal, match=r"/f\b"):
            second.start()
        assert market.client().get_stats()["ok"]
        return
    second.start()
    second.stop()


def test_an_endpoint_of_a_broker_that_is_gone(market: Any) -> None:
    for _ in range(2):
        with market.lib.Broker(market.endpoints):
            client = market.client()
            assert client.get_stats()["pending_orders"] == 0
            client.close()


def test_close_twice(market: Any) -> None:
    market.broker()
    client = market.client()
    segment = Path("/dev/shm", client.medium.address)
    assert segment.exists()
    client.close()
    client.close()
    assert not segment.exists()


def test_a_custom_medium(market: Any, sub: Callable[[str], ModuleType], custom_medium: Any) -> None:
    market.broker()
    market.supplier(padded, ["p.*"], medium=custom_medium)
    client = market.client(2, medium=custom_medium, address="room 7")
    for i in range(6):
        slot = client.request_sample("p", timeout_ms=10_000)
        assert slot is not None, i
        assert bytes(client.medium.read(slot)) == padded("p")
        client.release_slot(slot)
    assert custom_medium.buffers.keys() == {"room 7"}
    client.close()
    assert custom_medium.buffers == {}


@pytest.fixture
def custom_medium(sub: Callable[[str], ModuleType]) -> Iterator[Any]:
    """A medium as softs' README shows one: a subclass with the five methods."""

    class Dictionary(sub("market.mediums").Medium):  # type: ignore[misc]
        buffers: ClassVar[dict[str, bytearray]] = {}

        def __init__(
            self, address: str, slot_size: int, num_slots: int, create: bool = False, **kwargs: Any
        ) -> None:
            super().__init__(address, slot_size, num_slots, create)
            if create:
                self.buffers[address] = bytearray(slot_size * num_slots)

        @classmethod
        def attach(cls, address: str) -> "Dictionary":
            return cls(address=address, slot_size=0, num_slots=0, create=False)

        def write(self, slot_id: int, data: bytes) -> bool:
            if self.address not in self.buffers:
                return False
            self.buffers[self.address][slot_id : slot_id + len(data)] = data
            return True

        def read(self, slot_id: int) -> bytes:
            start = slot_id * self.slot_size
            return bytes(self.buffers[self.address][start : start + self.slot_size])

        def unlink(self) -> None:
            if self.is_owner:
                self.buffers.pop(self.address, None)

    yield Dictionary
    Dictionary.buffers.clear()


def test_a_stopped_supplier_does_not_start_again(market: Any, expect: Expect) -> None:
    market.broker()
    supplier = market.supplier(padded, ["a"])
    supplier.stop()
    words = expect(softs="not a socket|non-socket", softs_fast="was stopped and cannot start again")
    with pytest.raises(Exception, match=words):
        supplier.start()
