"""Owners that die, fork, close, or find no room; and what a supplier makes of them."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fork_check import check_fork
from segments import sweep_until

from softs_fast import _core
from softs_fast.errors import SegmentError
from softs_fast.market.mediums import FilesystemMedium, ShmMedium, TCPMedium

SLOT_BYTES = 16
#: Of this process: another run of the tests may go on beside it.
NAME = f"softs-fast-test-{os.getpid()}"
SHM = Path("/dev/shm")


def test_the_sweep_removes_what_a_killed_owner_left(child: Callable[..., Any]) -> None:
    with ShmMedium(NAME, SLOT_BYTES, 3, create=True) as alive:
        owner = child("softs_fast", "ShmMedium", "own")
        plain = child("softs", "ShmMedium", "own")
        _core.sweep()
        assert (SHM / owner.address).exists()
        writer = ShmMedium.attach(owner.address)
        owner.kill()
        sweep_until(lambda: not (SHM / owner.address).exists())
        assert writer.write(0, b"it is not read..")
        writer.close()
        assert (SHM / plain.address).exists()
        assert (SHM / NAME).exists()
        plain.end()
        alive.unlink()


def test_a_closed_owner_can_be_swept_although_a_fork_lives() -> None:
    medium = ShmMedium(None, SLOT_BYTES, 3, create=True)
    address = medium.address or ""
    (read_end, write_end), pid = os.pipe(), os.fork()
    if pid == 0:
        os.close(write_end)
        os.read(read_end, 1)
        os._exit(0)
    os.close(read_end)
    try:
        _core.sweep()
        assert (SHM / address).exists()
        medium.close()
        sweep_until(lambda: not (SHM / address).exists())
        medium.unlink()
    finally:
        os.close(write_end)
        os.waitpid(pid, 0)


def test_a_fork_shares_the_slots_and_does_not_take_the_lock_away() -> None:
    with ShmMedium(None, SLOT_BYTES, 3, create=True) as medium:

        def use_and_close() -> None:
            assert medium.write(0, b"from the fork...")
            medium.close()

        check_fork(then=use_and_close)
        assert medium.read(0) == b"from the fork..."
        _core.sweep()
        assert (SHM / (medium.address or "")).exists()
        medium.unlink()


def test_a_fork_cannot_use_a_tcp_medium_and_does_no_harm() -> None:
    with (
        TCPMedium(None, SLOT_BYTES, 3, create=True) as owner,
        TCPMedium.attach(owner.address or "") as writer,
    ):

        def try_and_close() -> None:
            assert not writer.write(0, b"x" * SLOT_BYTES)
            owner.close()
            writer.close()

        check_fork(lambda: owner.read(0), then=try_and_close)
        assert writer.write(0, b"from the parent.")
        assert owner.read(0) == b"from the parent."


@pytest.mark.parametrize("medium_cls", [ShmMedium, FilesystemMedium, TCPMedium])
def test_a_closed_medium_refuses(medium_cls: Any, short_path: Path) -> None:
    address = str(short_path / "slots") if medium_cls is FilesystemMedium else None
    owner = medium_cls(address, SLOT_BYTES, 3, create=True)
    writer = medium_cls.attach(owner.address)
    for medium in (writer, owner):
        medium.close()
        medium.close()
        assert medium.write(0, b"x" * SLOT_BYTES) is False
        with pytest.raises(SegmentError, match="closed"):
            medium.read(0)
    owner.unlink()
    owner.unlink()


@pytest.mark.parametrize("medium_cls", [ShmMedium, FilesystemMedium, TCPMedium])
def test_nothing_outside_the_slots_is_written_or_read(medium_cls: Any, short_path: Path) -> None:
    address = str(short_path / "slots") if medium_cls is FilesystemMedium else None
    with medium_cls(address, SLOT_BYTES, 3, create=True) as owner:
        with medium_cls.attach(owner.address) as writer:
            for medium in (owner, writer):
                for offset in (-1, 3 * SLOT_BYTES - 1, 3 * SLOT_BYTES, 4096, 2**32, 2**63, 2**64):
                    assert medium.write(offset, b"x" * SLOT_BYTES) is False, (offset, medium)
                assert medium.write(0, "not bytes") is False
        for slot in (3, 2**40):
            with pytest.raises(SegmentError):
                owner.read(slot)
        assert [owner.read(slot) for slot in range(3)] == [bytes(SLOT_BYTES)] * 3
        owner.unlink()


def test_a_slot_is_read_into_memory_that_is_there() -> None:
    with ShmMedium(None, SLOT_BYTES, 3, create=True) as medium:
        assert medium.write(SLOT_BYTES, memoryview(b"in some memory.."))
        target = bytearray(SLOT_BYTES)
        medium.read_into(1, target)
        assert target == b"in some memory.."
        with pytest.raises(ValueError, match="read-only"):
            medium.read_into(1, bytes(SLOT_BYTES))
        with pytest.raises(ValueError, match="contiguous"):
            medium.read_into(1, memoryview(target)[::2])
        with pytest.raises(SegmentError):
            medium.read_into(2, bytearray(SLOT_BYTES + 1))
        medium.unlink()


def test_a_writer_does_not_write_to_the_segment_of_a_client_that_is_gone(short_path: Path) -> None:
    for medium_cls, address in [
        (ShmMedium, NAME),
        (FilesystemMedium, str(short_path / "f")),
    ]:
        first = medium_cls(address, SLOT_BYTES, 3, create=True)
        stale = medium_cls.attach(address)
        first.close()
        first.unlink()
        with medium_cls(address, SLOT_BYTES, 3, create=True) as second, medium_cls.attach(address) as fresh:
            assert stale.write(0, b"to the first one") is False
            assert fresh.write(0, b"to the second...")
            assert second.read(0) == b"to the second..."
            second.unlink()
        stale.close()


def test_orders_do_not_reach_files_outside_the_allowed_folders(short_path: Path) -> None:
    victim, folder = short_path / "victim", short_path / "allowed"
    victim.write_bytes(b"precious" * 8)
    folder.mkdir()
    (folder / "plain").write_bytes(bytes(64))
    (folder / "link").symlink_to(victim)
    for path in (victim, folder / "link", folder / ".." / "victim"):
        with pytest.raises(SegmentError, match="refused"):
            FilesystemMedium.attach_limited(str(path), file_dirs=[str(folder)])
    with FilesystemMedium.attach_limited(str(folder / "plain"), file_dirs=[str(folder)]) as plain:
        assert plain.write(0, b"x")
    with FilesystemMedium(str(short_path / "ours"), 8, 8, create=True) as owner:
        with FilesystemMedium.attach_limited(owner.address or "") as writer:
            assert writer.write(0, b"y" * 8)
        owner.unlink()
    with FilesystemMedium.attach(str(victim)) as asked_for:
        assert asked_for.write(0, b"P")
    assert victim.read_bytes() == b"Precious" + b"precious" * 7
    with pytest.raises(ValueError, match="allow_remote"):
        TCPMedium.attach_limited("192.0.2.1:9")
    with pytest.raises(ValueError, match="allow_remote"):
        TCPMedium(None, 8, 8, create=True, host="0.0.0.0")


FULL = """
import os, sys
from multiprocessing import shared_memory
from softs_fast.errors import SegmentError
from softs_fast.market.mediums import ShmMedium

try:
    ShmMedium(None, 1 << 20, 4, create=True)
except SegmentError as error:
    print(error)
assert os.listdir("/dev/shm") == []
# A segment of softs has no memory before it is written to: here is the SIGBUS of the process that maps it.
plain = shared_memory.SharedMemory("plain", create=True, size=4 << 20)
writer = ShmMedium.attach("plain")
print(writer.write(0, b"x" * (4 << 20)))
writer.close()
plain.close()
plain.unlink()
"""


def test_a_full_shm_is_an_error_and_no_sigbus() -> None:
    mount = "mount -t tmpfs -o size=1m tmpfs /dev/shm"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small /dev/shm needs the right to do so")
    run = subprocess.run(
        ["unshare", "-m", "sh", "-c", f'{mount} && exec "$0" -c "$1"', sys.executable, FULL],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    error, written = run.stdout.splitlines()
    assert error.startswith("/dev/shm full: need 4349952 bytes, 1048576 free")
    assert written == "False"
