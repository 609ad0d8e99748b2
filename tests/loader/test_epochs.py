"""`steps_per_epoch`, `device`, `stats` and `close`: what trainers ask of a loader."""

import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from served import served
from waiting import eventually

import softs_fast as sf
from softs_fast.loader.stats import LoaderStats, StatsRecorder

CONFIG = sf.make_xy_config((40_000,), "float64", (), "int64")
B = 4

KINDS = pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 2},
        {"zero_copy": True},
        {"ordered": True},
        {"num_workers": 1, "multiprocessing_context": "fork"},
        {"collate_fn": torch.utils.data.default_collate},
    ],
    ids=["copied", "threads", "zero copy", "ordered", "processes", "collate_fn"],
)


def generate(product_id: str, sequence: int) -> dict[str, torch.Tensor]:
    return {
        "x": torch.full((40_000,), float(sequence), dtype=torch.float64),
        "y": torch.tensor(sequence if product_id == "m" else -1 - sequence),
    }


@pytest.fixture
def endpoint(frontend: str, backend: str) -> Iterator[str]:
    with served(frontend, backend, generate, ["m", "n"], batch_config=CONFIG):
        yield frontend


@pytest.fixture
def new(endpoint: str) -> Iterator[Callable[..., sf.SoftDataLoader]]:
    made: list[sf.SoftDataLoader] = []

    def make(**arguments: Any) -> sf.SoftDataLoader:
        arguments = {"num_slots": 4 * B, "batch_size": B, **arguments}
        made.append(sf.SoftDataLoader("m", endpoint, CONFIG, **arguments))
        return made[-1]

    yield make
    for loader in made:
        loader.close()


@KINDS
def test_an_epoch_ends_and_the_next_one_goes_on(
    new: Callable[..., sf.SoftDataLoader], options: dict[str, Any]
) -> None:
    loader = new(steps_per_epoch=3, **options)
    assert len(loader) == 3
    numbers: list[int] = []
    for _ in range(3):
        for batch in loader:
            numbers += batch["y"].tolist()
            time.sleep(0.002)  # the next batch is begun meanwhile
    assert len(numbers) == 9 * B
    # One supplier and one client: what was begun at the end of an epoch is in the next one.
    assert sorted(numbers) == list(range(9 * B))


def test_an_epoch_that_is_over_stays_over(new: Callable[..., sf.SoftDataLoader]) -> None:
    batches = iter(new(steps_per_epoch=1))
    next(batches)
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(batches)


def test_an_endless_loader_has_no_length(new: Callable[..., sf.SoftDataLoader]) -> None:
    with pytest.raises(TypeError, match="the loader is endless and has no length; give steps_per_epoch"):
        len(new())
    with pytest.raises(sf.ConfigError, match="steps_per_epoch must be a whole number and at least 1, got 0"):
        new(steps_per_epoch=0)


def test_an_error_is_no_step(new: Callable[..., sf.SoftDataLoader]) -> None:
    loader = new(steps_per_epoch=1, request_timeout=0.2)
    loader.set_model("unknown")
    batches = iter(loader)
    with pytest.raises(sf.SampleTimeout):
        next(batches)
    assert (loader.stats.n_batches, loader.stats.working_s) == (0, 0.0)
    assert loader.stats.waiting_s >= 0.2
    loader.set_model("m")

    def comes() -> bool:
        with suppress(sf.SampleTimeout):  # the supplier may take longer
            return len(next(batches)["y"]) == B
        return False

    eventually(comes, "a batch")
    assert loader.stats.n_batches == 1


@KINDS
def test_batches_are_handed_out_on_the_device(
    new: Callable[..., sf.SoftDataLoader], options: dict[str, Any]
) -> None:
    # Its tensors have no content, so any machine has it.
    for _, batch in zip(range(4), new(device="meta", **options), strict=False):
        assert {tensor.device.type for tensor in batch.values()} == {"meta"}
        assert batch["x"].shape == (B, 40_000)


@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 2}, {"collate_fn": torch.utils.data.default_collate}]
)
def test_what_is_on_the_device_ahead_is_dropped_at_a_switch(
    new: Callable[..., sf.SoftDataLoader], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # "meta" stands for a device; the batch itself stays, so that its content can be seen.
    monkeypatch.setattr("softs_fast.loader.readers.transfer._moved", lambda item, device: item)
    loader = new(device="meta", ordered=True, **options)
    batches = iter(loader)
    seen: dict[str, list[int]] = {"m": [], "n": []}
    for turn in range(12):
        product = "mn"[turn // 2 % 2]
        loader.set_model(product)
        seen[product] += [y if product == "m" else -1 - y for y in next(batches)["y"].tolist()]
        time.sleep(0.002)  # the next batch is begun meanwhile
    assert seen == {"m": list(range(6 * B)), "n": list(range(6 * B))}


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("cuda:99", r"device 'cuda:99' is not visible here: torch sees \d+ CUDA devices"),
        ("gpu", "device 'gpu' is none that torch knows"),
        (1.5, "device 1.5 is none that torch knows"),
    ],
)
def test_a_device_that_is_not_there(new: Callable[..., sf.SoftDataLoader], device: Any, reason: str) -> None:
    with pytest.raises(sf.ConfigError, match=reason):
        new(device=device)


def test_the_device_of_the_host_changes_nothing(new: Callable[..., sf.SoftDataLoader]) -> None:
    loader = new(device="cpu")
    assert loader.device is None
    assert next(iter(loader))["x"].device.type == "cpu"


def test_batches_are_counted_and_waits_measured(new: Callable[..., sf.SoftDataLoader]) -> None:
    loader = new()
    batches = iter(loader)
    next(batches)
    first = loader.stats
    assert (first.n_batches, first.n_samples, first.working_s) == (1, B, 0.0)
    assert first.waiting_s > 0
    time.sleep(0.3)
    next(batches)
    later = loader.stats.since(first)
    assert (later.n_batches, later.n_samples) == (1, B)
    assert later.working_s >= 0.3
    recorder = StatsRecorder()
    recorder.new_counts().n_batches = 1
    assert recorder.total(B).n_samples == B
    assert pickle.loads(pickle.dumps(recorder)).total(B) == LoaderStats(), "another process counts its own"


def test_statistics_tell_which_side_limits_the_rate() -> None:
    waits = LoaderStats(n_batches=10, n_samples=40, waiting_s=1.0, working_s=1.0)
    assert (waits.samples_per_s, waits.waiting_share, waits.bound) == (20.0, 0.5, "producer")
    assert waits._replace(waiting_s=0.1).bound == "consumer"
    assert (LoaderStats().samples_per_s, LoaderStats().waiting_share, LoaderStats().bound) == (
        0,
        0,
        "consumer",
    )


def test_a_loader_finds_its_broker_by_the_environment(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTS_FAST_FRONTEND", endpoint)
    with sf.SoftDataLoader("m", batch_config=CONFIG, batch_size=B) as loader:
        assert len(next(iter(loader))["y"]) == B
    with pytest.raises(TypeError, match="missing the argument batch_config"):
        sf.SoftDataLoader("m")
