"""Slots that begin further apart than they are long."""

from pathlib import Path

import pytest

from softs_fast import FilesystemMedium, ShmMedium
from softs_fast.errors import ConfigError


@pytest.mark.parametrize("medium_cls", [ShmMedium, FilesystemMedium])
def test_slots_apart(medium_cls: type[ShmMedium | FilesystemMedium], tmp_path: Path) -> None:
    """With a stride slots have gaps, which no sample touches; attached peers know of it."""
    address = None if medium_cls is ShmMedium else str(tmp_path / "slots")
    with medium_cls(address, slot_size=100, num_slots=3, create=True, slot_stride=128) as owner:
        with medium_cls.attach(owner.address) as writer:
            assert (writer.slot_size, writer.slot_stride, writer.num_slots) == (100, 128, 3)
            for slot in range(3):
                assert writer.write_if(slot * 128, bytes([slot + 1]) * 100, lambda: True)
        assert owner._segment.read(228, 28) == bytes(28), "the gap behind the second slot"
        assert [owner.read(slot) for slot in range(3)] == [bytes([slot + 1]) * 100 for slot in range(3)]
        part = bytearray(10)
        owner.read_into(2, part, 90)
        assert part == b"\x03" * 10
        owner.unlink()
    with pytest.raises(ConfigError, match="slot_stride"):
        medium_cls(address, slot_size=100, num_slots=3, create=True, slot_stride=99)
