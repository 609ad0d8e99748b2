"""Mixes of softs 0.1.0, softs 0.1.2 and softs_fast: every sample whole, of its product, none twice."""

from pathlib import Path

import pytest

from fleet import PATHS, Fleet

VERSIONS = list(PATHS)
N_SAMPLES = 60


def mixes() -> list[tuple[str, str, str, str]]:
    """Each peer of ours with both others of each version; by other mediums only a client and a supplier meet.

    0.1.0 cannot run TCP: its medium has a constructor that its own client does not call.
    """
    ours, *others = VERSIONS
    found = [("shm", ours, ours, ours)]
    for other in others:
        found += [("shm", ours, other, other), ("shm", other, ours, other), ("shm", other, other, ours)]
        found += [("file", ours, other, ours), ("file", ours, ours, other)]
    return [*found, ("tcp", ours, "softs-0.1.2", ours), ("tcp", ours, ours, "softs-0.1.2")]


def test_the_path_of_softs_0_1_0_is_there() -> None:
    path = PATHS["softs-0.1.0"]
    assert path is not None
    assert "0.6.0" in (Path(path) / "softs" / "__init__.py").read_text(), "run `make setup`"


@pytest.mark.parametrize(("fleet", "broker", "client", "supplier"), mixes(), indirect=["fleet"])
def test_mixed_fleets_deliver(fleet: Fleet, broker: str, client: str, supplier: str) -> None:
    fleet.peer("broker", broker)
    settings = {}
    if supplier == "softs_fast" and fleet.medium == "file":
        settings = {"file_dirs": [str(fleet.folder)]}
    # softs 0.1.0 takes product ids literally.
    fleet.peer("supplier", supplier, patterns=["p1"], settings=settings)
    # One slot for softs' client: with more it takes FULFILLED for an answer and loses slots, with any broker.
    n_slots = 4 if client == "softs_fast" else 1
    taker = fleet.peer("client", client, n_slots=n_slots, n_samples=N_SAMPLES)
    assert taker.event("done")["received"] == N_SAMPLES


@pytest.mark.parametrize(
    ("fleet", "client", "supplier"),
    [("shm", "softs_fast", one) for one in VERSIONS[1:]]
    + [("shm", "softs-0.1.2", "softs_fast"), ("file", "softs_fast", "softs-0.1.2")],
    indirect=["fleet"],
)
def test_slots_that_begin_on_cache_lines(fleet: Fleet, client: str, supplier: str) -> None:
    """Those of our client have gaps from a page on, those of softs never; each supplier writes at the offset of the order."""
    fleet.slot_size = 5003
    fleet.peer("broker", "softs_fast")
    settings = (
        {"file_dirs": [str(fleet.folder)]} if (supplier, fleet.medium) == ("softs_fast", "file") else {}
    )
    fleet.peer("supplier", supplier, patterns=["p1"], settings=settings)
    taker = fleet.peer("client", client, n_slots=4 if client == "softs_fast" else 1, n_samples=N_SAMPLES)
    assert taker.event("done")["received"] == N_SAMPLES


@pytest.mark.parametrize("broker", ["softs_fast", "softs-0.1.2"])
def test_all_versions_in_one_market(fleet: Fleet, broker: str) -> None:
    fleet.peer("broker", broker)
    suppliers = [fleet.peer("supplier", version, patterns=["p1"]) for version in VERSIONS]
    takers = [
        fleet.peer("client", version, n_slots=1, n_samples=N_SAMPLES * 3)
        for version in ("softs_fast", "softs-0.1.2")
    ]
    makers = set()
    for taker in takers:
        makers.update(taker.event("done")["makers"])
    assert makers == {supplier.pid for supplier in suppliers}, "every supplier had its share"


@pytest.mark.slow
def test_our_supplier_stays_with_a_softs_broker_that_drops_the_idle(fleet: Fleet) -> None:
    fleet.peer("broker", "softs-0.1.2", settings={"supplier_timeout": 12.0})
    fleet.peer("supplier", "softs_fast", patterns=["p1"])
    # softs looks every 10 s; the second round comes after it would have dropped an idle supplier.
    for pause in (0.0, 25.0):
        fleet.peer("client", "softs_fast", n_samples=5, pause=pause).event("done")
