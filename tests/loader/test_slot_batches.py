"""Batches of slots that the caller took itself."""

from types import SimpleNamespace

import pytest
from scripted_client import CONFIG, SAMPLE

from softs_fast import ConfigError
from softs_fast.dataset import Batch, make_collate_fn


class Slots:
    """A client of three slots for batches."""

    def __init__(self, data: bytes = SAMPLE) -> None:
        self.medium = SimpleNamespace(read=lambda slot_id: data)
        self.released: list[int] = []

    def release_slot(self, slot_id: int) -> None:
        self.released.append(slot_id)


@pytest.fixture
def slots() -> Slots:
    return Slots()


def test_collate_stacks(slots: Slots) -> None:
    batch = make_collate_fn(slots, CONFIG)([2, 0])  # type: ignore[arg-type]
    assert isinstance(batch, Batch)
    assert batch["x"].tolist() == [[1, 1], [1, 1]]
    assert batch["y"].shape == (2,)
    assert slots.released == [2, 0]
    batch.release()
    assert slots.released == [2, 0]


def test_collate_of_what_cannot_be_decoded() -> None:
    slots = Slots(b"short")
    with pytest.raises(ConfigError, match="Data length 5 != expected 16"):
        make_collate_fn(slots, CONFIG)([1, 2])  # type: ignore[arg-type]
    assert slots.released == [1, 2]
    with pytest.raises(ConfigError, match="cannot stack 0 samples"):
        make_collate_fn(slots, CONFIG)([])  # type: ignore[arg-type]


def test_a_batch_releases_once(slots: Slots) -> None:
    batch = make_collate_fn(slots, CONFIG, auto_release=False)([2, 0])  # type: ignore[arg-type]
    assert slots.released == []
    batch.release()
    batch.release()
    del batch
    assert slots.released == [2, 0]


def test_a_batch_of_a_closed_client_is_freed_without_an_error(
    slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(slot_id: int) -> None:
        raise ConfigError("closed")

    batch = Batch({}, [0], slots)  # type: ignore[arg-type]
    monkeypatch.setattr(slots, "release_slot", refuse)
    with pytest.raises(ConfigError):
        batch.release()
    other = Batch({}, [0], slots)  # type: ignore[arg-type]
    del other, batch
