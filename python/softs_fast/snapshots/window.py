"""Windows: memory in which a process publishes versions of its tensors, and others read them without its help."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .. import _kernels
from ..errors import ConfigError, SegmentError
from ..process import Closing
from ..tensors import as_plain, is_plain
from .layout import SnapshotLayout, TensorEntry

__all__ = [
    "MAX_CONFIG_BYTES",
    "Address",
    "Header",
    "RemoteWindow",
    "Window",
    "as_json",
    "header_of",
]

#: Largest published config, as JSON.
MAX_CONFIG_BYTES = _kernels.MAX_CONFIG_BYTES

#: Where a window is, for a note of a rendezvous: process, its start, descriptor, random id and size.
Address = dict[str, int | str]

_NativeRow = tuple[int, int, int]


@dataclass(frozen=True)
class Header:
    """What the owner of a window says of a version.

    Attributes:
        version: Number of the version, from 1; 0 if nothing was published yet.
        step: Step of the owner when the version was published.
        metric: Metric of the owner; None if it gave none.
        trained: Steps of the owner since its start or its last replacement.
        published_s: Time at which the copy was complete, on the clock of `time.monotonic()`, which all processes of a
            host share.
        config: Dict that the owner published with the version; None if it published none.
    """

    version: int
    step: int
    metric: float | None
    trained: int
    published_s: float
    config: dict[str, Any] | None


class Window(Closing):
    """This process's tensors for others: two halves, of which one is always whole once a version was published.

    Others map it read-only; neither side waits for the other. The memory is in /dev/shm without a name, two times the
    size of the tensors, and is freed with the last process that has it. Calls that publish exclude each other; all
    others may be made by any thread. After `close` they raise ConfigError, in a fork of this process ForkedError.

    Args:
        layout: Layout of the tensors.

    Raises:
        SegmentError: /dev/shm is missing, full, or no tmpfs.
        ConfigError: the layout is too large.

    Example:
        >>> weights = {"w": torch.arange(3.0)}
        >>> with Window(SnapshotLayout.of(weights)) as window:
        ...     version = window.publish(weights, step=100, metric=0.5, trained=100)
        ...     with RemoteWindow.open(window.address) as seen:
        ...         (seen.header().version, seen.header().step)
        (1, 100)

    Source: own, see docs/snapshots.md; two halves with sequence words are a seqlock (Lameter, "Effective
    Synchronization on Linux/NUMA Systems", 2005) with double buffering.
    """

    def __init__(self, layout: SnapshotLayout) -> None:
        self.layout = layout
        self._native = _kernels.SnapshotWindow(layout.n_bytes, layout.manifest, layout.digest)
        self._publishing = threading.Lock()

    def publish(
        self,
        tensors: Mapping[str, Tensor],
        *,
        step: int,
        metric: float | None,
        trained: int,
        config: Mapping[str, Any] | None = None,
    ) -> int:
        """Copy all tensors into the window; return the number of the version.

        Tensors that are contiguous and in host memory are copied once, without the GIL; others are first copied there.

        Args:
            tensors: Tensors of the window's layout. They must not change meanwhile.
            step: Step of this process.
            metric: Metric of this process; None if it has none.
            trained: Steps since the start, or the last replacement of the tensors.
            config: Dict that is published with the tensors; at most MAX_CONFIG_BYTES as JSON.

        Raises:
            ConfigError: the tensors do not fit the layout, the config is too long or not JSON, or the window is closed.
        """
        said = as_json(config)
        bound = self.layout.bind(tensors)
        with _rows(self.layout.tensors, bound) as rows, self._publishing:
            return self._native.publish(rows, step, metric, trained, said)

    def begin(self) -> None:
        """Begin a version that is written in parts; what was begun before and not committed is dropped."""
        with self._publishing:
            self._native.begin()

    def write(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy a part of the tensors into the version that was begun.

        Raises:
            ConfigError: a tensor is not of the layout, no version was begun, or the window is closed.
        """
        entries, bound = self.layout.bind_part(tensors)
        with _rows(entries, bound) as rows, self._publishing:
            self._native.write(rows)

    def write_bytes(self, part: Tensor, at: int) -> None:
        """Copy bytes of a snapshot of the same layout into the version that was begun.

        Args:
            part: uint8 [n], contiguous and in host memory.
            at: offset of its first byte in a snapshot.

        Raises:
            ConfigError: it is no such tensor, the bytes are outside of a snapshot, no version was begun, or the window is
                closed.
        """
        if part.dtype is not torch.uint8 or not is_plain(part):
            raise ConfigError(
                f"part of a snapshot is {part.dtype} {list(part.shape)}; need contiguous uint8 in host memory"
            )
        with self._publishing:
            self._native.write([(part.data_ptr(), at, part.numel())])

    def commit(
        self, *, step: int, metric: float | None, trained: int, config: Mapping[str, Any] | None = None
    ) -> int:
        """Publish the version that was begun, of which all tensors were written; return its number.

        Args:
            step: Step of this process, as for `publish`, like the others.
            metric: Metric of this process.
            trained: Steps since the start or the last replacement.
            config: Dict that is published with the tensors.

        Raises:
            ConfigError: no version was begun, the config is too long or not JSON, or the window is closed.
        """
        said = as_json(config)
        with self._publishing:
            return self._native.commit(step, metric, trained, said)

    @property
    def address(self) -> Address:
        """By which others of this host open it; JSON of about 130 bytes."""
        pid, started, fd, id_, n_bytes = self._native.address()
        return {"pid": pid, "started": started, "fd": fd, "id": id_.hex(), "n_bytes": n_bytes}

    def ask(self, wanted: RemoteWindow) -> None:
        """Say, in this window, that a newer version of another window is wanted than the present one.

        Any newer version answers it. The owner of the other window learns it when it calls `is_asked`.
        """
        self._native.ask(wanted.native)

    def is_asked(self, others: Iterable[RemoteWindow]) -> bool:
        """Return whether the owner of one of other windows wants a newer version than this window has."""
        return self._native.is_asked([other.native for other in others])

    def close(self) -> None:
        """Publish no more; a second call does nothing. Others that have it open keep what was published."""
        self._native.close()


class RemoteWindow(Closing):
    """The window of another process of this host, and of the same user; made by `open`.

    After `close` its uses raise ConfigError, in a fork of the process that opened it ForkedError.
    """

    def __init__(self, native: _kernels.SnapshotRemote, address: Address) -> None:
        self.native = native
        self.address = address
        #: SHA-256 of names, shapes and dtypes.
        self.digest = native.digest()

    @classmethod
    def open(cls, address: Mapping[str, object]) -> RemoteWindow:
        """Map the window at an address, for reading alone.

        Args:
            address: `Window.address` of the window's owner; may come from anywhere.

        Raises:
            ConfigError: it is no address.
            SegmentError: there is no such window: its process has ended, is of another host, pid namespace or user,
                or the memory is malformed.
        """
        pid, started, fd = (_number(address, key) for key in ("pid", "started", "fd"))
        n_bytes, id_ = _number(address, "n_bytes"), str(address.get("id"))
        try:
            nonce = bytes.fromhex(id_)
        except ValueError:
            nonce = b""
        if len(nonce) != 16 or pid >= 1 << 31 or fd >= 1 << 31:
            raise ConfigError(f"address of a window is {str(dict(address))[:200]}; need Window.address")
        native = _kernels.SnapshotRemote.open(pid, started, fd, nonce, n_bytes)
        return cls(native, {"pid": pid, "started": started, "fd": fd, "id": id_, "n_bytes": n_bytes})

    @cached_property
    def layout(self) -> SnapshotLayout:
        """The layout of its tensors.

        Raises:
            SegmentError: the segment says another one than its digest.
        """
        layout = SnapshotLayout.parse(self.native.manifest())
        if layout.digest != self.digest:
            raise SegmentError(
                f"snapshot segment of process {self.address['pid']} has another digest than its layout"
            )
        return layout

    def header(self) -> Header:
        """Return what the owner says of its newest version.

        Raises:
            SegmentError: the segment is malformed.
        """
        return header_of(self.native.header())

    def is_alive(self) -> bool:
        """Return whether the owner runs, and has not closed its window. What it published can be read anyway."""
        return self.native.is_alive()

    def close(self) -> None:
        """Release the memory; a second call does nothing."""
        self.native.close()


def header_of(seen: tuple[int, int, float | None, int, int, bytes]) -> Header:
    """Return the header of the native one; the config is parsed.

    Raises:
        SegmentError: the config is malformed.
    """
    version, step, metric, trained, published_ns, said = seen
    config = None
    if said:
        try:
            config = json.loads(said)
        except (ValueError, RecursionError) as error:
            raise SegmentError(f"the config of a snapshot is malformed: {error}") from error
        if not isinstance(config, dict):
            raise SegmentError("the config of a snapshot is malformed: it is not a dict")
    return Header(version, step, metric, trained, published_ns / 1e9, config)


@contextmanager
def _rows(entries: Iterable[TensorEntry], tensors: list[Tensor]) -> Iterator[list[_NativeRow]]:
    """Yield address, offset and size of each tensor; those that are not plain are copied."""
    plain = [as_plain(tensor) for tensor in tensors]
    yield [
        (tensor.data_ptr(), entry.offset, entry.n_bytes) for tensor, entry in zip(plain, entries, strict=True)
    ]


def as_json(config: Mapping[str, Any] | None) -> bytes:
    """Return a config as it is published.

    Raises:
        ConfigError: it is too long, or not JSON.
    """
    if config is None:
        return b""
    try:
        said = json.dumps(dict(config), separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"config of a snapshot is no JSON: {error}") from error
    if len(said) > MAX_CONFIG_BYTES:
        raise ConfigError(
            f"config of a snapshot has {len(said)} bytes as JSON; at most {MAX_CONFIG_BYTES} are possible"
        )
    return said


def _number(address: Mapping[str, object], key: str) -> int:
    value = address.get(key)
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ConfigError(f'address of a window has "{key}" {str(value)[:50]}; need Window.address')
    return value
