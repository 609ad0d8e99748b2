"""Memory of frames and weights that is used again: taking new pages costs as much as filling them."""

from __future__ import annotations

from threading import Lock

__all__ = ["Memory"]

#: Below this many bytes new memory costs nothing worth saving.
_LEAST_BYTES = 1 << 20


class Memory:
    """Buffers that are handed out again once nothing looks at them. Any thread may call it.

    Args:
        n_kept: buffers that are kept at most, in use or not.
    """

    def __init__(self, n_kept: int) -> None:
        self._n_kept = n_kept
        self._kept: list[bytearray] = []
        self._lock = Lock()

    def take(self, n: int) -> memoryview:
        """Return n bytes, which are not zeroed. They are the caller's as long as a view of them, or a tensor on one, is.

        Args:
            n: bytes, 0 or more.
        """
        if n < _LEAST_BYTES:
            return memoryview(bytearray(n))
        with self._lock:
            for i, one in enumerate(self._kept):
                # Not for much less than it has: a rest that nothing uses would stay in memory.
                if n <= len(one) <= 2 * n and _is_free(one):
                    # The last one used is looked at first: its bytes may still be in a cache.
                    self._kept.insert(0, self._kept.pop(i))
                    return memoryview(one)[:n]
            made = bytearray(n)
            self._kept.insert(0, made)
            del self._kept[self._n_kept :]
            return memoryview(made)


def _is_free(memory: bytearray) -> bool:
    """Nothing outside has the bytearray, only views of it; while there is one, its length cannot be changed."""
    try:
        memory.append(0)
    except BufferError:
        return False
    memory.pop()
    return True
