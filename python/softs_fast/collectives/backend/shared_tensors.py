"""Buckets of DistributedDataParallel, moved into memory that all ranks map: these reduce them without staging copies.

A storage that is reduced within backward passes again and again, whole, gets other memory in place: the tensors on it see
none of that. csrc/collective/shared_tensor.hpp says how ranks agree, and when a call reduces in place.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING

import torch

from softs_fast import _kernels
from softs_fast.errors import SegmentError

if TYPE_CHECKING:
    from softs_fast.collectives.backend.work import Pending

_SMALLEST_BYTES = 1 << 16
#: Each has a descriptor as long as it lives, and a mapping for each rank.
_MOST = 256

Storages = weakref.WeakKeyDictionary[torch.UntypedStorage, _kernels.SharedTensor]

#: Those of this process that have been moved, whatever became of their groups.
_moved: Storages = weakref.WeakKeyDictionary()


class SharedTensors:
    """The storages of one group that its ranks may map.

    Args:
        size: Number of ranks.
        pending: Calls of the group that have not ended.
    """

    def __init__(self, size: int, pending: Pending) -> None:
        self._is_alone = size == 1
        self._pending = pending
        self._known: Storages = weakref.WeakKeyDictionary()

    def of(self, tensor: torch.Tensor) -> _kernels.SharedTensor | None:
        """Return what the group knows of the storage of a dense tensor that is about to be reduced; None if it is of no use.

        It may move the storage into shared memory.
        """
        # Outside of a backward pass a tensor may be anything, such as one of which a program keeps the address.
        if self._is_alone or tensor.nbytes < _SMALLEST_BYTES or torch._C._current_graph_task_id() == -1:
            return None
        storage = tensor.untyped_storage()
        if tensor.nbytes != storage.nbytes():
            return None
        shared = self._known.get(storage)
        if shared is None:
            if not _may_move(storage):
                return None
            shared = self._known[storage] = _kernels.SharedTensor()
        if shared.seen() and not self._pending.uses(storage):
            self._move(storage, shared)
        return shared

    def _move(self, storage: torch.UntypedStorage, shared: _kernels.SharedTensor) -> None:
        try:
            if not _may_move(storage) or len(_moved) >= _MOST:
                raise SegmentError("the storage has an owner by now, or there are many")
            # It lends its descriptor.
            fd, n_bytes = storage._share_fd_cpu_()
            # Forks must part from it even if the rest fails.
            _moved[storage] = shared
            try:
                shared.move(storage.data_ptr(), n_bytes, fd)
            finally:
                # torch 2.15 crashes where a shared storage is resized; one of which NumPy has an array refuses that.
                torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).numpy()
        except (RuntimeError, SegmentError):  # that of torch, where /dev/shm is full
            shared.refuse()

    def clear(self) -> None:
        """Drop all of them."""
        self._known.clear()


def _may_move(storage: torch.UntypedStorage) -> bool:
    """Return whether a storage may get other memory: nothing but torch has its address, such as an array of NumPy."""
    return storage.resizable() and not storage.is_shared() and not storage.is_pinned()


def _part_from_parent() -> None:
    """Let a fork write to memory of its own, as with tensors that are not shared."""
    for shared in list(_moved.values()):
        shared.part_from_parent()


os.register_at_fork(after_in_child=_part_from_parent)
