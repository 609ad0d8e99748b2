"""Unnamed shared memory of one process that others of the same user and host map for reading alone.

The format of the first page is that of csrc/collective/mapping.cpp: a magic number, then 16 random bytes. The data
begins at the next page.
"""

from __future__ import annotations

import mmap
import os
import secrets
import stat
from contextlib import suppress
from typing import Any

import numpy as np

from ...errors import FlowError, PeerLost, SegmentError
from ...identity import Process, boot_id, this_process
from .places import SegmentAddress

__all__ = ["HEADER_BYTES", "OwnSegment", "RemoteSegment", "bytes_free"]

_FOLDER = "/dev/shm"
_MAGIC = b"scoll_02"
#: Of the file, before the data.
HEADER_BYTES = 4096
# Memory is allocated in steps of this size.
_STEP_BYTES = 4 << 20

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_Words = np.ndarray[Any, np.dtype[np.uint64]]


class OwnSegment:
    """A segment of this process. The memory is allocated as it is needed, and has no name: the kernel frees it with the
    last process that has it.

    Args:
        n_bytes: largest size; a multiple of 4096.

    Raises:
        SegmentError: /dev/shm is missing or no tmpfs.
    """

    def __init__(self, n_bytes: int) -> None:
        try:
            fd = os.open(_FOLDER, os.O_TMPFILE | os.O_RDWR | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SegmentError(
                f"cannot create shared memory in {_FOLDER} (a tmpfs is needed there): {error}"
            ) from error
        try:
            os.ftruncate(fd, n_bytes + HEADER_BYTES)
            self._allocated = 0
            self._fd = fd
            self.allocate(0)
            memory = mmap.mmap(fd, n_bytes + HEADER_BYTES)
        except (OSError, ValueError) as error:
            os.close(fd)
            if isinstance(error, SegmentError):
                raise
            raise SegmentError(f"cannot map {n_bytes} bytes of shared memory: {error}") from error
        _advise(memory)
        nonce = secrets.token_bytes(16)
        memory[:24] = _MAGIC + nonce
        self.address = SegmentAddress(*this_process(), fd, nonce, n_bytes, boot_id(), "")
        self.data: _Bytes = np.frombuffer(memory, np.uint8)[HEADER_BYTES:]
        self.words: _Words = self.data.view(np.uint64)
        #: Of the first byte of the data.
        self.base: int = self.data.ctypes.data

    def allocate(self, n_bytes: int) -> None:
        """Allocate the first bytes, so that a full /dev/shm is an error here and no SIGBUS later.

        Raises:
            SegmentError: /dev/shm is full; nothing has changed.
        """
        needed = n_bytes + HEADER_BYTES
        if needed <= self._allocated:
            return
        whole = os.fstat(self._fd).st_size
        # Where the rest of a step is not there, what is needed may be.
        for end in (min(-(-needed // _STEP_BYTES) * _STEP_BYTES, whole), needed):
            try:
                os.posix_fallocate(self._fd, self._allocated, end - self._allocated)
            except OSError as error:
                failure = error
            else:
                self._allocated = end
                return
        raise SegmentError(
            f"cannot take {needed - self._allocated} bytes of shared memory, {bytes_free()} are free: {failure}; free or "
            f"enlarge {_FOLDER} (for a container: --shm-size)"
        )

    def close(self) -> None:
        """Others cannot open it any more. The memory is freed with the last array on it."""
        os.close(self._fd)


class RemoteSegment:
    """The segment of another process, mapped for reading alone. It stays readable when that process has ended.

    Args:
        address: Address of the segment; may come from anywhere.
        worker: Number of the worker that owns it, for errors.

    Raises:
        PeerLost: the process has ended.
        FlowError: it is on another host or of another user, or the memory is not that of the address.
    """

    def __init__(self, address: SegmentAddress, worker: int) -> None:
        self.worker = worker
        what = f"rows of worker {worker} (process {address.pid}) cannot be read"
        if this_process().namespace != address.pid_namespace:
            raise FlowError(f"{what}: it is on another host or in another pid namespace")
        path = f"/proc/{address.pid}/fd/{address.fd}"
        try:
            # The descriptor may be a pipe or a terminal by now.
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError as error:
            self._raise_if_ended(address, what)
            raise FlowError(f"{what}: {error}") from error
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_size != address.n_bytes + HEADER_BYTES:
                self._raise_if_ended(address, what)
                raise FlowError(f"{what}: descriptor {address.fd} is another file by now")
            if found.st_uid != os.geteuid():
                raise FlowError(f"{what}: it is of user {found.st_uid}; this process is of {os.geteuid()}")
            memory = mmap.mmap(fd, address.n_bytes + HEADER_BYTES, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:
            if isinstance(error, PeerLost):
                raise
            raise FlowError(f"{what}: {error}") from error
        finally:
            os.close(fd)
        if memory[:24] != _MAGIC + address.nonce:
            self._raise_if_ended(address, what)
            raise FlowError(f"{what}: descriptor {address.fd} is another segment by now")
        _advise(memory)
        self.data: _Bytes = np.frombuffer(memory, np.uint8)[HEADER_BYTES:]
        self.words: _Words = self.data.view(np.uint64)
        self.base: int = self.data.ctypes.data

    @staticmethod
    def _raise_if_ended(address: SegmentAddress, what: str) -> None:
        if not Process(address.pid, address.started, address.pid_namespace).is_alive():
            raise PeerLost(f"{what}: it has ended")


def _advise(memory: mmap.mmap) -> None:
    # Only a hint: hosts that allow huge pages here save most TLB misses.
    with suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)


def bytes_free() -> int:
    """Return how many bytes of shared memory this host can still allocate."""
    found = os.statvfs(_FOLDER)
    return found.f_bavail * found.f_frsize
