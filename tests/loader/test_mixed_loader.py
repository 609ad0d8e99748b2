"""Live batches and recorded ones by weights: the shares, and runs that resume."""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
from numbered_client import CONFIG, NumberedClient, numbers_of

from softs_fast import ConfigError, MixedLoader, ReplayLoader, ShmMedium, SoftDataLoader
from softs_fast.loader import endless
from softs_fast.record import Recording

#: Live batches of 4 that are recorded.
N_BATCHES = 5


@pytest.fixture(autouse=True)
def numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Datasets open clients that number their samples."""
    monkeypatch.setattr(endless, "Client", NumberedClient)


def live(**arguments: Any) -> SoftDataLoader:
    return SoftDataLoader(
        "0", "ipc:///unused", CONFIG, ShmMedium, num_slots=64, batch_size=4, ordered=True, **arguments
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A recording."""
    with live(record=tmp_path) as loader:
        for _ in islice(loader, N_BATCHES):
            pass
    return tmp_path


def mixed(folder: Path, weights: Any = (2, 1)) -> MixedLoader:
    """A replay in an order by a seed, and live samples after those of the recording."""
    later = live()
    later.load_state_dict({"positions": {"0": 4 * N_BATCHES}})
    return MixedLoader([ReplayLoader(folder, batch_size=4, shuffle_seed=1), later], weights)


def test_each_loader_has_its_share_at_any_time(folder: Path) -> None:
    with mixed(folder, weights=(3, 2)) as loader, mixed(folder, weights=None) as even:
        for n, batch in enumerate(islice(loader, 40), 1):
            assert len(batch["y"]) == 4
            counts = loader.state_dict()["counts"]
            assert abs(counts[0] - 0.6 * n) < 1
            assert sum(counts) == n
        assert counts == [24, 16]
        is_live = [min(numbers_of(batch)) >= 4 * N_BATCHES for batch in islice(even, 6)]
        assert is_live == [False, True] * 3


@pytest.mark.parametrize("n", range(0, 24, 3))
def test_a_run_that_resumes_goes_on_exactly(folder: Path, n: int) -> None:
    with mixed(folder) as whole:
        expected = [numbers_of(batch) for batch in islice(whole, n + 9)]
    replayed = [numbers for numbers in expected if min(numbers) < 4 * N_BATCHES]
    # The replay begins anew.
    assert sorted(chain.from_iterable(replayed[:N_BATCHES])) == list(range(4 * N_BATCHES))
    with mixed(folder) as first:
        for _ in islice(first, n):
            pass
        state = first.state_dict()
    with mixed(folder) as later:
        next(later)
        later.load_state_dict(state)
        assert [numbers_of(batch) for batch in islice(later, 9)] == expected[n:]


def test_an_error_of_a_loader_loses_no_batch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with mixed(folder) as whole:
        expected = [numbers_of(batch) for batch in islice(whole, 6)]
    fill = Recording.fill

    def fail(*arguments: Any) -> None:
        monkeypatch.setattr(Recording, "fill", fill)
        raise OSError(5, "Input/output error")

    with mixed(folder) as loader:
        got = [numbers_of(batch) for batch in islice(loader, 2)]
        monkeypatch.setattr(Recording, "fill", fail)
        with pytest.raises(OSError, match="Input/output error"):
            next(loader)
        got += [numbers_of(batch) for batch in islice(loader, 6 - len(got))]
        assert got == expected


def test_what_cannot_be_mixed_or_loaded_is_refused(folder: Path) -> None:
    for loaders in ([], [object()]):
        with pytest.raises(ConfigError, match="loaders must be one or more of SoftDataLoader"):
            MixedLoader(loaders)  # type: ignore[arg-type]
    for weights in ((1,), (1, 0), (1, float("inf")), (1, "2")):
        with pytest.raises(ConfigError, match="weights must be 2 positive numbers, one for each loader"):
            mixed(folder, weights)
    with mixed(folder) as loader:
        state = loader.state_dict()
        for change, text in (
            ({"weights": [1.0, 1.0]}, r"weights \[1.0, 1.0\], and this one has \[2.0, 1.0\]"),
            ({"counts": [1, -1]}, "a count of batches must be a whole number"),
            (
                {"loaders": state["loaders"][:1]},
                "expected what state_dict of a MixedLoader of 2 loaders returned",
            ),
        ):
            with pytest.raises(ConfigError, match=text):
                loader.load_state_dict({**state, **change})
        with pytest.raises(ConfigError, match="invalid state: expected"):
            loader.load_state_dict(None)  # type: ignore[arg-type]
