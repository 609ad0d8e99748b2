"""Segments and addresses of faulty processes: an error, never a crash, and never a read outside of the memory."""

import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from softs_fast.errors import ConfigError, NotFinite, SegmentError, SoftsError
from softs_fast.snapshots import RemoteWindow, SnapshotLayout, Window, average

TENSORS = {"w": torch.ones(2000), "n": torch.ones(3, dtype=torch.int64)}
LAYOUT = SnapshotLayout.of(TENSORS)

# Offsets in a segment, of csrc/collective/mapping.cpp and csrc/snapshots/format.hpp.
HEADER = 4096
N_BYTES, MANIFEST_BYTES, STARTED, PID, UID, DIGEST, VERSION = (
    *(HEADER + 8, HEADER + 16, HEADER + 24),
    *(HEADER + 32, HEADER + 36, HEADER + 40, HEADER + 72),
)
LATEST = 2 * 4096
ASK_COUNT = LATEST + 128
HALVES = (3 * 4096, 4 * 4096)
CONFIG_BYTES = 128 + 36
MANIFEST = 5 * 4096


def segment_of_a_window() -> tuple[bytes, Mapping[str, Any]]:
    """A whole segment with two versions, and its address."""
    with Window(LAYOUT) as window:
        for step in (1, 2):
            window.publish(TENSORS, step=step, metric=0.5, trained=step, config={"lr": 1})
        address = window.address
        fd, n_bytes = address["fd"], address["n_bytes"]
        assert isinstance(fd, int)
        assert isinstance(n_bytes, int)
        return os.pread(fd, n_bytes + 4096, 0), address


SEGMENT, ADDRESS = segment_of_a_window()


@contextmanager
def served(content: bytes, size: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the address of a segment of this process with any content."""
    fd = os.memfd_create("segment")
    try:
        os.pwrite(fd, content, 0)
        if size is not None:
            os.truncate(fd, size)
        yield {**ADDRESS, "fd": fd}
    finally:
        os.close(fd)


def changed(*changes: tuple[int, str, int]) -> bytes:
    content = bytearray(SEGMENT)
    for offset, kind, value in changes:
        struct.pack_into(kind, content, offset, value)
    return bytes(content)


def test_an_unchanged_segment_is_read() -> None:
    with served(SEGMENT) as address, RemoteWindow.open(address) as remote:
        into = {name: torch.zeros_like(tensor) for name, tensor in TENSORS.items()}
        assert average([remote], [1.0], into, LAYOUT) == [remote.header()]
        assert remote.header().version == 2
        assert all(torch.equal(into[name], TENSORS[name]) for name in TENSORS)


@pytest.mark.parametrize(
    ("content", "size", "why"),
    [
        (SEGMENT, len(SEGMENT) - 4096, "another file"),
        (SEGMENT, len(SEGMENT) + 4096, "another file"),
        (SEGMENT, 0, "another file"),
        (b"", len(SEGMENT), "only a part of it is allocated"),
        (SEGMENT[:8192], len(SEGMENT), "only a part of it is allocated"),
        (changed((0, "<Q", 1)), None, "other memory"),
        (changed((8, "<Q", 1)), None, "other memory"),
        (changed((HEADER, "<Q", 1)), None, "another magic number"),
        (changed((VERSION, "<I", 0)), None, "has format 0"),
        (changed((VERSION, "<I", 2)), None, "has format 2"),
        (changed((UID, "<I", 4_000_000_000)), None, "belongs to user 4000000000"),
        (changed((PID, "<i", 1)), None, "belongs to another process"),
        (changed((STARTED, "<Q", 1)), None, "belongs to another process"),
        (changed((N_BYTES, "<Q", 1 << 63)), None, "does not fit tensors"),
        (changed((N_BYTES, "<Q", 1 << 40)), None, "does not fit tensors"),
        (changed((N_BYTES, "<Q", 100_000)), None, "does not fit tensors"),
        (changed((N_BYTES, "<Q", 0)), None, "does not fit tensors"),
        (changed((MANIFEST_BYTES, "<Q", (1 << 64) - 1)), None, "does not fit tensors"),
        (changed((MANIFEST_BYTES, "<Q", 5000)), None, "does not fit tensors"),
        # Together they have the right size by a wrap-around.
        (changed((N_BYTES, "<Q", (1 << 63) + 8192), (MANIFEST_BYTES, "<Q", 0)), None, "does not fit tensors"),
    ],
)
def test_malformed_segments_are_refused(content: bytes, size: int | None, why: str) -> None:
    with served(content, size) as address, pytest.raises(SegmentError, match=why):
        RemoteWindow.open(address)


def test_a_layout_that_is_not_of_the_digest_is_refused() -> None:
    with served(changed((DIGEST, "<Q", 7))) as address, RemoteWindow.open(address) as remote:
        with pytest.raises(SegmentError, match="another digest than its layout"):
            _ = remote.layout
        with pytest.raises(SegmentError, match="another digest than its layout"):
            average([remote], [1.0], TENSORS, LAYOUT)
    with (
        served(changed((MANIFEST, "<Q", 7))) as address,
        RemoteWindow.open(address) as remote,
        pytest.raises(SegmentError, match="malformed"),
    ):
        _ = remote.layout


def test_a_segment_that_is_smaller_than_its_digest_says_is_not_read() -> None:
    small = SnapshotLayout.of({"w": torch.ones(3)})
    with Window(small) as window:
        window.publish({"w": torch.ones(3)}, step=1, metric=None, trained=1)
        address = dict(window.address)
        fd, n_bytes = window.address["fd"], window.address["n_bytes"]
        assert isinstance(fd, int)
        assert isinstance(n_bytes, int)
        content = bytearray(os.pread(fd, n_bytes + 4096, 0))
    content[DIGEST : DIGEST + 32] = LAYOUT.digest
    with (
        served(bytes(content)) as served_at,
        RemoteWindow.open({**address, "fd": served_at["fd"]}) as remote,
        pytest.raises(SegmentError, match="fewer than its digest says"),
    ):
        average([remote], [1.0], TENSORS, LAYOUT)


@pytest.mark.parametrize(
    "content",
    [
        changed((LATEST, "<Q", 3)),
        changed((LATEST, "<Q", 1 << 63)),
        changed((HALVES[0], "<Q", 5)),
        changed((HALVES[0], "<Q", 0)),
    ],
)
def test_words_that_never_fit_are_an_error_and_nothing_is_applied(content: bytes) -> None:
    into = {name: torch.zeros_like(tensor) for name, tensor in TENSORS.items()}
    with served(content) as address, RemoteWindow.open(address) as remote:
        assert average([remote], [1.0], into, LAYOUT) is None
        with pytest.raises(SegmentError, match="never fit"):
            remote.header()
    assert not into["w"].any()


@pytest.mark.parametrize("length", [3841, 1 << 31, (1 << 32) - 1])
def test_a_config_that_is_too_long_is_refused(length: int) -> None:
    with (
        served(changed((HALVES[0] + CONFIG_BYTES, "<I", length))) as address,
        RemoteWindow.open(address) as remote,
    ):
        with pytest.raises(SegmentError, match=f"a config has {length} bytes"):
            remote.header()
        assert average([remote], [1.0], TENSORS, LAYOUT) is None


def test_a_config_that_is_malformed_is_refused() -> None:
    for text in (b"[[[[[[[[", b"[1,2,3]\x00", b"\xff" * 8, b"12345678"):
        content = bytearray(SEGMENT)
        content[HALVES[0] + 256 : HALVES[0] + 264] = text
        with (
            served(bytes(content)) as address,
            RemoteWindow.open(address) as remote,
            pytest.raises(SegmentError, match="config of a snapshot is malformed"),
        ):
            remote.header()


def test_asks_of_any_number_are_bounded() -> None:
    with (
        served(changed((ASK_COUNT, "<Q", (1 << 64) - 1))) as address,
        RemoteWindow.open(address) as remote,
        Window(LAYOUT) as window,
    ):
        assert not window.is_asked([remote])


ids = st.text(max_size=40) | st.just(ADDRESS["id"])
numbers = st.integers(-5, 1 << 70) | st.none() | st.text(max_size=5) | st.booleans() | st.floats()


@given(
    st.fixed_dictionaries(
        {}, optional={"pid": numbers, "started": numbers, "fd": numbers, "n_bytes": numbers, "id": ids}
    )
)
def test_addresses_of_any_values_are_refused(address: dict[str, Any]) -> None:
    with pytest.raises((ConfigError, SegmentError)):
        RemoteWindow.open(address)
    with pytest.raises((ConfigError, SegmentError)):
        RemoteWindow.open({**ADDRESS, **address})


@pytest.mark.parametrize("path", ["/dev/null", "/dev/zero", "/proc/self/mem", "/"])
def test_descriptors_of_other_things_are_refused(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        with pytest.raises(SegmentError):
            RemoteWindow.open({**ADDRESS, "fd": fd})
    finally:
        os.close(fd)


def test_a_pipe_is_refused_without_waiting() -> None:
    reading, writing = os.pipe()
    try:
        with pytest.raises(SegmentError, match="another file"):
            RemoteWindow.open({**ADDRESS, "fd": reading})
    finally:
        os.close(reading)
        os.close(writing)


# Everything but the tensors.
CONTROL = st.integers(0, MANIFEST + len(LAYOUT.manifest) - 1)


@settings(max_examples=300)
@given(st.lists(st.tuples(CONTROL, st.integers(0, 255)), min_size=1, max_size=12))
def test_any_changed_bytes_are_an_error_or_read_as_a_whole(changes: list[tuple[int, int]]) -> None:
    content = bytearray(SEGMENT)
    for offset, value in changes:
        content[offset] = value
    into = {name: torch.zeros_like(tensor) for name, tensor in TENSORS.items()}
    with (
        served(bytes(content)) as address,
        suppress(SegmentError, ConfigError),
        RemoteWindow.open(address) as remote,
        Window(LAYOUT) as own,
    ):
        for use in (
            remote.header,
            remote.is_alive,
            lambda: remote.layout,
            lambda: own.ask(remote),
            lambda: own.is_asked([remote]),
        ):
            with suppress(SoftsError):
                use()
        with suppress(NotFinite):
            applied = average([remote], [1.0], into, LAYOUT)
            assert into["w"].eq(1 if applied else 0).all()


OTHER_USER = """
import os, sys
sys.path[:0] = sys.argv[1:]
import torch
from softs_fast.snapshots import SnapshotLayout, Window
os.setuid(65534)
window = Window(SnapshotLayout.of({"w": torch.zeros(3)}))
print(window.address, flush=True)
sys.stdin.read()
"""


def test_the_window_of_another_user_is_refused() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can start a process of another user")
    with subprocess.Popen(
        [sys.executable, "-c", OTHER_USER, *sys.path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        address = eval(process.stdout.readline())
        with pytest.raises(SegmentError, match="another file"):
            RemoteWindow.open(address)
        process.kill()
