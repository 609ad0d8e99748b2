"""The three mediums: owner and writer agree on slots, and the owner cleans up."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from side_by_side import in_threads

MEDIUMS = ["ShmMedium", "FilesystemMedium", "TCPMedium"]
SLOT_BYTES = 16


@pytest.fixture(params=MEDIUMS)
def medium_cls(request: pytest.FixtureRequest, lib: ModuleType) -> Any:
    return getattr(lib, request.param)


@pytest.fixture
def owner(medium_cls: Any, short_path: Path) -> Iterator[Any]:
    address = str(short_path / "folder" / "slots") if medium_cls.__name__ == "FilesystemMedium" else None
    medium = medium_cls(address, SLOT_BYTES, 3, create=True)
    yield medium
    medium.close()
    medium.unlink()


def test_a_writer_fills_slots_by_byte_offset(medium_cls: Any, owner: Any) -> None:
    writer = medium_cls.attach(owner.address)
    try:
        for slot in (2, 0):
            assert writer.write(slot * SLOT_BYTES, bytes([slot + 1]) * SLOT_BYTES) is True
        assert bytes(owner.read(0)) == b"\x01" * SLOT_BYTES
        assert bytes(owner.read(1)) == bytes(SLOT_BYTES)
        assert bytes(owner.read(2)) == b"\x03" * SLOT_BYTES
    finally:
        writer.close()


def test_attributes(owner: Any, sub: Callable[[str], ModuleType]) -> None:
    assert isinstance(owner, sub("market.mediums").Medium)
    assert (owner.slot_size, owner.num_slots, owner.is_owner) == (SLOT_BYTES, 3, True)
    assert isinstance(owner.address, str)


def test_what_was_read_is_a_copy(medium_cls: Any, owner: Any) -> None:
    before = owner.read(1)
    writer = medium_cls.attach(owner.address)
    try:
        assert writer.write(SLOT_BYTES, b"x" * SLOT_BYTES)
    finally:
        writer.close()
    assert bytes(before) == bytes(SLOT_BYTES)
    assert bytes(owner.read(1)) == b"x" * SLOT_BYTES


def test_writers_in_threads(medium_cls: Any, owner: Any) -> None:
    writers = [medium_cls.attach(owner.address) for _ in range(3)]

    def write(slot: int) -> None:
        for _ in range(20):
            assert writers[slot].write(slot * SLOT_BYTES, bytes([slot]) * SLOT_BYTES)

    in_threads(write, range(3))
    for writer in writers:
        writer.close()
    assert [bytes(owner.read(slot)) for slot in range(3)] == [bytes([slot]) * SLOT_BYTES for slot in range(3)]


def test_addresses(lib: ModuleType) -> None:
    shm = lib.ShmMedium(None, 8, 1, create=True)
    tcp = lib.TCPMedium(None, 8, 1, create=True)
    try:
        assert shm.address.startswith("sl_")
        assert len(shm.address) == 3 + 16
        assert Path("/dev/shm", shm.address).exists()
        assert tcp.address.startswith("127.0.0.1:")
    finally:
        for medium in (shm, tcp):
            medium.close()
            medium.unlink()
    assert not Path("/dev/shm", shm.address).exists()


@pytest.mark.parametrize("name", MEDIUMS)
def test_a_writer_needs_an_address(lib: ModuleType, name: str) -> None:
    with pytest.raises(ValueError, match="address"):
        getattr(lib, name)(None, 8, 1, create=False)


@pytest.mark.parametrize("name", ["ShmMedium", "FilesystemMedium"])
def test_attaching_to_nothing(lib: ModuleType, name: str, short_path: Path) -> None:
    address = "sl_0000000000000000" if name == "ShmMedium" else str(short_path / "missing")
    with pytest.raises(OSError, match=address.rpartition("/")[2]):
        getattr(lib, name).attach(address)


def test_only_the_owner_removes(medium_cls: Any, owner: Any) -> None:
    writer = medium_cls.attach(owner.address)
    writer.close()
    writer.unlink()
    other = medium_cls.attach(owner.address)
    assert other.write(0, b"y" * SLOT_BYTES)
    other.close()
    assert bytes(owner.read(0)) == b"y" * SLOT_BYTES


def test_segments_carry_a_control_block_behind_the_slots(
    lib: ModuleType, expect: Callable[..., Any], short_path: Path
) -> None:
    path = short_path / "slots"
    medium = lib.FilesystemMedium(str(path), 4096, 2, create=True)
    try:
        size = path.stat().st_size
    finally:
        medium.close()
        medium.unlink()
    assert (size > 2 * 4096) is expect(softs=False, softs_fast=True)


def test_a_write_past_the_end(medium_cls: Any, owner: Any) -> None:
    if medium_cls.__name__ == "TCPMedium" and medium_cls.__module__.startswith("softs."):
        return  # softs grows its buffer; there is nothing to hold it to
    writer = medium_cls.attach(owner.address)
    try:
        assert writer.write(3 * SLOT_BYTES, b"z" * (1 << 20)) is False
    finally:
        writer.close()
    assert [bytes(owner.read(slot)) for slot in range(3)] == [bytes(SLOT_BYTES)] * 3
