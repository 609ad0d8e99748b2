"""One path, several files: on two hosts, or of two clients one after the other. A sample goes to the segment that ordered it."""

import threading
from pathlib import Path

import pytest
import stamp
from market import Market, take
from waiting import eventually

import softs_fast

#: The same path for all, and for each process another file: as on two hosts.
ADDRESS = "/proc/self/cwd/slots"


class WireMedium(softs_fast.FilesystemMedium):
    """A medium without lanes: its orders come by the broker."""

    @classmethod
    def attach_limited(cls, address: str, **kwargs: object) -> "WireMedium":
        return cls(address=address, slot_size=0, num_slots=0, create=False)


@pytest.fixture
def market(short_path: Path) -> Market:
    """A market of files."""
    return Market(short_path, medium="file")


def contents(medium: softs_fast.FilesystemMedium) -> list[bytes]:
    return [medium.read(slot) for slot in range(4)]


def test_a_supplier_of_another_host_writes_to_no_file_of_the_same_path(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = market.folder / "here", market.folder / "there"
    for folder in (here, there):
        folder.mkdir()
    foreign = softs_fast.FilesystemMedium(str(there / "slots"), market.slot_size, 4, create=True)
    untouched = contents(foreign)
    monkeypatch.chdir(here)
    try:
        market.broker()
        market.supplier(folder=str(there))
        with softs_fast.Client(
            market.frontend, softs_fast.FilesystemMedium, market.slot_size, 4, address=ADDRESS
        ) as client:

            def is_refused() -> bool:
                assert client.request_sample("p1", timeout_ms=200) is None
                return "is another one on this host" in str(client.diagnose("p1", 0.2))

            eventually(is_refused, lambda: client.diagnose("p1", 0.2))
            market.supplier(folder=str(here))
            take(client, stamp.Checker(), 50)
        assert contents(foreign) == untouched
    finally:
        market.end()
        foreign.close()


def test_a_sample_for_a_client_that_has_gone_is_not_written_for_the_next_one(market: Market) -> None:
    path = str(market.folder / "slots")
    is_called, may_end = threading.Event(), threading.Event()

    def generate(product_id: str) -> bytes:
        is_called.set()
        may_end.wait()
        return bytes([1]) * market.slot_size

    def client() -> softs_fast.Client:
        return softs_fast.Client(
            market.frontend, softs_fast.FilesystemMedium, market.slot_size, 4, address=path
        )

    try:
        market.broker()
        with softs_fast.Supplier(generate, ["p.*"], market.backend, WireMedium, market.slot_size):
            try:
                with client() as first:
                    assert first.request_slot("p1") is not None
                    assert is_called.wait(20)
                with client() as second:
                    untouched = contents(second.medium)
                    may_end.set()
                    eventually(
                        lambda: second.get_stats()["available_suppliers"] == 1, "the supplier is done with it"
                    )
                    assert contents(second.medium) == untouched
                    # It opens the file again for the orders of this client.
                    slot = second.request_sample("p1", timeout_ms=20_000)
                    assert slot is not None, second.diagnose("p1", 20)
                    assert second.medium.read(slot) == bytes([1]) * market.slot_size
            finally:
                may_end.set()
    finally:
        market.end()
