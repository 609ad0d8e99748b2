"""A dataset that waits in vain raises the cause: each cause made by real processes."""

import itertools
import logging
import re
from contextlib import suppress

import pytest
from market import Market
from waiting import eventually

import softs_fast

SAMPLE = softs_fast.BatchConfig([softs_fast.TensorSpec("x", (32,), "float32")])


def first_sample(market: Market, product: str = "p1", **kwargs: object) -> object:
    """The first sample of a dataset that waits for one second."""
    settings = {"num_slots": 2, "request_timeout": 1.0, **kwargs}
    dataset = softs_fast.SoftIterableDataset(
        product,
        market.frontend,
        SAMPLE,
        softs_fast.ShmMedium,
        **settings,  # type: ignore[arg-type]
    )
    try:
        return next(iter(dataset))
    finally:
        dataset.close()


def cause(market: Market, kind: type[softs_fast.SampleTimeout], pattern: str, **kwargs: object) -> str:
    """The text of the error in the end: suppliers may take longer than one wait to fail, or to begin."""

    def ask() -> str:
        with suppress(softs_fast.SampleTimeout):
            try:
                first_sample(market, **kwargs)  # type: ignore[arg-type]
            except kind as error:
                return str(error) if re.search(pattern, str(error)) else ""
            pytest.fail("a sample has come")
        return ""

    return eventually(ask, kind.__name__, every_s=0)


@pytest.fixture(autouse=True)
def _slot_size(market: Market) -> None:
    market.slot_size = SAMPLE.nbytes()


def test_no_broker(market: Market) -> None:
    with pytest.raises(RuntimeError) as caught:
        first_sample(market)
    # softs has its client say hello first, and so do we; either way the endpoint is named.
    assert "no broker at" in str(caught.value)
    assert market.frontend in str(caught.value)


def test_a_broker_that_went_away(market: Market) -> None:
    broker = market.broker()
    dataset = softs_fast.SoftIterableDataset(
        "p1", market.frontend, SAMPLE, softs_fast.ShmMedium, num_slots=2, request_timeout=1.0
    )
    supplier = market.supplier()
    samples = iter(dataset)

    def has_come() -> bool:
        with suppress(softs_fast.SampleTimeout):  # the supplier may take longer
            return bool(next(samples))
        return False

    eventually(has_come, "a sample", every_s=0)
    broker.kill()
    # It needs no broker to go on with what it has begun to serve.
    supplier.kill()
    try:
        # What was finished before is still handed out.
        with pytest.raises(softs_fast.NoBroker, match="no broker at"):
            list(itertools.islice(samples, 10))
    finally:
        dataset.close()


def test_no_supplier_at_all(market: Market) -> None:
    market.broker()
    with pytest.raises(softs_fast.NoSupplier, match="0 connected, serving nothing"):
        first_sample(market)


def test_no_supplier_of_this_product(market: Market) -> None:
    market.broker()
    market.supplier(patterns=["teacher_v1"])
    market.supplier(patterns=["teacher_v2"])
    with pytest.raises(softs_fast.NoSupplier) as caught:
        first_sample(market, "teacher_v3")
    for words in ["'teacher_v3'", "2 connected", "'teacher_v1'", "'teacher_v2'"]:
        assert words in str(caught.value)


def test_a_generator_that_fails(market: Market) -> None:
    market.broker()
    market.supplier(behaviour="raise")
    text = cause(market, softs_fast.GeneratorFailed, "")
    for words in ["Traceback (most recent call last)", "ValueError: boom in p1", "in generate"]:
        assert words in text


def test_suppliers_that_are_busy(market: Market) -> None:
    market.broker()
    for _ in range(2):
        market.supplier(behaviour="sleep", amount=1000.0)
    assert cause(market, softs_fast.SuppliersBusy, r"2 of 2 matching suppliers busy, the longest for \d")


def test_slots_that_are_never_released(market: Market) -> None:
    market.broker()
    market.supplier()
    with market.open_client(n_slots=2) as client:
        for _ in range(2):
            assert client.request_sample("p1", 20_000) is not None
        assert client.request_sample("p1", 50) is None
        cause = client.diagnose("p1", 0.05)
        assert "all 2 slots are held" in str(cause)


def test_causes_are_logged_under_our_name(market: Market, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="softs_fast")
    with market.open_client(n_slots=2) as client:
        for _ in range(5):
            assert client.request_sample("p1", 100) is None
    lines = [record for record in caplog.records if "no broker at" in record.getMessage()]
    assert len(lines) == 1, "a cause that lasts is logged once"
    assert lines[0].name == "softs_fast.market.client"
