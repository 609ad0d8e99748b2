"""Our mediums with those of softs at the other end, in another process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import eventually

from softs_fast.market import mediums

SLOT_BYTES = 16
NAMES = ["ShmMedium", "FilesystemMedium", "TCPMedium"]


def sample(n: int) -> bytes:
    return bytes(range(n, n + SLOT_BYTES))


def address_for(name: str, folder: Path) -> str | None:
    return str(folder / "slots") if name == "FilesystemMedium" else None


@pytest.mark.parametrize("theirs", ["softs", "softs_fast"])
@pytest.mark.parametrize("name", NAMES)
def test_others_write_to_our_slots(
    name: str, theirs: str, child: Callable[..., Any], short_path: Path
) -> None:
    with getattr(mediums, name)(address_for(name, short_path), SLOT_BYTES, 3, create=True) as ours:
        writer = child(theirs, name, "attach", ours.address)
        assert writer.write(2 * SLOT_BYTES, sample(3))
        assert writer.write(0, sample(1))
        assert [ours.read(slot) for slot in range(3)] == [sample(1), bytes(SLOT_BYTES), sample(3)]
        writer.end()
        ours.unlink()


@pytest.mark.parametrize("theirs", ["softs", "softs_fast"])
@pytest.mark.parametrize("name", NAMES)
def test_we_write_to_the_slots_of_others(
    name: str, theirs: str, child: Callable[..., Any], short_path: Path
) -> None:
    owner = child(theirs, name, "own", address_for(name, short_path))
    with getattr(mediums, name).attach(owner.address) as ours:
        assert ours.write(SLOT_BYTES, sample(2))
        assert ours.write(0, bytearray(sample(1)))
        assert [owner.read(slot) for slot in range(3)] == [sample(1), sample(2), bytes(SLOT_BYTES)]
        known = 0 if theirs == "softs" or name == "TCPMedium" else 1
        assert (ours.slot_size, ours.num_slots) == (known * SLOT_BYTES, known * 3)
    owner.kill()


def test_softs_writers_are_refused_what_is_no_slot(child: Callable[..., Any]) -> None:
    with mediums.TCPMedium(None, SLOT_BYTES, 3, create=True) as ours:
        for offset, n_bytes in [(1, SLOT_BYTES), (0, SLOT_BYTES + 1), (3 * SLOT_BYTES, SLOT_BYTES), (0, 1)]:
            writer = child("softs", "TCPMedium", "attach", ours.address)
            assert not writer.write(offset, b"x" * n_bytes)
            writer.end()
        assert [ours.read(slot) for slot in range(3)] == [bytes(SLOT_BYTES)] * 3


def test_the_name_comes_back_after_a_softs_supplier_removed_it(child: Callable[..., Any]) -> None:
    with mediums.ShmMedium(None, SLOT_BYTES, 3, create=True) as ours:
        path = Path("/dev/shm", ours.address or "")
        writer = child("softs", "ShmMedium", "attach", ours.address)
        assert ours.ensure_linked() is False
        # What the resource tracker of Python before 3.13 does at the exit of the writer.
        path.unlink()
        assert ours.ensure_linked() is True
        late = child("softs", "ShmMedium", "attach", ours.address)
        assert writer.write(0, sample(1))
        assert late.write(SLOT_BYTES, sample(2))
        assert [ours.read(0), ours.read(1)] == [sample(1), sample(2)]
        writer.end()
        late.end()
        ours.unlink()
        eventually(lambda: not path.exists(), "unlink")
