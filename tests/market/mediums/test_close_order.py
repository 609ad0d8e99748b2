"""A client that closes its medium says so before it releases it."""

from pathlib import Path

from softs_fast import Client, ShmMedium


def test_a_segment_has_no_name_when_it_is_released() -> None:
    """A supplier tells by the name whether the client that it cannot reach any more has closed its medium."""
    had_name = []

    class Noted(ShmMedium):
        def close(self) -> None:
            had_name.append(Path("/dev/shm", str(self.address)).exists())
            super().close()

    Client("ipc:///unused", Noted, 8, 2).close()
    assert had_name == [False]
